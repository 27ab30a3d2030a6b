"""Answers in other words and notations than the gold's: what they say counts, and nothing else than that."""

from __future__ import annotations

import pytest

from rlvr.verifiers.math import verify_math
from rlvr.verifiers.math.grammar.vocabulary import numeral
from rlvr.verifiers.math.text.formulas import is_substance
from rlvr.verifiers.math.text.sentences import respell
from tests.helpers.files import GOLDEN, lines
from tests.helpers.verifiers import holds

ROWS = lines(GOLDEN / "math_phrases.jsonl")


@pytest.mark.parametrize("category", sorted({row["category"] for row in ROWS}))
def test_phrases(category):
    """Each form is read as what it means."""
    rows = [row for row in ROWS if row["category"] == category]
    assert [row for row in rows if holds(row["gold"], row["answer"]) is not row["expected"]] == []
    assert {row["expected"] for row in rows} == {True, False}


@pytest.mark.parametrize(
    "text",
    [
        "probably all real numbers except 2", "all real numbers except 2 or maybe 3", "not all n >= 3",
        "x if x > 0", "5 if A is true, 6 otherwise if B", "1 if n is odd or even, 0 if n is even",
        r"\operatorname{not}A=5", r"\operatorname{wrong}=5", "f(x)=cx for any constant I guess",
        "1, 2 and maybe y 3",
    ],
)  # fmt: skip
def test_doubts_are_no_phrases(text):
    """Words that are no part of a known phrase leave a text unread."""
    assert respell(text) is None


@pytest.mark.parametrize(
    ("completion", "mode", "expected"),
    [
        ("So, 2+3 = 5.", "lenient", True),
        ("Hence, 2+3 = 5", "lenient", True),
        ("So, 2+3 = 6.", "lenient", False),
        ("Lösung: 5", "marked", True),
        ("**Lösung:** $x = 5$", "marked", True),
        ("Die Lösung lautet 5.", "marked", True),
        ("Die Lösung ist nicht 5.", "marked", False),
        ("Keine Lösung: 5", "marked", False),
        ("Lösung:\n\nWir haben 5 Äpfel. Also 6.", "marked", False),
    ],
)
def test_sentences_and_marks(completion, mode, expected):
    """A connective is no value of a list; "Lösung" marks an answer on its line, and heads a solution elsewhere."""
    assert verify_math("5", completion, extract=mode).correct is expected


def test_numerals():
    """Chinese signs, by their multiples or as digits; nothing but a numeral."""
    values = {"五": 5, "十二": 12, "二十": 20, "一百零五": 105, "三万二千": 32000, "二〇二四": 2024}
    assert {text: int(numeral(text).value) for text in values} == values
    assert [numeral(text) for text in ("不是五", "五个", "a五", "第五")] == [None] * 4


def test_substances():
    """Only what is made of elements is a formula; variables with indices are none."""
    assert all(map(is_substance, (r"\mathrm{H_2O}", r"\ce{CaCO3}", "1s^2 2s^2", r"\text{Na}^+", "C_6H_{12}O_6")))
    assert not any(map(is_substance, ("x_1", r"A_1A_2", r"\text{Yes}", r"\text{Evelyn}", "2^{10}", r"x \to 0")))
