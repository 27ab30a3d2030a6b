"""Three-digit addition and subtraction with a column scratchpad, for a model trained from scratch.

A completion works from the right, a column at a time. Each column gives the result of its two digits: the carry (or
borrow), then the digit. From the second column on, the result with the carry from the right follows:

    347+585=        7+5=12 4+8=12>13 3+5=08>09 \\boxed{932}
    532-147=        2-7=15 3-4=19>18 5-1=04>03 \\boxed{385}

Differences are at least 100. Shorter ones are so rare that a small model does not learn to drop their leading zeros,
and RL cannot reinforce what is never sampled.

The demonstrations have errors: each carry is forgotten with probability `forget`, and the rest is consistent with that.
A policy that imitates them makes the same errors; only the verifier tells it which samples are right.
"""

from __future__ import annotations

import random
from typing import Literal

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import Demonstration, Generated, build_task, draw

Sum = tuple[int, str, int]


def scratchpad(a: int, sign: str, b: int, random: random.Random, forget: float, places: int = 3) -> str:
    """Return the worked columns of `a sign b` (`places` digits each, as many in a difference) and the boxed result.

    Each carry or borrow is forgotten independently with probability `forget`.
    """
    columns, result, carry = [], 0, 0
    for place in range(places):
        x, y = a // 10**place % 10, b // 10**place % 10
        total = x + y if sign == "+" else x - y
        column = f"{x}{sign}{y}={_carry(total)}{total % 10}"
        if place:
            if carry and random.random() >= forget:
                total += 1 if sign == "+" else -1
            column += f">{_carry(total)}{total % 10}"
        carry = _carry(total)
        columns.append(column)
        result += total % 10 * 10**place
    if sign == "+":
        result += 10**places * carry
    return " ".join(columns) + f" \\boxed{{{result}}}"


def _carry(total: int) -> int:
    return int(not 0 <= total <= 9)


def propose(stream: random.Random) -> tuple[str, Sum]:
    """Return a sum, drawn at random, with the text that tells it from others."""
    a, b = stream.randint(100, 999), stream.randint(100, 999)
    sign = stream.choice("+-")
    while sign == "-" and a - b < 100:
        a, b = stream.randint(100, 999), stream.randint(100, 999)
    return f"{a}{sign}{b}", (a, sign, b)


def _problem(part: str, index: int, drawn: Sum) -> Problem:
    a, sign, b = drawn
    return Problem(f"arithmetic/{part}/{index}", f"{a}{sign}{b}=", str(a + b if sign == "+" else a - b))


@register_task("arithmetic")
def arithmetic(
    *,
    seed: int = 0,
    num_train: int = 4096,
    num_test: int = 512,
    num_demonstrations: int = 16000,
    forget: float = 0.6,
    signs: Literal["+-", "+", "-"] = "+-",
) -> Task:
    """Three-digit sums with a scratchpad, and sloppy demonstrations for SFT: learns on a CPU in a minute.

    forget: the probability of each carry to be forgotten in demonstrations. signs: sums, differences, or both.
    `math` asks for answers that are evaluated (unevaluated=reject), as wherever all references are numbers.
    """
    if not 0 <= forget <= 1:
        raise ValueError(f"task 'arithmetic', forget {forget}: expected a probability in [0, 1]")
    if signs not in ("+-", "+", "-"):
        raise ValueError(f"task 'arithmetic', signs {signs!r}: expected +, - or +-")

    def chosen(stream: random.Random) -> tuple[str, Sum]:
        key, drawn = propose(stream)
        while drawn[1] not in signs:
            key, drawn = propose(stream)
        return key, drawn

    def problem(part: str, index: int) -> Problem:
        return _problem(part, index, draw("arithmetic", part, seed, index, chosen)[1])

    def demonstration(index: int) -> Demonstration:
        stream, drawn = draw("arithmetic", "demonstrations", seed, index, chosen)
        return _problem("demonstrations", index, drawn), scratchpad(*drawn, stream, forget)

    return build_task(
        "arithmetic",
        train=Generated(num_train, lambda index: problem("train", index)),
        test=Generated(num_test, lambda index: problem("test", index)),
        demonstrations=Generated(num_demonstrations, demonstration),
        check_references=False,
    )
