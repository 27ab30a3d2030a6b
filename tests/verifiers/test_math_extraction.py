"""Which answer a completion gives: statements, hedges, rejections and retractions, in several languages and styles."""

from __future__ import annotations

import pytest

from rlvr.verifiers import verify_math
from rlvr.verifiers.extract import extract
from tests.helpers.files import GOLDEN, lines

CASES = lines(GOLDEN / "math_extraction.jsonl")


@pytest.mark.parametrize("category", sorted({row["category"] for row in CASES}))
def test_extraction_cases(category):
    """The answer that is given counts; one that is rejected, doubted, taken back or hedged does not."""
    rows = [row for row in CASES if row["category"] == category]
    verdicts = [(row, verify_math(row["gold"], row["completion"], extract=row["mode"])) for row in rows]
    assert [
        (row["gold"], row["completion"], row["expected"], verdict.reason)
        for row, verdict in verdicts
        if verdict.correct is not row["expected"]
    ] == []


def test_the_table_is_balanced():
    """Right and wrong answers are about equally many, so that neither always-yes nor always-no passes."""
    right = sum(row["expected"] for row in CASES)
    assert 0.4 < right / len(CASES) < 0.6


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The wrong answer is 42.", "the answer is rejected"),
        ("The answer is 42. Wait, that's wrong.", "the answer is taken back"),
        ("The wrong answer is \\boxed{42}.", "the boxed answer is rejected"),
        ("\\boxed{42}. I made a mistake.", "the boxed answer is taken back"),
        ("It is not **42**", "the answer is rejected"),
    ],
)
def test_a_rejected_answer_has_its_reason(text, reason):
    """What is not given as an answer is none, and the reason says why, leniently too."""
    assert extract(text) == (None, reason)
    assert extract(text, "lenient").text is None


@pytest.mark.parametrize("mode", ["strict", "marked", "lenient"])
def test_real_completions_keep_their_answer_behind_a_check(mode):
    """A box followed by a check, a wish or a remark is the answer in every mode."""
    for behind in ("Check: 6 * 7 = 42, which is not 41.", "I hope it is correct.", "Is that wrong? No.", ""):
        assert extract(f"Hence $\\boxed{{42}}$.\n\n{behind}", mode).text == "42"
