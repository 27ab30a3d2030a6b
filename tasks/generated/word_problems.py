"""Arithmetic in words for a pretrained chat model: questions of one and of two steps, asked as people ask them.

    one_step_problems    Nora has 42 apples and buys 17 more. How many apples does Nora have now?        59
    two_step_problems    Nora has 42 apples, buys 17 more and gives 9 to Omar. How many are left?        50

Nothing in a prompt says how an answer must look: `math` reads it leniently, from whatever the model says. No number of
a prompt is its answer, and an answer that only repeats the question is none, so that nothing is gained by copying.
No held-out prompt is trained on; its numbers may be, in another story.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rlvr.core.files.tables import read_sections
from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task

from ..base import Demonstration, generate_task

NAMES = "Nora Omar Lena Hugo Mia Ivan Sara Theo Ada Noah Ruth Paul".split()
THINGS = "apples books coins cards stamps marbles shells pencils stickers eggs".split()
STORIES = {
    steps: [tuple(line.split(" = ")) for line in lines]
    for steps, lines in read_sections(Path(__file__).with_suffix(".txt")).items()
}
"""By the number of steps: stories with their numbers a, b and c, each with the expression that answers it."""
VALUES: dict[str, Callable[[int, int, int], int]] = {
    "{a} + {b}": lambda a, b, c: a + b,
    "{a} - {b}": lambda a, b, c: a - b,
    "{a} * {b}": lambda a, b, c: a * b,
    "{a} / {b}": lambda a, b, c: a // b,
    "{a} + {b} - {c}": lambda a, b, c: a + b - c,
    "{a} - {b} + {c}": lambda a, b, c: a - b + c,
    "{a} * {b} + {c}": lambda a, b, c: a * b + c,
    "({a} - {b}) * {c}": lambda a, b, c: (a - b) * c,
}


@dataclass(frozen=True, slots=True)
class Story:
    """A drawn story. expression: what is worked, in numbers; value: the answer."""

    prompt: str
    expression: str
    value: int


def _numbers(worked: str, stream: random.Random, largest: int, factor: int) -> tuple[int, int, int]:
    """Draw the numbers of an expression; its value and those of its parts are positive whole numbers."""
    a, b, c = (stream.randint(2, largest) for _ in range(3))
    if "{a} - {b}" in worked:
        a, b = max(a, b) + 1, min(a, b)
    if "{a} * {b}" in worked or "{a} / {b}" in worked:
        a, b = stream.randint(2, factor), stream.randint(2, factor)
    if "{a} / {b}" in worked:
        a *= b
    if "{a} + {b} - {c}" in worked:
        c = stream.randint(2, a + b - 1)
    if ") * {c}" in worked:
        a, c = b + stream.randint(1, factor), stream.randint(2, factor)
    return a, b, c


def _propose(stream: random.Random, steps: str, largest: int, factor: int) -> tuple[str, Story]:
    """Draw a story; its key is the prompt."""
    story, worked = stream.choice(STORIES[steps])
    while True:
        a, b, c = _numbers(worked, stream, largest, factor)
        value = VALUES[worked](a, b, c)
        if value not in (a, b, c):
            break
    name, other = stream.sample(NAMES, 2)
    prompt = story.format(a=a, b=b, c=c, name=name, other=other, things=stream.choice(THINGS))
    return prompt, Story(prompt, worked.format(a=a, b=b, c=c), value)


def _problem(name: str, story: Story, stream: random.Random) -> Problem:
    return Problem(name, [{"role": "user", "content": story.prompt}], str(story.value))


def _demonstrate(name: str, story: Story, stream: random.Random) -> Demonstration:
    return _problem(name, story, stream), f"{story.expression} = {story.value}"


def _register(name: str, steps: str, summary: str) -> None:
    def pack(
        *,
        seed: int = 0,
        num_train: int = 4096,
        num_test: int = 256,
        num_demonstrations: int = 4096,
        largest: int = 99,
        largest_factor: int = 12,
    ) -> Task:
        if largest < 4 or largest_factor < 2:
            given = f"largest {largest}, largest_factor {largest_factor}"
            raise ValueError(f"task {name!r}: {given}; expected at least 4 and 2")
        return generate_task(
            name,
            lambda stream: _propose(stream, steps, largest, largest_factor),
            _problem,
            _demonstrate,
            seed=seed,
            sizes=(num_train, num_test, num_demonstrations),
            verifier="math",
            verifier_options={"extract": "lenient"},
        )

    pack.__name__ = pack.__qualname__ = name
    pack.__doc__ = f"""{summary}, for a pretrained chat model.

    largest: of the numbers in sums and differences; largest_factor: of those in products and quotients.
    """
    register_task(name)(pack)


_register("one_step_problems", "one step", "Sums, differences, products and quotients in words")
_register("two_step_problems", "two steps", "Short stories of two operations")
