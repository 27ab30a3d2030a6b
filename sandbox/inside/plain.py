"""Encode values as tagged plain data: JSON whose arrays start with a tag. No pickle, no code.

The writer runs in the program's process and is not trusted. The reader creates only exact builtin types, of bounded
size: a subclass arrives as its base class, a generator as its items, anything else as an `Opaque` that equals nothing.
"""

from __future__ import annotations

import importlib
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlvr.sandbox.inside.standins import Array, Fields, Opaque, Yielded, named

__all__ = ["Array", "Fields", "Opaque", "PlainError", "Yielded", "decode", "dumps", "encode", "loads"]

MAX_DEPTH = 100
MAX_ITEMS = 200_000
_MAX_YIELDED = 10_000
_SMALL = 1 << 62
_NONE = type(None)
_MAX_INT_BITS = 1 << 18
# Totals over all fractions and all decimal numbers of a value.
_MAX_FRACTION_BITS = 1 << 16
_MAX_DECIMAL_DIGITS = 1 << 20
# Keys of dicts and sets: small integers cannot collide often; limits for all others, in total and with equal hash.
_SMALL_KEY = 1 << 24
_MAX_CHOSEN = 20_000
_MAX_EQUAL = 100
# Of numpy's types those whose items are plain data; a type's size is its number of bytes, or of characters.
_ARRAY_KINDS = "biufcSU"
_ARRAY_TYPE = re.compile(rf"[<>|=][{_ARRAY_KINDS}](\d{{1,6}})")
_MAX_ARRAY_BYTES = 1 << 26
_EXACT = (bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, object, type)
_TYPES: dict[str, type] = {kind.__name__: kind for kind in _EXACT}


class PlainError(ValueError):
    """Data that is malformed or too large."""


def encode(value: Any, keep: Callable[[Any], int | None] | None = None, other: Callable[..., Any] | None = None) -> Any:
    """Return `value` as data for `json.dumps`. `keep` assigns handles to objects that are not plain data.

    `other(value, encode, depth)` may encode an object that is not plain data in a way of its own, or return None.
    """
    encoder = _Encoder(keep, other)
    return encoder.with_objects(encoder.any(value, 0))


