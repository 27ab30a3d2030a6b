"""The test code's side of a conversation with a program: functions, classes and objects of it by name and number.

Only plain values and numbers of objects cross. Arguments go as copies and are not written back, but for those that the
tests mark (`after`). What a class of the program returns is a `Handle`, whose operations are requests; an iterator is a
`Stream`. An answer that is no plain value has only a truth value. Whatever else is asked of it ends the tests, as do
arguments that cannot cross: such an error is not the program's, so no handler of the tests may catch it.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from . import service, values

_IMMUTABLE = (str, bytes, int, float, complex, tuple, frozenset, range, type, type(None))


class Uncatchable(BaseException):
    """Ends the tests. Not an Exception: no handler of test code is meant for it."""


class ProgramEnded(Uncatchable):
    """The program has ended before it answered."""


class BuiltinRedefined(Uncatchable):
    """The program has a function of its own under the name of a builtin one that the tests use."""


class NotPlain(Uncatchable):
    """A value that cannot cross, or an operation on an answer that is no plain value."""


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise NotPlain("an answer is no plain value")


class Unknown(values.Opaque):
    """An answer that is no plain value: its truth can be asked, once, and whether it is None.

    It can be printed. Tests that look at the text of an answer are weak.
    """

    __class__ = property(_refuse)
    __getattr__ = _refuse

    def __eq__(self, other: object) -> bool:
        return False if other is None else bool(_refuse(self))

    def __bool__(self) -> bool:
        truth, self.truth = self.truth, None
        return bool(_refuse(self)) if truth is None else truth


for _name in (
    "lt le gt ge hash len iter next getitem contains call add radd sub rsub mul rmul truediv rtruediv floordiv "
    "rfloordiv mod rmod pow rpow and rand or ror xor rxor matmul rmatmul neg pos invert abs int float complex index "
    "round reversed"
).split():
    setattr(Unknown, f"__{_name}__", _refuse)


class _Set(set[Any]):
    """A set of the program: its items come in the program's order."""

    def __init__(self, items: list[Any]) -> None:
        super().__init__(items)
        self._order = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._order)


class RaisedByProgram(Exception):
    """An exception of a type that the program has defined, or that has no type of its own here."""

    def __init__(self, text: Any, *args: Any) -> None:
        super().__init__(*args)
        self._text = text

    def __str__(self) -> str:
        return self._text if type(self._text) is str else str(_refuse())


