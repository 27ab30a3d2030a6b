"""Operations of tests on objects of a program, in the program's process."""

from __future__ import annotations

import _thread
import builtins
import importlib
import operator
import time
from collections.abc import Callable
from typing import Any, ClassVar

# Items of an iterator are fetched in advance only for a loop that has taken this many, and for no longer than this.
_LOOPING, _CHUNK, _CHUNK_SECONDS = 64, 64, 0.002


def _next(found: Any, taken: int) -> list[Any]:
    """Return the next items of an iterator: one, or some for a long loop; none at its end."""
    items, until = [], time.monotonic() + _CHUNK_SECONDS
    for item in found:
        items.append(item)
        if taken < _LOOPING or len(items) == _CHUNK or time.monotonic() > until:
            break
    return items


class _Loop:
    """The event loop of the program, for all that a thread of the tests awaits."""

    loops: ClassVar[dict[int, Any]] = {}

    @classmethod
    def run(cls, awaitable: Any) -> Any:
        asyncio = importlib.import_module("asyncio")
        loop = cls.loops.get(_thread.get_ident())
        if loop is None:
            loop = cls.loops[_thread.get_ident()] = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)

        async def result() -> Any:
            return await awaitable

        return loop.run_until_complete(result())

    @classmethod
    def step(cls, found: Any) -> list[Any]:
        try:
            return [cls.run(found.__anext__())]
        except StopAsyncIteration:
            return []


def _leave(found: Any, kind: str, text: str) -> Any:
    """Leave a context after an exception of the tests, known by its name."""
    error = getattr(builtins, kind, Exception)(text) if kind else None
    return bool(type(found).__exit__(found, type(error) if error else None, error, None))


def _members(found: Any) -> dict[str, Any]:
    """Return the members of an enumeration, without aliases. Raises TypeError for anything else."""
    enum = importlib.import_module("enum")
    if not isinstance(found, enum.EnumMeta):
        raise TypeError("no enumeration")
    return {member.name: member for member in found}


OPERATIONS: dict[str, Callable[..., Any]] = {
    "self": lambda found: found,
    "members": _members,
    "get": getattr,
    "set": setattr,
    "len": len,
    "truth": bool,
    "list": list,
    "str": str,
    "repr": repr,
    "format": format,
    "item": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
    "iter": iter,
    "next": _next,
    "reversed": reversed,
    "await": _Loop.run,
    "aiter": lambda found: found.__aiter__(),
    "anext": _Loop.step,
    "enter": lambda found: type(found).__enter__(found),
    "exit": _leave,
    "aenter": lambda found: _Loop.run(type(found).__aenter__(found)),
    "aexit": lambda found: bool(_Loop.run(type(found).__aexit__(found, None, None, None))),
    "isinstance": lambda kind, found: isinstance(found, kind),
    "issubclass": lambda kind, found: issubclass(found, kind),
    **{kind.__name__: kind for kind in (abs, hash, int, float, round, divmod)},
}
# The operators of the tests, on objects of the program; "r" before a name: with the operands exchanged.
OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
for _name in OPERATORS:
    _operate = getattr(operator, f"__{_name}__")
    OPERATIONS[f"op {_name}"] = _operate
    OPERATIONS[f"op r{_name}"] = lambda found, left, operate=_operate: operate(left, found)
    OPERATIONS[f"op i{_name}"] = getattr(operator, f"__i{_name}__")
OPERATIONS |= {f"op {_name}": getattr(operator, f"__{_name}__") for _name in "eq ne lt le gt ge neg pos invert".split()}
