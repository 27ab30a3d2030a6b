"""maj@k, best-of-k and paired comparisons against enumeration."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import pytest

from rlvr.training.evaluation.evaluate import summarize
from rlvr.training.evaluation.passk import best_of_k, best_of_kl, maj_at_k, pass_at_k, vote

CASES = [
    ("aabbc", "10010"),
    ("aaaaa", "11111"),
    ("aaaaa", "00000"),
    ("aab--", "11000"),
    ("-----", "00000"),
    ("abcde", "10000"),
    ("aabbcc", "110000"),
    ("aaabbbc", "1110001"),
    ("abab-cc", "1010000"),
    ("aabbccd", "0000111"),
]


def samples(text: str, marks: str) -> tuple[list[str | None], list[bool]]:
    return [None if a == "-" else a for a in text], [m == "1" for m in marks]


def enumerated_majority(answers: Sequence[str | None], right: Sequence[bool], k: int) -> Fraction:
    """The share of k-subsets whose plurality is right, a tie worth its share; right samples are one answer."""
    named = ["right" if ok else a for a, ok in zip(answers, right)]
    total, count = Fraction(0), 0
    for chosen in itertools.combinations(named, k):
        count += 1
        votes = Counter(a for a in chosen if a is not None)
        if votes:
            most = max(votes.values())
            winners = [a for a, n in votes.items() if n == most]
            total += Fraction("right" in winners, len(winners))
    return total / count


def enumerated_best(scores: Sequence[float], right: Sequence[bool], k: int) -> Fraction:
    rows = list(itertools.combinations(range(len(scores)), k))
    total = Fraction(0)
    for chosen in rows:
        top = [i for i in chosen if scores[i] == max(scores[j] for j in chosen)]
        total += Fraction(sum(right[i] for i in top), len(top))
    return total / len(rows)


@pytest.mark.parametrize(("text", "marks"), CASES)
def test_majority_equals_enumeration(text: str, marks: str) -> None:
    """For every k."""
    answers, right = samples(text, marks)
    for k in range(1, len(answers) + 1):
        assert maj_at_k(answers, right, k) == pytest.approx(float(enumerated_majority(answers, right, k)), abs=1e-12)


def test_majority_equals_enumeration_on_random_votes() -> None:
    """Sixty draws of eight samples with up to five answers, some right, some abstaining."""
    stream = random.Random(0)
    for _ in range(60):
        answers = [stream.choice([None, *"abcd"]) for _ in range(8)]
        winner = stream.choice("abcd")
        right = [a == winner for a in answers]
        k = stream.randint(1, 8)
        assert maj_at_k(answers, right, k) == pytest.approx(float(enumerated_majority(answers, right, k)), abs=1e-12)


def test_best_of_k_equals_enumeration() -> None:
    """With ties of scores, for every k; a perfect selector gives pass@k, one that knows nothing pass@1."""
    stream = random.Random(1)
    for _ in range(40):
        right = [stream.random() < 0.4 for _ in range(7)]
        scores = [stream.choice([0.0, 0.5, 1.5, -2.0]) for _ in right]
        for k in range(1, 8):
            assert best_of_k(scores, right, k) == pytest.approx(float(enumerated_best(scores, right, k)), abs=1e-12)
            assert best_of_k([float(r) for r in right], right, k) == pytest.approx(pass_at_k(7, sum(right), k))
            assert best_of_k([3.0] * 7, right, k) == pytest.approx(sum(right) / 7)


@pytest.mark.parametrize("k", [0, 4, -1])
def test_k_that_cannot_be(k: int) -> None:
    """ValueError that names both numbers."""
    for call in (lambda: maj_at_k(["a"] * 3, [True] * 3, k), lambda: best_of_k([1.0] * 3, [True] * 3, k)):
        with pytest.raises(ValueError, match=f"{k} of 3 samples"):
            call()


def test_many_samples_are_quick_and_exact() -> None:
    """n = 128, k = 64: against 20,000 draws, within five standard errors."""
    stream = random.Random(2)
    answers = [stream.choice("aaaabbbccd") for _ in range(128)]
    right = [a == "b" for a in answers]
    exact = maj_at_k(answers, right, 64)
    hits = 0.0
    for _ in range(20_000):
        votes = Counter(stream.sample(answers, 64))
        winners = [a for a, n in votes.items() if n == max(votes.values())]
        hits += ("b" in winners) / len(winners)
    assert abs(hits / 20_000 - exact) < 5 * math.sqrt(max(exact * (1 - exact), 1e-4) / 20_000)


@pytest.mark.parametrize(("n", "k"), [(128, 64), (256, 128), (1500, 700)])
def test_what_is_certain_is_one(n: int, k: int) -> None:
    """Neither more, which an evaluation refuses, nor too large for a float."""
    answers = [str(i) for i in range(n)]
    right = [i % 2 == 0 for i in range(n)]
    assert maj_at_k(answers, [True] * n, k) == 1
    assert best_of_k([0.5] * n, [True] * n, k) == 1
    assert 0 <= best_of_k([float(i % 7) for i in range(n)], right, k) <= 1
    if n < 1000:
        assert 0 <= maj_at_k(answers, right, k) <= 1


def row(problem: str, sample: int, extracted: str | None, right: bool, score: float | None = None) -> dict:
    status = "correct" if right else "no_answer" if extracted is None else "incorrect"
    own = {"id": problem, "sample": sample, "completion": f"so {extracted}", "status": status, "score": float(right)}
    own |= {"correct": right, "extracted": extracted, "finish_reason": "stop", "tokens": 3}
    return own | ({} if score is None else {"selector_score": score})


def test_an_evaluation_has_them_with_intervals() -> None:
    """From k = 2 on; best@k where a selector scored the answers; samples without a verdict's score are left out."""
    rows = [row("p", 0, "1", True, 0.1), row("p", 1, "1.0", True, 0.2), row("p", 2, "2", False, 0.9)]
    rows += [row("q", 0, None, False, 0.3), row("q", 1, "5", True, 0.2), row("q", 2, "7", False, 0.1)]
    result = summarize(rows, [1, 3])
    assert result["maj@3"] == pytest.approx((1 + 0.5) / 2)
    assert result["best@3"] == pytest.approx((0 + 0) / 2)
    assert result["best@3_kl"] == pytest.approx(0.4319456)
    assert result["pass^3"] == 0
    for name in ("maj@3", "best@3", "pass^3"):
        low, high = result[f"{name}_ci"]
        assert 0 <= low <= result[name] <= high <= 1
    assert "maj@1" not in result
    bare = [{k: v for k, v in r.items() if k != "selector_score"} for r in rows]
    assert "best@3" not in summarize(bare, [1, 3])
    assert vote(row("p", 0, None, False)) is None
    assert vote({**row("p", 0, None, False), "status": "incorrect"}) == "so None"


