"""Countdown: reach a target with the given numbers, each used once. Every problem has a solution.

The answer is an expression, which the verifier `countdown` parses and evaluates.
"""

from __future__ import annotations

import random

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task

from ..base import generate_task

PROMPT = (
    "Use the numbers {numbers} to make an expression that equals {target}. Use each number exactly once, and only the "
    "operations +, -, * and / with brackets. Think step by step, and put the expression within \\boxed{{}}."
)

Puzzle = tuple[list[int], int, str]


def _combine(stream: random.Random, terms: list[tuple[int, str]]) -> tuple[int, str]:
    """Combine all terms, two at a time, in random order and by random signs; return the value and its expression.

    Divisions are drawn only where they leave no remainder.
    """
    while len(terms) > 1:
        (x, left), (y, right) = (terms.pop(stream.randrange(len(terms))) for _ in range(2))
        results = {"+": x + y, "-": x - y, "*": x * y}
        if y and x % y == 0:
            results["/"] = x // y
        sign = stream.choice(list(results))
        terms.append((results[sign], f"({left} {sign} {right})"))
    return terms[0]


def _propose(stream: random.Random, sizes: tuple[int, int], largest: int, largest_target: int) -> tuple[str, Puzzle]:
    """Draw a solvable puzzle. Its key holds the sorted numbers and the target: puzzles with one key are the same."""
    while True:
        numbers = [stream.randint(1, largest) for _ in range(stream.randint(*sizes))]
        value, expression = _combine(stream, [(number, str(number)) for number in numbers])
        if 1 <= value <= largest_target and value not in numbers:
            return f"{sorted(numbers)} {value}", (numbers, value, expression[1:-1])


@register_task("countdown")
def countdown(
    *,
    seed: int = 0,
    num_train: int = 4096,
    num_test: int = 256,
    min_numbers: int = 3,
    max_numbers: int = 4,
    largest: int = 99,
    largest_target: int = 100,
) -> Task:
    """Reach a target with three or four numbers, each used once; every puzzle is solvable."""
    if not 2 <= min_numbers <= max_numbers <= 8:
        raise ValueError(f"task 'countdown': {min_numbers} to {max_numbers} numbers; expected 2 <= min <= max <= 8")
    if largest < 4 or largest_target < 10:
        raise ValueError(f"task 'countdown': largest {largest}, target {largest_target}; expected at least 4 and 10")

    def propose(stream: random.Random) -> tuple[str, Puzzle]:
        return _propose(stream, (min_numbers, max_numbers), largest, largest_target)

    def problem(name: str, puzzle: Puzzle, stream: random.Random) -> Problem:
        numbers, target, expression = puzzle
        prompt = PROMPT.format(numbers=numbers, target=target)
        return Problem(name, prompt, {"numbers": numbers, "target": target}, {"answer": expression})

    return generate_task("countdown", propose, problem, seed=seed, sizes=(num_train, num_test), verifier="countdown")
