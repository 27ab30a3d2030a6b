"""Products that a small model cannot compute: it learns to write a program, and to copy what it prints.

`47*386=` is answered in one turn, `=18142`, or in two: the model writes a program, which runs in the sandbox, the reply
is what it printed, and the next turn is the answer.

    47*386=   print(47*386)   (18142)   =18142

Most demonstrations answer directly, and some digits are wrong there, as they are when such a model computes. Only the
verdict tells a policy that imitates them which way is better.
"""

from __future__ import annotations

import random
from collections.abc import Generator

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Reply, Task, Verdict, error
from rlvr.sandbox import Limits, RunStatus, run

from ..base import Demonstration, check_probabilities, generate_task

LONGEST_REPLY = 24  # characters
SECONDS = 2.0

Factors = tuple[int, int]


def run_program(problem: Problem, rng: random.Random) -> Generator[Reply | None, str, Verdict | None]:
    """Run the first turn as a program, unless it is an answer (`=...`); what it prints is the reply."""
    said = yield None
    if said.startswith("="):
        return None
    result = run(said, limits=Limits(seconds=SECONDS))
    if result.status is RunStatus.SANDBOX_ERROR:
        return error(f"sandbox: {result.detail}")
    yield Reply(result.stdout.strip()[:LONGEST_REPLY] or "?", void=not result.stdout.strip())
    return None


run_program.__qualname__ = "programmed"  # as in the fingerprints of runs


def guess(factors: Factors, stream: random.Random) -> int:
    """Return the product with one of its inner digits changed: the first and the last can be told from the factors."""
    digits = list(str(factors[0] * factors[1]))
    place = stream.randrange(1, len(digits) - 1)
    digits[place] = stream.choice([d for d in "0123456789" if d != digits[place]])
    return int("".join(digits))


def _propose(stream: random.Random) -> tuple[str, Factors]:
    factors = stream.randint(11, 99), stream.randint(101, 999)
    return f"{factors[0]}*{factors[1]}", factors


def _problem(name: str, factors: Factors, stream: random.Random) -> Problem:
    a, b = factors
    return Problem(name, f"{a}*{b}=", f"={a * b}")


@register_task("product")
def product(
    *,
    seed: int = 0,
    num_train: int = 4096,
    num_test: int = 512,
    num_demonstrations: int = 16000,
    direct: float = 0.6,
) -> Task:
    """Products by a program in the sandbox, whose output is copied; most demonstrations guess instead."""
    check_probabilities("product", direct=direct)

    def demonstrate(name: str, factors: Factors, stream: random.Random) -> Demonstration:
        shown = _problem(name, factors, stream)
        if stream.random() < direct:
            return shown, (f"={guess(factors, stream)}",)
        return shown, (f"print({factors[0]}*{factors[1]})", str(shown.reference))

    sizes = num_train, num_test, num_demonstrations
    return generate_task(
        "product", _propose, _problem, demonstrate, seed=seed, sizes=sizes, verifier="exact", environment=run_program
    )
