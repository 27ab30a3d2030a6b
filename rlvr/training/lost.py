"""A process of a run that dies or hangs ends the others, which say in one line which it was."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from rlvr.distributed import Processes
from rlvr.types import RunError

# How gloo and NCCL say that a process has gone, or has not answered before the timeout of their group.
GONE = re.compile(r"connection (was )?(closed|reset)|closed by (peer|remote)|broken pipe|timed ?out|NCCL error", re.I)
SECONDS = 10.0  # in which a process that is alive finds out too, and says so


@contextmanager
def naming_lost(processes: Processes) -> Iterator[None]:
    """Run within what processes do together. Raises RunError, which names those that do not answer, where one is lost.

    A process that is killed is noticed at once, by its connections; for one that hangs see rlvr.training.watch.
    """
    try:
        yield
    except RuntimeError as error:
        if processes.num_processes == 1 or not GONE.search(str(error)):
            raise
        line = next(iter(str(error).splitlines()), "")
        raise RunError(
            f"{missing(processes)} of {processes.num_processes} died or hung, and this one cannot go on without it; "
            f"run the same command to resume from the last checkpoint ({line[:120]})"
        ) from error


def missing(processes: Processes) -> str:
    """Return which processes do not say that they are there; "a process" where that cannot be told."""
    others: list[int] = []
    try:
        store = PrefixStore("rlvr/lost", _get_default_store())
        store.set(str(processes.process_index), "here")
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            others = [rank for rank in range(processes.num_processes) if not store.check([str(rank)])]
            if not others:
                break
            time.sleep(0.2)
    except RuntimeError:
        return "a process"  # the one that held the store
    if not others:
        return "a process"
    return f"process{'es' if len(others) > 1 else ''} {', '.join(map(str, others))}"
