"""Arguments of test code as they were before the program changed them."""

from __future__ import annotations

from collections import deque
from typing import Any

# More than values have on their way to the program.
_MAX_DEPTH = 120
_CONTAINERS = (list, tuple, dict, set, bytearray, deque)
_SCALARS = (set, bytearray, str, int, float, bytes, bool, complex, frozenset)


class Originals:
    """Remembers arguments that the program changed in place, with their former values.

    Copies are made of exact builtin containers, arrays and objects of the tests' own classes, and compared without any
    method of another class.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any, Any]] = {}

    def copy(self, value: Any, copied: dict[int, tuple[Any, Any]] | None = None, depth: int = 0) -> Any:
        """Return a copy of nested containers, arrays and objects; anything else is itself.

        `copied` takes what was copied, beside its copy, by its id.
        """
        kind = type(value)
        copied = {} if copied is None else copied
        if id(value) in copied:
            return copied[id(value)][1]
        if depth > _MAX_DEPTH or not (kind in _CONTAINERS or _is_array(value) or is_own(value)):
            return value
        if kind in (set, bytearray):
            made: Any = kind(value)
        elif _is_array(value):
            made = value.copy()
        elif kind is dict:
            made = {key: self.copy(item, copied, depth + 1) for key, item in value.items()}
        elif is_own(value):
            made = object.__new__(kind)
            # Objects may refer to each other in a circle.
            copied[id(value)] = (value, made)
            vars(made).update({name: self.copy(item, copied, depth + 1) for name, item in vars(value).items()})
        else:
            made = kind([self.copy(item, copied, depth + 1) for item in value])
        copied[id(value)] = (value, made)
        return made

    def keep(self, copied: dict[int, tuple[Any, Any]]) -> None:
        """Remember those of the copied values that the program has changed since."""
        for ours, former in list(copied.values()):
            if type(ours) is tuple or _same(ours, former):
                continue
            known = self._known.get(id(ours))
            # Changed twice, and by the program only: the first value counts.
            first = known[2] if known is not None and _same(known[1], former) else former
            self._known[id(ours)] = (ours, self.copy(ours), first)

    def settle(self, *values: Any) -> None:
        """Take arguments as they are now: the program was to change them."""
        for value in values:
            copied: dict[int, tuple[Any, Any]] = {}
            self.copy(value, copied)
            for known in copied:
                self._known.pop(known, None)

    def before(self, value: Any) -> Any:
        """Return a value in which arguments are as they were before the program changed them, if nobody has since."""
        return self._restored(value, 0) if self._known else value

    def _restored(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if depth > _MAX_DEPTH or not (kind in _CONTAINERS or _is_array(value) or is_own(value)):
            return value
        known = self._known.get(id(value))
        if known is not None and _same(known[1], value):
            return self.copy(known[2])
        if kind is dict:
            changed: Any = {key: self._restored(item, depth + 1) for key, item in value.items()}
            return value if all(changed[key] is value[key] for key in value) else changed
        if kind not in (list, tuple, deque):
            return value
        items = [self._restored(item, depth + 1) for item in value]
        return value if all(new is old for new, old in zip(items, value)) else kind(items)


def is_own(value: Any) -> bool:
    """Whether a value is an object of a class of the tests."""
    return type(value).__module__ == "__main__" and hasattr(value, "__dict__")


def _is_array(value: Any) -> bool:
    return type(value).__name__ == "ndarray" and type(value).__module__ == "numpy"


def _same(one: Any, other: Any, seen: set[tuple[int, int]] | None = None, depth: int = 0) -> bool:
    kind = type(one)
    seen = set() if seen is None else seen
    if one is other or (id(one), id(other)) in seen:
        return True
    if kind is not type(other) or depth > _MAX_DEPTH:
        return False
    if _is_array(one):
        return bool(one.shape == other.shape and one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if kind in (list, tuple, deque):
        seen.add((id(one), id(other)))
        return len(one) == len(other) and all(_same(a, b, seen, depth + 1) for a, b in zip(one, other))
    if is_own(one):
        one, other = vars(one), vars(other)
    if type(one) is dict:
        seen.add((id(one), id(other)))
        return list(one) == list(other) and all(_same(one[key], other[key], seen, depth + 1) for key in one)
    return kind in _SCALARS and bool(one == other)
