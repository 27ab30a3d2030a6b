"""Which tests `make test` leaves to `make test-all`: by measured time, in tests/slow_tests.txt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

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
