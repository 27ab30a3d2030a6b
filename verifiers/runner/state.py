"""The state that the pool keeps of what was submitted, of each item, and of each worker process."""

from __future__ import annotations

import pickle
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlvr.types import Verdict
from rlvr.verifiers.runner.server import PoolError
from rlvr.verifiers.runner.worker import frame, seconds_waited, split_frames

START_SECONDS = 30.0


@dataclass(eq=False, slots=True)
class Submission:
    """Items submitted in one call. `done` is set when `verdicts` is complete, or `error` says why it never will be.

    Set `abandoned` to have the items that have not begun dropped.
    """

    verdicts: list[Verdict | None]
    left: int
    done: threading.Event = field(default_factory=threading.Event)
    error: PoolError | None = None
    abandoned: bool = False

    def settle(self, index: int, verdict: Verdict) -> None:
        """Record the verdict of an item."""
        self.verdicts[index] = verdict
        self.left -= 1
        if self.left == 0:
            self.done.set()

    def fail(self, error: PoolError) -> None:
        """Give up: no further verdict will come."""
        self.error = error
        self.done.set()

    def wait(self) -> list[Verdict | None]:
        """Wait for the verdicts. Raise PoolError where the pool failed or was closed."""
        self.done.wait()
        if self.error is not None:
            raise self.error
        return self.verdicts


class Call(NamedTuple):
    """What a worker verifies: a completion of a pickled problem. answer: the problem's reference where it is a text."""

    problem: bytes
    completion: str
    answer: str | None = None


@dataclass(eq=False, slots=True)
class Item:
    """One check to run.

    `deaths`: workers that ended while they ran it, `verdicts_before`: verdicts of the pool at the first of these.
    `control_of`: the item whose deaths this one is to explain, see rlvr.verifiers.runner.deaths. `late_after`: seconds
    after which it was stopped at its deadline, `late_at_start`: in the first call of its process, for the first time.
    """

    call: Call
    submission: Submission
    index: int
    deaths: int = 0
    verdicts_before: int = 0
    control_of: Item | None = None
    late_after: float = 0.0
    late_at_start: bool = False

    def settle(self, verdict: Verdict) -> None:
        """Put its verdict into its submission."""
        self.submission.settle(self.index, verdict)


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process as the pool sees it.

    It has a `pid` once it runs, and has `answered` once its first item is done. It works on the first item of `queue`,
    since the time `since`; while `dispatching`, that item's message is not sent completely. `waited`: the seconds for
    which it was ready and had no processor, until then. `served` counts the items given to it.
    """

    number: int
    sock: socket.socket
    queue: deque[Item] = field(default_factory=deque)
    pid: int = 0
    waited: float = 0.0
    answered: bool = False
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
        self.unsent += frame(pickle.dumps([(item.call.problem, item.call.completion) for item in items]))
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
        """Return the answers that have arrived, and whether more may come."""
        alive = True
        try:
            while data := self.sock.recv(1 << 18):
                self.received += data
                # The item is done, even if its answer is long and the pool is slow to read it.
                self.since = time.monotonic()
            alive = False
        except BlockingIOError:
            pass
        except ConnectionResetError:
            alive = False
        return list(split_frames(self.received)), alive

    def seconds(self) -> float:
        """Return how long it has worked on its first item."""
        return time.monotonic() - self.since

    def seconds_left(self, timeout: float) -> float:
        """Return the time to the deadline of its first item.

        The start of the process does not count, nor what it has waited for a processor, which is read when that
        matters.
        """
        left = (timeout if self.pid else max(timeout, START_SECONDS)) - self.seconds()
        if left > 0 or not self.pid:
            return left
        return left + max(seconds_waited(self.pid) - self.waited, 0.0)
