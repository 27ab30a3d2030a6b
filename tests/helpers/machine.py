"""Processor time of a call, for assertions that must hold on a machine that is busy with other work."""

from __future__ import annotations

import fcntl
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rlvr.core.types import Problem, Verdict


@dataclass
class Taken:
    """What `processor_time` measured: seconds of this thread, once its block has ended."""

    seconds: float = float("nan")


@contextmanager
def processor_time() -> Iterator[Taken]:
    """Measure the seconds that this thread computes within the block.

    Time in which other threads or processes run does not count, and the garbage of earlier tests, which may take half
    a second to look through, is not collected within. What an assertion compares it with should still be five times
    what the slowest machine needs: caches and clocks differ.
    """
    taken = Taken()
    enabled = gc.isenabled()
    gc.disable()
    start = time.thread_time()
    try:
        yield taken
    finally:
        taken.seconds = time.thread_time() - start
        if enabled:
            gc.enable()


# A machine that is busy with others.


@contextmanager
def busy_processors() -> Iterator[None]:
    """Run processes that leave a program about a third of a core within; those of one test at a time."""
    spin = [sys.executable, "-c", "while True: pass"]
    others: list[subprocess.Popen[bytes]] = []
    with (Path(tempfile.gettempdir()) / "rlvr-tests-busy").open("a") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        try:
            for _ in range(2 * len(os.sched_getaffinity(0))):
                others.append(subprocess.Popen(spin, start_new_session=True))
            yield
        finally:
            for other in others:
                other.kill()
                other.wait()


# Pairs for a runner, and processes that should be gone.


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
