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


def is_as_labelled(row) -> bool:
    """Whether a case of a person gets the verdict of its label; those without a box are read leniently."""
    options = {"extract": "lenient"} if row.get("type") == "unboxed" else {}
    if row["completion"].count("\\boxed") > 1 and row["id"].startswith("math_whitebox"):
        options = {"conflict": "reject"}
    return verify_math(row["reference"], row["completion"], **options).correct is row["expected"]


@pytest.mark.parametrize(
    ("name", "debatable"),
    [("math_whitebox.jsonl", True), ("math_cases_3.jsonl", False), ("math_cases_2.jsonl", False)],
)
def test_labelled_cases(rlvr_data, name, debatable):
    """Cases that people labelled get the verdict of their label; of the first file the debatable ones, too."""
    if not rlvr_data(name).exists():
        pytest.skip(f"{name} is not there")
    rows = [row for row in lines(rlvr_data(name)) if debatable or not row.get("debatable")]
    assert [row for row in rows if not is_as_labelled(row)] == []
