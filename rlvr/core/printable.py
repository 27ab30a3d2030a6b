"""Text that is safe to show: for a terminal and without secrets. Also types in words, and values of a command line.

What a model or a file wrote must not move the cursor, clear the screen or reverse the direction of text.
"""

from __future__ import annotations

import html
import json
import math
import re
import sys
import types
import typing
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

# Control characters, lone surrogates (UTF-8 cannot hold them), and characters that change the direction of text.
HIDDEN = "\x00-\x1f\x7f-\x9f\ud800-\udfff"
TURNING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"


def printable(text: str, *, keep: str = "\n\t") -> str:
    """Return `text` with control characters, except those of `keep`, as escapes such as \\x1b."""
    if text.isprintable():
        return text
    return _hidden_pattern(keep).sub(lambda found: _escape(found[0]), text)


def cut_middle(text: str, longest: int) -> str:
    """Return a text cut to `longest` characters. Its middle says how many are left out."""
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def note(line: str) -> None:
    """Print a line to stderr, so that the output on stdout stays as it is."""
    print(line, file=sys.stderr)


def in_one_line(text: str) -> str:
    """Return `text` on one line: runs of white space as one space, control characters as escapes."""
    return printable(" ".join(text.split()), keep="")


# Types of options and settings in words.
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", Path: "a path"}
# Values from a file or a user's code in words.
KINDS = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def kind_of(value: object) -> str:
    """Return in words what a value is: `a list`, `text`, `a Path`."""
    name = type(value).__name__
    return KINDS.get(type(value), f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}")


@cache
def _hidden_pattern(keep: str) -> re.Pattern[str]:
    """Return what matches a character to escape."""
    kept = f"(?![{re.escape(keep)}])" if keep else ""
    return re.compile(f"{kept}[{HIDDEN}{TURNING}]")


def _escape(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")


def convert(value: Any, hint: Any, where: str) -> Any:
    """Convert a command line's string to the annotated type; return other values unchanged."""
    if not isinstance(value, str) or hint in (str, Any):
        return value
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return convert_union(value, hint, where)
    if typing.get_origin(hint) is typing.Literal:
        if value in typing.get_args(hint):
            return value
        raise ValueError(f"{where}: {value!r}; expected {describe_type(hint)}")
    if hint is bool:
        if value.lower() in ("true", "yes", "1", "false", "no", "0"):
            return value.lower() in ("true", "yes", "1")
        raise ValueError(f"{where}: {value!r}; expected {describe_type(hint)}")
    if typing.get_origin(hint) in (tuple, list):
        item = typing.get_args(hint)[0] if typing.get_args(hint) else str
        return typing.get_origin(hint)(convert(part, item, where) for part in value.split(",") if part)
    try:
        made = hint(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {value!r}; expected {describe_type(hint)}") from error
    if hint is float and not math.isfinite(made):
        raise ValueError(f"{where}: {value!r}; expected a finite number")
    return made


def convert_union(value: str, union: Any, where: str) -> Any:
    """Convert a command line's string to the first type of a union that accepts it."""
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
    raise ValueError(f"{where}: {value!r}; expected {describe_type(union)}")


def describe_type(hint: Any) -> str:
    """Return in words what a type accepts: `a whole number or a path`."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        words = [describe_type(part) for part in args if part is not type(None)]
        return " or ".join(words) + (", or None" if type(None) in args else "")
    if origin is typing.Literal:
        return f"one of {', '.join(map(str, args))}"
    if origin is tuple and args and Ellipsis not in args:
        return f"{len(args)} values, each {describe_type(args[0])}"
    if origin in (tuple, list):
        return f"values, each {describe_type(args[0])}" if args else "values"
    return WORDS.get(hint, f"a {hint.__name__}" if isinstance(hint, type) else "text")


# Secrets.

KEY_VARIABLE = "RLVR_API_KEY"
# What stands in place of a secret that was removed.
REMOVED = "[key]"


def without_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a server's text without these secrets, which some servers repeat when they refuse a request.

    Also finds them as JSON, HTML and URLs encode them.
    """
    for secret in filter(None, secrets):
        for written in (secret, json.dumps(secret)[1:-1], html.escape(secret), quote(secret, safe="")):
            text = text.replace(written, REMOVED)
    return text


def is_plain(url: str) -> bool:
    """Return whether a text is the URL of a server without secrets: no user, password, query, fragment or space."""
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and "@" not in parts.netloc
            and not parts.query
            and not parts.fragment
            and parts.port != 0
            and not any(character.isspace() for character in url)
        )
    except ValueError:
        return False
