"""Ranks that hang or die. Every rank reports its progress; two of them find the rank that the others wait for; then all
end with a line that names it.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

import rlvr
from rlvr.core.heartbeat import HEARTBEAT
from rlvr.core.types import RunError
from rlvr.distributed import Processes, in_thread

from .signals import fit_to_terminal, leave


@dataclass(frozen=True)
class Sign:
    """A process's report of its progress: its place (see rlvr.core.heartbeat), and the report's number.

    waits: it waits for other processes. where: the line of rlvr that its training has reached. left: it has done its
    part.
    """

    number: int
    step: int
    phase: str
    entered: int
    beats: int
    waits: bool = False
    where: str = ""
    left: bool = False

    @property
    def place(self) -> str:
        return f"{self.phase} of step {self.step}" if self.step else self.phase


@dataclass
class Seen:
    """The last sign of a process, and when the judge first saw it and its place."""

    sign: Sign
    heard: float
    moved: float


class Judge:
    """Finds the processes that the others wait for. Times are seconds of the judge's own clock."""

    def __init__(self, count: int, timeout: float) -> None:
        self.count, self.timeout = count, timeout
        self.seen: dict[int, Seen] = {}

    def hear(self, signs: Mapping[int, Sign], now: float) -> None:
        """Take the present signs, by process. One that has not given any yet is at the preparation."""
        unheard = Sign(0, 0, "preparation", 0, 0)
        for rank in range(self.count):
            seen, sign = self.seen.get(rank), signs.get(rank, unheard)
            if seen is None:
                seen = self.seen[rank] = Seen(sign, now, now)
            if sign is unheard:
                continue
            if sign.number != seen.sign.number:
                seen.heard = now
            if (sign.entered, sign.beats) != (seen.sign.entered, seen.sign.beats):
                seen.moved = now
            seen.sign = sign

    def last(self, now: float) -> list[int]:
        """Return the processes that the others wait for, as far as that can be told.

        Those that give no sign; else, of those in the earliest phase, the ones that do not wait for others; else, of
        these, the ones that have done least.
        """
        at_work = {rank: seen for rank, seen in self.seen.items() if not seen.sign.left}
        silent = [rank for rank, seen in at_work.items() if now - seen.heard > self.timeout]
        if silent or not at_work:
            return sorted(silent)
        earliest = min(seen.sign.entered for seen in at_work.values())
        behind = {rank: seen.sign for rank, seen in at_work.items() if seen.sign.entered == earliest}
        busy = [rank for rank, sign in behind.items() if not sign.waits]
        least = min(sign.beats for sign in behind.values())
        return sorted(busy or [rank for rank, sign in behind.items() if sign.beats == least])

    def describe_stall(self, now: float) -> str:
        """Return the line that names the processes without which nothing goes on; "" while something does.

        What any process does counts: one that has been waited for, and has just arrived, is not waited for any more.
        """
        last = self.last(now)
        if not last or now - max(seen.moved for seen in self.seen.values()) <= self.timeout:
            return ""
        silent = now - max(self.seen[rank].heard for rank in last) > self.timeout / 2
        sign = self.seen[last[0]].sign
        verb, place = (
            ("gives no sign", f"last in {sign.place}") if silent else ("makes no progress", f"in {sign.place}")
        )
        where = f" ({sign.where})" if sign.where else ""
        return (
            f"{self.name(last)} {verb if len(last) == 1 else verb.replace('s ', ' ', 1)} for {self.timeout:g} s, "
            f"{place}{where}; run the same command to resume from the last checkpoint, with a longer "
            "--run.stall-timeout if that was work"
        )

    def name(self, ranks: Sequence[int]) -> str:
        numbers = ", ".join(map(str, ranks))
        if self.count == 1:
            return "this process"
        return f"process{'es' if len(ranks) > 1 else ''} {numbers} of {self.count}"


SECONDS = 5.0  # between two signs at most
VERDICT = "verdict"
OWN = str(Path(rlvr.__file__).parent)
# How gloo and NCCL say that a process has gone, or has not answered before the timeout of their group.
GONE = re.compile(r"connection (was )?(closed|reset)|closed by (peer|remote)|broken pipe|timed ?out|NCCL error", re.I)


