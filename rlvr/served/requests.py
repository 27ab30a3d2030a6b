"""Requests that threads make side by side, those of earlier rows first, and one consumer that takes what came back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from itertools import count

from rlvr.endpoint import Generated
from rlvr.types import Ask

UNTAKEN = 1024  # outcomes, beyond which threads wait: a verifier may be slower than the server
Outcome = tuple[int, Ask, Generated | Exception]  # row, what was asked, and what came of it


class Requests:
    """Asks of rows, in `concurrency` daemon threads. A context manager: closed, its threads take nothing more.

    Of asks that wait the one of the lowest row is next, so that rollouts that were begun end before others begin.
    """

    def __init__(self, complete: Callable[[Ask], Generated], concurrency: int) -> None:
        self._complete = complete
        self._waiting: queue.PriorityQueue[tuple[float, int, Ask | None]] = queue.PriorityQueue()
        self._finished: queue.Queue[Outcome | None] = queue.Queue()  # None: `wake` was called
        self._order = count()
        self._room = threading.Semaphore(max(UNTAKEN, concurrency))
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name="rlvr-requests", daemon=True) for _ in range(concurrency)
        ]
        for started in self._threads:
            started.start()

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        for _thread in self._threads:
            self._waiting.put((-1, next(self._order), None))
            self._room.release()

    def put(self, row: int, ask: Ask) -> None:
        """Send a request as soon as a thread is free."""
        self._waiting.put((row, next(self._order), ask))

    def wake(self) -> None:
        """Have a `take` that waits return; called in any thread."""
        self._finished.put(None)

    def take(self, seconds: float) -> list[Outcome]:
        """Return all that came back since the last call, by row: what was generated, or raised.

        It waits for the first one, until `wake` is called, `seconds` at most.
        """
        found = []
        try:
            found.append(self._finished.get(timeout=seconds))
            while True:
                found.append(self._finished.get_nowait())
        except queue.Empty:
            pass
        outcomes = [item for item in found if item is not None]
        if outcomes:
            self._room.release(len(outcomes))
        return outcomes

    def _work(self) -> None:
        while True:
            self._room.acquire()
            row, _, ask = self._waiting.get()
            if ask is None or self._closed.is_set():
                return
            try:
                outcome: Generated | Exception = self._complete(ask)
            except Exception as error:  # for the consumer; a thread has nobody to raise it to
                outcome = error
            self._finished.put((int(row), ask, outcome))
