"""Values of options and settings: read from a command line's text, and described in words. Standard library only."""

from __future__ import annotations

import math
import types
import typing
from pathlib import Path
from typing import Any

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}


def convert(value: Any, hint: Any, where: str) -> Any:
    """Return a command line's string as the annotated type; other values unchanged."""
    if not isinstance(value, str) or hint in (str, Any):
        return value
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return convert_union(value, hint, where)
    if typing.get_origin(hint) is typing.Literal:
        if value in typing.get_args(hint):
            return value
        raise ValueError(f"{where}: {value!r}; expected {expected(hint)}")
    if hint is bool:
        if value.lower() in ("true", "yes", "1", "false", "no", "0"):
            return value.lower() in ("true", "yes", "1")
        raise ValueError(f"{where}: {value!r}; expected {expected(hint)}")
    if typing.get_origin(hint) in (tuple, list):
        item = typing.get_args(hint)[0] if typing.get_args(hint) else str
        return typing.get_origin(hint)(convert(part, item, where) for part in value.split(",") if part)
    try:
        made = hint(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {value!r}; expected {expected(hint)}") from error
    if hint is float and not math.isfinite(made):
        raise ValueError(f"{where}: {value!r}; expected a finite number")
    return made


def convert_union(value: str, union: Any, where: str) -> Any:
    """Return a command line's string as the first of a union's types that takes it."""
    hints = typing.get_args(union)
    if type(None) in hints and value.lower() in ("none", ""):
        return None
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return convert(value, hint, where)
        except ValueError:
            continue
    raise ValueError(f"{where}: {value!r}; expected {expected(union)}")


def expected(hint: Any) -> str:
    """Return in words what an option or a setting of this type accepts."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words = [expected(part) for part in args if part is not type(None)]
        return " or ".join(words) + (", or None" if type(None) in args else "")
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin is tuple and args and Ellipsis not in args:
        return f"{len(args)} values, each {expected(args[0])}"
    if origin in (tuple, list):
        return f"values, each {expected(args[0])}" if args else "values"
    return WORDS.get(hint, f"a {hint.__name__}" if isinstance(hint, type) else "text")
