"""What came of the tests of one run, and the sizes of values that tests may pass and expect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rlvr.sandbox import Result, RunStatus
from rlvr.sandbox.inside import plain

MAX_EXPECTED = 8 << 20  # characters of an output, or bytes of values


@dataclass(frozen=True)
class Outcome:
    """How many of `total` tests passed, and the first failure.

    `test`: its number, from 1; `what`: the failure in words; `status`: how the run of the program ended.
    """

    passed: int
    total: int
    status: RunStatus = RunStatus.OK
    test: int = 0
    what: str = ""


class TooLarge(str):
    """What is wrong with a test of which it cannot be told, within bounds of time and memory, whether it is passed."""


def outcome_of(wrong: list[str | TooLarge], result: Result) -> Outcome:
    """Return the outcome of tests in one run, of which each has something wrong or an empty text."""
    total = len(wrong)
    failed = next((number for number, what in enumerate(wrong) if what), None)
    if failed is None:
        ended = result.status is RunStatus.OK
        return Outcome(total if ended else 0, total, result.status, 0, "" if ended else result.detail)
    ended = isinstance(wrong[failed], TooLarge) and result.status is RunStatus.OK
    status = RunStatus.OUTPUT_LIMIT if ended else result.status
    return Outcome(wrong.count(""), total, status, failed + 1, wrong[failed])


def size_of(value: Any, what: str) -> int:
    """Return the bytes of a value on its way to or from a program. Raise ValueError where it cannot go that way."""
    try:
        return len(plain.dumps(plain.encode(value, whole=True)))
    except plain.TooLarge:
        raise ValueError(f"{what} cannot be passed: too many items, too deep or too long a number") from None