def dumps(value: Any) -> bytes:
    """Return data as one line of ASCII JSON."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")


class _Encoder:
    def __init__(self, keep: Callable[[Any], int | None] | None, other: Callable[..., Any] | None = None) -> None:
        self.keep = keep
        self.other = other
        self.left = MAX_ITEMS
        self._objects: list[tuple[int, Any, list[str]]] = []
        self._numbers: set[int] = set()

    def refer(self, number: int, value: Any, methods: list[str] | None = None) -> list[Any]:
        """Write an object as its number; its attributes follow once, so that objects may refer to each other."""
        if self.left <= 0:
            return ["o", "too large", None, None]
        if number not in self._numbers:
            self._numbers.add(number)
            self._objects.append((number, value, methods or []))
        return ["j", number]

    def with_objects(self, data: Any) -> Any:
        """Return the data with the objects that it and they refer to."""
        written = []
        # It grows meanwhile.
        for number, value, methods in self._objects:
            attributes = [[name, self.any(part, 1)] for name, part in vars(value).items()]
            written.append([number, type(value).__name__, attributes, methods])
        return ["J", written, data] if written else data

    def any(self, value: Any, depth: int) -> Any:
        self.left -= 1
        if value is None or value is True or value is False:
            return value
        if self.other is not None and depth < MAX_DEPTH:
            own = self.other(value, self, depth)
            if own is not None:
                return own
        for base, write in _WRITERS:
            if isinstance(value, base):
                return (
                    write(self, value, depth) if depth < MAX_DEPTH and self.left > 0 else ["o", "too large", None, None]
                )
        for base in type(value).__mro__:
            named = _NAMED_WRITERS.get((base.__module__, base.__qualname__))
            if named is not None and depth < MAX_DEPTH:
                return named(self, value, depth)
        if isinstance(value, type) and _TYPES.get(value.__name__) is value:
            return ["k", value.__name__]
        return self.opaque(value)

    def all(self, values: Any, depth: int) -> list[Any]:
        return [self.any(value, depth + 1) for value in values]

    def opaque(self, value: Any) -> list[Any]:
        try:
            truth = bool(value)
        except Exception:
            # An array of several numbers has no truth value.
            return ["o", type(value).__name__, None if self.keep is None else self.keep(value), None]
        return ["o", type(value).__name__, None if self.keep is None else self.keep(value), truth]

    def integer(self, value: int, depth: int) -> Any:
        number = int.__index__(value)
        if -_SMALL < number < _SMALL:
            return number
        return ["i", hex(number)] if number.bit_length() <= _MAX_INT_BITS else ["o", "too large", None, None]

    def mapping(self, value: dict, depth: int) -> list[Any]:
        return ["d", [[self.any(k, depth + 1), self.any(v, depth + 1)] for k, v in dict.items(value)]]

    def record(self, value: tuple, depth: int) -> list[Any]:
        fields = getattr(type(value), "_fields", None)
        items = self.all(tuple.__iter__(value), depth)
        if isinstance(value, Fields):
            fields = value._fields
        if type(fields) is not tuple or len(fields) != len(items) or not all(type(name) is str for name in fields):
            return ["t", items]
        return ["N", type(value).__name__, list(fields), items]

    def ndarray(self, value: Any, depth: int) -> Any:
        if value.dtype.kind not in _ARRAY_KINDS or value.size > self.left:
            return self.opaque(value)
        return ["A", value.dtype.str, list(value.shape), self.all(value.ravel().tolist(), depth)]

    def iterator(self, value: Any, depth: int) -> list[Any]:
        items = []
        for item in value:
            items.append(item)
            if len(items) > _MAX_YIELDED:
                return self.opaque(value)
        return ["y", self.all(items, depth)]


_ITERATORS: tuple[type, ...] = (Iterator, type({}.keys()), type({}.values()), type({}.items()))
_WRITERS: tuple[tuple[Any, Callable[[_Encoder, Any, int], Any]], ...] = (
    (str, lambda e, v, d: str.__str__(v)),
    (int, _Encoder.integer),
    (float, lambda e, v, d: float.__float__(v)),
    (list, lambda e, v, d: ["l", e.all(list.__iter__(v), d)]),
    (tuple, _Encoder.record),
    (dict, _Encoder.mapping),
    (set, lambda e, v, d: ["s", e.all(set.__iter__(v), d)]),
    (frozenset, lambda e, v, d: ["f", e.all(frozenset.__iter__(v), d)]),
    (bytes, lambda e, v, d: ["b", bytes.hex(v)]),
    (bytearray, lambda e, v, d: ["B", bytearray.hex(v)]),
    (complex, lambda e, v, d: ["c", complex(v).real, complex(v).imag]),
    (range, lambda e, v, d: ["r", *(e.integer(n, d) for n in (v.start, v.stop, v.step))]),
    (deque, lambda e, v, d: ["Q", e.all(deque.__iter__(v), d), v.maxlen]),
    (memoryview, lambda e, v, d: ["b", v.hex()] if v.format == "B" else e.opaque(v)),
    (_ITERATORS, _Encoder.iterator),
)


# By name, so that none of these modules has to be imported.
_NAMED_WRITERS: dict[tuple[str, str], Callable[[_Encoder, Any, int], Any]] = {
    ("decimal", "Decimal"): lambda e, v, d: ["D", str(v)],
    ("fractions", "Fraction"): lambda e, v, d: ["q", e.integer(v.numerator, d), e.integer(v.denominator, d)],
    ("datetime", "datetime"): lambda e, v, d: ["T", v.isoformat()],
    ("datetime", "date"): lambda e, v, d: ["E", v.isoformat()],
    ("datetime", "time"): lambda e, v, d: ["H", v.isoformat()],
    ("datetime", "timedelta"): lambda e, v, d: ["I", v.days, v.seconds, v.microseconds],
    ("numpy", "generic"): lambda e, v, d: e.any(v.item(), d + 1),
    ("numpy", "ndarray"): _Encoder.ndarray,
    ("array", "array"): lambda e, v, d: ["a", v.typecode, e.all(v, d)],
}


def loads(data: bytes) -> Any:
    """Parse JSON bytes of the other side. Raises PlainError if they are malformed or nested too deeply."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise PlainError(f"malformed plain data: {type(error).__name__}") from error


