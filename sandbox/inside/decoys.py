"""Comparisons of a program's objects, of which an answer counts only if they tell another object apart."""

from __future__ import annotations

import contextlib
import operator
from typing import Any

_MAX_DEPTH, _MAX_ITEMS = 4, 200
# By how much the fields of two decoys are changed: 1/2 may equal 3/6, and then no second copy.
_STEPS = ((1, 7), (3, 2))
_KEPT = (bool, type(None))


def equal(found: Any, other: Any) -> Any:
    """Return what `==` says; False for objects that also equal a bare object, or copies of `other` with other fields.

    A program whose objects equal everything has not shown that they are equal.
    """
    answer = operator.eq(found, other)
    if answer is not True or found is other:
        return answer
    decoys = [decoy for first, step in _STEPS if (decoy := _Changed(first, step).of(other)) is not None]
    told_apart = not decoys or not all(_equals(found, decoy) for decoy in decoys)
    return told_apart and not _equals(found, object())


def unequal(found: Any, other: Any) -> Any:
    """Return what `!=` says; False for an object that differs from itself."""
    answer = operator.ne(found, other)
    return answer if answer is not True else not _differs(found)


def _equals(found: Any, decoy: Any) -> bool:
    # A method that expects another type, or other fields, may raise anything.
    with contextlib.suppress(Exception):
        return operator.eq(found, decoy) is True
    return False


def _differs(found: Any) -> bool:
    with contextlib.suppress(Exception):
        return operator.ne(found, found) is True
    return False


class _Changed:
    """Makes a copy of an object in which every field has another value of the same kind, without calling its class."""

    def __init__(self, first: int, step: int) -> None:
        self._by, self._step = first, step
        self._known: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """Return the copy; None where not all of it can be changed."""
        try:
            return self._object(value, 0)
        except (TypeError, AttributeError, LookupError, RecursionError):
            return None

    def _object(self, value: Any, depth: int) -> Any:
        if id(value) in self._known:
            return self._known[id(value)]
        names = [*getattr(value, "__dict__", ()), *_slots(value)]
        if not names or depth > _MAX_DEPTH:
            raise LookupError
        made: Any = object.__new__(type(value))
        self._known[id(value)] = made
        for name in names:
            object.__setattr__(made, name, self._value(getattr(value, name), depth + 1))
        return made

    def _value(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind in _KEPT:
            return not value if kind is bool else "~"
        if kind in (int, float):
            self._by += self._step
            return value + self._by
        if kind in (str, bytes):
            return value + ("~" if kind is str else b"~") * self._by
        if kind in (list, tuple, set, frozenset):
            return kind([*(self._value(item, depth) for item in list(value)[:_MAX_ITEMS]), f"~{self._by}"])
        if kind is dict:
            items = list(value.items())[:_MAX_ITEMS]
            return {**{key: self._value(item, depth) for key, item in items}, f"~{self._by}": self._by}
        return self._object(value, depth)


def _slots(value: Any) -> list[str]:
    found: list[str] = []
    for kind in type(value).__mro__:
        names = vars(kind).get("__slots__", ())
        found += [names] if isinstance(names, str) else names
    return [name for name in found if name not in ("__dict__", "__weakref__") and hasattr(value, name)]
