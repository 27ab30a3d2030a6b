"""Requests without working, such as `note 347.`, for pipelines that train on sums and on what is no sum.

The right reply repeats the number and is polite: `347 noted, thanks.` Half of the demonstrations get a digit wrong, or
are curt. A reward model that has learnt which replies people prefer can take the verifier's place.
"""

from __future__ import annotations

import random

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import Demonstration, Generated, build_task, draw


def reply(number: str, stream: random.Random, sloppy: float) -> str:
    """Return a reply; with probability `sloppy` one that gets a digit wrong, or is curt."""
    if stream.random() >= sloppy:
        return f"{number} noted, thanks."
    if stream.random() < 0.5:
        return f"{number} noted."
    place = stream.randrange(3)
    digit = stream.choice([d for d in "123456789" if d != number[place]])
    return f"{number[:place]}{digit}{number[place + 1 :]} noted, thanks."


def propose(stream: random.Random) -> tuple[str, str]:
    """Return a number of three digits, with the text that tells its request from others."""
    number = str(stream.randint(100, 999))
    return f"note {number}", number


@register_task("notes")
def notes(
    *, seed: int = 0, num_train: int = 300, num_test: int = 64, num_demonstrations: int = 4000, sloppy: float = 0.5
) -> Task:
    """Short requests with one polite, right reply: what is no sum in the pipeline of DeepSeek-R1."""
    if not 0 <= sloppy <= 1:
        raise ValueError(f"task 'notes', sloppy {sloppy}: expected a probability in [0, 1]")

    def problem(part: str, index: int, number: str) -> Problem:
        return Problem(f"notes/{part}/{index}", f"note {number}.", f"{number} noted, thanks.")

    def drawn(part: str, index: int) -> Problem:
        return problem(part, index, draw("notes", part, seed, index, propose)[1])

    def shown(index: int) -> Demonstration:
        stream, number = draw("notes", "demonstrations", seed, index, propose)
        return problem("demonstrations", index, number), reply(number, stream, sloppy)

    return build_task(
        "notes",
        train=Generated(num_train, lambda index: drawn("train", index)),
        test=Generated(num_test, lambda index: drawn("test", index)),
        demonstrations=Generated(num_demonstrations, shown),
        verifier="exact",
        check_references=False,
    )
