"""Pairs for a runner, and processes that should be gone."""

from __future__ import annotations

import time
from pathlib import Path

from rlvr.core.types import Problem, Verdict


def pairs_of(count: int, start: int = 0) -> list[tuple[Problem, str]]:
    """Return pairs that are right where the number is even; each completion says its number."""
    return [(Problem(str(i), "", str(i) if i % 2 == 0 else "odd"), str(i)) for i in range(start, start + count)]


def as_expected(verdicts: list[Verdict], start: int = 0) -> bool:
    """Check the verdicts on `pairs_of`."""
    return all(
        verdict.extracted == str(i) and verdict.correct == (i % 2 == 0) for i, verdict in enumerate(verdicts, start)
    )


def alive(pid: int) -> bool:
    """Check whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone_within(seconds: float, pids: list[int]) -> bool:
    """Wait until none of these processes runs. Returns False if some do after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not any(map(alive, pids)):
            return True
        time.sleep(0.02)
    return False
