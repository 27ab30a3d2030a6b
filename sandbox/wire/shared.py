"""Containers that tests and program both have: with each message a side tells what it has changed in them.

Only one side computes at a time. If every change arrives before the other side goes on, two copies under one number act
as the single container that they are where tests and program share a process.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from operator import is_
from typing import Any

from .values import Encoder, PlainError

_DICTS: tuple[dict[Any, Any], ...] = ({}, OrderedDict())
VIEWS: tuple[Any, ...] = tuple(type(view) for d in _DICTS for view in (d.keys(), d.values(), d.items()))


def contents(value: Any) -> list[Any] | bytes | None:
    """Return what a container holds, in order; None for a value that cannot change."""
    if isinstance(value, dict):
        return [*value, *value.values()]
    if isinstance(value, VIEWS):
        return [part for item in value for part in (item if type(item) is tuple else (item,))]
    if isinstance(value, (list, set, deque)):
        return list(value)
    if isinstance(value, bytearray):
        return bytes(value)
    kind = f"{type(value).__module__}.{type(value).__name__}"
    if type(value).__name__ == "EmptyArray":
        return b""
    if kind == "numpy.ndarray":
        return f"{value.dtype.str}{value.shape}".encode() + bytes(value.tobytes())
    if kind == "array.array":
        return bytes(value.tobytes())
    if kind in ("collections.UserDict", "collections.ChainMap", "builtins.mappingproxy"):
        return [*value, *value.values()]
    return [*value.data] if kind in ("collections.UserList", "collections.UserString") else None


def is_nan(value: Any) -> bool:
    """Whether a number does not equal itself. A list finds it by its identity."""
    if type(value).__name__ == "Decimal":
        return bool(value.is_nan())
    return type(value) in (float, complex) and bool(value != value)


def has_identity(value: Any) -> bool:
    """Whether it matters which of two equal values it is."""
    return contents(value) is not None or is_nan(value)


def check_kind(value: Any, new: Any) -> None:
    """Raise PlainError if one of two containers cannot become the other."""
    for kind in (dict, set, list, bytearray, deque):
        if isinstance(value, kind) != isinstance(new, kind):
            raise PlainError("a container of another kind")
    if contents(value) is None or contents(new) is None:
        raise PlainError("a value that does not change")


def update(value: Any, new: Any) -> None:
    """Put what a container holds into another one of its kind. Raises PlainError for one of another kind."""
    check_kind(value, new)
    if isinstance(value, dict) and list(value) == list(new):
        for key in new:  # while the tests may read it in a loop
            value[key] = new[key]
    elif isinstance(value, (dict, set)):
        value.clear()
        value.update(new)
    elif isinstance(value, deque):
        value.clear()
        value.extend(new)
    elif isinstance(value, (list, bytearray)):
        value[:] = new
    elif type(value).__name__ == type(new).__name__ == "ndarray" and value.shape == new.shape:
        value[...] = new
    elif type(value).__name__ == type(new).__name__ == "array":
        value[:] = new
    else:
        raise PlainError("a value that cannot be changed in place")


def _holds(value: Any, before: list[Any] | bytes | None) -> bool:
    """Whether a container holds the very objects that it held, in their order."""
    now = value if type(value) is list else contents(value)
    if type(before) is not list or type(now) is not list:
        return before == now
    return len(before) == len(now) and all(map(is_, before, now))


class Shared:
    """One side's table of the containers. Numbers are given by the side that sends a container first."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.values: dict[int, Any] = {}
        self._numbers = numbers
        self._known: dict[int, int] = {}
        # What they held when both sides last agreed, but for those that were entered or changed since.
        self._agreed: dict[int, list[Any] | bytes | None] = {}
        self._open = set[int]()

    def __len__(self) -> int:
        return len(self.values)

    def number_of(self, value: Any) -> int | None:
        """Return the number of a container that both sides have."""
        return self._known.get(id(value))

    def add(self, value: Any, number: int | None = None) -> int:
        """Enter a container, under a new number unless the other side has given it one; return the number."""
        number = next(self._numbers) if number is None else number
        self.values[number] = value
        self._known[id(value)] = number
        self._open.add(number)
        return number

    def enter(self, value: Any, number: int) -> None:
        """Enter what the other side has sent under a number. One NaN of JSON is as good as another."""
        self.add(float("nan") if type(value) is float else value, number)

    def drop(self, number: int) -> None:
        """Forget a container."""
        self._known.pop(id(self.values.pop(number)), None)
        self._agreed.pop(number, None)

    def encode(self, encoder: Encoder, *sent: Any) -> tuple[list[Any], list[Any]]:
        """Return the data of the containers that have changed here, by number, and of the values that are sent."""
        held = self.values
        changed = [number for number, before in self._agreed.items() if not _holds(held[number], before)]
        told = [[number, encoder.write(self.values[number], 0)] for number in changed]
        data = [encoder.any(value, 0) for value in sent]
        self._open.update(changed)
        self.agree()
        return told, data

    def take(self, number: int, value: Any) -> None:
        """Make a change of the other side: what a container holds now. Raises PlainError."""
        update(self.values[number], value)
        self._open.add(number)

    def agree(self) -> None:
        """Note what the containers hold that were entered or changed: both sides have the same now."""
        for number in self._open:
            self._agreed[number] = contents(self.values[number])
        self._open.clear()
