"""Messages between threads of two processes over one pipe: whichever thread waits reads for all that wait."""

from __future__ import annotations

import _thread
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

_MAX_WAITING = 1000  # messages of one address


class ProgramEnded(BaseException):
    """The program ended or broke the protocol. As a BaseException, `except Exception` in a test does not catch it."""


class Mail:
    """Messages by their addresses. `read` returns the next message, None at the end.

    `address` tells for whom a message is; it raises ValueError for a message of no use, which ends the exchange.
    """

    def __init__(self, read: Callable[[], Any], address: Callable[[Any], Hashable]) -> None:
        self._read = read
        self._address = address
        self._lock = _thread.allocate_lock()
        self._reading = False
        self._ended = False
        self._arrived: dict[Hashable, deque[Any]] = {}
        self._sleeping: list[Any] = []

    def take(self, *addresses: Hashable) -> Any:
        """Wait for the next message of these addresses, the first of them first. None after the end."""
        while True:
            with self._lock:
                for address in addresses:
                    if address in self._arrived:
                        return self._pop(address)
                if self._ended:
                    return None
                sleep = None
                if self._reading:
                    sleep = _thread.allocate_lock()
                    sleep.acquire()
                    self._sleeping.append(sleep)
                self._reading = True
            if sleep is not None:
                sleep.acquire()
            else:
                self._receive()

    def _pop(self, address: Hashable) -> Any:
        found = self._arrived[address]
        message = found.popleft()
        if not found:
            del self._arrived[address]
        return message

    def _receive(self) -> None:
        message = None
        try:
            message = self._read()
        finally:
            with self._lock:
                self._reading = False
                self._deliver(message)
                for sleep in self._sleeping:
                    sleep.release()
                self._sleeping.clear()

    def _deliver(self, message: Any) -> None:
        try:
            box = None if message is None else self._arrived.setdefault(self._address(message), deque())
        except (ValueError, LookupError, TypeError):
            box = None
        if box is None or len(box) >= _MAX_WAITING:
            self._ended = True
        else:
            box.append(message)
