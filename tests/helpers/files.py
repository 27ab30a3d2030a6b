"""Folders of the repository, and JSONL files."""

from __future__ import annotations

import json
import re
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def read_program(name: str) -> str:
    """Return a program of tests/golden/programs, which a test runs elsewhere, or a module of a user's."""
    return (GOLDEN / "programs" / f"{name}.txt").read_text(encoding="utf-8")


def find_blocks(path: Path, language: str = "python") -> list[str]:
    """Return the fenced blocks of a language in a Markdown file."""
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: writing more fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Which tests `make test` leaves to `make test-all`, and which begin it: by measured time, in tests/slow_tests.txt.

LIST = Path(__file__).resolve().parents[1] / "slow_tests.txt"
FIRST, MARKERS = " but the first", ("survey", "early")


@cache
def slow_tests() -> dict[str, list[tuple[bool, str]]]:
    """Return the lines of the list by function, as file::name: whether the first case is left out, and the marker."""
    found: dict[str, list[tuple[bool, str]]] = {}
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            marker = next((name for name in MARKERS if line.endswith(f": {name}")), "slow")
            rest = line.removesuffix(f": {marker}")
            found.setdefault(rest.removesuffix(FIRST), []).append((rest.endswith(FIRST), marker))
    return found


def name_of(item: pytest.Item) -> str:
    """Return file::function of a test, its file below tests/."""
    function = getattr(item, "originalname", None) or item.name
    return f"{item.path.relative_to(LIST.parent).as_posix()}::{function}"


def mark_slow(items: Sequence[pytest.Item]) -> None:
    """Give the cases that the list names the marker `slow`, `survey` or `early`."""
    seen: set[str] = set()
    for item in items:
        name = name_of(item)
        for but_first, marker in slow_tests().get(name, ()):
            if name in seen or not but_first:
                item.add_marker(marker)
        seen.add(name)


def begin_with_long_tests(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return tests in another order: long ones first in each process, so that short ones fill all of them up evenly.

    pytest-xdist gives each process a contiguous part of as many tests; whoever is done takes over some of another's.
    """
    markers = ("slow", "early")
    long = [item for item in items if any(item.get_closest_marker(marker) for marker in markers)]
    short = [item for item in items if not any(item.get_closest_marker(marker) for marker in markers)]
    ordered: list[pytest.Item] = []
    for process in range(processes):
        part = long[process::processes]
        end = len(items) * (process + 1) // processes
        count = max(0, end - len(ordered) - len(part)) if process < processes - 1 else len(short)
        ordered += [*part, *short[:count]]
        del short[:count]
    return ordered
