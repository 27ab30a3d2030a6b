"""The test code's side of a conversation with a program: functions and objects of it by name and number.

Plain values cross as copies; containers have numbers, and what a side changes in one is told to the other (`shared`).
An object of the program is a `Handle`, whose operations are requests; an iterator is a `Stream`. What cannot be asked
of an object here ends the tests, as do arguments that cannot cross: such an error is not the program's, so no handler
of the tests may catch it.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import importlib
import io
import itertools
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

from . import service, values
from .shared import Shared, check_kind, has_identity


class Uncatchable(BaseException):
    """Ends the tests. Not an Exception: no handler of test code is meant for it."""


class ProgramEnded(Uncatchable):
    """The program has ended before it answered."""


class BuiltinRedefined(Uncatchable):
    """The program has a function of its own under the name of a builtin one that the tests use."""


class NotPlain(Uncatchable):
    """A value that cannot cross, or an operation that an object of the program does not have here."""


class RaisedByProgram(Exception):
    """An exception of a type that the program has defined, or that has no type of its own here."""

    def __init__(self, text: Any, *args: Any) -> None:
        super().__init__(*args)
        self._text = text

    def __str__(self) -> str:
        return str(self._text)

    def __format__(self, how: str) -> str:
        return format(self._text, how)


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise NotPlain("the program decides what this gives")


class Link:
    """Requests and answers, one at a time.

    `answered` counts the answers, exceptions among them; `ended`: the program has ended before one; `altered`: it has
    changed a container of the tests. With `keeps` these stay as they are, and `after` tells what it has made of them.
    """

    def __init__(self, requests: int, replies: int, *, keeps: bool = False) -> None:
        self.keeps, self.altered = keeps, False
        self.answered = 0
        self.too_large = False
        self.ended = False
        self._requests = requests
        self._replies: io.BufferedReader = open(replies, "rb", closefd=False)  # noqa: SIM115
        self._shared = Shared(itertools.count())
        self._most = 64
        self._after: dict[int, Any] = {}
        # Whether a message is under way; iterators to close after it; those that the tests have.
        self._asks = False
        self._closing: list[int] = []
        self._streams: weakref.WeakValueDictionary[int, Stream] = weakref.WeakValueDictionary()
        # The objects that a class of the program has made for the tests.
        self._handles = set[int]()

    def ask(self, do: str, on: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the program answers to an operation on a name (text) or an object (its number).

        Raises the exception that the program has raised, ProgramEnded, BuiltinRedefined and NotPlain.
        """
        self._asks = True
        try:
            value = self._ask(do, on, args, kwargs)
        finally:
            self._asks = False
            self.close()
        return value

    def _ask(self, do: str, on: Any, args: Any, kwargs: Any) -> Any:
        if self.ended:
            raise ProgramEnded
        dropped = self._drop_unused()
        encoder = values.Encoder(self._encode)
        with values.deep_recursion():
            changed, data = self._shared.encode(encoder, *args, *kwargs.values())
        if encoder.cut:
            raise self._too_large()
        for number, _ in changed:
            self._after.pop(number, None)  # the program gets what the tests have made of it
        request = {"do": do, "on": on, "with": data, "names": list(kwargs), "changed": changed, "drop": dropped}
        service.send(self._requests, request)
        answer = self._answer()
        if "large" in answer:
            raise self._too_large()
        if "redefined" in answer:
            raise BuiltinRedefined(", ".join(map(str, answer["redefined"])))
        decode = values.make_decoder(_make_array, self._decode)
        try:
            for number, changes in answer["changed"]:
                own = number >= 0
                self.altered = self.altered or own
                if self.keeps and own:
                    made = decode(changes)
                    check_kind(self._shared.values[number], made)
                    self._after[number] = made
                else:
                    self._take(number, decode(changes))
            value = self.after(decode(answer["v"]))
            self._shared.agree()
        except values.TooLarge:
            raise self._too_large() from None
        except (values.PlainError, LookupError, TypeError, ValueError) as error:
            raise NotPlain(f"the program has sent something malformed: {error}") from None
        if "x" in answer:
            raise _make_exception(answer["x"] if type(answer["x"]) is list else [], value)
        made = type(value) is Unknown and (do == "new" or (do == "get" and value._number in self._handles))
        if made:
            self._handles.add(value._number)
            return Handle(self, value._number)
        return value

    def _take(self, number: int, value: Any) -> None:
        """Make a change of the program. What cannot be changed in place is replaced, if the tests do not have it."""
        with contextlib.suppress(values.PlainError):
            self._shared.take(number, value)
            return
        if sys.getrefcount(self._shared.values[number]) > 2:  # held by the table and by getrefcount itself
            raise values.PlainError("a value that cannot be changed in place")
        if self._shared.number_of(value) is not None:
            raise values.PlainError("a container under a second number")
        self._shared.drop(number)
        self._shared.enter(value, number)

    def after(self, value: Any) -> Any:
        """Return what the program has made of a container that it was given, or of those in it."""
        if not self._after:
            return value
        number = self._shared.number_of(value)
        if number in self._after and self._shared.values.get(number) is value:
            value = self._after[number]
        if type(value) in (list, tuple, deque):
            items = list(map(self.after, value))
            return value if all(map(is_, items, value)) else type(value)(items)
        if type(value) is dict:
            held = {key: self.after(item) for key, item in value.items()}
            return value if all(map(is_, held.values(), value.values())) else held
        return value

    def _too_large(self) -> NotPlain:
        self.too_large = True
        return NotPlain("a value is too large")

    def _encode(self, value: Any, encoder: values.Encoder, depth: int) -> Any:
        """Encode an object of the program as its number; of other functions and objects none can cross."""
        # By type: to ask a Handle for its class ends the tests.
        if type(value) in (Handle, Part, Unknown):
            return ["h", value._number]
        if type(value) is Stream:
            return ["*", value._number]
        if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "dtype"):
            return ["g", value.dtype.str, [], encoder.items([value.item()], depth)]
        known = self._shared.number_of(value)
        if known is not None:
            return ["*", known]
        if isinstance(value, type):
            written = ["k", value.__name__] if values.is_known_type(value) else None
        elif isinstance(value, Named) or callable(value) or getattr(value, "base", None) is not None:
            written = None
        else:
            written = encoder.write(value, depth)
        if written is None or (type(written) is list and written[0] in ("o", "y") and not encoder.cut):
            raise NotPlain(f"a {type(value).__name__} of the tests cannot be passed to the program")
        return ["&", self._shared.add(value), written] if has_identity(value) else written

    def _drop_unused(self) -> list[int]:
        """Forget containers that the tests no longer have, once there are many; return their numbers."""
        table = self._shared.values
        if len(table) <= self._most:
            return []
        # Held by the table and by getrefcount itself.
        dropped = [number for number in list(table) if sys.getrefcount(table[number]) <= 2]
        for number in dropped:
            self._shared.drop(number)
            self._after.pop(number, None)
        self._most = max(64, 2 * len(table))
        return dropped

    def close(self, number: int | None = None) -> None:
        """Close an iterator that the tests no longer have, which may run code of the program: between two messages."""
        self._closing += [] if number is None else [number]
        while self._closing and not (self._asks or self.ended):
            try:
                with contextlib.suppress(Exception):  # as Python does
                    self.ask("close", self._closing.pop(0))
            except Uncatchable:
                self.ended = True  # nothing that follows can be trusted

    def _answer(self) -> dict[str, Any]:
        line = self._replies.readline(values.MAX_LINE + 2)
        try:
            answer = values.loads(line) if line.endswith(b"\n") else None
        except values.PlainError:
            answer = None
        if type(answer) is not dict or not answer.keys() & {"v", "large", "redefined"}:
            self.ended = True
            raise ProgramEnded
        self.answered += 1
        return answer

    def _decode(self, tag: str, rest: list[Any], decoder: Any, depth: int) -> Any:
        """Decode a container or an object of the program, and keep its number; or a number of numpy's."""
        if tag == "g":
            return decoder.any(["A", *rest], depth - 1)[()]
        if tag == "m":
            # A missing key would be added to the copy alone.
            return defaultdict(_refuse, decoder.mapping(rest, depth))
        number, *data = rest
        if type(number) is not int:
            raise values.PlainError("malformed container")
        if tag == "h":
            return Unknown(self, number, data == [True])
        if tag == "e":
            stream = self._streams.get(number) or Stream(self, number)
            self._streams[number] = stream
            return stream
        if tag == "&":
            # A container of the tests, or one that they have under another number, is no new one of the program.
            value = decoder.any(data[0], depth - 1)
            new = number < 0 and number not in self._shared.values and self._shared.number_of(value) is None
            if not new or not (has_identity(value) or isinstance(value, values.Fields)):
                raise values.PlainError("malformed container")
            self._shared.enter(value, number)
        return self._after.get(number, self._shared.values[number])


