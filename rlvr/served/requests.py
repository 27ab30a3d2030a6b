"""Requests that threads make side by side, those of earlier rows first, and one consumer that takes what came back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from itertools import count

from rlvr.types import Ask, Completion

Outcome = Completion | Exception


class Requests:
    """Asks of rows, in `concurrency` daemon threads. A context manager: closed, its threads take nothing more.

    Of asks that wait the one of the lowest row is next, so that rollouts that were begun end before others begin.
    """

    def __init__(self, complete: Callable[[Ask], Completion], concurrency: int) -> None:
        self._complete = complete
        self._waiting: queue.PriorityQueue[tuple[float, int, Ask | None]] = queue.PriorityQueue()
        self._finished: queue.Queue[tuple[int, Outcome]] = queue.Queue()
        self._order = count()
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name="rlvr-requests", daemon=True) for _ in range(concurrency)
        ]
        self.open = 0
        for started in self._threads:
            started.start()

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for _thread in self._threads:
            self._waiting.put((-1, next(self._order), None))

    def put(self, row: int, ask: Ask) -> None:
        """Send a request as soon as a thread is free."""
        self.open += 1
        self._waiting.put((row, next(self._order), ask))

    def take(self, seconds: float | None = None) -> list[tuple[int, Outcome]]:
        """Return all that came back since the last call, by row: a completion, or what was raised.

        It waits for the first one, `seconds` at most; none comes where no request is open.
        """
        found: list[tuple[int, Outcome]] = []
        try:
            if self.open:
                found.append(self._finished.get(timeout=seconds))
            while True:
                found.append(self._finished.get_nowait())
        except queue.Empty:
            pass
        self.open -= len(found)
        return found

    def _work(self) -> None:
        while True:
            row, _, ask = self._waiting.get()
            if ask is None or self._closed.is_set():
                return
            try:
                outcome: Outcome = self._complete(ask)
            except Exception as error:  # for the consumer; a thread has nobody to raise it to
                outcome = error
            self._finished.put((int(row), outcome))
