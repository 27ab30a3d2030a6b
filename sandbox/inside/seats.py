"""What is known of the threads of test code that call the program."""

from __future__ import annotations

import _thread
from collections.abc import Iterator

from rlvr.sandbox.inside.originals import Copied


class Seat:
    """The number of a thread that calls the program; free again after the thread."""

    def __init__(self, free: list[int], numbers: Iterator[int]) -> None:
        self._free = free
        try:
            self.number = free.pop()
        except IndexError:
            self.number = next(numbers)

    def __del__(self) -> None:
        self._free.append(self.number)


class Thread(_thread._local):
    """What is known of a thread: its seat, requests in progress, the call of the program that it carries out."""

    seat: Seat | None = None
    depth = 0
    call: int | None = None
    raised: Exception | None = None
    # What arguments, and other objects that the program changes, were before the request in progress.
    before: Copied | None = None
