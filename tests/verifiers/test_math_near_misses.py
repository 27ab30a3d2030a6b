"""Wrong answers that differ from the gold in one sign, mark, word or constant, and right ones that look like them."""

from __future__ import annotations

import pytest

from rlvr.verifiers.math import verify_math
from tests.helpers.files import GOLDEN, lines

ROWS = lines(GOLDEN / "math_near_misses.jsonl")


def is_right(row) -> bool:
    """Whether the answer of a row is accepted."""
    completion = row.get("completion") or f"So \\boxed{{{row['answer']}}}"
    return verify_math(row["gold"], completion, **row.get("options", {})).correct


@pytest.mark.parametrize("category", sorted({row["category"] for row in ROWS}))
def test_near_misses(category):
    """In each category near misses are refused and other forms of the gold are accepted."""
    rows = [row for row in ROWS if row["category"] == category]
    assert [row for row in rows if is_right(row) is not row["expected"]] == []
    assert {row["expected"] for row in rows} == {True, False}