def decode(
    data: Any,
    opaque: Callable[[str, int | None, bool | None], Any] = Opaque,
    array: Callable[[str, tuple[int, ...], list[Any]], Any] = Array,
    other: Callable[..., Any] | None = None,
) -> Any:
    """Return the value of tagged data in exact builtin types. Raises PlainError if it is malformed or too large.

    `opaque` creates the stand-in for a value that is not plain data, `array` an array of numpy's from its type, shape
    and items. `other(tag, rest, decode, depth)` decodes what a caller's `other` in `encode` has written.
    """
    try:
        return _Decoder(opaque, array, other).any(data, 0)
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
        raise PlainError(f"malformed plain data: {type(error).__name__}") from error


class _Decoder:
    def __init__(self, opaque: Callable[..., Any], array: Callable[..., Any], other: Callable[..., Any] | None) -> None:
        self.make_opaque = opaque
        self.make_array = array
        self.other = other
        self.left = MAX_ITEMS + 16
        self.fraction_bits = 0
        self.decimal_digits = 0
        self.chosen_keys = 0

    def any(self, data: Any, depth: int) -> Any:
        self.left -= 1
        if depth > MAX_DEPTH + 1 or self.left < 0:
            raise PlainError("too large")
        if data is None or type(data) in (bool, int, float, str):
            return data
        tag, *rest = data
        if self.other is not None and tag not in _READERS:
            return self.other(tag, rest, self, depth + 1)
        return _READERS[tag](self, rest, depth + 1)

    def all(self, rest: list[Any], depth: int) -> list[Any]:
        (items,) = rest
        if type(items) is not list:
            raise PlainError("a container without a list of items")
        return [self.any(item, depth) for item in items]

    def hashed(self, rest: list[Any], depth: int) -> list[Any]:
        items = self.all(rest, depth)
        self.keys(items)
        return items

    def keys(self, keys: list[Any]) -> None:
        self.chosen_keys += refuse_collisions(keys)
        if self.chosen_keys > _MAX_CHOSEN:
            raise PlainError("too many keys that are neither text nor small integers")

    def mapping(self, rest: list[Any], depth: int) -> dict:
        pairs = [(self.any(k, depth), self.any(v, depth)) for k, v in rest[0]]
        self.keys([key for key, _ in pairs])
        return dict(pairs)

    def integer(self, data: Any) -> int:
        if type(data) is int:
            return data
        tag, digits = data
        if tag != "i" or type(digits) is not str or len(digits) > _MAX_INT_BITS // 4 + 3:
            raise PlainError("malformed integer")
        return int(digits, 16)

    def opaque(self, rest: list[Any], depth: int) -> Any:
        kind, handle, truth = rest
        if type(kind) is not str or type(handle) not in (int, _NONE) or type(truth) not in (bool, _NONE):
            raise PlainError("malformed opaque value")
        return self.make_opaque(kind[:80], handle, truth)

    def record(self, rest: list[Any], depth: int) -> Fields:
        name, fields, items = rest
        values = tuple(self.all([items], depth))
        if not all(type(text) is str and text.isidentifier() for text in (name, *fields)) or len(fields) != len(values):
            raise PlainError("malformed named tuple")
        return named(name, tuple(fields), values)

    def ndarray(self, rest: list[Any], depth: int) -> Any:
        kind, shape, items = rest
        values = self.all([items], depth)
        form = _ARRAY_TYPE.fullmatch(kind)
        if form is None or not all(type(length) is int and length >= 0 for length in shape) or len(shape) > 32:
            raise PlainError("malformed array")
        if math.prod(shape) != len(values) or int(form[1] or 0) * len(values) > _MAX_ARRAY_BYTES:
            raise PlainError("malformed array")
        return self.make_array(kind, tuple(shape), values)

    def numbers(self, rest: list[Any], depth: int) -> Any:
        kind, items = rest
        if type(kind) is not str or kind not in "bBhHiIlLqQfd":
            raise PlainError("malformed array of numbers")
        return _imported("array").array(kind, self.all([items], depth))

    def range(self, rest: list[Any], depth: int) -> range:
        found = range(*(self.integer(part) for part in rest))
        # `in` with a non-integer walks through all of it, and so does list().
        self.left -= len(found)
        if self.left < 0:
            raise PlainError("range too long")
        return found

    def fraction(self, rest: list[Any], depth: int) -> Any:
        above, below = (self.integer(part) for part in rest)
        # The sum of fractions can have the bits of all of them.
        self.fraction_bits += above.bit_length() + below.bit_length()
        if self.fraction_bits > _MAX_FRACTION_BITS:
            raise PlainError("fraction too large")
        return _imported("fractions").Fraction(above, below)

    def decimal(self, rest: list[Any], depth: int) -> Any:
        if type(rest[0]) is not str or len(rest[0]) > 10_000:
            raise PlainError("malformed decimal number")
        value = _imported("decimal").Decimal(rest[0])
        # Hashing 1E+999999 takes seconds.
        if value.is_finite() and abs(value.adjusted()) > 10_000:
            raise PlainError("decimal exponent too large")
        self.decimal_digits += len(rest[0]) + (abs(value.adjusted()) if value.is_finite() else 0)
        if self.decimal_digits > _MAX_DECIMAL_DIGITS:
            raise PlainError("too many digits")
        return value


