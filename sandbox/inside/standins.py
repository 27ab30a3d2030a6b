"""Stand-ins for values that have no exact builtin type: objects, iterators, named tuples, arrays.

They are made by the reader of plain data (plain.py), and hold only what it has checked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from rlvr.sandbox.inside.bounds import TOO_LARGE

_PLAIN = (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, deque, range)
METHODS_OF_VALUES = frozenset(name for kind in _PLAIN for name in dir(kind))
_METHODS_OF_ARRAYS = (
    "all any argmax argmin astype dot equals isin item max mean min reshape std sum take tolist trace var"
)
# Those of numbers, dates and paths that are given what is expected, or that some type answers like a value.
_METHODS_OF_OTHERS = (
    "compare compare_signal compare_total is_relative_to joinpath limit_denominator match max_mag min_mag quantize "
    "relative_to same_quantum samefile strftime with_name with_suffix"
)
_UNCALLABLE = METHODS_OF_VALUES | frozenset(f"{_METHODS_OF_ARRAYS} {_METHODS_OF_OTHERS}".split())


class Opaque:
    """Stand-in for a value that is not plain data: its type's name, its truth value and, if it has one, its handle.

    The truth value is the program's claim: it could as well have returned True or False.
    """

    def __init__(self, kind: str, handle: int | None = None, truth: bool | None = None) -> None:
        self.kind = kind
        self.handle = handle
        self.truth = truth

    @property
    def too_large(self) -> bool:
        """Whether it stands for a value that was too large."""
        return self.handle is None and self.kind == TOO_LARGE

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        if self.truth is None:
            raise TypeError(f"a {self.kind} is not plain data")
        return self.truth

    def __repr__(self) -> str:
        return f"<{self.kind}>"


def uncallable(name: str, value: Any) -> Any:
    """Return a value, or where it could be called as a method of the value that a test expects, an Opaque."""
    if not callable(value) or name not in _UNCALLABLE:
        return value
    return Opaque(type(value).__name__, None, True)


class CutShort(ValueError):
    """An iterator has more items than were read."""


class Yielded:
    """Items of an iterator. Like an iterator it equals nothing and can be consumed once.

    With `more` it has more of them: who asks for the first of these gets a CutShort.
    """

    def __init__(self, items: list[Any], more: bool = False) -> None:
        self._all = items
        self._more = more
        self._items = _cut_short(items) if more else iter(items)

    def again(self) -> Yielded:
        """Return the same items, none consumed."""
        return Yielded(self._all, self._more)

    def __iter__(self) -> Iterator[Any]:
        return self._items

    def __next__(self) -> Any:
        return next(self._items)


def _cut_short(items: list[Any]) -> Iterator[Any]:
    yield from items
    raise CutShort("an iterator with more items")


class Fields(tuple):
    """A named tuple: the values, and the names of the fields. None of them is a method."""

    _name: str
    _fields: tuple[str, ...]

    def __getattribute__(self, name: str) -> Any:
        # A field may be called `count` or `index`.
        fields = tuple.__getattribute__(self, "__dict__").get("_fields", ())
        if name not in fields:
            return tuple.__getattribute__(self, name)
        return uncallable(name, tuple.__getitem__(self, fields.index(name)))

    def _asdict(self) -> dict[str, Any]:
        return dict(zip(self._fields, self))

    def _replace(self, **changed: Any) -> Fields:
        if not changed.keys() <= set(self._fields):
            raise ValueError(f"unexpected field names: {sorted(changed)}")
        return named(self._name, self._fields, tuple({**self._asdict(), **changed}.values()))

    def __repr__(self) -> str:
        return f"{self._name}({', '.join(f'{name}={value!r}' for name, value in self._asdict().items())})"


def is_field(name: object) -> bool:
    """Whether a text can be the name of a field: named tuples have none that begin with "_", but "_0" and the like."""
    return type(name) is str and name.isidentifier() and (name[0] != "_" or name[1:].isdigit())


def named(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Fields:
    """Return a named tuple."""
    made = Fields(values)
    made.__dict__.update(_name=name, _fields=fields)
    return made


class Array:
    """Stand-in for a numpy array where numpy is not at hand: its items, in nested lists.

    Compared as an array is: only one of a single item has a truth value.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, kind: str, shape: tuple[int, ...], items: list[Any]) -> None:
        for length in reversed(shape[1:]):
            items = [items[i : i + length] for i in range(0, len(items), length)] if length else []
        self._items: Any = items if shape else items[0]

    def tolist(self) -> Any:
        """Return the nested lists; of an array without dimensions its item."""
        return self._items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, key: Any) -> Any:
        found = self._items[key]
        if not isinstance(found, list):
            return found
        part = Array("", (0,), [])
        part._items = found
        return part

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(len(self._items)))

    def __bool__(self) -> bool:
        return bool(self._only())

    def __eq__(self, other: object) -> bool:
        return bool(self._only() == other)

    def _only(self) -> Any:
        item = self._items
        while isinstance(item, list) and len(item) == 1:
            item = item[0]
        if isinstance(item, list):
            raise ValueError("the truth value of an array with more than one element is ambiguous")
        return item
