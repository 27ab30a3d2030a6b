"""Three-digit addition and subtraction with a column scratchpad, for a model trained from scratch.

A completion works column by column from the right. Each column gives the result of its two digits: the carry (or
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

from ..base import Demonstration, check_probabilities, generate_task

Sum = tuple[int, str, int]


def result_of(drawn: Sum) -> int:
    a, sign, b = drawn
    return a + b if sign == "+" else a - b


def write_sum(drawn: Sum) -> str:
    """Return the prompt: 347+585=."""
    return "{}{}{}=".format(*drawn)


def sum_problem(name: str, drawn: Sum, stream: random.Random) -> Problem:
    return Problem(name, write_sum(drawn), str(result_of(drawn)))


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
    """Draw a sum; return its key and it."""
    a, b = stream.randint(100, 999), stream.randint(100, 999)
    sign = stream.choice("+-")
    while sign == "-" and a - b < 100:
        a, b = stream.randint(100, 999), stream.randint(100, 999)
    return f"{a}{sign}{b}", (a, sign, b)


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
    check_probabilities("arithmetic", forget=forget)

    def propose_signed(stream: random.Random) -> tuple[str, Sum]:
        key, drawn = propose(stream)
        while drawn[1] not in signs:
            key, drawn = propose(stream)
        return key, drawn

    def demonstrate(name: str, drawn: Sum, stream: random.Random) -> Demonstration:
        return sum_problem(name, drawn, stream), scratchpad(*drawn, stream, forget)

    sizes = num_train, num_test, num_demonstrations
    return generate_task("arithmetic", propose_signed, sum_problem, demonstrate, seed=seed, sizes=sizes)
