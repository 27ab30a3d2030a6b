"""Answer calls into a program: requests come in, plain values and numbers of objects go out.

This runs in the program's process. The program can send anything that this module sends: the reader trusts none of it.
"""

from __future__ import annotations

import builtins
import datetime
import gc
import importlib
import itertools
import operator
import os
import sys
import types
from collections import Counter, deque, namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

from . import values
from .shared import VIEWS, Shared, has_identity, is_nan

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
_CONTAINERS = frozenset((list, dict, set, bytearray, deque, types.MappingProxyType, *VIEWS))
# By name, so that none of these modules has to be imported.
_KNOWN = frozenset(
    "collections.Counter collections.OrderedDict collections.defaultdict array.array numpy.ndarray decimal.Decimal "
    "fractions.Fraction datetime.datetime datetime.date datetime.time datetime.timedelta pathlib.PosixPath "
    "pathlib.PurePosixPath uuid.UUID time.struct_time collections.UserDict collections.UserList collections.UserString "
    "collections.ChainMap".split()
)
# A class that adds nothing to one of these is shown as that one.
_EXTENDED = (int, float, str, list, tuple, dict)
# What every class has, and what `collections.namedtuple` and `typing.NamedTuple` give one.
_OF_EVERY_CLASS = frozenset(
    "__module__ __doc__ __dict__ __weakref__ __qualname__ __slots__ __annotations__ __orig_bases__ __parameters__ "
    "__static_attributes__ __firstlineno__ __annotate_func__ __annotations_cache__".split()
)
_OF_NAMED_TUPLES = frozenset(
    "_fields _field_defaults _make _replace _asdict __new__ __repr__ __getnewargs__ __match_args__ __replace__".split()
)
_NamedTuple = namedtuple("_NamedTuple", ["field"])
_Field = type(_NamedTuple.field)
_ERRORS = {id(kind): name for name, kind in vars(builtins).items() if isinstance(kind, type) and name == kind.__name__}
_MADE_IN_PYTHON = 1 << 9  # the flag of types that are made while Python runs
_MRO: Any = vars(type)["__mro__"]
_OF_ERRORS = ("__str__", "__repr__", "__format__", "__getattribute__", "__getattr__", "args")


def _is_known(kind: type) -> bool:
    if kind in _PLAIN or kind in _CONTAINERS:
        return True
    found = sys.modules.get(kind.__module__)
    return f"{kind.__module__}.{kind.__qualname__}" in _KNOWN and getattr(found, kind.__name__, None) is kind


def _is_plain(value: Any) -> bool:
    """Whether a value is data alone: of a known type, or of a class that adds nothing to one, or a named tuple."""
    kind = type(value)
    if kind is types.MappingProxyType:
        return type(gc.get_referents(value)[0]) is dict
    if _is_known(kind):
        return True
    own = list(itertools.takewhile(lambda base: not _is_known(base), _MRO.__get__(kind)))
    if own[-1] is object:
        return False
    above = _MRO.__get__(kind)[len(own) :]
    # Another class behind the builtin one has what that one lacks.
    if above[0] not in _EXTENDED or above != _MRO.__get__(above[0]):
        return False
    *others, last = (set(vars(base)) - _OF_EVERY_CLASS for base in own)
    if _is_named_tuple(value, vars(own[-1])):
        last -= _OF_NAMED_TUPLES.union(vars(own[-1])["_fields"])
    return not last.union(*others) and not getattr(value, "__dict__", None)


def _is_named_tuple(value: Any, made: Mapping[str, Any]) -> bool:
    """Whether `namedtuple` made a class with these attributes, and its fields are the items of the value."""
    fields, text = made.get("_fields"), made.get("__repr__")
    getters: list[Any] = [made.get(field) for field in fields] if type(fields) is tuple else [None]
    if getattr(text, "__code__", None) is not _NamedTuple.__repr__.__code__ or not {*map(type, getters)} <= {_Field}:
        return False
    return all(map(operator.is_, (getter.__get__(value) for getter in getters), tuple.__iter__(value)))


def _computes_otherwise(value: Any) -> bool:
    """Whether a value decides how tests compute: by a zone, a context of decimal numbers, or half precision."""
    if type(value).__name__ == "ndarray":
        return bool(value.dtype.char == "e")
    if isinstance(value, (datetime.datetime, datetime.time)):
        return type(value.tzinfo) not in (type(None), datetime.timezone)
    decimal: Any = sys.modules.get("decimal")
    if decimal is None or not isinstance(value, decimal.Decimal):
        return False
    *settings, _, traps = decimal.getcontext().__reduce__()[1]
    names = {trap.__name__ for trap in traps}
    default = [28, "ROUND_HALF_EVEN", -999999, 999999, 1, 0]
    return settings != default or names != {"InvalidOperation", "DivisionByZero", "Overflow"}


