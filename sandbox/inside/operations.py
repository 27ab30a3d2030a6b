"""Operations of tests on objects of a program, in the program's process."""

from __future__ import annotations

import copy
import importlib
import operator
import time
from collections.abc import Callable
from typing import Any

from rlvr.sandbox.inside import decoys
from rlvr.sandbox.inside.kept import fill
from rlvr.sandbox.inside.turns import Loop

# Items of an iterator are fetched in advance only for a loop that has taken this many, and for no longer than this.
_LOOPING, _CHUNK, _CHUNK_SECONDS = 64, 64, 0.002


def next_items(found: Any, taken: int) -> list[Any]:
    """Return the next items of an iterator: one, or some for a long loop; none at its end."""
    items, until = [], time.monotonic() + _CHUNK_SECONDS
    for item in found:
        items.append(item)
        if taken < _LOOPING or len(items) == _CHUNK or time.monotonic() > until:
            break
    return items


def _leave(found: Any, kind: str, args: list[Any]) -> Any:
    """Leave a context after an exception of the tests, known by its name."""
    error = Loop.error(kind, args) if kind else None
    return bool(type(found).__exit__(found, type(error) if error else None, error, None))


def _members(found: Any) -> dict[str, Any]:
    """Return the members of an enumeration, without aliases. Raises TypeError for anything else."""
    enum = importlib.import_module("enum")
    if not isinstance(found, enum.EnumMeta):
        raise TypeError("no enumeration")
    return {member.name: member for member in found}


def _refill(found: Any, do: str, key: Any, value: Any) -> None:
    """Change a container that is an attribute or an item of an object in place."""
    fill(OPERATIONS[do](found, key), value)


def _of_dataclass(name: str) -> Callable[..., Any]:
    return lambda found, changes=None: getattr(importlib.import_module("dataclasses"), name)(found, **(changes or {}))


OPERATIONS: dict[str, Callable[..., Any]] = {
    "self": lambda found: found,
    "members": _members,
    "attributes": lambda found: dict(vars(found)),
    "bases": lambda found: [base.__name__ for base in found.__mro__],
    "get": getattr,
    "set": setattr,
    "len": len,
    "truth": bool,
    "list": list,
    "str": str,
    "repr": repr,
    "format": format,
    "item": operator.getitem,
    "refill": _refill,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
    "iter": iter,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{name: _of_dataclass(name) for name in ("asdict", "astuple", "is_dataclass", "replace")},
    "next": next_items,
    "reversed": reversed,
    "await": Loop.run,
    "start": lambda found, how, *args: Loop.own().start(found, how, *args),
    "turn": lambda found, ended: Loop.own().turn(ended),
    "result": lambda found, number: Loop.own().result(number),
    "cancel": lambda found, number: Loop.own().cancel(number),
    "fresh": lambda found: Loop.own().fresh(),
    "aiter": lambda found: found.__aiter__(),
    "anext": Loop.step,
    "enter": lambda found: type(found).__enter__(found),
    "exit": _leave,
    "aenter": lambda found: Loop.run(type(found).__aenter__(found)),
    "aexit": Loop.leave,
    "isinstance": lambda kind, found: isinstance(found, kind),
    "issubclass": lambda kind, found: issubclass(found, kind),
    **{kind.__name__: kind for kind in (abs, hash, int, float, round, divmod)},
}
for _name in ("iscoroutinefunction", "isgeneratorfunction", "isasyncgenfunction"):
    OPERATIONS[_name] = lambda found, name=_name: bool(getattr(importlib.import_module("inspect"), name)(found))
# The operators of the tests, on objects of the program; "r" before a name: with the operands exchanged.
OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
for _name in OPERATORS:
    _operate = getattr(operator, f"__{_name}__")
    OPERATIONS[f"op {_name}"] = _operate
    OPERATIONS[f"op r{_name}"] = lambda found, left, operate=_operate: operate(left, found)
    OPERATIONS[f"op i{_name}"] = getattr(operator, f"__i{_name}__")
OPERATIONS |= {f"op {_name}": getattr(operator, f"__{_name}__") for _name in "lt le gt ge neg pos invert".split()}
OPERATIONS |= {"op eq": decoys.equal, "op ne": decoys.unequal}
