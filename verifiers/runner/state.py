"""What the pool keeps of a batch, of an item, and of a worker process."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rlvr.types import Verdict
from rlvr.verifiers.runner.server import PoolError
from rlvr.verifiers.runner.worker import frame, split_frames

START_SECONDS = 30.0


@dataclass(eq=False, slots=True)
class Batch:
    """Items put in together. `verdicts` is complete once `done` is set, unless `problem` says why not."""

    verdicts: list[Verdict | None]
    left: int
    done: threading.Event = field(default_factory=threading.Event)
    problem: PoolError | None = None
    abandoned: bool = False

    def settle(self, index: int, verdict: Verdict) -> None:
        """Put in the verdict of an item."""
        self.verdicts[index] = verdict
        self.left -= 1
        if self.left == 0:
            self.done.set()

    def fail(self, problem: PoolError) -> None:
        """Give up: no further verdict will come."""
        self.problem = problem
        self.done.set()


@dataclass(eq=False, slots=True)
class Item:
    """One check to do: (pickled problem, completion). `deaths`: workers that ended while judging it."""

    payload: tuple[bytes, str]
    batch: Batch
    index: int
    deaths: int = 0


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process as the pool sees it.

    It runs once it has `started`. The first item of `queue` is the one being judged, since `since`; while
    `dispatching`, its message is on the way. `served` counts the items given to it.
    """

    number: int
    sock: socket.socket
    queue: deque[Item] = field(default_factory=deque)
    started: bool = False
    since: float = 0.0
    dispatching: bool = False
    served: int = 0
    unsent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    def give(self, items: Sequence[Item]) -> None:
        """Queue items and send as much of them as the socket takes."""
        if not self.queue:
            self.since = time.monotonic()
            self.dispatching = True
        self.queue.extend(items)
        self.served += len(items)
        self.unsent += frame(pickle.dumps([item.payload for item in items]))
        self.send()

    def send(self) -> None:
        """Send what the socket takes of what is unsent."""
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
                if self.dispatching:
                    self.since = time.monotonic()
                    self.dispatching = bool(self.unsent)
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.unsent.clear()  # it has ended; the server will report it

    def receive(self) -> tuple[list[bytes], bool]:
        """The answers that have arrived, and whether more may come."""
        alive = True
        try:
            while data := self.sock.recv(1 << 18):
                self.received += data
                # It is past its item, even if the answer is long and the pool slow to read it.
                self.since = time.monotonic()
            alive = False
        except BlockingIOError:
            pass
        except ConnectionResetError:
            alive = False
        return list(split_frames(self.received)), alive

    def seconds(self) -> float:
        """How long its first item has been judged."""
        return time.monotonic() - self.since

    def seconds_left(self, timeout: float) -> float:
        """Until the deadline of its first item. What a busy machine takes to start a process is not the item's time."""
        return (timeout if self.started else max(timeout, START_SECONDS)) - self.seconds()
