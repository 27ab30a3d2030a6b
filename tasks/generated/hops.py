"""Hops through a hidden permutation of the letters: a task that cannot be solved without asking.

`831c4:` asks which letter is four hops from c in the permutation 831, which only the environment knows. In a turn the
model asks for one hop with `?c`, and the reply is the letter that follows c; or it answers with `=m`, which ends the
rollout. There is a permutation for each of 1,000 numbers, so guessing is right in one case of 26.

    831c4:   ?c   (m)   ?m   (q)   ?q   (a)   ?a   (x)   =x

The demonstrations have errors: of two, one makes a hop too many or too few before it answers. A policy that imitates
them makes the same errors; only the verdict tells it that it has to count.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Generator

from rlvr.core.registry import register_task
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, Reply, Task, Verdict

from ..base import Demonstration, check_probabilities, generate_task

LETTERS = string.ascii_lowercase
MOST_TURNS = 12  # the longest demonstration has seven

Start = tuple[int, str, int]


def permutation(seed: int, number: int) -> dict[str, str]:
    """Return the letter that follows each letter, in one circle of all letters."""
    order = list(LETTERS)
    random.Random(derive_seed("hops", "permutation", seed, number)).shuffle(order)
    return dict(zip(order, order[1:] + order[:1]))


def hopping(problem: Problem, rng: random.Random) -> Generator[Reply | None, str, Verdict | None]:
    """Answer questions for one hop, in the permutation that `problem.info` names; the first other turn is the last."""
    following = permutation(problem.info["seed"], problem.info["number"])
    said = yield None
    for _ in range(MOST_TURNS):
        asked = re.fullmatch(r"\?([a-z])", said.strip())
        if asked is None:
            break
        said = yield Reply(following[asked[1]])
    return None


def walk(seed: int, start: Start, hops: int) -> list[str]:
    """Return the letters from the start on, `hops` + 1 of them."""
    number, letter, _ = start
    following, found = permutation(seed, number), [letter]
    for _ in range(hops):
        found.append(following[found[-1]])
    return found


def _propose(stream: random.Random) -> tuple[str, Start]:
    start = stream.randrange(1000), stream.choice(LETTERS), stream.randint(2, 5)
    return _prompt(start), start


def _prompt(start: Start) -> str:
    number, letter, hops = start
    return f"{number:03d}{letter}{hops}:"


@register_task("hops")
def hops(
    *,
    seed: int = 0,
    num_train: int = 4096,
    num_test: int = 512,
    num_demonstrations: int = 16000,
    miscount: float = 0.5,
) -> Task:
    """Hops through a hidden permutation, asked for in turns; demonstrations miscount: learns on a CPU in minutes."""
    check_probabilities("hops", miscount=miscount)

    def problem(name: str, start: Start, stream: random.Random) -> Problem:
        answer = f"={walk(seed, start, start[2])[-1]}"
        return Problem(name, _prompt(start), answer, info={"seed": seed, "number": start[0]})

    def demonstrate(name: str, start: Start, stream: random.Random) -> Demonstration:
        count = start[2] + (stream.choice((-1, 1)) if stream.random() < miscount else 0)
        *asked, last = walk(seed, start, count)
        return problem(name, start, stream), (*(f"?{letter}" for letter in asked), f"={last}")

    sizes = num_train, num_test, num_demonstrations
    return generate_task(
        "hops", _propose, problem, demonstrate, seed=seed, sizes=sizes, verifier="exact", environment=hopping
    )
