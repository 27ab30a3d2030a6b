"""Arguments of test code as the program changes them, and as they were before."""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

from rlvr.sandbox.inside.plain import PlainError

# Values beside their copies and their first values, by id.
Copied = dict[int, tuple[Any, Any, Any]]
# More than values have on their way to the program.
_MAX_DEPTH = 120
_MAPPINGS = (dict, Counter, OrderedDict, defaultdict)
_FILES = (io.StringIO, io.BytesIO)
_CONTAINERS = (list, tuple, set, bytearray, deque, *_MAPPINGS, *_FILES)
_SCALARS = (set, bytearray, str, int, float, bytes, bool, complex, frozenset)


class Originals:
    """Remembers arguments that the program changed in place, with their former values.

    Copies are made of exact builtin containers, arrays and objects of the tests' own classes, and compared without any
    method of another class.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, Any, Any]] = {}

    def copy(self, value: Any, copied: Copied | None = None, depth: int = 0) -> Any:
        """Return a copy of nested containers, files in memory, arrays and objects; anything else is itself.

        `copied` takes what was copied by its id, beside its copy and its value before all changes of the program.
        """
        kind = type(value)
        copied = {} if copied is None else copied
        if id(value) in copied:
            return copied[id(value)][1]
        if depth > _MAX_DEPTH or not _is_copied(value):
            return value
        if kind in (set, bytearray):
            made: Any = kind(value)
        elif kind in _FILES:
            made = _file(value, value.tell())
        elif _is_array(value):
            made = value.copy()
        elif kind is tuple:
            made = tuple([self.copy(item, copied, depth + 1) for item in value])
        else:
            made = _empty(value)
            # They may contain each other in a circle.
            copied[id(value)] = (value, made, made)
            if kind in (list, deque):
                made.extend([self.copy(item, copied, depth + 1) for item in list(value)])
            else:
                found, target = (vars(value), vars(made)) if is_own(value) else (value, made)
                for key, item in list(found.items()):
                    target[key] = self.copy(item, copied, depth + 1)
        known = self._known.get(id(value))
        # Changed twice, and by the program only: the first value counts.
        copied[id(value)] = (value, made, known[2] if known is not None and _same(known[1], made) else made)
        return made

    def keep(self, copied: Copied) -> None:
        """Remember those of the copied values that the program has changed since."""
        for ours, former, first in list(copied.values()):
            if type(ours) is not tuple and not _same(ours, former):
                self._known[id(ours)] = (ours, self.copy(ours), first)

    def settle(self, *values: Any) -> None:
        """Take arguments as they are now: the program was to change them."""
        for value in values:
            copied: Copied = {}
            self.copy(value, copied)
            for known in copied:
                self._known.pop(known, None)

    def before(self, value: Any) -> Any:
        """Return a value in which arguments are as they were before the program changed them, if nobody has since."""
        return self._restored(value, 0) if self._known else value

    def _restored(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if depth > _MAX_DEPTH or not _is_copied(value):
            return value
        known = self._known.get(id(value))
        if known is not None and kind in _FILES and not known[1].closed:
            return _restored_file(value, known[1], known[2])
        if known is not None and _same(known[1], value):
            return self.copy(known[2])
        if kind in _MAPPINGS:
            changed: dict[Any, Any] = {key: self._restored(item, depth + 1) for key, item in value.items()}
            if all(changed[key] is item for key, item in value.items()):
                return value
            made = _empty(value)
            for key, item in changed.items():
                made[key] = item
            return made
        if kind not in (list, tuple, deque):
            return value
        items = [self._restored(item, depth + 1) for item in value]
        return value if all(new is old for new, old in zip(items, value)) else kind(items)


def update(passed: list[Any], after: list[Any]) -> None:
    """Repeat on our arguments what the program changed in place."""
    if len(after) != len(passed):
        raise PlainError("other arguments")
    for ours, theirs in zip(passed, after):
        if ours is theirs or type(ours) is not type(theirs):
            continue
        if type(ours) in (list, bytearray):
            ours[:] = theirs
        elif isinstance(ours, (dict, set)):
            ours.clear()
            ours.update(theirs)
        elif type(ours).__name__ == "deque":
            ours.clear()
            ours.extend(theirs)
        elif type(ours).__name__ == "ndarray" and ours.shape == theirs.shape:
            ours[...] = theirs


def is_own(value: Any) -> bool:
    """Whether a value is an object of a class of the tests."""
    return type(value).__module__ == "__main__" and hasattr(value, "__dict__")


def _is_copied(value: Any) -> bool:
    if type(value) in _FILES:
        return not value.closed
    return type(value) in _CONTAINERS or _is_array(value) or is_own(value)


def _empty(value: Any) -> Any:
    """Return an empty container, or object, like a value."""
    kind = type(value)
    if kind is defaultdict:
        return defaultdict(value.default_factory)
    return deque(maxlen=value.maxlen) if kind is deque else kind() if kind in _CONTAINERS else object.__new__(kind)


def _file(like: Any, position: int) -> Any:
    made = io.StringIO(newline="") if type(like) is io.StringIO else io.BytesIO()
    made.write(like.getvalue())
    made.seek(position)
    return made


def _restored_file(value: Any, after: Any, first: Any) -> Any:
    """Return a file as it was, unless the tests have written to it; at the position where they have moved it."""
    if value.getvalue() != after.getvalue():
        return value
    return _file(first, first.tell() if value.tell() == after.tell() else value.tell())


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
    if kind in _FILES:
        return bool(one.getvalue() == other.getvalue() and one.tell() == other.tell())
    if is_own(one):
        seen.add((id(one), id(other)))
        one, other = vars(one), vars(other)
    if type(one) in _MAPPINGS:
        seen.add((id(one), id(other)))
        return list(one) == list(other) and all(_same(one[key], other[key], seen, depth + 1) for key in one)
    return kind in _SCALARS and bool(one == other)