def _make_array(kind: str, shape: tuple[int, ...], items: list[Any]) -> Any:
    """Return an array of numpy's with which tests compute as with plain numbers.

    numpy lets numbers overflow, finds that nothing differs from what has no items, and repeats an array of one item to
    any length. So overflow raises, arrays of two shapes do not go together, and an array may be an EmptyArray.
    """
    importlib.import_module("numpy").seterr(over="raise", divide="raise", invalid="raise")
    # Whole numbers of an array overflow in silence.
    kind = f"{kind[:2]}8" if shape and kind[1] in "iu" else kind
    array = service.make_array(kind, shape, items)
    if not array.size:
        return EmptyArray(array)
    return _array_type()(shape, array.dtype, array) if shape else array


@functools.cache
def _array_type() -> Any:
    numpy: Any = importlib.import_module("numpy")

    def compute(self: Any, function: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if len({numpy.shape(each) for each in inputs} - {()}) > 1:
            raise NotPlain("arrays of different shapes")
        plain = [each.view(numpy.ndarray) if isinstance(each, numpy.ndarray) else each for each in inputs]
        found = getattr(function, method)(*plain, **options)
        return found.view(type(self)) if isinstance(found, numpy.ndarray) and found.shape else found

    members = {"__array_ufunc__": compute, "__bool__": _refuse, "flat": property(_refuse), "__module__": "numpy"}
    return type("ndarray", (numpy.ndarray,), members)


class EmptyArray:
    """An array without items. Nothing can be compared with it, and nothing computed."""

    def __init__(self, array: Any) -> None:
        self.shape, self.ndim, self.dtype, self.size = array.shape, array.ndim, array.dtype, 0
        self.tolist = array.tolist
        self._array = array

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[Any]:
        return map(EmptyArray, self._array)

    __getattr__ = __bool__ = _refuse


def _make_exception(names: Any, about: Any) -> BaseException:
    """Return an exception of the builtin types that the program's has, with the arguments and text that came."""
    args: Any
    text: Any
    args, text = about if type(about) is list and len(about) == 2 else (None, None)
    members = {} if type(args) is list else {"args": property(_refuse)}
    args = [] if members else args
    text = Handle(text._link, text._number) if type(text) is Unknown else text
    found = [getattr(builtins, name, None) for name in names if type(name) is str]
    kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception)]
    if not kinds:
        return SystemExit(text)
    # In a function that `map` calls, a StopIteration would end the test's own loop.
    kinds = [kind for kind in kinds if not issubclass(kind, (StopIteration, StopAsyncIteration))]
    if found[0] is kinds[0] and type(text) is str:
        # UnicodeDecodeError and others take arguments of fixed types; OSError has more than its arguments.
        with contextlib.suppress(Exception):
            made: Exception = kinds[0](*args)
            if str(made) == text:
                return made
    # The types that no other one of these extends; builtin exceptions of different layouts do not go together.
    least = [kind for kind in kinds if not any(kind in other.__mro__[1:] for other in kinds)]
    for bases in (least, least[:1]):
        with contextlib.suppress(TypeError):
            layered: Any = type("RaisedByProgram", (RaisedByProgram, *bases), members)
            return layered(text, *args)
    return type("RaisedByProgram", (RaisedByProgram,), members)(text, *args)