@pytest.mark.parametrize("withheld", [0, 1, 3])
def test_the_share_that_a_filter_withheld(withheld: int) -> None:
    """Is in the result where there is one, beside what was cut off; such answers count."""
    rows = [row("p", i, "1", True) | {"finish_reason": "filter" if i < withheld else "length"} for i in range(4)]
    result = summarize(rows, [1])
    assert result.get("filtered", 0) == withheld / 4
    assert ("filtered" in result) == bool(withheld)
    assert (result["truncated"], result["pass@1"]) == (1 - withheld / 4, 1)


@pytest.mark.parametrize("k", [1, 2, 4, 16])
def test_the_kl_of_the_best_of_k(k: int) -> None:
    """The bound is that of many completions of different scores; with few, or equal scores, the divergence is less."""

    def divergence(count: int) -> float:
        """Of the best of k from `count` equally likely completions of different scores, from these completions."""
        chosen = [(i / count) ** k - ((i - 1) / count) ** k for i in range(1, count + 1)]
        return math.fsum(p * math.log(p * count) for p in chosen if p > 0)

    found = [divergence(count) for count in (3, 10, 1000)]
    assert found == sorted(found)
    assert found[-1] <= best_of_kl(k) + 1e-9
    assert found[-1] == pytest.approx(best_of_kl(k), abs=0.01)
    with pytest.raises(ValueError, match="best of 0"):
        best_of_kl(0)