def refuse_collisions(keys: Iterable[Any]) -> int:
    """Count the keys whose hashes a program can choose. Raises PlainError if a dict of them could be slow to fill.

    With many equal hashes, or hashes whose probe sequences meet, a dict degrades to a list, and filling it can take
    hours. Hashes of text are salted, and small integers are too few to do harm. Raises TypeError for an unhashable key.
    """
    chosen = [key for key in keys if not _is_harmless(key)]
    if len(chosen) > _MAX_CHOSEN:
        raise PlainError("too many keys that are neither text nor small integers")
    if len(chosen) > _MAX_EQUAL:
        alike: dict[int, list[Any]] = {}
        for key in chosen:
            known = alike.setdefault(hash(key), [])
            if key not in known:
                known.append(key)
            if len(known) > _MAX_EQUAL:
                raise PlainError("keys with colliding hashes")
    return len(chosen)


def _is_harmless(key: Any) -> bool:
    kind = type(key)
    return kind in (str, bytes, bool, _NONE) or (kind is int and -_SMALL_KEY < key < _SMALL_KEY)


def _imported(name: str) -> Any:
    return importlib.import_module(name)


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise PlainError("malformed number")
    return float(value)


_READERS: dict[str, Callable[[_Decoder, list[Any], int], Any]] = {
    "i": lambda d, r, n: d.integer(["i", *r]),
    "l": lambda d, r, n: d.all(r, n),
    "t": lambda d, r, n: tuple(d.all(r, n)),
    "d": _Decoder.mapping,
    "s": lambda d, r, n: set(d.hashed(r, n)),
    "f": lambda d, r, n: frozenset(d.hashed(r, n)),
    "b": lambda d, r, n: bytes.fromhex(r[0]),
    "B": lambda d, r, n: bytearray.fromhex(r[0]),
    "c": lambda d, r, n: complex(_number(r[0]), _number(r[1])),
    "r": _Decoder.range,
    "D": _Decoder.decimal,
    "q": _Decoder.fraction,
    "Q": lambda d, r, n: deque(d.all(r[:1], n), r[1]),
    "T": lambda d, r, n: _imported("datetime").datetime.fromisoformat(r[0]),
    "E": lambda d, r, n: _imported("datetime").date.fromisoformat(r[0]),
    "H": lambda d, r, n: _imported("datetime").time.fromisoformat(r[0]),
    "I": lambda d, r, n: _imported("datetime").timedelta(*(d.integer(x) for x in r)),
    "y": lambda d, r, n: Yielded(d.all(r, n)),
    "o": _Decoder.opaque,
    "N": _Decoder.record,
    "A": _Decoder.ndarray,
    "a": _Decoder.numbers,
    "k": lambda d, r, n: _TYPES[r[0]],
}


def is_known_type(kind: type) -> bool:
    """Check whether a type is written by its name."""
    return _TYPES.get(kind.__name__) is kind