class Stream:
    """An iterator of the program. Each item is asked for when the tests need it."""

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number
        self._count = self._size = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __del__(self) -> None:
        self._link.close(self._number)

    __copy__ = __deepcopy__ = __reduce_ex__ = __str__ = __repr__ = _refuse

    def __next__(self) -> Any:
        found = list(_kind(self._link.ask("next", self._number), values.Yielded))
        if not found:
            raise StopIteration
        (item,) = found
        self._count += 1
        self._size += item.bit_length() >> 3 if type(item) is int else len(item) if type(item) is str else 0
        if self._count > values.MAX_YIELDED or self._size > values.MAX_YIELDED_BYTES:
            raise self._link._too_large()
        return item


class Named:
    """A function or class of the program, or a method of one of its classes, by its dotted name."""

    def __init__(self, link: Link, name: str, do: str = "call") -> None:
        self._link, self._name, self._do = link, name, do

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask(self._do, self._name, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(self._link, f"{self._name}.{name}")


class Unknown:
    """An object of the program that it has answered with in place of a value. Only its truth can be asked."""

    __class__ = property(_refuse)
    _link: Link
    _number: int
    _callable: bool

    def __init__(self, link: Link, number: int, can_be_called: bool = False) -> None:
        for name, value in (("_link", link), ("_number", number), ("_callable", can_be_called)):
            object.__setattr__(self, name, value)

    def __bool__(self) -> bool:
        return bool(_kind(self._link.ask("bool", self._number), bool))

    __getattr__ = __setattr__ = _refuse


class Part(Unknown):
    """An object that another one has as an attribute, such as `root.left`. Only its attributes can be asked."""

    def __getattr__(self, name: str) -> Any:
        value = _refuse() if name.startswith("__") else self._link.ask("get", [self._number, name])
        return Part(self._link, value._number) if type(value) is Unknown and not value._callable else value

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", [self._number, name], value)


class Handle(Part):
    """An object of a class of the program that the tests have called, or its method. Its operations are requests."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask("apply", self._number, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return Handle(self._link, value._number) if type(value) is Unknown else value


def _kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise NotPlain(f"the program has answered with a {type(value).__name__}; expected {kind.__name__}")
    return value


def _make_operation(do: str, kind: type | None) -> Callable[..., Any]:
    def ask(self: Handle, *args: Any) -> Any:
        value = self._link.ask(do, self._number, *args)
        return value if kind is None else _kind(value, kind)

    return ask


# Python asks classes for these, not `__getattr__`.
_OPERATORS = (
    "eq ne lt le gt ge hash next add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow and "
    "rand or ror xor rxor matmul rmatmul neg pos invert abs int float complex index round reversed copy deepcopy "
    "reduce_ex iadd isub imul enter exit str repr format contains getitem setitem delitem call"
).split()
for _name in _OPERATORS:
    setattr(Unknown, f"__{_name}__", _refuse)
    setattr(EmptyArray, f"__{_name}__", _refuse)
Unknown.__len__ = Unknown.__iter__ = _refuse  # type: ignore[attr-defined]
# By the name of the operation what it must return.
_OPERATIONS = {"len": int, "str": str, "repr": str, "format": str, "iter": Stream, "contains": bool}
for _name, _answer in {**_OPERATIONS, "getitem": None, "setitem": None, "delitem": None}.items():
    setattr(Handle, f"__{_name}__", _make_operation(_name, _answer))
