"""Folders of the repository, and JSONL files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
EXCERPTS = GOLDEN / "data"


@dataclass(frozen=True)
class DataSets:
    """Files of data sets by name, such as "gsm8k/test.jsonl": the whole ones of a folder, or excerpts of them."""

    folder: Path | None = None

    def __call__(self, name: str) -> Path:
        """Return the path of a file; an excerpt where the folder lacks the file or none was given."""
        path = EXCERPTS / name if self.folder is None else self.folder / name
        return path if path.exists() else EXCERPTS / name

    def is_complete(self, name: str) -> bool:
        """Whether a file is the whole data set, so that its published size can be checked."""
        return self(name).parent != (EXCERPTS / name).parent


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def cases(name: str) -> list[tuple[Any, ...]]:
    """Return the cases of a table in tests/golden as pytest's parametrize takes them."""
    return [tuple(row.values()) for row in lines(GOLDEN / f"{name}.jsonl")]


def find_blocks(path: Path, language: str = "python") -> list[str]:
    """Return the fenced blocks of a language in a Markdown file."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


# Which tests `make test` leaves to `make test-all`: by measured time, in tests/slow_tests.txt.

LIST = Path(__file__).resolve().parents[1] / "slow_tests.txt"
FIRST, SURVEY = " but the first", ": survey"


@cache
def slow_tests() -> dict[str, list[tuple[bool, str]]]:
    """Return the lines of the list by function, as file::name: whether the first case is left out, and the marker."""
    found: dict[str, list[tuple[bool, str]]] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            rest = line.removesuffix(SURVEY)
            marker = "slow" if rest == line else "survey"
            found.setdefault(rest.removesuffix(FIRST), []).append((rest.endswith(FIRST), marker))
    return found


def name_of(item: pytest.Item) -> str:
    """Return file::function of a test, its file below tests/."""
    function = getattr(item, "originalname", None) or item.name
    return f"{item.path.relative_to(LIST.parent).as_posix()}::{function}"


def mark_slow(items: Sequence[pytest.Item]) -> None:
    """Give the cases that the list names the marker `slow` or `survey`."""
    seen: set[str] = set()
    for item in items:
        name = name_of(item)
        for but_first, marker in slow_tests().get(name, ()):
            if name in seen or not but_first:
                item.add_marker(marker)
        seen.add(name)
