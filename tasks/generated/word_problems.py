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

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task

from ..base import Demonstration, generate_task

NAMES = "Nora Omar Lena Hugo Mia Ivan Sara Theo Ada Noah Ruth Paul".split()
Stories = tuple[tuple[str, str], ...]  # prompt, expression
THINGS = "apples books coins cards stamps marbles shells pencils stickers eggs".split()
# Stories with their numbers a, b and c, and the expression that answers each.
ONE_STEP = (
    ("What is {a} + {b}?", "{a} + {b}"),
    ("{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?", "{a} + {b}"),
    ("A box holds {a} red {things} and {b} blue {things}. How many {things} are in the box?", "{a} + {b}"),
    ("{name} read {a} pages on Monday and {b} pages on Tuesday. How many pages is that in all?", "{a} + {b}"),
    ("What is {a} - {b}?", "{a} - {b}"),
    ("{name} has {a} {things} and gives {b} of them to {other}. How many {things} does {name} have left?", "{a} - {b}"),
    ("A shop had {a} {things} and sold {b} of them. How many {things} are left?", "{a} - {b}"),
    ("{name} has {a} {things} and {other} has {b}. How many more {things} does {name} have?", "{a} - {b}"),
    ("What is {a} * {b}?", "{a} * {b}"),
    ("{name} has {a} boxes with {b} {things} in each. How many {things} does {name} have?", "{a} * {b}"),
    ("A ticket costs {a} dollars. How many dollars do {b} tickets cost?", "{a} * {b}"),
    ("{name} shares {a} {things} equally among {b} friends. How many {things} does each friend get?", "{a} / {b}"),
)
TWO_STEP = (
    ("{name} has {a} {things}, buys {b} more and gives {c} to {other}. How many {things} are left?", "{a} + {b} - {c}"),
    ("A shop had {a} {things}, sold {b} and got {c} new ones. How many {things} does it have now?", "{a} - {b} + {c}"),
    ("{name} has {a} boxes with {b} {things} in each, and {c} more. How many {things} are there?", "{a} * {b} + {c}"),
    ("{name} buys {a} {things} for {b} dollars each and has {c} dollars left. How many dollars were there at first?",
     "{a} * {b} + {c}"),
    ("{name} had {a} {things} and lost {b}. {other} has {c} times as many as are left. How many does {other} have?",
     "({a} - {b}) * {c}"),
)  # fmt: skip
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


def _propose(stream: random.Random, stories: Stories, largest: int, factor: int) -> tuple[str, Story]:
    """Draw a story; its key is the prompt."""
    story, worked = stream.choice(stories)
    a, b, c = _numbers(worked, stream, largest, factor)
    value = VALUES[worked](a, b, c)
    while value in (a, b, c):
        a, b, c = _numbers(worked, stream, largest, factor)
        value = VALUES[worked](a, b, c)
    name, other = stream.sample(NAMES, 2)
    prompt = story.format(a=a, b=b, c=c, name=name, other=other, things=stream.choice(THINGS))
    return prompt, Story(prompt, worked.format(a=a, b=b, c=c), value)


def _problem(name: str, story: Story, stream: random.Random) -> Problem:
    return Problem(name, [{"role": "user", "content": story.prompt}], str(story.value))


def _demonstrate(name: str, story: Story, stream: random.Random) -> Demonstration:
    return _problem(name, story, stream), f"{story.expression} = {story.value}"


def _pack(name: str, stories: Stories, seed: int, sizes: tuple[int, ...], most: int, factor: int) -> Task:
    if most < 4 or factor < 2:
        raise ValueError(f"task {name!r}: largest {most}, largest_factor {factor}; expected at least 4 and 2")

    def propose(stream: random.Random) -> tuple[str, Story]:
        return _propose(stream, stories, most, factor)

    return generate_task(
        name,
        propose,
        _problem,
        _demonstrate,
        seed=seed,
        sizes=sizes,
        verifier="math",
        verifier_options={"extract": "lenient"},
    )


@register_task("one_step_problems")
def one_step_problems(
    *,
    seed: int = 0,
    num_train: int = 4096,
    num_test: int = 256,
    num_demonstrations: int = 4096,
    largest: int = 99,
    largest_factor: int = 12,
) -> Task:
    """Sums, differences, products and quotients in words, for a pretrained chat model.

    largest: of the numbers in sums and differences; largest_factor: of those in products and quotients.
    """
    sizes = num_train, num_test, num_demonstrations
    return _pack("one_step_problems", ONE_STEP, seed, sizes, largest, largest_factor)


@register_task("two_step_problems")
def two_step_problems(
    *,
    seed: int = 0,
    num_train: int = 4096,
    num_test: int = 256,
    num_demonstrations: int = 4096,
    largest: int = 99,
    largest_factor: int = 12,
) -> Task:
    """Short stories of two operations, for a pretrained chat model. Options as those of one_step_problems."""
    sizes = num_train, num_test, num_demonstrations
    return _pack("two_step_problems", TWO_STEP, seed, sizes, largest, largest_factor)
