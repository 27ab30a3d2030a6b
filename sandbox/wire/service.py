"""Answer calls into a program: requests come in, plain values and numbers of objects go out.

This runs in the program's process. The program can send anything that this module sends: the reader trusts none of it.
"""

from __future__ import annotations

import importlib
import itertools
import operator
import os
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from rlvr.sandbox.wire import values
from rlvr.sandbox.wire import values as bounds

# The program's may be another function.
_getpid = os.getpid


def find(names: dict[str, Any], path: str) -> Any:
    """Return the object with a dotted name in the program's namespace. Raises NameError if there is none."""
    first, *attributes = path.split(".")
    if first not in names:
        raise NameError(f"the program defines no {first!r}")
    found = names[first]
    for attribute in attributes:
        found = getattr(found, attribute)
    return found


def find_entry(names: dict[str, Any], path: str) -> Any:
    """Return the function to call for a dotted name, as `find`.

    A method is that of a new instance, unless it is static or of the class; a method of `Solution` needs no class name.
    """
    if path not in names and "." not in path and hasattr(names.get("Solution"), path):
        path = f"Solution.{path}"
    above, _, name = path.rpartition(".")
    owner = find(names, above) if above else None
    if isinstance(owner, type) and isinstance(_find_static(owner, name), types.FunctionType):
        return getattr(owner(), name)
    return find(names, path)


def _find_static(owner: type, name: str) -> Any:
    return next((vars(kind)[name] for kind in owner.__mro__ if name in vars(kind)), None)


def make_array(kind: str, shape: tuple[int, ...], items: list[Any]) -> Any:
    """Return an array of numpy's."""
    return importlib.import_module("numpy").array(items, dtype=kind).reshape(shape)


_READ = frozenset(
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __iter__ __getitem__ __contains__ __bool__".split()
)


def _remember(items: Iterator[Any], read: list[Any]) -> Iterator[Any]:
    for item in items:
        read.append(item)
        yield item


_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), tuple, frozenset, range))
_NUMBERED = frozenset(("o", "l", "d", "C", "s", "B", "Q", "A", "a", "y"))


def _acts_otherwise(kind: type) -> bool:
    """Whether a class of the program compares or reads its values otherwise than the builtin type that it extends."""
    if kind.__module__ != "solution" or not issubclass(kind, values.BASES) or type(kind).__module__ == "enum":
        return False
    return any(base.__module__ == "solution" and not _READ.isdisjoint(vars(base)) for base in kind.__mro__)


def _is_number_of_numpy(kind: type) -> bool:
    return any((base.__module__, base.__name__) == ("numpy", "generic") for base in kind.__mro__)


def send(descriptor: int, message: Any) -> None:
    """Write one line of JSON, all of it; instead of a value that makes it too long that it is too large."""
    line = values.dumps(message) + b"\n"
    if len(line) > bounds.MAX_LINE and "v" in message:
        line = values.dumps({**message, "v": values.LEFT_OUT, "a": []}) + b"\n"
    data = memoryview(line)
    while data:
        data = data[os.write(descriptor, data) :]


