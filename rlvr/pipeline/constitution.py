"""Principles from a file: what a model criticizes and revises its answers by, and what a judge compares two by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.files.jsonl import read_objects

REQUEST = ("critique", "revision")


@dataclass(frozen=True)
class Constitution:
    """requests: texts that ask for a critique, each with the one that then asks for a revision. principles: a judge's.

    Constitutional AI (arXiv:2212.08073) draws one of either list for each critique and each comparison.
    """

    requests: tuple[tuple[str, str], ...] = ()
    principles: tuple[str, ...] = ()


def read_constitution(path: Path) -> Constitution:
    """Read JSON Lines of two kinds: {"critique": ..., "revision": ...} and {"principle": ...}.

    Raises ValueError with the number of a line that is neither, and for a file without any; OSError where there is no
    such file.
    """
    requests: list[tuple[str, str]] = []
    principles: list[str] = []
    for number, row in read_objects(path):
        where = f"{path}, line {number}"
        if set(row) == {"principle"}:
            principles.append(text_of(row, "principle", where))
        elif set(row) == {*REQUEST}:
            requests.append((text_of(row, "critique", where), text_of(row, "revision", where)))
        else:
            fields = ", ".join(row) or "none"
            raise ValueError(f"{where}: its fields are {fields:.80}; expected critique and revision, or principle")
    if not requests and not principles:
        raise ValueError(f"{path} has no principles: the file is empty")
    return Constitution(tuple(requests), tuple(principles))


def text_of(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return a field's text. Raises ValueError for another type, and for a blank one."""
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {name} is {value!r:.80}; expected text")
    return value


def chosen_constitution(path: Path | None, default: Constitution, needed: str) -> Constitution:
    """Return the constitution in a file, or the default without one. `needed`: requests or principles.

    Raises ValueError where there are none of those, and what `read_constitution` raises.
    """
    found = default if path is None else read_constitution(path)
    if not getattr(found, needed):
        fields = "critique and revision" if needed == "requests" else "principle"
        raise ValueError(f"{path or 'the constitution'} has no line with {fields}; expected one at least")
    return found
