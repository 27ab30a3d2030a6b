"""Ending a run in good order: the first SIGINT or SIGTERM asks for a stop, the second one ends at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether a stop was asked for, and by which signal; `elsewhere`: of another process of the run."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.elsewhere = False

    def __bool__(self) -> bool:
        return self.signal is not None or self.elsewhere


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within it, SIGINT and SIGTERM set the request and let the step end. Outside the main thread it does nothing."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def ask(number: int, frame: FrameType | None) -> None:
        if request:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number)

    held = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
