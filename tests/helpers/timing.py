"""Processor time of a call, for assertions that must hold on a machine that is busy with other work."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


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
