"""Which tests `make test` leaves to `make test-all`: by measured time, in tests/slow_tests.txt."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

LIST = Path(__file__).resolve().parents[1] / "slow_tests.txt"
FIRST = " but the first"


@cache
def slow_tests() -> dict[str, bool]:
    """Return the functions of the list, as file::name: whether the first of their cases is run by `make test`."""
    lines = [line for line in LIST.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {line.removesuffix(FIRST): line.endswith(FIRST) for line in lines}


def name_of(item: pytest.Item) -> str:
    """Return file::function of a test, its file below tests/."""
    function = getattr(item, "originalname", None) or item.name
    return f"{item.path.relative_to(LIST.parent).as_posix()}::{function}"


def mark_slow(items: Sequence[pytest.Item]) -> None:
    """Give the marker `slow` to the cases that the list leaves to `make test-all`."""
    seen: set[str] = set()
    for item in items:
        name = name_of(item)
        if name in slow_tests() and (name in seen or not slow_tests()[name]):
            item.add_marker(pytest.mark.slow)
        seen.add(name)
