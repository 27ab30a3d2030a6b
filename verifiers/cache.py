"""Values that were computed before: of the verdicts and compiled statements that verifiers keep."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Cache(Generic[Key, Value]):
    """Keeps the `room` values that were asked for last. Threads may share it. A copy elsewhere starts empty."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[Cache[Key, Value]], tuple[int]]:
        return type(self), (self._room,)

    def get(self, key: Key) -> Value | None:
        """Return the value of `key`, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        """Keep `value`. If there is no room, drop the value that was not asked for the longest time."""
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > self._room:
                self._values.popitem(last=False)
