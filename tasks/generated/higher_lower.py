"""Find a hidden number by guessing: each guess is answered with "higher" or "lower". A game of several turns.

Each answered guess costs a little, so that what a turn is worth depends on what follows it: `--algo.credit turn`
credits a turn with that, and `outcome` with the costs of the whole game.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Generator

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Reply, Task, Verdict, correct, incorrect

from ..base import generate_task

PROMPT = (
    "I am thinking of a whole number from {low} to {high}. Guess it: say one number, and I will answer higher or "
    "lower. You have {tries} guesses. Put each guess within \\boxed{{}}. (Game {number})"
)

Game = tuple[int, int, int]


def playing(
    problem: Problem, rng: random.Random, *, tries: int, cost: float
) -> Generator[Reply | None, str, Verdict | None]:
    """Answer guesses. A turn without a number is void, and counts as a guess."""
    said = yield None
    for left in range(tries - 1, -1, -1):
        found = re.findall(r"\\boxed\{\s*(\d{1,9})\s*\}", said)
        guess = int(found[-1]) if found else None
        if guess == int(problem.reference):
            return correct(str(guess))
        if not left:
            break
        hint = "higher" if guess is not None and guess < int(problem.reference) else "lower"
        text = "Say a number within \\boxed{}." if guess is None else f"{hint}, {left} left"
        said = yield Reply(text, role="user", reward=-cost, void=guess is None)
    return incorrect(f"not found in {tries} guesses")


def _propose(stream: random.Random) -> tuple[str, Game]:
    low = stream.randrange(0, 500)
    high = low + stream.choice((15, 31, 63))
    return f"{low} {high}", (low, high, stream.randint(low, high))


@register_task("higher_lower")
def higher_lower(
    *, seed: int = 0, num_train: int = 4096, num_test: int = 256, tries: int = 7, cost: float = 0.05
) -> Task:
    """Find a hidden number from hints, in turns of which each costs a little; for models with a chat template."""
    if tries < 1 or cost < 0:
        raise ValueError(f"task 'higher_lower', tries {tries}, cost {cost}: expected at least 1, and at least 0")

    def problem(name: str, game: Game, stream: random.Random) -> Problem:
        low, high, number = game
        _, part, index = name.split("/")
        prompt = PROMPT.format(low=low, high=high, tries=tries, number=f"{part[:2]}-{index}")
        return Problem(name, prompt, str(number))

    return generate_task(
        "higher_lower",
        _propose,
        problem,
        seed=seed,
        sizes=(num_train, num_test),
        environment=functools.partial(playing, tries=tries, cost=cost),
    )
