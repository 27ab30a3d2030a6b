"""Answer calls into a program: requests come in, plain values and numbers of objects go out.

This runs in the program's process. The program can send anything that this module sends: the reader trusts none of it.
"""

from __future__ import annotations

import builtins
import contextlib
import datetime
import functools
import importlib
import itertools
import operator
import os
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from . import values

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
    owner: Any = find(names, above) if above else None
    static = next((vars(kind)[name] for kind in getattr(owner, "__mro__", ()) if name in vars(kind)), None)
    if isinstance(static, types.FunctionType):
        return getattr(owner(), name)
    return find(names, path)


def make_array(kind: str, shape: tuple[int, ...], items: list[Any]) -> Any:
    """Return an array of numpy's."""
    array = importlib.import_module("numpy").array(items, dtype=kind)
    array.shape = shape  # in place: an array that is no view, so that its views can be told
    return array


class _Items:
    """The next item of an iterator, or none at its end."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items


_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), tuple, frozenset, range))
# Named tuples and views of dicts, too: handed back, they are what they were.
_NUMBERED = frozenset(("o", "l", "d", "m", "C", "s", "B", "Q", "A", "a", "W", "N", "v", "w", "V"))
# A class may set these without acting otherwise: strong tests neither ask how an answer is shown, nor change it.
_TRIVIAL = frozenset(
    "__setitem__ __delitem__ add append clear discard extend insert pop remove setdefault sort update "
    "__init__ __new__ __repr__ __str__ __format__ __module__ __doc__ __slots__ __dict__ __weakref__ __annotations__ "
    "__abstractmethods__ _abc_impl __qualname__ __match_args__ __replace__ __reduce_ex__ __orig_bases__ __parameters__ "
    "__getnewargs__ __init_subclass__ __class_getitem__ __firstlineno__ __static_attributes__ __missing__".split()
)
# Operators and copies of these types construct the subclass, so that its `__init__` and `__new__` run.
_REMADE = ("deque", "OrderedDict", "UserList", "UserDict", "UserString", "Counter", "ChainMap")
# By identity: a class of the program decides what it equals, and what `__mro__` it shows.
_ERRORS = {id(kind): name for name, kind in vars(builtins).items() if isinstance(kind, type) and name == kind.__name__}
_MRO: Any = vars(type)["__mro__"]
_MADE_IN_PYTHON = 1 << 9  # the flag of types that are made while Python runs


@functools.lru_cache(maxsize=1024)
def _is_of_program(kind: type) -> bool:
    """Whether a class is the program's: no module has it under its name. What it says of its module may be wrong."""
    if not kind.__flags__ & _MADE_IN_PYTHON:
        return False
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is not kind or kind.__module__ in ("solution", "__main__")


def _acts_otherwise(kind: type) -> bool:
    """Whether a class of the program adds special methods, or changes what the type has which it extends."""
    own = [base for base in _MRO.__get__(kind) if _is_of_program(base)]
    others = [base for base in _MRO.__get__(kind)[:-1] if base not in own]
    known = set[str]().union(*map(dir, others))
    fields = getattr(kind, "_fields", ())
    fine = _TRIVIAL.union(filter(values.is_field, fields if type(fields) is tuple else ()))
    if any(base.__name__ in _REMADE for base in others):
        fine -= {"__init__", "__new__"}
    is_enum = type(kind).__module__ == "enum"
    for base in own if others else ():
        for name, value in vars(base).items():
            special = name in known or (name[:2] == "__" and name[-2:] == "__")
            inherited = any(vars(other).get(name) is value for other in others)
            if special and name not in fine and not inherited and not (is_enum and name[:1] == "_" != name[1:2]):
                return True
    return any((base.__module__, base.__name__) == ("enum", "Flag") for base in others)


def _loses_its_context(value: Any) -> bool:
    """Whether tests would compute otherwise with a value: with another zone, or another context of decimal numbers."""
    if isinstance(value, (datetime.datetime, datetime.time)):
        return type(value.tzinfo) not in (type(None), datetime.timezone)
    decimal: Any = sys.modules.get("decimal")
    if decimal is None or not isinstance(value, decimal.Decimal):
        return False
    *settings, _, traps = decimal.getcontext().__reduce__()[1]
    names = {trap.__name__ for trap in traps}
    default = [28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0]
    return settings != default or names != {"InvalidOperation", "DivisionByZero", "Overflow"}


