"""Attacks on rollouts with tools: turns of a model that means harm, and tools that misbehave."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from random import Random
from typing import Literal

from rlvr.core.types import Environment, Problem, Reply, Verdict
from rlvr.environments.tools import tool, tools
from tests.helpers.environments import fence
from tests.helpers.files import GOLDEN, lines

SECRET = "reference-4711"
SECONDS = 0.5  # of a program
Turns = Generator[Reply | None, str, Verdict | None]


@dataclass(frozen=True)
class Attack:
    """A rollout that must not be rewarded.

    said: programs of the model's turns in order; its last turn repeats the last reply, whatever it holds. expected: the
    rollout has no score, or it is judged by that last turn; then `shows` is in the reply. environment: by default
    `tools("python")`. keep: one interpreter runs all its programs.
    """

    name: str
    said: tuple[str, ...]
    expected: Literal["unscored", "judged"] = "judged"
    shows: str = ""
    environment: Environment | None = None
    keep: bool = False

    def target(self) -> Environment:
        """Return the environment that it attacks."""
        return self.environment or tools("python", seconds=SECONDS, state="keep" if self.keep else "fresh")

    def turns(self) -> list[str]:
        """Return the model's turns but the last."""
        return [text if text.startswith(("`", "I need", "The")) else fence("python", text) for text in self.said]


def programs(canary: str) -> list[Attack]:
    """Return the attacks by programs. canary: a file of the caller's."""
    rows = lines(GOLDEN / "tool_attacks.jsonl")
    return [Attack(**{**row, "said": tuple(text.replace("CANARY", canary) for text in row["said"])}) for row in rows]


@tool
def dies(text: str) -> str:
    """Raise."""
    raise OSError("service lost")


@tool
def exits(text: str) -> str:
    """End the process of the trainer."""
    sys.exit(0)


@tool
def interrupts(text: str) -> str:
    """Interrupt the trainer."""
    raise KeyboardInterrupt


@tool
def returns_bytes(text: str) -> str:
    """Return no text."""
    return b"4"  # type: ignore[return-value]


@tool
def floods(text: str) -> str:
    """Return too much."""
    return SECRET[:9] * 10**7


@tool
def hangs(text: str) -> str:
    """Answer after the episode has ended."""
    time.sleep(2)
    return SECRET


def goes_on_when_closed(problem: Problem, rng: Random) -> Turns:
    """Reply again after the end."""
    yield
    try:
        while True:
            yield Reply("4", role="user")
    except GeneratorExit:
        with contextlib.suppress(GeneratorExit):
            yield Reply(SECRET)
    return None


def misbehaving_attacks() -> list[Attack]:
    """Return the attacks by tools and environments in the trainer's process."""
    return [
        *(
            Attack(f"a tool {made.name}", (fence(made.name, "x"),), "unscored", environment=tools(made))
            for made in (dies, exits, interrupts, returns_bytes, hangs)
        ),
        Attack("a tool floods", (fence("floods", "x"),), environment=tools(floods), shows="characters left out"),
        Attack("goes on when closed", ("`",), environment=goes_on_when_closed, shows="4"),
    ]
