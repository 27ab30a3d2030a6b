"""Tables and texts in Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(cell, line)) + " |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Return a text on one line, which does not end a cell."""
    return re.sub(r"(?<!\\)\|", r"\|", " ".join(text.split()))


def plain(text: str) -> str:
    """Return a docstring's text with what Markdown would read as markup escaped, outside of inline code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_<\[\]\\|])", r"\\\1", part) for part in parts)


def first_line(value: object) -> str:
    """Return the first paragraph of a docstring on one line."""
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def sentence(text: str) -> str:
    """Return the first sentence of a docstring, without "Return"."""
    found = re.match(r"(?:Return )?(.*?)(?:[.:;](?:\s|$)|$)", " ".join(text.split()))
    assert found
    return found[1]


def page(title: str, *parts: str) -> str:
    """Return a page with a title."""
    return "\n\n".join([f"# {title}", *(part.strip("\n") for part in parts if part)]) + "\n"


def code(text: str, language: str = "text") -> str:
    """Return a block of code."""
    return f"```{language}\n{text.strip()}\n```"
