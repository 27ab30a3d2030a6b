"""Arguments of test code as the program changes them, and as they were before."""

from __future__ import annotations

import io
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

from rlvr.sandbox.inside.plain import PlainError

# Values beside their copies and their first values, by id.
Copied = dict[int, tuple[Any, Any, Any]]
# More than values have on their way to the program.
_MAX_DEPTH = 120
_MAX_KEPT = 64
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
        # Arguments of the next request that the program's changes are not written to.
        self._kept: list[Any] = []
        # What the program made of such arguments, by id: the argument, a copy of it, its changed value.
        self._theirs: dict[int, tuple[Any, Any, Any]] = {}

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
        copied[id(value)] = (value, made, known[2] if known is not None and same(known[1], made) else made)
        return made

    def keep(self, copied: Copied) -> None:
        """Remember those of the copied values that the program has changed since."""
        for ours, former, first in list(copied.values()):
            if type(ours) is not tuple and not same(ours, former):
                self._known[id(ours)] = (ours, self.copy(ours), first)

    def stay(self, value: Any) -> Any:
        """Return an argument, to which the program's changes are not to be written: no assert looks at it by itself."""
        if _is_copied(value):
            del self._kept[:-_MAX_KEPT]
            self._kept.append(value)
        return value

    def stay_all(self, values: Any) -> Any:
        """Return the values of `*args` or `**kwargs`, all of which stay."""
        found = values if isinstance(values, dict) else list(values)
        for value in found.values() if isinstance(found, dict) else found:
            self.stay(value)
        return found

    def stays(self, value: Any) -> bool:
        """Whether an argument of a request stays as it is. It has to be told again for the next request."""
        for number, kept in enumerate(self._kept):
            if kept is value:
                del self._kept[number]
                return True
        return False

    def write_back(self, given: list[Any], left: list[Any], stays: list[bool]) -> None:
        """Repeat on the arguments of a request what the program has changed, or remember it where they stay."""
        if len(left) != len(given):
            raise PlainError("other arguments")
        for ours, theirs, stay in zip(given, left, stays):
            if not stay:
                update([ours], [theirs])
            elif _is_copied(ours) and type(ours) is type(theirs) and not same(ours, theirs):
                self._theirs[id(ours)] = (ours, self.copy(ours), theirs)
            else:
                self._theirs.pop(id(ours), None)

    def theirs(self, value: Any) -> Any:
        """Return an argument as the program has left it, if the tests have not changed it since."""
        return self._replaced(value, self._theirs, lambda left: left, 0) if self._theirs else value

    def take(self, *values: Any) -> None:
        """Write to arguments what the program made of them: the tests are going to change them too."""
        for value in values if self._theirs else ():
            kept = self._theirs.pop(id(value), None)
            if kept is not None and same(value, kept[1]):
                update([value], [kept[2]])

    def settle(self, *values: Any) -> None:
        """Take arguments as they are now: the program was to change them."""
        for value in values:
            copied: Copied = {}
            self.copy(value, copied)
            for known in copied:
                self._known.pop(known, None)

    def before(self, value: Any) -> Any:
        """Return a value in which arguments are as they were before the program changed them, if nobody has since."""
        return self._replaced(value, self._known, self.copy, 0) if self._known else value

    def _replaced(self, value: Any, by: Copied, made: Callable[[Any], Any], depth: int) -> Any:
        """Return a value whose parts are those that stand last in `by`, if they are still as those beside them."""
        kind = type(value)
        if depth > _MAX_DEPTH or not _is_copied(value):
            return value
        known = by.get(id(value))
        if known is not None and kind in _FILES and not known[1].closed:
            return _restored_file(value, known[1], known[2])
        if known is not None and same(known[1], value):
            return made(known[2])
        if kind in _MAPPINGS:
            changed: dict[Any, Any] = {key: self._replaced(item, by, made, depth + 1) for key, item in value.items()}
            if all(changed[key] is item for key, item in value.items()):
                return value
            found = _empty(value)
            for key, item in changed.items():
                found[key] = item
            return found
        if kind not in (list, tuple, deque):
            return value
        items = [self._replaced(item, by, made, depth + 1) for item in value]
        return value if all(new is old for new, old in zip(items, value)) else kind(items)


def update(passed: list[Any], after: list[Any], depth: int = 0) -> None:
    """Repeat on our arguments, and on the containers in them, what the program changed in place."""
    for ours, theirs in zip(passed, after):
        if ours is theirs or type(ours) is not type(theirs):
            continue
        if type(ours) in (list, deque):
            items = _items(list(ours), list(theirs), depth)
            ours.clear()
            ours.extend(items)
        elif type(ours) is bytearray:
            ours[:] = theirs
        elif isinstance(ours, dict):
            kept = dict(zip(theirs, _items([ours.get(key) for key in theirs], list(theirs.values()), depth)))
            ours.clear()
            ours.update(kept)
        elif isinstance(ours, set):
            ours.clear()
            ours.update(theirs)
        elif type(ours).__name__ == "ndarray" and ours.shape == theirs.shape:
            ours[...] = theirs


def _items(ours: list[Any], theirs: list[Any], depth: int) -> list[Any]:
    """Return the items that the program has left; containers are ours, changed, where they stand at the same place."""
    held = [id(item) for item in ours if type(item) in _CONTAINERS]
    once = len(set(held)) == len(held)
    if depth > _MAX_DEPTH or len(ours) != len(theirs) or not once:
        return theirs
    both = list(zip(ours, theirs))
    same = [type(a) is type(b) and type(a) in (list, deque, bytearray, set, *_MAPPINGS) for a, b in both]
    update(
        [a for (a, _), alike in zip(both, same) if alike], [b for (_, b), alike in zip(both, same) if alike], depth + 1
    )
    return [a if alike else b for (a, b), alike in zip(both, same)]


def is_own(value: Any) -> bool:
    """Whether a value is an object of a class of the tests."""
    return type(value).__module__ == "__main__" and hasattr(value, "__dict__")


def same_class(ours: Any, kind: str, read: Callable[[], Any]) -> bool:
    """Whether an object of the tests equals one of the program, of a class of the name `kind` there.

    Told by the tests' own method, for the attributes that `read` returns.
    """
    if vars(object)["__eq__"] is type(ours).__eq__ or kind != type(ours).__name__:
        return False
    made: Any = object.__new__(type(ours))
    attributes = read()
    if type(attributes) is not dict or not all(type(name) is str for name in attributes):
        return False
    # What the tests' class defines itself, such as a property, is computed by it.
    vars(made).update({name: value for name, value in attributes.items() if name in vars(ours)})
    return bool(made == ours)


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


def same(one: Any, other: Any, seen: set[tuple[int, int]] | None = None, depth: int = 0) -> bool:
    """Whether two values are alike, told without any method of another class than the builtin ones."""
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
        return len(one) == len(other) and all(same(a, b, seen, depth + 1) for a, b in zip(one, other))
    if kind in _FILES:
        return bool(one.getvalue() == other.getvalue() and one.tell() == other.tell())
    if is_own(one):
        seen.add((id(one), id(other)))
        one, other = vars(one), vars(other)
    if type(one) in _MAPPINGS:
        seen.add((id(one), id(other)))
        return list(one) == list(other) and all(same(one[key], other[key], seen, depth + 1) for key in one)
    return kind in _SCALARS and bool(one == other)