class After:
    """An argument whose value after the call is an answer: it replaces the tests' own."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Link:
    """Requests and answers, one at a time.

    `answered` counts the answers, exceptions among them; `ended`: the program has ended before one.
    """

    def __init__(self, requests: int, replies: int) -> None:
        self.answered = 0
        self.too_large = False
        self.ended = False
        self._requests = requests
        self._replies: io.BufferedReader = open(replies, "rb", closefd=False)  # noqa: SIM115
        # Containers that both sides have, by id: their numbers there, and they themselves.
        self._given: dict[int, tuple[int, Any]] = {}
        # Those of the message that is being made.
        self._new: dict[int, tuple[int, Any]] = {}
        # The ids of iterators among them; arrays that were passed, or of which a view was.
        self._streams = set[int]()
        self._bases: dict[int, Any] = {}
        self._numbers = itertools.count()
        self._most_given = 64

    def ask(self, do: str, on: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Return what the program answers to an operation on a name (text) or an object (its number).

        Raises the exception that the program has raised, ProgramEnded, and NotPlain.
        """
        # By type: to ask an Unknown for its class ends the tests.
        after: list[Any] = [place for place, value in (*enumerate(args), *kwargs.items()) if type(value) is After]
        given = [value.value if type(value) is After else value for value in args]
        named = {name: value.value if type(value) is After else value for name, value in kwargs.items()}
        self._new.clear()
        try:
            encoded = values.encode([given, named], other=self._encode_value, whole=True)
        except values.TooLarge:
            self.too_large = True
            raise NotPlain("an argument is too large") from None
        self._given.update(self._new)
        service.send(self._requests, {"do": do, "on": on, "with": encoded, "after": after, "drop": self._drop_unused()})
        answer = self._answer()
        if "refused" in answer:
            self.too_large = True
            raise NotPlain("an argument is too large")
        for place, data in zip(after, answer.get("a", ())):
            replaced: Any = args[place] if isinstance(place, int) else kwargs[place]
            _replace(replaced.value, self._read(data))
        if "x" in answer:
            raise self._make_exception(answer)
        if do in ("new", "get") and type(answer.get("h")) is int:
            return (Handle if do == "new" else _Method)(self, answer["h"])
        return self._read(answer.get("v"))

    def _encode_value(self, value: Any, encoder: Any, depth: int) -> Any:
        """Encode an object of the program as its number; of other functions and objects none can cross.

        A container that the program has been given before is the one that it has; parts of it may be shared.
        """
        if type(value) is Handle:
            return ["h", value._number]
        if isinstance(value, values.Opaque) and value.handle is not None:
            return ["*", value.handle]
        known = self._given.get(id(value)) or self._new.get(id(value))
        if known is not None:
            return ["*", known[0]]
        self._refuse_views(value)
        if isinstance(value, type):
            written = ["k", value.__name__] if values.is_known_type(value) else values.LEFT_OUT
        else:
            others = isinstance(value, (values.Opaque, Named, After)) or callable(value)
            written = values.LEFT_OUT if others else encoder.write(value, depth)
        if type(written) is list and written[0] in ("o", "y"):
            what = f"a {type(value).__name__} of the tests cannot be passed to the program"
            raise values.TooLarge(what) if encoder.cut else NotPlain(what)
        if isinstance(value, _IMMUTABLE):
            return written
        number = next(self._numbers)
        self._new[id(value)] = number, value
        return ["&", number, written]

    def _refuse_views(self, value: Any) -> None:
        """Refuse an array that shares memory with one that the program has: it would get a copy. Raises NotPlain."""
        if type(value).__module__ != "numpy" or type(value).__name__ != "ndarray":
            return
        base = value if value.base is None else value.base
        if id(base) in self._bases or id(base) in self._given or id(base) in self._new:
            raise NotPlain("a view of an array that was passed before cannot be passed")
        self._bases[id(base)] = base

    def _drop_unused(self) -> list[int]:
        """Forget containers that the tests no longer have, of iterators at once; return their numbers."""
        all_of_them = len(self._given) > self._most_given
        looked = (
            self._given.items() if all_of_them else [item for item in self._given.items() if item[0] in self._streams]
        )
        # Held by the table, by this loop and by getrefcount itself.
        dropped = [(key, number) for key, (number, value) in looked if sys.getrefcount(value) <= 3]
        for key, _ in dropped:
            del self._given[key]
            self._streams.discard(key)
        if all_of_them:
            self._most_given = max(64, 2 * len(self._given))
        return [number for _, number in dropped]

    def _answer(self) -> dict[str, Any]:
        line = self._replies.readline(values.MAX_LINE + 2)
        try:
            answer = values.loads(line) if line.endswith(b"\n") else None
        except values.PlainError:
            answer = None
        if type(answer) is not dict or not ("x" in answer or "v" in answer or "h" in answer):
            self.ended = True
            raise ProgramEnded
        self.answered += 1
        return answer

    def _read(self, data: Any) -> Any:
        try:
            value = values.decode(data, Unknown, service.make_array, self._decode_container)
        except values.PlainError as error:
            value = Unknown(values.TOO_LARGE if isinstance(error, values.TooLarge) else "malformed")
        self.too_large = self.too_large or (isinstance(value, values.Opaque) and value.too_large)
        return value

    def _decode_container(self, tag: str, rest: list[Any], decoder: Any, depth: int) -> Any:
        """Decode a container of the program, and keep its number; or a number of numpy's."""
        if tag == "g":
            return decoder.any(["A", *rest], depth - 1)[()]
        if tag == "m":
            # A missing key would be added to the copy alone.
            return defaultdict(_refuse, decoder.mapping(rest, depth))
        number, *data = rest
        if tag not in ("&", "e") or type(number) is not int:
            raise values.PlainError("malformed container")
        if tag == "&" and data[0][0] == "s":
            value: Any = _Set(decoder.read_hashable(data[0][1:], depth))
        else:
            value = Stream(self, number) if tag == "e" else decoder.any(data[0], depth - 1)
        if not isinstance(value, _IMMUTABLE) or (isinstance(value, tuple) and value):
            self._given[id(value)] = number, value
            if tag == "e":
                self._streams.add(id(value))
        return value

    def _make_exception(self, answer: dict[str, Any]) -> BaseException:
        """Return an exception of the builtin types that the program's has, with the arguments and text that came."""
        names = answer["x"] if type(answer["x"]) is list else []
        args, text = self._read(answer.get("m")), self._read(answer.get("s"))
        members = {} if type(args) is list else {"args": property(_refuse)}
        args = [] if members else args
        found = [getattr(builtins, name, None) for name in names if type(name) is str]
        kinds = [kind for kind in found if isinstance(kind, type) and issubclass(kind, Exception)]
        if not kinds:
            return SystemExit(text)
        # In a function that `map` calls, a StopIteration would end the test's own loop.
        kinds = [kind for kind in kinds if not issubclass(kind, (StopIteration, StopAsyncIteration))]
        if found[0] is kinds[0] and type(text) is str and not members:
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

    def __next__(self) -> Any:
        found = list(_kind(self._link.ask("next", self._number), values.Yielded))
        if not found:
            raise StopIteration
        (item,) = found
        self._count += 1
        self._size += item.bit_length() >> 3 if type(item) is int else len(item) if type(item) is str else 0
        if self._count > values.MAX_YIELDED or self._size > values.MAX_YIELDED_BYTES:
            self._link.too_large = True
            raise NotPlain("an iterator with too many items")
        return item