def _is_number_of_numpy(kind: type) -> bool:
    return not kind.__flags__ & _MADE_IN_PYTHON and any(
        (base.__module__, base.__name__) == ("numpy", "generic") for base in kind.__mro__
    )


class _Reader(Iterator[Any]):
    """The iterator of an object of the program."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator = iterator

    def __next__(self) -> Any:
        return next(self._iterator)


def send(descriptor: int, message: Any) -> None:
    """Write one line of JSON, all of it; instead of an answer that is too long, that it is too large."""
    line = values.dumps(message) + b"\n"
    if len(line) > values.MAX_LINE and "v" in message:
        line = values.dumps({"n": message.get("n"), "v": values.LEFT_OUT, "large": True}) + b"\n"
    data = memoryview(line)
    while data:
        data = data[os.write(descriptor, data) :]


def _count_frames() -> int:
    frame, count = sys._getframe(), 0
    while frame.f_back is not None:
        frame, count = frame.f_back, count + 1
    return count


class Server:
    """Answers requests until their pipe is closed.

    A request is {"do", "on", "with", "names", "changed", "drop"}: an operation; the name or the number of an object, or
    [number, name] of an attribute; encoded arguments, and the names of the last ones; what the tests have changed in
    containers that both sides have; numbers of those that the tests no longer have. The operation "watch" takes names
    of builtin functions. An answer is one of
        {"v": value, "changed": what the program has changed}
        {"x": names of an exception's types, "m": its arguments, "s": its text, "changed"}
        {"large": true} for a value beyond the bounds
        {"redefined": those of the watched names that the program has bound anew}
    In both, ["&", n, data] is a container, which is called ["*", n] from then on. ["h", n, whether it can be called]
    is an object that stays here, ["e", n] an iterator, whose items are asked for one by one, ["g", ...] a number of
    numpy's, ["m", ...] a dict with default values.
    """

    def __init__(self, names: dict[str, Any], requests: int, replies: int, end_copies: Callable[[int], None]) -> None:
        self._names = names
        self._process = _getpid()
        self._end_copies = end_copies
        self._replies = replies
        self._lines = open(requests, "rb", closefd=False)  # noqa: SIM115
        self._shared = Shared(itertools.count(-1, -1))
        # Numbered, and so kept alive.
        self._objects: list[Any] = []
        self._kept: dict[int, int] = {}
        # Of the arrays that the tests have, by the array that owns their memory.
        self._bases: dict[int, tuple[Any, Any]] = {}
        self._watched: tuple[str, ...] = ()
        self._operations: dict[str, Callable[..., Any]] = {
            "call": lambda on: find(self._names, on),
            "new": lambda on: find(self._names, on),
            "apply": lambda on: self._objects[on],
            "next": lambda on: lambda: self._next(on),
            "get": lambda on: lambda: getattr(self._objects[on[0]], on[1]),
            "set": lambda on: lambda value: setattr(self._objects[on[0]], on[1], value),
            "iter": lambda on: lambda: _Reader(iter(self._objects[on])),
            "close": lambda on: lambda: self._shared.drop(on),
            "len": self._on(len),
            "bool": self._on(bool),
            "str": self._on(str),
            "repr": self._on(repr),
            "format": self._on(format),
            "contains": self._on(operator.contains),
            "getitem": self._on(operator.getitem),
            "setitem": self._on(operator.setitem),
            "delitem": self._on(operator.delitem),
            "watch": lambda on: self._watch,
        }

    def _on(self, operate: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
        return lambda on: lambda *args: operate(self._objects[on], *args)

    def serve(self) -> NoReturn:
        """Answer for ever."""
        # A program may recurse as deep as in one process, where it has none of these frames below it.
        sys.setrecursionlimit(sys.getrecursionlimit() + _count_frames() + 2)
        while True:
            line = self._lines.readline()
            if not line:
                os._exit(0)
            answer = self._answer(values.loads(line))
            self._end_copies(self._process)
            send(self._replies, answer)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        decode = values.make_decoder(make_array, self._decode)
        try:
            for number, data in request["changed"]:
                self._shared.take(number, decode(data))
            given, names = list(map(decode, request["with"])), request["names"]
            args, kwargs = given[: len(given) - len(names)], dict(zip(names, given[len(given) - len(names) :]))
            self._shared.agree()
        except values.PlainError:
            return {"large": True}
        try:
            # To drop an iterator may run code of the program.
            for number in request["drop"]:
                self._shared.drop(number)
            value = self._operations[request["do"]](request["on"])(*args, **kwargs)
            found: dict[str, Any] = {}
        except (Exception, SystemExit) as error:
            found, value = _describe_exception(error)
        if redefined := list(filter(self._redefines, self._watched)):
            return {"redefined": redefined}
        encoder = values.Encoder(self._encode)
        try:
            with values.deep_recursion():
                changed, (data,) = self._shared.encode(encoder, value)
        except RecursionError:
            return {"large": True}
        return {"large": True} if encoder.cut else {**found, "v": data, "changed": changed}

    def _next(self, number: int) -> _Items:
        try:
            return _Items([next(self._shared.values[number])])
        except StopIteration:
            return _Items([])

    def _watch(self, *names: str) -> None:
        self._watched = names

    def _redefines(self, name: str) -> bool:
        """Whether the program has an object of its own under a builtin name, not one that it has imported."""
        value = self._names.get(name, getattr(builtins, name))
        if value is getattr(builtins, name):
            return False
        if isinstance(value, type):
            return value.__module__ in ("solution", "__main__") or value.__name__ != name
        if isinstance(value, (types.BuiltinFunctionType, types.FunctionType)):
            return value.__module__ in ("solution", "__main__") or value.__name__ != name
        kind = type(value)
        return kind.__module__ != "numpy" or kind.__name__ not in ("ufunc", "_ArrayFunctionDispatcher")

    def _encode(self, value: Any, encoder: values.Encoder, depth: int) -> Any:
        """Encode what is more than its data: containers, iterators and objects, with a number."""
        kind = type(value)
        if kind in _PLAIN and not is_nan(value):
            return None
        known = self._shared.number_of(value)
        if isinstance(value, Iterator) and (kind is _Reader or not kind.__flags__ & _MADE_IN_PYTHON):
            return ["e", self._shared.add(value) if known is None else known]
        if known is not None:
            return ["*", known]
        if kind is _Items:
            return ["y", encoder.items(value.items, depth)]
        if _is_number_of_numpy(kind) and value.dtype.kind in "biufc" and value.dtype.char not in "egG":
            return ["g", value.dtype.str, [], encoder.items([value.item()], depth)]
        if _is_number_of_numpy(kind) and value.dtype.kind in "US":
            return encoder.write(value.item(), depth)
        if isinstance(value, type) and values.is_known_type(value):
            return ["k", value.__name__]
        if not _is_plain(value) or _computes_otherwise(value) or self._overlaps(value):
            return ["h", self._keep(value), callable(value)]
        written = encoder.write(value, depth)
        named = type(written) is list and written[0] == "N"
        if not (named or has_identity(value)) or written == values.LEFT_OUT:
            return written
        missing = getattr(kind, "__missing__", Counter.__missing__) is not Counter.__missing__
        if isinstance(value, dict) and getattr(value, "default_factory", missing) and written[0] in ("d", "C"):
            written = ["m", *written[1:]]
        return ["&", self._shared.add(value), written]

    def _overlaps(self, value: Any) -> bool:
        """Whether an array has the memory of another one that the tests have: copies of both would be independent."""
        if type(value).__name__ != "ndarray":
            return False
        base = value if value.base is None else value.base
        if type(base) is not type(value) or not base.flags.owndata:
            return True
        return self._bases.setdefault(id(base), (base, value))[1] is not value

    def _keep(self, value: Any) -> int:
        number = self._kept.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return number

    def _decode(self, tag: str, rest: list[Any], decoder: Any, depth: int) -> Any:
        number, *data = rest
        if tag == "h":
            return self._objects[number]
        if tag == "g":
            return decoder.any(["A", *rest], depth - 1)[()]
        if tag == "&":
            self._shared.enter(decoder.any(data[0], depth - 1), number)
        return self._shared.values[number]


def _describe_exception(error: BaseException) -> tuple[dict[str, Any], Any]:
    """Return the names of an exception's types ("" for one that is not builtin), and its arguments and text.

    Where a class of the program decides what they are, there are no arguments. Where it may decide the text, the
    exception is in its place, which is asked for it when the tests read it.
    """
    kinds = _MRO.__get__(type(error))
    own = [base for base in kinds[:-1] if id(base) not in _ERRORS]
    decides = any(name in vars(base) for base in own for name in _OF_ERRORS)
    shown = decides or any(type(part) not in _PLAIN - {tuple, frozenset} for part in error.args)
    about = [None if decides else list(error.args), error if shown else str(error)]
    return {"x": [_ERRORS.get(id(base), "") for base in kinds]}, about


def serve(names: dict[str, Any], requests: int, replies: int, end_copies: Callable[[int], None]) -> None:
    """Answer requests until their pipe is closed. `end_copies` ends processes but the one whose number it is given."""
    Server(names, requests, replies, end_copies).serve()
