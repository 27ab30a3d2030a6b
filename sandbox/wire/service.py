"""Answer calls into a program: requests come in, plain values and numbers of objects go out.

This runs in the program's process. The program can send anything that this module sends: the reader trusts none of it.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import operator
import os
import types
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from . import values
from . import values as bounds

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


class _Items:
    """What was read of an iterator, and whether there may be more."""

    def __init__(self, items: list[Any], more: bool) -> None:
        self.items, self.more = items, more


_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), tuple, frozenset, range))
_NUMBERED = frozenset(("o", "l", "d", "m", "C", "s", "B", "Q", "A", "a", "W"))
# A class may set these without acting otherwise: strong tests neither ask how an answer is shown, nor change it.
_TRIVIAL = frozenset(
    "__setitem__ __delitem__ add append clear discard extend insert pop remove setdefault sort update "
    "__init__ __new__ __repr__ __str__ __format__ __module__ __doc__ __slots__ __dict__ __weakref__ __annotations__ "
    "__abstractmethods__ _abc_impl __qualname__ "
    "__getnewargs__ __init_subclass__ __class_getitem__ __firstlineno__ __static_attributes__".split()
)


@functools.lru_cache(maxsize=1024)
def _acts_otherwise(kind: type) -> bool:
    """Whether a class of the program sets something anew that the type has which it extends."""
    if type(kind).__module__ == "enum":
        return False
    own = [base for base in kind.__mro__ if base.__module__ == "solution"]
    others = [base for base in kind.__mro__[:-1] if base.__module__ != "solution"]
    known = {"__missing__"}.union(*map(dir, others)) - _TRIVIAL - set(getattr(kind, "_fields", ()))
    return bool(own and others) and any(not known.isdisjoint(vars(base)) for base in own)


def _is_number_of_numpy(kind: type) -> bool:
    return any((base.__module__, base.__name__) == ("numpy", "generic") for base in kind.__mro__)


def _stays(do: str, value: Any) -> bool:
    """Whether what a class has made, or an attribute, stays here. A function that is named as a class may return 1."""
    if do == "new":
        return type(value) not in _PLAIN - {tuple, frozenset}
    return do == "get" and callable(value) and not (isinstance(value, type) and values.is_known_type(value))


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
        {"h": number of the object that a class has made, or of a method}
        {"x": names of an exception's types, "m": its arguments, "s": its text}
    with "a", the arguments after the call, where they were asked for. In both, ["&", n, data] is a container, which is
    called ["*", n] from then on. ["g", ...] is a number of numpy's, ["m", factory, ...] a dict with default values,
    ["e", n] an iterator: it is read when the tests ask for its first item.
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
            "apply": lambda on: self._objects[on],
            "read": lambda on: lambda: _Items(*values.read_items(self._given[on])),
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
            answer = {"h": self._keep(value)} if _stays(request["do"], value) else {"v": self._encode(value)}
        except (Exception, SystemExit) as error:
            answer = values.encode_exception(error)
        for number in request["drop"]:
            del self._given[number]
        after = [args[place] if isinstance(place, int) else kwargs[place] for place in request["after"]]
        return {**answer, "a": list(map(self._encode, after))} if after else answer

    def _keep(self, value: Any) -> int:
        self._objects.append(value)
        return len(self._objects) - 1

    def _encode(self, value: Any) -> Any:
        return values.encode_value(value, whole=True, other=self._encode_value)

    def _encode_value(self, value: Any, encoder: Any, depth: int) -> Any:
        """Encode what is more than its data: containers and objects, which tests may hand back, with a number.

        A number of numpy keeps its type. An object of a class of the program that acts otherwise than the type that it
        extends is no plain value.
        """
        kind = type(value)
        if kind in _PLAIN:
            return None
        if kind is _Items:
            return ["y", encoder.items(value.items, depth), *([True] if value.more else ())]
        if isinstance(value, Iterator):
            number = next(self._numbers)
            self._given[number] = value
            return ["e", number]
        if _is_number_of_numpy(kind):
            # Not an array without dimensions, which can be changed.
            return ["g", value.dtype.str, [], [value.item()]] if value.dtype.kind in "biuf" else None
        differs = _acts_otherwise(kind)  # type: ignore[arg-type]
        written = encoder.opaque(value) if differs else encoder.write(value, depth)
        if isinstance(value, defaultdict) and value.default_factory is not None and written[0] == "d":
            written = ["m", self._encode(value.default_factory), *written[1:]]
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
