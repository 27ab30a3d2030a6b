"""Serve calls into a program: requests come in, values go out as tagged plain data.

This runs in the program's process. The program can send anything that this module sends: the reader trusts none of it.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any

from rlvr.sandbox.inside import plain


def find(names: dict[str, Any], path: str) -> Any:
    """Return the object with a dotted name in the program's namespace. Raises NameError if there is none."""
    first, *attributes = path.split(".")
    if first not in names:
        raise NameError(f"the program defines no {first!r}")
    found = names[first]
    for attribute in attributes:
        found = getattr(found, attribute)
    return found


def written(value: Any, keep: Callable[[Any], int | None] | None = None) -> Any:
    """Encode `value` as plain data. A value whose methods raise is encoded as opaque, whatever they raise."""
    try:
        return plain.encode(value, keep)
    except Exception:
        return ["o", "unreadable", None, None]


def send(descriptor: int, message: Any) -> None:
    """Write one line of JSON, all of it."""
    data = memoryview(plain.dumps(message) + b"\n")
    while data:
        data = data[os.write(descriptor, data) :]


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "self": lambda found: found,
    "get": getattr,
    "set": setattr,
    "len": len,
    "truth": bool,
    "list": list,
    "str": str,
    "repr": repr,
    "item": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
}


class _Objects:
    """Objects that the other side knows by a handle: kept alive, one handle per object."""

    def __init__(self) -> None:
        self._objects: list[Any] = []
        self._handles: dict[int, int] = {}

    def keep(self, value: Any) -> int:
        handle = self._handles.get(id(value))
        if handle is None:
            handle = self._handles[id(value)] = len(self._objects)
            self._objects.append(value)
        return handle

    def __call__(self, kind: str, handle: int | None, truth: bool | None) -> Any:
        if handle is None:
            raise ValueError(f"a {kind} cannot be passed to the program")
        return self._objects[handle]


def serve(names: dict[str, Any], requests: int, replies: int) -> None:
    """Answer requests until their pipe is closed.

    A request is {"do", "on", "args", "kwargs"}: `do` is "call" or one of _OPERATIONS, `on` a dotted name or an encoded
    object. An answer is {"v"}: the value, or {"x", "m"}: exception types and arguments; and {"a"}: the call's arguments
    if it changed them.
    """
    objects = _Objects()
    with open(requests, "rb", closefd=False) as lines:
        for line in lines:
            request = plain.loads(line)
            send(replies, _answer(names, objects, request))


def _answer(names: dict[str, Any], objects: _Objects, request: dict[str, Any]) -> dict[str, Any]:
    try:
        on = request["on"]
        target = find(names, on["name"]) if "name" in on else plain.decode(on["object"], objects)
        args = plain.decode(request["args"], objects)
        kwargs = plain.decode(request["kwargs"], objects)
        operate = target if request["do"] == "call" else None
        value = operate(*args, **kwargs) if operate else _OPERATIONS[request["do"]](target, *args)
        answer = {"v": written(value, objects.keep)}
        after = written(list(args), objects.keep)
        if after != request["args"]:
            answer["a"] = after
        return answer
    except Exception as error:
        return {"x": [base.__name__ for base in type(error).__mro__], "m": _message(error)}


def _message(error: Exception) -> Any:
    try:
        return written(list(error.args))
    except Exception:
        return ["l", []]
