"""A machine that is busy with others."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