def _replace(value: Any, found: Any) -> None:
    """Put into a container of the tests what the program has left in its copy. Raises NotPlain for another type."""
    if isinstance(found, Unknown) or not isinstance(found, type(value)):
        raise NotPlain(f"the argument is a {type(found).__name__} after the call")
    if isinstance(value, _IMMUTABLE) and not isinstance(value, tuple):
        return
    if isinstance(value, tuple):
        for item, other in zip(value, found, strict=True):
            if not isinstance(item, _IMMUTABLE) or isinstance(item, tuple):
                _replace(item, other)
    elif isinstance(value, (list, bytearray)):
        value[:] = found
    else:
        value.clear()
        value.update(found)


class Named:
    """A function of the program, or a method of one of its classes, by its dotted name."""

    def __init__(self, link: Link, name: str, do: str = "call") -> None:
        self._link, self._name, self._do = link, name, do

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask(self._do, self._name, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(self._link, f"{self._name}.{name}")

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


class _Method:
    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._link.ask("apply", self._number, *args, **kwargs)

    # In Python all functions are true; but an object that can be called may say otherwise.
    __eq__ = __hash__ = __bool__ = _refuse


class Handle:
    """An object that stays with the program. Tests that compare such objects are weak."""

    _link: Link
    _number: int

    def __init__(self, link: Link, number: int) -> None:
        object.__setattr__(self, "_link", link)
        object.__setattr__(self, "_number", number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.ask("get", [self._number, name])

    def __setattr__(self, name: str, value: Any) -> None:
        self._link.ask("set", [self._number, name], value)

    def __iter__(self) -> Iterator[Any]:
        return _kind(self._link.ask("iter", self._number), Stream)

    __eq__ = __hash__ = _refuse


def _kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise NotPlain(f"the program has answered with a {type(value).__name__}; expected {kind.__name__}")
    return value


def _make_operation(do: str, kind: type | None = None) -> Callable[..., Any]:
    def ask(self: Handle, *args: Any) -> Any:
        value = self._link.ask(do, self._number, *args)
        return value if kind is None else _kind(value, kind)

    return ask


for _name, _do, _answer in (
    ("__len__", "len", int),
    ("__str__", "str", str),
    ("__repr__", "repr", str),
    ("__getitem__", "item", None),
    ("__setitem__", "setitem", None),
    ("__delitem__", "delitem", None),
):
    setattr(Handle, _name, _make_operation(_do, _answer))
