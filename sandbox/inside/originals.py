"""Arguments of test code as they were before the program changed them."""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 50


class Originals:
    """Remembers arguments that the program changed in place, with their former values.

    Copies are made of exact builtin containers only, and compared without any method of another class.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any, Any]] = {}

    def copy(self, value: Any, depth: int = 0) -> Any:
        """Return a copy of nested lists, tuples, dicts, sets and bytearrays; anything else is itself."""
        kind = type(value)
        if depth > _MAX_DEPTH or kind not in (list, tuple, dict, set, bytearray):
            return value
        if kind is dict:
            return {key: self.copy(item, depth + 1) for key, item in value.items()}
        if kind in (set, bytearray):
            return kind(value)
        return kind([self.copy(item, depth + 1) for item in value])

    def keep(self, passed: list[Any], before: list[Any]) -> None:
        """Remember the arguments that differ from their copies."""
        for ours, former in zip(passed, before):
            if type(ours) not in (list, dict, set, bytearray) or _same(ours, former):
                continue
            known = self._known.get(id(ours))
            # Changed twice, and by the program only: the first value counts.
            first = known[2] if known is not None and _same(known[1], former) else former
            self._known[id(ours)] = (ours, self.copy(ours), first)

    def before(self, value: Any) -> Any:
        """Return a value in which arguments are as they were before the program changed them, if nobody has since."""
        return self._restored(value, 0) if self._known else value

    def _restored(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if kind not in (list, tuple, dict, set, bytearray) or depth > _MAX_DEPTH:
            return value
        known = self._known.get(id(value))
        if known is not None and _same(known[1], value):
            return self.copy(known[2])
        if kind is dict:
            changed: Any = {key: self._restored(item, depth + 1) for key, item in value.items()}
            return value if all(changed[key] is value[key] for key in value) else changed
        if kind in (set, bytearray):
            return value
        items = [self._restored(item, depth + 1) for item in value]
        return value if all(new is old for new, old in zip(items, value)) else kind(items)


def _same(one: Any, other: Any, depth: int = 0) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in (list, tuple) and depth <= _MAX_DEPTH:
        return len(one) == len(other) and all(_same(a, b, depth + 1) for a, b in zip(one, other))
    if kind is dict and depth <= _MAX_DEPTH:
        return list(one) == list(other) and all(_same(one[key], other[key], depth + 1) for key in one)
    if kind in (set, bytearray, str, int, float, bytes, bool, complex, frozenset):
        return one is other or bool(one == other)
    return one is other
