"""Calls that run beside the sampling, each in a daemon thread and within a time limit: an environment's replies."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
AT_ONCE = 128


class Overdue(Exception):
    """A call took longer than its time limit; what it returns later is dropped."""


class Call(Generic[T]):
    """A call of `work`, known to the caller by its key; `late` is called in its thread where it came back too late."""

    def __init__(self, key: int, work: Callable[[], T], late: Callable[[], None]) -> None:
        self.key, self.work, self.late = key, work, late
        self.deadline = float("inf")


class Background(Generic[T]):
    """Runs calls in threads, `at_once` at a time, and hands their outcomes to one consumer thread.

    seconds: the time limit of a call, from when it begins. A call that exceeds it has the outcome Overdue, its thread
    is left behind and another takes its place; the process does not wait for such threads when it ends. `wake` is
    called, in any thread, when there is an outcome to collect; but only `collect` finds out that a call is overdue.
    """

    def __init__(self, seconds: float, at_once: int = AT_ONCE) -> None:
        self.seconds, self.at_once = seconds, at_once
        self.wake: Callable[[], None] = lambda: None
        self._changed = threading.Condition()
        self._waiting: deque[Call[T]] = deque()
        self._running: set[Call[T]] = set()
        self._finished: deque[tuple[int, T | BaseException]] = deque()
        self._threads = self._idle = 0
        self._closed = False

    def submit(self, key: int, work: Callable[[], T], late: Callable[[], None] = lambda: None) -> None:
        """Run `work` in a thread; `collect` returns its outcome with the key."""
        with self._changed:
            self._waiting.append(Call(key, work, late))
            self._staff()
            self._changed.notify_all()

    def collect(self, *, wait: bool) -> list[tuple[int, T | BaseException]]:
        """Return the outcomes since the last call by key: what a call returned or raised, or Overdue.

        wait: until there is one, as long as any call is under way.
        """
        with self._changed:
            while True:
                self._expire()
                if self._finished or not wait or not (self._waiting or self._running):
                    found = list(self._finished)
                    self._finished.clear()
                    return found
                nearest = min((call.deadline for call in self._running), default=float("inf"))
                self._changed.wait(max(0.0, min(nearest - time.monotonic(), self.seconds)))

    def close(self) -> None:
        """Begin no more calls, but those of negative keys, which clean up. What calls return is dropped."""
        with self._changed:
            self._closed = True
            self._waiting = deque(call for call in self._waiting if call.key < 0)
            self._changed.notify_all()

    def _staff(self) -> None:
        """Start a thread where a call waits and none is free."""
        if len(self._waiting) > self._idle and self._threads < self.at_once:
            self._threads += 1
            threading.Thread(target=self._work, name="rlvr-replies", daemon=True).start()

    def _expire(self) -> None:
        now = time.monotonic()
        for call in [call for call in self._running if call.deadline <= now]:
            self._drop(call)

    def _drop(self, call: Call[T]) -> None:
        """Give up a running call; its thread no longer counts."""
        self._running.discard(call)
        self._finish(call, Overdue())
        self._threads -= 1
        self._staff()

    def _work(self) -> None:
        while (call := self._next()) is not None:
            outcome: Any
            try:
                outcome = call.work()
            except BaseException as error:  # for the consumer; a thread has nobody to raise it to
                outcome = error
            if not self._take(call, outcome):
                call.late()
                return

    def _next(self) -> Call[T] | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._waiting or self._closed)
            self._idle -= 1
            if not self._waiting:
                self._threads -= 1
                return None
            call = self._waiting.popleft()
            call.deadline = time.monotonic() + self.seconds
            self._running.add(call)
            self._changed.notify_all()
            return call

    def _take(self, call: Call[T], outcome: T | BaseException) -> bool:
        """Hand over the outcome of a call. Return False where it was too late, and the thread is to end."""
        with self._changed:
            if call in self._running and call.deadline <= time.monotonic():
                self._drop(call)
                self._changed.notify_all()
                return False
            if call not in self._running:
                return False
            self._running.discard(call)
            if not self._closed:
                self._finish(call, outcome)
            self._changed.notify_all()
            return True

    def _finish(self, call: Call[T], outcome: T | BaseException) -> None:
        self._finished.append((call.key, outcome))
        self.wake()
