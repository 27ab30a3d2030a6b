"""Ranks that hang or die: each gives signs, two judge who keeps the others waiting, and all end with its name."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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

# A process is slow once the others have waited so long for it, and it takes so many times as long as they did.
SLOW_SECONDS = 30.0
SLOW_FACTOR = 3.0


@dataclass(frozen=True)
class Sign:
    """What a process says of itself: its place (see rlvr.core.heartbeat), and a number that grows with each sign.

    waits: for other processes. where: the line of rlvr that its training has come to. left: it has done its part.
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
        """The place in words."""
        return f"{self.phase} of step {self.step}" if self.step else self.phase


@dataclass
class Seen:
    """The last sign of a process, and when the judge first saw it, its place, and the phase that it is in."""

    sign: Sign
    heard: float
    moved: float
    began: float


class Judge:
    """Finds the processes that the others wait for. Times are seconds of the judge's own clock."""

    def __init__(self, count: int, timeout: float) -> None:
        self.count, self.timeout = count, timeout
        self.seen: dict[int, Seen] = {}
        self._behind: tuple[Sequence[int], int] = ((), 0)
        self._since = 0.0
        self._warned: set[tuple[Sequence[int], str]] = set()

    def hear(self, signs: Mapping[int, Sign], now: float) -> None:
        """Take the present signs, by process. One that has not given any yet is at the preparation."""
        unheard = Sign(0, 0, "preparation", 0, 0)
        for rank in range(self.count):
            seen, sign = self.seen.get(rank), signs.get(rank, unheard)
            if seen is None:
                seen = self.seen[rank] = Seen(sign, now, now, now)
            if sign is unheard:
                continue
            if sign.number != seen.sign.number:
                seen.heard = now
            if (sign.entered, sign.beats) != (seen.sign.entered, seen.sign.beats):
                seen.moved = now
            if sign.entered != seen.sign.entered:
                seen.began = now
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

    def slow(self, now: float) -> str:
        """Return a line on a process that takes much longer than the others, once for each of its phases; else ""."""
        last = self.last(now)
        if not last or 2 * len(last) > self.count or self.count == 1:
            self._behind = ((), 0)
            return ""
        sign, began = self.seen[last[0]].sign, self.seen[last[0]].began
        behind = (tuple(last), sign.entered)
        if behind != self._behind:
            self._behind, self._since = behind, now
        took, others = now - began, self._since - began
        named = (tuple(last), sign.phase)
        if now - self._since <= SLOW_SECONDS or took <= SLOW_FACTOR * others or named in self._warned:
            return ""
        self._warned.add(named)
        where = f" ({sign.where})" if sign.where else ""
        return f"the others wait for {self.name(last)}: {took:.0f} s in {sign.place}, theirs took {others:.0f} s{where}"

    def name(self, ranks: Sequence[int]) -> str:
        """Return processes in words."""
        numbers = ", ".join(map(str, ranks))
        if self.count == 1:
            return "this process"
        return f"process{'es' if len(ranks) > 1 else ''} {numbers} of {self.count}"


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
        HEARTBEAT.clear()
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
                os.write(2, f"error: {fit_to_terminal(line)}\n".encode())
                leave(1)

    def _look(self) -> str:
        """Give a sign, and judge those of all. Return the line to end with, "" if none."""
        sign, now = self._tell(), time.monotonic()
        if self.judge is not None:
            self.judge.hear({self.rank: sign} if self.store is None else self._signs(self.store), now)
            slow = self.judge.slow(now)
            if slow:
                self.warn(slow)
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


# How gloo and NCCL say that a process has gone, or has not answered before the timeout of their group.
GONE = re.compile(r"connection (was )?(closed|reset)|closed by (peer|remote)|broken pipe|timed ?out|NCCL error", re.I)
SECONDS_TO_ANSWER = 10.0  # in which a process that is alive finds out too, and says so


@contextmanager
def naming_lost(processes: Processes) -> Iterator[None]:
    """Wrap collective operations. If a rank is lost, raise RunError, which names the ranks that do not answer.

    A killed rank is noticed at once, by its connections; one that hangs is found by `watching`.
    """
    try:
        yield
    except RuntimeError as error:
        if processes.num_processes == 1 or not GONE.search(str(error)):
            raise
        line = next(iter(str(error).splitlines()), "")
        raise RunError(
            f"{name_missing(processes)} of {processes.num_processes} died or hung, and this one cannot go on without "
            f"it; run the same command to resume from the last checkpoint ({line[:120]})"
        ) from error


def name_missing(processes: Processes) -> str:
    """Return which processes do not say that they are there; "a process" where that cannot be told."""
    others: list[int] = []
    try:
        store = PrefixStore("rlvr/lost", _get_default_store())
        store.set(str(processes.process_index), "here")
        deadline = time.monotonic() + SECONDS_TO_ANSWER
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
