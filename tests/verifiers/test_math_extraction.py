"""Which answer a completion gives: statements, hedges, rejections and retractions, in several languages and styles."""

from __future__ import annotations

import re

import pytest

from rlvr.verifiers.extract import extract
from rlvr.verifiers.extract import rejections as rejected
from rlvr.verifiers.math.text import sentences


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


def test_words_of_other_alphabets_are_found_in_capitals():
    """The patterns find what they look for in texts that were put in small letters, sign for sign."""
    for clause in (
        "YANLI\u015e cevap",
        "YANLI\u015e CEVAP",
        "\u039b\u0386\u0398\u039f\u03a3 \u0391\u03a0\u0386\u039d\u03a4\u0397\u03a3\u0397",
        "\u041d\u0415\u0412\u0415\u0420\u041d\u042b\u0419 \u041e\u0422\u0412\u0415\u0422",
    ):
        assert rejected.is_refused(clause)
    assert rejected.fold_case("\u0130\u0131\u017f\u212a A") == "iisk a"


def test_patterns_are_in_small_letters():
    """A pattern that searches folded text has no capital letter, which would never be found."""
    of_the_text = {"_VALUE", "_DELIMITERS"}
    for name, pattern in [*vars(rejected).items(), ("_COMPARED", sentences._COMPARED)]:
        if isinstance(pattern, re.Pattern) and not pattern.flags & re.IGNORECASE and name not in of_the_text:
            words = re.sub(r"\\.|\[[^\]]*\]|\(\?P<\w+>", "", pattern.pattern)
            assert words == rejected.fold_case(words), name