@contextmanager
def watching(processes: Processes, timeout: float) -> Iterator[None]:
    """Run the training within, watched: if a rank dies, or keeps the others waiting for `timeout` s, all end.

    A killed rank is noticed at once, by its connections: the others raise RunError, which names it. One that hangs is
    found by its signs. Each rank then prints one line that names it and its place, and leaves with exit code 1, since
    what it waits for cannot be interrupted.
    """
    watch = Watch(processes, timeout)
    explained = True
    try:
        yield
    except BaseException as error:
        line = watch.explain(error)
        explained = bool(line)
        if line:
            raise RunError(line) from error
        raise
    finally:
        watch.close(done=explained)


class Watch:
    """Reports this process's progress to the shared store. The first two ranks also judge, so that either may hang."""

    def __init__(self, processes: Processes, timeout: float) -> None:
        HEARTBEAT.clear()
        self.rank, self.count, self.timeout = processes.process_index, processes.num_processes, timeout
        self.judge = Judge(self.count, timeout) if self.rank < 2 else None
        self.store: Any = own_store() if self.count > 1 else None
        self._trained_by = threading.get_ident()
        self._number = 0
        self._ended = threading.Event()
        self._tell()
        self._thread = threading.Thread(target=self._work, name="rlvr-watch", daemon=True)
        self._thread.start()

    def close(self, *, done: bool) -> None:
        """Stop watching. done: the others learn that this process has done its part."""
        self._ended.set()
        self._thread.join(SECONDS)
        if done and self.store is not None and not self._thread.is_alive():
            with suppress(RuntimeError):
                self._tell(left=True)

    def verdict(self) -> str:
        """Return the line that another process has ended with, "" without one."""
        with suppress(RuntimeError):
            if self.store is not None and self.store.check([VERDICT]):
                return str(self.store.get(VERDICT).decode())
        return ""

    def explain(self, error: BaseException) -> str:
        """Return the line that says which processes an error of this one is due to; "" if it is its own."""
        if self.count == 1 or not isinstance(error, RuntimeError):
            return ""
        line = self.verdict()
        if line or isinstance(error, RunError) or not GONE.search(str(error)):
            return line
        cause = next(iter(str(error).splitlines()), "")
        return (
            f"{self._name_lost()} of {self.count} died or hung, and this one cannot go on without it; run the same "
            f"command to resume from the last checkpoint ({cause[:120]})"
        )

    def _name_lost(self) -> str:
        """Return which processes give no more signs; "a process" where that cannot be told."""
        lost: list[int] = []
        with suppress(RuntimeError):  # the process that held the store may be the one
            before = self._signs()
            time.sleep(2 * SECONDS)
            now = self._signs()
            lost = [rank for rank in range(self.count) if rank not in now or now[rank] == before.get(rank)]
            lost = [rank for rank in lost if rank not in now or not now[rank].left]
        return f"process{'es' if len(lost) > 1 else ''} {', '.join(map(str, lost))}" if lost else "a process"

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
                os.write(2, f"error: {fit_to_terminal(line)}\n".encode())
                leave(1)

    def _look(self) -> str:
        """Report this process's progress and judge that of all. Return the line to end with, "" to go on."""
        sign, now = self._tell(), time.monotonic()
        if self.judge is not None:
            self.judge.hear(self._signs() if self.store is not None else {self.rank: sign}, now)
            line = self.judge.describe_stall(now)
            if line and self.store is None:
                return line
            if line and self.store is not None:
                self.store.compare_set(VERDICT, "", line)
        return self.verdict()

    def _tell(self, *, left: bool = False) -> Sign:
        self._number += 1
        waits, where = position(self._trained_by)
        place = HEARTBEAT
        sign = Sign(self._number, place.step, place.phase, place.entered, place.beats, waits, where, left)
        if self.store is not None:
            self.store.set(str(self.rank), json.dumps(asdict(sign)))
        return sign

    def _signs(self) -> dict[int, Sign]:
        known = [rank for rank in range(self.count) if self.store.check([str(rank)])]
        found = self.store.multi_get([str(rank) for rank in known])
        return {rank: Sign(**json.loads(text)) for rank, text in zip(known, found)}


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
