"""`language_consistency`: which words are foreign, where the reasoning is, and options that cannot be."""

from __future__ import annotations

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Verdict

PROBLEM = Problem("p", "?", None)


def verdict(text: str, **options: object) -> Verdict:
    return Verdict.of(make_verifier("language_consistency", **options)(PROBLEM, text))


@pytest.mark.parametrize(
    ("text", "scripts", "share"),
    [
        ("so the sum is 12", "latin", 1.0),
        ("so 总和 is 12", "latin", 3 / 4),
        ("七+五=一二 4+8=12 3+5=八 \\boxed{932}", "latin", 2 / 4),
        ("二零〇", "latin", 0.0),
        ("〇", "latin", 0.0),
        ("let α and π be angles, ∑ x_i → 0", "latin", 1.0),  # single letters are variables
        ("the λόγος of it", "latin", 3 / 4),
        ("因此 \\frac{1}{2} \\cdot x = 3", "han", 1.0),
        ("因此 therefore x = 3", "han", 4 / 5),
        ("因此 therefore x = 3", "han,latin", 1.0),
        ("Следовательно ответ 4", "cyrillic", 1.0),
        ("Следовательно answer 4", "cyrillic", 2 / 3),
        ("이것은 답이다", "hangul", 1.0),
        ("これは answer です", "kana,han", 2 / 3),
        ("Größe naïve Ünïcödé ﬁn", "latin", 1.0),
        ("e\u0301te\u0301 12", "latin", 1.0),  # combining marks are no letters
        ("Cyrillic аnd Latin", "latin", 2 / 3),  # the first letter of the second word is Cyrillic
        ("1 + 1 = 2", "latin", 1.0),
        ("コーヒー です", "kana", 1.0),  # the long vowel belongs to both kinds of kana
        ("हिन्दी two", "latin", 1 / 2),  # vowel signs are within a word
        ("שָׁלוֹם two", "latin", 1 / 2),
        ("ｓｕｍ two", "latin", 1.0),  # full width
        ("ｺｰﾋｰ two", "kana", 1 / 2),
    ],
)
def test_the_share_of_words(text: str, scripts: str, share: float) -> None:
    """Words in other scripts count against it; numbers, signs, LaTeX and single letters do not."""
    found = verdict(text, scripts=tuple(scripts.split(",")))
    assert found.score == pytest.approx(share)
    assert str(found.status) == ("correct" if share == 1 else "incorrect" if share == 0 else "partial")


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("<think>one 二</think><answer>九三二</answer>", 1 / 2),
        ("<think>one two</think> 九三二 九三二", 1.0),
        ("九三二 <think>one two", 1.0),
        ("一 two", 1 / 2),
        ("<reason>一 一</reason> two two", 1 / 2),
    ],
)
def test_only_the_reasoning_counts(text: str, share: float) -> None:
    """What the tag holds, closed or not; without the tag the whole completion."""
    assert verdict(text).score == pytest.approx(share)


def test_no_reasoning_and_other_tags() -> None:
    assert str(verdict("").status) == "no_answer"
    assert str(verdict("<think> </think> 932").status) == "no_answer"
    assert verdict("<reason>一 one</reason> two two", tag="reason").score == pytest.approx(0.5)
    assert "1 of 2 words are in another script, the first '一'" in verdict("one 一").reason


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scripts": ("latn",)}, "no script 'latn'; did you mean latin"),
        ({"scripts": ()}, "expected scripts such as latin"),
        ({"tag": "a b"}, "a tag such as think"),
    ],
)
def test_bad_options(options: dict, message: str) -> None:
    with pytest.raises((ValueError, LookupError), match=message):
        make_verifier("language_consistency", **options)