def _can_change(value: Any) -> bool:
    """Whether a value may be another one later: not numbers, texts and tuples of them."""
    if type(value) in (tuple, frozenset):
        return any(map(_can_change, value))
    return type(value) not in _PLAIN


def _is_number_of_numpy(kind: type) -> bool:
    return any((base.__module__, base.__name__) == ("numpy", "generic") for base in kind.__mro__)


def _stays(do: str, value: Any) -> bool:
    """Whether what a class has made, or an attribute, stays here. A function that is named as a class may return 1."""
    if do == "new":
        return type(value) not in _PLAIN - {tuple, frozenset}
    return do == "get" and callable(value) and not (isinstance(value, type) and values.is_known_type(value))


def _leave_iterator(value: Any, encoder: Any, depth: int) -> Any:
    """Encode an iterator as itself, so that it is not read."""
    return ["o", "iterator", id(value), None] if isinstance(value, Iterator) else None


class _Reader(Iterator[Any]):
    """The iterator of an object of the program."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __next__(self) -> Any:
        return next(self._iterator)


def send(descriptor: int, message: Any) -> None:
    """Write one line of JSON, all of it; instead of a value that makes it too long that it is too large."""
    line = values.dumps(message) + b"\n"
    if len(line) > values.MAX_LINE and "v" in message:
        left_out = [values.LEFT_OUT] * len(message.get("a", ()))
        line = values.dumps({**message, "v": values.LEFT_OUT, "a": left_out}) + b"\n"
    data = memoryview(line)
    while data:
        data = data[os.write(descriptor, data) :]


class Server:
    """Answers requests until their pipe is closed.

    A request is {"do", "on", "with", "after", "drop"}: an operation; the name or the number of an object (with an
    attribute's name: [number, name]); encoded [args, kwargs]; the arguments whose values after the call are asked for;
    numbers of containers that the tests no longer have. "redefined" asks which of some builtin names the program has
    bound anew. An answer is one of
        {"v": value}
        {"h": number of the object that a class has made, or of a method}
        {"x": names of an exception's types, "m": its arguments, "s": its text}
        {"refused": true} for arguments that cannot be decoded
    with "a", the arguments after the call, where they were asked for. In both, ["&", n, data] is a container, which is
    called ["*", n] from then on. ["g", ...] is a number of numpy's, ["m", ...] a dict with default values,
    ["e", n] an iterator: its items are asked for one by one.
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
        # Of each iterator the items that were read since the last other request and can change, as they were then.
        self._read: dict[int, dict[int, tuple[Any, Any]]] = {}
        self._numbers = itertools.count(-1, -1)
        self._operations: dict[str, Callable[..., Any]] = {
            "call": lambda on: find(self._names, on),
            "new": lambda on: find(self._names, on),
            "apply": lambda on: self._objects[on],
            "next": lambda on: lambda: self._next(on),
            "get": lambda on: lambda: getattr(self._objects[on[0]], on[1]),
            "set": lambda on: lambda value: setattr(self._objects[on[0]], on[1], value),
            "iter": lambda on: lambda: _Reader(iter(self._objects[on])),
            "len": self._on(len),
            "str": self._on(str),
            "repr": self._on(repr),
            "item": self._on(operator.getitem),
            "setitem": self._on(operator.setitem),
            "delitem": self._on(operator.delitem),
            "redefined": lambda on: lambda *names: list(filter(self._redefines, names)),
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
        try:
            args, kwargs = values.decode(request["with"], array=make_array, other=self._decode_given)
        except values.PlainError:
            return {"v": None, "refused": True}
        try:
            # To drop an iterator may run code of the program, and change what it has yielded.
            for number in request["drop"]:
                del self._given[number]
            if request["do"] != "next":
                self._refuse_changed(item for read in self._read.values() for item in read.values())
                self._read.clear()
            value = self._operations[request["do"]](request["on"])(*args, **kwargs)
            # An iterator that is still to be read may change the arguments later.
            stays = _stays(request["do"], value)
            answer = {"h": self._keep(value)} if stays else {"v": self._encode(value)}
            if request["after"] and isinstance(value, Iterator):
                answer = {"v": values.encode_value(object())}
        except (Exception, SystemExit) as error:
            answer = self._encode_exception(error)
        after = [args[place] if isinstance(place, int) else kwargs[place] for place in request["after"]]
        return {**answer, "a": list(map(self._encode, after))} if after else answer

    def _next(self, number: int) -> _Items:
        """Return the next item of an iterator. Raises SystemExit if one that the tests have a copy of has changed."""
        read = self._read.setdefault(number, {})
        try:
            item = next(self._given[number])
        except StopIteration:
            self._refuse_changed(read.values())
            return _Items([])
        # The last item now, since tests mostly look at one or two; all of them at the next request and at the end.
        self._refuse_changed(itertools.islice(reversed(read.values()), 1))
        if _can_change(item):
            self._refuse_changed([read[id(item)]] if id(item) in read else ())
            read[id(item)] = item, values.encode_value(item, other=_leave_iterator)
        return _Items([item])

    def _refuse_changed(self, read: Iterable[tuple[Any, Any]]) -> None:
        for item, data in read:
            now = values.encode_value(item, other=_leave_iterator)
            # NaN does not equal itself; its text does.
            if now != data and values.dumps(now) != values.dumps(data):
                raise SystemExit("an item of an iterator has changed after it was read")

    def _redefines(self, name: str) -> bool:
        """Whether the program has an object of its own under a builtin name, not one that it has imported."""
        value = self._names.get(name, getattr(builtins, name))
        if value is getattr(builtins, name):
            return False
        if isinstance(value, type):
            return _is_of_program(value) or value.__name__ != name
        if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
            return value.__module__ in ("solution", "__main__") or value.__name__ != name
        kind = type(value)
        return kind.__module__ != "numpy" or kind.__name__ not in ("ufunc", "_ArrayFunctionDispatcher")

    def _keep(self, value: Any) -> int:
        self._objects.append(value)
        return len(self._objects) - 1

    def _encode(self, value: Any) -> Any:
        return values.encode_value(value, whole=True, other=self._encode_value)

    def _encode_exception(self, error: BaseException) -> dict[str, Any]:
        """Return the names of an exception's types ("" for one that is not builtin), its arguments and its text.

        The arguments or the text are left out if the program computes them otherwise than by one call of `__str__`.
        """
        kind: Any = type(error)
        found: dict[str, Any] = {"x": [_ERRORS.get(id(base), "") for base in _MRO.__get__(kind)]}
        if not (_acts_otherwise(kind) or any("__format__" in vars(base) for base in _MRO.__get__(kind)[:-1])):
            found["m"] = self._encode(list(error.args))
            with contextlib.suppress(Exception):
                found["s"] = self._encode(str(error))
        return found

    def _encode_value(self, value: Any, encoder: Any, depth: int) -> Any:
        """Encode what is more than its data: containers and objects, which tests may hand back, with a number.

        A number of numpy keeps its type. An object of a class of the program that acts otherwise than the type that it
        extends is no plain value.
        """
        kind = type(value)
        if kind in _PLAIN:
            return None
        if kind is _Items:
            return ["y", encoder.items(value.items, depth)]
        # One inside another value may change the rest of it, and a class of the program may act otherwise.
        iterates = isinstance(value, Iterator)
        if iterates and not depth and (kind is _Reader or not _is_of_program(kind)):  # type: ignore[arg-type]
            number = next(self._numbers)
            self._given[number] = value
            return ["e", number]
        if _is_number_of_numpy(kind):
            # Not an array without dimensions, which can be changed.
            if value.dtype.kind in "biufc" and value.dtype.char not in "gG":
                return ["g", value.dtype.str, [], encoder.items([value.item()], depth)]
            return encoder.opaque(value) if value.dtype.kind in "fcmM" else encoder.write(value, depth)
        differs = iterates or _acts_otherwise(kind) or _loses_its_context(value)
        written = encoder.opaque(value) if differs else encoder.write(value, depth)
        missing = getattr(kind, "__missing__", Counter.__missing__) is not Counter.__missing__
        if isinstance(value, dict) and getattr(value, "default_factory", missing) and written[0] in ("d", "C"):
            written = ["m", *written[1:]]
        if type(written) is not list or written[0] not in _NUMBERED or written[1] == values.TOO_LARGE:
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
