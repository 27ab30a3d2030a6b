"""Encode values of the standard library's types that are no exact builtin types, for tests that run beside a program.

Written are plain data only; the reader makes objects of the standard library's own classes of them. A subclass that the
program defines arrives as the class of the standard library. What cannot be copied here is left to the caller.
"""

from __future__ import annotations

import builtins
import importlib
import io
import sys
from collections import OrderedDict, defaultdict
from types import SimpleNamespace
from typing import Any

from rlvr.sandbox.inside.plain import PlainError, is_known_type

TAGS = frozenset(("OrderedDict", "defaultdict", "namespace", "file", "builtin", "slice"))
_MAX_DEPTH = 50


def write(value: Any, encoder: Any, depth: int) -> Any:
    """Return tagged data for a value of these types, or None."""
    if isinstance(value, (OrderedDict, defaultdict)):
        kind = next(kind for kind in (OrderedDict, defaultdict) if isinstance(value, kind))
        factory: object = getattr(value, "default_factory", None)
        name = factory.__name__ if isinstance(factory, type) and is_known_type(factory) else None
        return [kind.__name__, encoder.mapping(value, depth), name]
    if type(value) is slice:
        return ["slice", *(encoder.any(part, depth + 1) for part in (value.start, value.stop, value.step))]
    if isinstance(value, type):
        known = is_known_type(value) or vars(builtins).get(value.__name__) is not value
        return None if known else ["builtin", value.__name__]
    if type(value) in (io.StringIO, io.BytesIO) and not value.closed:
        return ["file", *contents(value)]
    if _is_namespace(value) and depth < _MAX_DEPTH and not _cyclic(value, ()):
        return ["namespace", type(value).__name__, encoder.mapping(vars(value), depth)]
    return None


def read(tag: str, rest: list[Any], decoder: Any, depth: int) -> Any:
    """Return the value of data that `write` has written. Raises PlainError if it is malformed."""
    if tag == "builtin":
        found = getattr(builtins, _text(rest[0]), None)
        if not isinstance(found, type):
            raise PlainError("no builtin type")
        return found
    if tag == "slice":
        start, stop, step = (decoder.any(part, depth) for part in rest)
        return slice(start, stop, step)
    if tag == "file":
        held, position = rest
        return filled(io.StringIO(newline="") if type(held) is str else io.BytesIO(), held, position, decoder)
    if tag == "namespace":
        names = decoder.any(rest[1], depth)
        if type(names) is not dict or not all(type(name) is str and not name.startswith("__") for name in names):
            raise PlainError("malformed namespace")
        kind = importlib.import_module("argparse").Namespace if rest[0] == "Namespace" else SimpleNamespace
        return kind(**names)
    items = decoder.any(rest[0], depth)
    if type(items) is not dict:
        raise PlainError("malformed mapping")
    if tag == "defaultdict":
        factory = None if rest[1] is None else decoder.any(["k", rest[1]], depth)
        return defaultdict(factory, items)
    return OrderedDict(items)


def contents(file: Any) -> list[Any]:
    """Return text or bytes and the position of a file in memory as data."""
    held = file.getvalue()
    return [held if type(held) is str else ["b", held.hex()], file.tell()]


def filled(file: Any, held: Any, position: Any, decoder: Any) -> Any:
    """Give a file in memory the contents and the position that `contents` has told."""
    if type(held) is not str:
        tag, digits = held
        if tag != "b" or type(digits) is not str:
            raise PlainError("malformed file")
        held = bytes.fromhex(digits)
    if type(held) is not type(file.getvalue()) or type(position) is not int or not 0 <= position <= sys.maxsize:
        raise PlainError("malformed file")
    file.seek(0)
    file.truncate()
    file.write(held)
    file.seek(min(position, len(held)))
    return file


def _is_namespace(value: Any) -> bool:
    kind = type(value)
    return kind is SimpleNamespace or (kind.__module__ == "argparse" and kind.__name__ == "Namespace")


def _cyclic(value: Any, above: tuple[int, ...]) -> bool:
    """Check whether a namespace contains itself, or too many levels: then it stays where it is."""
    if len(above) > _MAX_DEPTH or id(value) in above:
        return True
    if _is_namespace(value):
        parts = list(vars(value).values())
    elif type(value) in (list, tuple):
        parts = list(value)
    elif type(value) is dict:
        parts = list(value.values())
    else:
        return False
    return any(_cyclic(part, (*above, id(value))) for part in parts if not isinstance(part, (int, str, float)))


def _text(value: Any) -> str:
    if type(value) is not str:
        raise PlainError("no text")
    return value
