"""Parsing text of a model in the caller's process, in bounded time and memory."""

from __future__ import annotations

import ast
import re

# CPython's parser takes up to 1 kB of memory and 4 microseconds a character, while no other thread runs.
MAX_PARSED = 50_000  # characters
# For `import a.a.a` it keeps a copy of every prefix: the square of the length.
MAX_DOTS = 100
_TOKEN = re.compile(r"\w+|[^\w\s\\]")


def parse_bounded(text: str) -> ast.Module | None:
    """Return the tree of a program; None where it does not parse, or parsing it would cost too much."""
    if len(text) > MAX_PARSED or _has_long_path(text):
        return None
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _has_long_path(text: str) -> bool:
    """Whether names or dots are joined by more than MAX_DOTS dots, with white space and line continuations between."""
    dots, after_dot = 0, False
    for token in _TOKEN.finditer(text):
        if text[token.start()] == ".":
            dots, after_dot = dots + 1, True
            if dots > MAX_DOTS:
                return True
        elif text[token.end() - 1].isalnum() or text[token.end() - 1] == "_":
            dots, after_dot = (dots if after_dot else 0), False
        else:
            dots, after_dot = 0, False
    return False