class Server:
    """Answers requests until their pipe is closed.

    A request is {"do", "on", "with", "after", "drop"}: an operation; the name or the number of an object (with an
    attribute's name: [number, name]); encoded [args, kwargs]; the arguments whose values after the call are asked for;
    numbers of containers that the tests no longer have. An answer is one of
        {"v": value}
        {"h": number of the object that a class has made}
        {"x": names of an exception's types, "m": its arguments, "s": its text}
    with "a", the arguments after the call, where they were asked for. In both, ["&", n, data] is a container, which is
    called ["*", n] from then on. ["g", ...] is a number of numpy's.
    """

    def __init__(self, names: dict[str, Any], requests: int, replies: int, end_copies: Callable[[int], None]) -> None:
        self._names = names
        self._process = _getpid()
        self._end_copies = end_copies
        self._replies = replies
        self._lines = open(requests, "rb", closefd=False)  # noqa: SIM115
        # Numbered, and so kept alive.
        self._objects: list[Any] = []
        # Containers that both sides have, by number: given again, they are the same ones here.
        self._given: dict[int, Any] = {}
        self._numbers = itertools.count(-1, -1)
        self._operations: dict[str, Callable[..., Any]] = {
            "call": lambda on: find(self._names, on),
            "new": lambda on: find(self._names, on),
            "method": lambda on: getattr(self._objects[on[0]], on[1]),
            "calls": lambda on: lambda: callable(getattr(self._objects[on[0]], on[1])),
            "get": lambda on: lambda: getattr(self._objects[on[0]], on[1]),
            "set": lambda on: lambda value: setattr(self._objects[on[0]], on[1], value),
            "iter": lambda on: lambda: list(itertools.islice(self._objects[on], bounds.MAX_YIELDED)),
            "len": self._on(len),
            "str": self._on(str),
            "repr": self._on(repr),
            "item": self._on(operator.getitem),
            "setitem": self._on(operator.setitem),
            "delitem": self._on(operator.delitem),
        }

    def _on(self, operate: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
        return lambda on: lambda *args: operate(self._objects[on], *args)

    def serve(self) -> NoReturn:
        """Answer for ever."""
        while True:
            line = self._lines.readline()
            if not line:
                os._exit(0)
            answer = self._answer(values.loads(line))
            self._end_copies(self._process)
            send(self._replies, answer)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        args, kwargs = values.decode(request["with"], array=make_array, other=self._decode_given)
        try:
            value = self._operations[request["do"]](request["on"])(*args, **kwargs)
            answer = (
                self._encode_made(value)
                if request["do"] == "new"
                else {"v": values.encode_value(value, whole=True, other=self._encode_value)}
            )
        except (Exception, SystemExit) as error:
            answer = values.encode_exception(error)
        for number in request["drop"]:
            del self._given[number]
        after = [args[place] if isinstance(place, int) else kwargs[place] for place in request["after"]]
        return (
            {**answer, "a": [values.encode_value(value, whole=True, other=self._encode_value) for value in after]}
            if after
            else answer
        )

    def _encode_made(self, value: Any) -> dict[str, Any]:
        """A function that has the name of a class may return a plain value."""
        written = values.encode_value(value, whole=True, other=self._encode_value)
        if type(written) is not list or written[0] not in ("o", "y"):
            return {"v": written}
        self._objects.append(value)
        return {"h": len(self._objects) - 1}

    def _encode_value(self, value: Any, encoder: Any, depth: int) -> Any:
        """Encode what is more than its data: containers and objects, which tests may hand back, with a number.

        A number of numpy keeps its type. An object of a class of the program that compares or reads its values
        otherwise than its base class is no plain value.
        """
        kind = type(value)
        if kind in _PLAIN:
            return None
        if _acts_otherwise(kind):
            written = encoder.opaque(value)
        elif isinstance(value, Iterator):
            # Handed back, it starts with what has been read of it here.
            read: list[Any] = []
            written = encoder.write(_remember(value, read), depth)
            value = itertools.chain(read, value)
        elif _is_number_of_numpy(kind) and not isinstance(value, values.BASES):
            # Not an array without dimensions, which can be changed.
            return ["g", value.dtype.str, [], [value.item()]] if value.dtype.kind in "biuf" else None
        else:
            written = encoder.write(value, depth)
        if type(written) is not list or written[0] not in _NUMBERED or written[1] == bounds.TOO_LARGE:
            return written
        number = next(self._numbers)
        self._given[number] = value
        return ["o", written[1], number, written[3]] if written[0] == "o" else ["&", number, written]

    def _decode_given(self, tag: str, rest: list[Any], decoder: Any, depth: int) -> Any:
        number, *data = rest
        if tag == "h":
            return self._objects[number]
        if tag == "&":
            self._given[number] = decoder.any(data[0], depth - 1)
        return self._given[number]


def serve(names: dict[str, Any], requests: int, replies: int, end_copies: Callable[[int], None]) -> None:
    """Answer requests until their pipe is closed. `end_copies` ends processes but the one whose number it is given."""
    Server(names, requests, replies, end_copies).serve()
