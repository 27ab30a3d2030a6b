"""A thread of each process that tells the others where it is, and ends it where one of them keeps all waiting."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

import rlvr
from rlvr.distributed import Processes
from rlvr.model.progress import PROGRESS
from rlvr.training.prefetch import in_thread
from rlvr.training.signals import fitted, leave
from rlvr.training.stalls import Judge, Sign
from rlvr.types import RunError

SECONDS = 5.0  # between two signs at most
VERDICT = "verdict"
OWN = str(Path(rlvr.__file__).parent)


@contextmanager
def watching(processes: Processes, timeout: float, warn: Callable[[str], None]) -> Iterator[None]:
    """Run the training within, watched: where a process keeps the others waiting for `timeout` s, all end.

    Each prints one line that names it and its place, and leaves with exit code 1; what it waits for cannot be
    interrupted. `warn` gets a line where one is much slower than the others.
    """
    watch = Watch(processes, timeout, warn)
    try:
        yield
    except RuntimeError as error:  # another one has left because of the verdict
        line = watch.verdict()
        if line:
            raise RunError(line) from error
        raise
    finally:
        watch.close()


class Watch:
    """Gives a sign of this process to the store of all; the first two also judge, so that either may hang."""

    def __init__(self, processes: Processes, timeout: float, warn: Callable[[str], None]) -> None:
        PROGRESS.clear()
        self.rank, self.count, self.timeout, self.warn = (
            processes.process_index,
            processes.num_processes,
            timeout,
            warn,
        )
        self.judge = Judge(self.count, timeout) if self.rank < 2 else None
        self.store = own_store() if self.count > 1 else None
        self._trained_by = threading.get_ident()
        self._number = 0
        self._ended = threading.Event()
        self._tell()
        self._thread = threading.Thread(target=self._work, name="rlvr-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; the others learn that this process has done its part."""
        self._ended.set()
        self._thread.join(SECONDS)
        if self.store is not None and not self._thread.is_alive():
            with suppress(RuntimeError):
                self._tell(left=True)

    def verdict(self) -> str:
        """Return the line that another process has ended with, "" without one."""
        with suppress(RuntimeError):
            if self.store is not None and self.store.check([VERDICT]):
                return str(self.store.get(VERDICT).decode())
        return ""

    def _work(self) -> None:
        reached = time.monotonic()
        interval = min(SECONDS, self.timeout / 10)
        while not self._ended.wait(interval):
            look = in_thread(self._look, "rlvr-signs")  # in vain where the process that holds the store has stopped
            wait([look], self.timeout)
            if look.done() and look.exception() is None:
                reached, line = time.monotonic(), look.result()
            else:
                unheard = time.monotonic() - reached > self.timeout
                line = (
                    f"the store of the {self.count} processes (torchrun's, or of process 0) gives no sign for "
                    f"{self.timeout:g} s; run the same command to resume from the last checkpoint"
                    if unheard
                    else ""
                )
            if line and not self._ended.is_set():
                os.write(2, f"error: {fitted(line)}\n".encode())
                leave(1)

    def _look(self) -> str:
        """Give a sign, and judge those of all. Return the line to end with, "" if none."""
        sign, now = self._tell(), time.monotonic()
        if self.judge is not None:
            self.judge.hear({self.rank: sign} if self.store is None else self._signs(self.store), now)
            slow = self.judge.slow(now)
            if slow:
                self.warn(slow)
            line = self.judge.stalled(now)
            if line and self.store is None:
                return line
            if line and self.store is not None:
                self.store.compare_set(VERDICT, "", line)
        return self.verdict()

    def _tell(self, *, left: bool = False) -> Sign:
        self._number += 1
        waits, where = position(self._trained_by)
        place = PROGRESS
        sign = Sign(self._number, place.step, place.phase, place.entered, place.beats, waits, where, left)
        if self.store is not None:
            self.store.set(str(self.rank), json.dumps(asdict(sign)))
        return sign

    def _signs(self, store: Any) -> dict[int, Sign]:
        known = [rank for rank in range(self.count) if store.check([str(rank)])]
        return {
            rank: Sign(**json.loads(text)) for rank, text in zip(known, store.multi_get([str(rank) for rank in known]))
        }


def own_store() -> Any:
    """Return a store of this module's keys, with a connection of its own: on torch's, a call may wait for long."""
    default: Any = _get_default_store()
    return PrefixStore("rlvr/watch", default.clone())


def position(thread: int) -> tuple[bool, str]:
    """Return whether a thread waits for other processes, and the innermost line of rlvr that it has come to."""
    frame, waits = sys._current_frames().get(thread), False
    while frame is not None:
        file = frame.f_code.co_filename
        waits = waits or f"torch{os.sep}distributed{os.sep}" in file
        if file.startswith(OWN) and not file.endswith("distributed.py"):
            return waits, f"{file[len(OWN) + 1 :]}:{frame.f_lineno}, {frame.f_code.co_name}"
        frame = frame.f_back
    return waits, ""
