"""pass@k, pass^k, maj@k, best@k and paired comparisons: golden numbers, exactness, intervals."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rlvr.training.evaluation.evaluate import summarize
from rlvr.training.evaluation.passk import (
    best_of_k,
    best_of_kl,
    compare_pairs,
    estimate_mean,
    estimate_pass_at_k,
    estimate_unbounded_mean,
    maj_at_k,
    paired_interval,
    pass_at_k,
    pass_power_k,
    student_quantile,
    vote,
)


def test_equals_the_share_of_subsets_with_a_right_sample() -> None:
    """For every c and k of n = 7: the share of all k-subsets that hold at least one, or only, right samples."""
    for c in range(8):
        right = [True] * c + [False] * (7 - c)
        for k in range(1, 8):
            subsets = list(itertools.combinations(right, k))
            assert pass_at_k(7, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)
            assert pass_power_k(7, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(10_000, 37, 512), (10_000, 5_000, 3), (100_000, 3, 50_000)])
def test_large_n_is_exact(n: int, c: int, k: int) -> None:
    """Where the binomials have thousands of digits the result still agrees with exact fractions to 1e-12."""
    exact = 1 - Fraction(math.comb(n - c, k), math.comb(n, k))
    assert pass_at_k(n, c, k) == pytest.approx(float(exact), abs=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 5, 1), (4, -1, 1), (4, 1, 0), (0, 0, 1)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    """More samples asked for than were drawn is an error, not a number."""
    with pytest.raises(ValueError, match="expected 0 <= right"):
        pass_at_k(n, c, k)


def test_interval_by_hand() -> None:
    """Rates 1, .5, .5, 0, twice: standard error sqrt(1 / 56). With 1.92 problems of 0 and of 1 more: centre .5.

    The squares sum to 1 + 3.84 / 4 over 11.84 problems; t with 7 degrees of freedom is 2.364624.
    """
    estimate = estimate_pass_at_k([(2, 2), (2, 1), (2, 1), (2, 0)] * 2, 1)
    assert estimate.standard_error == pytest.approx(0.133631, abs=1e-6)
    reach = 2.364624 * math.sqrt((1 + 3.841459 / 4) / 10.841459 / 11.841459)
    assert estimate.low == pytest.approx(0.5 - reach, abs=1e-6)
    assert estimate.high == pytest.approx(0.5 + reach, abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("problems", [2, 10, 30, 128, 1319])
def test_equal_values_have_an_interval(value: float, problems: int) -> None:
    """Where every problem gives the same number the interval has a width, and ends at 0 or 1 with the mean."""
    estimate = estimate_mean([value] * problems)
    assert estimate.mean == value
    assert 0 <= estimate.low <= value <= estimate.high <= 1
    assert estimate.high - estimate.low > 3 / (problems + 4)
    assert value not in (0, 1) or value in (estimate.low, estimate.high)


def test_all_right_says_what_the_binomial_says() -> None:
    """All of 30 right: Clopper and Pearson's lower end is .884, Wilson's .886; this one is below. Mirrored at 0."""
    estimate, mirrored = estimate_mean([1.0] * 30), estimate_mean([0.0] * 30)
    assert 0.85 < estimate.low < 0.025 ** (1 / 30)
    assert (mirrored.low, mirrored.high) == pytest.approx((0, 1 - estimate.low))


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.95, 0.999])
def test_the_mean_lies_inside(confidence: float) -> None:
    """Whatever the values and the confidence."""
    for values in ([1.0] * 9 + [0.0], [1.0] * 500 + [0.99], [0.01] * 40, [0.2, 0.9], [0.0] * 3 + [1.0] * 2):
        estimate = estimate_mean(values, confidence)
        assert 0 <= estimate.low < estimate.high <= 1
        assert estimate.low <= estimate.mean <= estimate.high


def mixture(*parts: tuple[float, float, float]) -> Callable[[np.random.Generator, tuple[int, ...]], Any]:
    """Draws success rates: parts are (share, a, b) for Beta(a, b), and (share, rate, 0) for one rate."""

    def draw(random: np.random.Generator, shape: tuple[int, ...]) -> Any:
        which = random.choice(len(parts), size=shape, p=[share for share, _, _ in parts])
        drawn = [random.beta(a, b, shape) if b else np.full(shape, a) for _, a, b in parts]
        return np.choose(which, drawn)

    return draw


RATES = {
    "all near 1": mixture((1, 50, 1)),
    "all .99": mixture((1, 0.99, 0)),
    "near 1 with some out of reach": mixture((0.95, 0.99, 0), (0.05, 0, 0)),
    "easy and hard": mixture((0.5, 1, 9), (0.5, 9, 1)),
    "easy with few hard": mixture((0.9, 30, 1), (0.1, 1, 30)),
    "hard with few easy": mixture((0.95, 1, 50), (0.05, 9, 1)),
    "half 0 and half 1": mixture((0.5, 0, 0), (0.5, 1, 0)),
    "uniform": mixture((1, 1, 1)),
    "all .5": mixture((1, 0.5, 0)),
}


@pytest.mark.parametrize("rates", RATES)
@pytest.mark.parametrize("problems", [10, 30, 128])
def test_coverage(problems: int, rates: str) -> None:
    """Of 1,000 evaluations at least .93 have the true pass@k in their 95 % interval; n = 1, 4, 8, k = 1 and n.

    Nor is it so wide that it says nothing: at most seven times the true standard error, and the share that six of the
    problems have.
    """
    random = np.random.default_rng([problems, *rates.encode()])
    many = RATES[rates](random, (400_000,))
    drawn = RATES[rates](random, (1000, problems))
    for n, k in ((1, 1), (4, 1), (4, 4), (8, 1), (8, 8)):
        truth = float(np.mean(1 - (1 - many) ** k))
        counts = random.binomial(n, drawn)
        found = [estimate_pass_at_k([(n, int(c)) for c in row], k) for row in counts]
        covered = np.mean([estimate.low <= truth <= estimate.high for estimate in found])
        assert covered >= 0.93, f"n {n}, k {k}: {covered}"
        spread = np.std([estimate.mean for estimate in found])
        width = np.mean([estimate.high - estimate.low for estimate in found])
        assert width <= 7 * spread + 6 / problems, f"n {n}, k {k}: {width}, {spread}"


@pytest.mark.parametrize(
    ("probability", "freedom", "expected"),
    [
        (0.975, 1, 12.7062047),
        (0.975, 2, 4.3026527),
        (0.975, 9, 2.2621572),
        (0.95, 10, 1.8124611),
        (0.975, 127, 1.9788195),
    ],
)
def test_student_quantile(probability: float, freedom: int, expected: float) -> None:
    """The numbers of scipy.stats.t.ppf (1.16); far out in the degrees of freedom it is the normal quantile."""
    assert student_quantile(probability, freedom) == pytest.approx(expected, abs=1e-7)
    assert student_quantile(0.975, 1_000_00) == pytest.approx(1.959988, abs=1e-6)


def test_interval_of_scores_of_any_size() -> None:
    """Scores -3, 0, 6: mean 1, standard error sqrt(21 / 3), 4.302653 of them to both sides; nothing is cut."""
    estimate = estimate_unbounded_mean([-3.0, 0.0, 6.0])
    assert estimate.mean == 1.0
    assert estimate.low == pytest.approx(1 - 4.302653 * math.sqrt(7), abs=1e-5)
    assert estimate.high == pytest.approx(1 + 4.302653 * math.sqrt(7), abs=1e-5)
    assert math.isnan(estimate_unbounded_mean([2.0]).low)
    assert math.isnan(estimate_unbounded_mean([2.0, 2.0]).high)


def test_values_outside_0_and_1_are_refused() -> None:
    """The bounded interval says which values it cannot take."""
    with pytest.raises(ValueError, match=r"from -0\.5 to 1\.0; expected numbers in \[0, 1\]"):
        estimate_mean([1.0, -0.5])


def test_equals_the_cluster_robust_error() -> None:
    """The error over problem means is the cluster-robust one of all samples (with the P/(P-1) correction)."""
    rows = [[1, 1, 0, 1], [0, 0, 0, 1], [1, 1, 1, 1]]
    mean = 8 / 12
    robust = sum(sum(value - mean for value in row) ** 2 for row in rows) / 12**2 * 3 / 2
    counts = [(4, sum(row)) for row in rows]
    assert estimate_pass_at_k(counts, 1).standard_error == pytest.approx(math.sqrt(robust), abs=1e-12)


def test_one_problem_has_no_interval() -> None:
    """A single problem says nothing about others: no standard error, and the interval is everything."""
    estimate = estimate_mean([0.25])
    assert math.isnan(estimate.standard_error)
    assert (estimate.mean, estimate.low, estimate.high) == (0.25, 0.0, 1.0)
    with pytest.raises(ValueError, match="no problems"):
        estimate_mean([])


# maj@k, best-of-k and paired comparisons against enumeration.

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


def test_majority_equals_enumeration() -> None:
    """For every k of chosen votes, and of sixty draws of eight with up to five answers, some right, some abstaining."""
    stream = random.Random(0)
    drawn = ["".join(stream.choice("-abcd") for _ in range(8)) for _ in range(60)]
    cases = [*CASES, *((text, "".join(str(int(a == winner)) for a in text)) for text in drawn for winner in "ab")]
    for text, marks in cases:
        answers, right = [None if a == "-" else a for a in text], [mark == "1" for mark in marks]
        for k in range(1, len(answers) + 1):
            expected = float(enumerated_majority(answers, right, k))
            assert maj_at_k(answers, right, k) == pytest.approx(expected, abs=1e-12)


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


Drawn = tuple[np.ndarray, np.ndarray]
Kind = Callable[[np.random.Generator, tuple[int, ...]], Drawn]


def right_or_wrong(stream: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    """One sample of each problem by either model; the second solves each with a probability that is .1 higher."""
    hard = stream.random(shape)
    easier = np.minimum(hard + 0.1, 1)
    return (stream.random(shape) < hard).astype(float), (stream.random(shape) < easier).astype(float)


def few_samples(stream: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    """Eight samples of each problem, most problems solved nearly always or nearly never."""
    hard = stream.beta(0.7, 0.7, shape)
    return stream.binomial(8, hard) / 8, stream.binomial(8, np.minimum(hard + 0.1, 1)) / 8


def many_samples(stream: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    """64 samples of each problem."""
    hard = stream.beta(0.7, 0.7, shape)
    return stream.binomial(64, hard) / 64, stream.binomial(64, np.minimum(hard + 0.1, 1)) / 64


def equal_models(stream: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    """No difference; 64 samples of each problem."""
    hard = stream.beta(0.7, 0.7, shape)
    return stream.binomial(64, hard) / 64, stream.binomial(64, hard) / 64


def rare_gains(stream: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    """One problem in ten goes from never to always, the others are as they were."""
    return np.zeros(shape), (stream.random(shape) < 0.1).astype(float)


def gains_and_losses(stream: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    """One problem in ten is won and one in twenty lost."""
    drawn = stream.random(shape)
    return (drawn > 0.95).astype(float), (drawn < 0.1).astype(float)


def shift(stream: np.random.Generator, shape: tuple[int, ...]) -> Drawn:
    """Rates that differ by .05, with a normal deviation of .1."""
    return np.full(shape, 0.45), np.clip(0.5 + 0.1 * stream.standard_normal(shape), 0, 1)


KINDS = (right_or_wrong, few_samples, many_samples, equal_models, rare_gains, gains_and_losses, shift)


@pytest.mark.parametrize("problems", [2, 3, 5, 8, 10, 20, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_coverage_of_the_interval(kind: Kind, problems: int) -> None:
    """Of 2,000 comparisons at least .94 have the true difference in their 95 % interval: two standard errors below."""
    stream = np.random.default_rng([problems, *kind.__name__.encode()])
    one, other = kind(stream, (1_000_000,))
    truth = float((other - one).mean())
    first, second = kind(stream, (2000, problems))
    bounds = np.array([paired_interval(gaps) for gaps in second - first])
    covered = np.mean((bounds[:, 0] <= truth + 1e-9) & (truth - 1e-9 <= bounds[:, 1]))
    assert covered >= 0.94, covered


@pytest.mark.parametrize("kind", KINDS)
def test_the_width_with_many_problems(kind: Kind) -> None:
    """With 500 problems it is at most a tenth wider than 3.92 standard errors of the difference."""
    first, second = kind(np.random.default_rng(7), (200, 500))
    gaps = second - first
    bounds = np.array([paired_interval(row) for row in gaps])
    widths = bounds[:, 1] - bounds[:, 0]
    assert widths.mean() <= 1.1 * 3.92 * np.mean(gaps.std(axis=1, ddof=1)) / math.sqrt(500)


def test_the_interval_by_hand() -> None:
    """Gaps .5 .5 0 with -.5 and .5 added: mean .2, variance .2, t of 2 degrees of freedom 4.302653; cut at 1."""
    reach = 4.302653 * math.sqrt(0.2 / 5)
    found = compare_pairs([0.5, 0.0, 0.25], [1.0, 0.5, 0.25])
    assert (found.low, found.high) == pytest.approx((0.2 - reach, 1.0), abs=1e-6)
    assert paired_interval(np.array([0.5, 0.5, 0.0, 0.0]))[1] < 1


@pytest.mark.parametrize(("problems", "width"), [(5, 1.211), (100, 0.0551), (500, 0.01109)])
def test_models_that_never_differ(problems: int, width: float) -> None:
    """No difference was seen, and the interval says how much may go unseen: about 3 / P to both sides."""
    found = compare_pairs([1.0] * problems, [1.0] * problems)
    assert found.difference == 0
    assert found.p == 1
    assert found.high - found.low == pytest.approx(width, rel=0.01)
    assert found.high == pytest.approx(-found.low)


@pytest.mark.parametrize("gaps", [[1.0, 1.0], [1.0] * 5, [-0.1] * 3])
def test_the_difference_is_in_its_interval(gaps: list[float]) -> None:
    """Where all problems are won too, and the bounds are differences that there can be."""
    low, high = paired_interval(np.array(gaps))
    assert -1 <= low <= np.mean(gaps) <= high <= 1


def test_sign_flips_equal_enumeration() -> None:
    """p over all 2^6 signs."""
    gaps = [0.25, 0.125, 0.0625, 0.25, -0.125, 0.5]
    sums = [abs(sum(s * g for s, g in zip(signs, gaps))) for signs in itertools.product((1, -1), repeat=6)]
    exact = sum(s >= abs(sum(gaps)) - 1e-12 for s in sums) / 64
    assert compare_pairs([0.5] * 6, [0.5 + gap for gap in gaps], resamples=40_000).p == pytest.approx(exact, abs=0.01)


def test_pairing_removes_what_problems_share() -> None:
    """Two models that differ by little on problems of very different difficulty: a narrow interval, by hand too."""
    first = [i / 100 for i in range(80)]
    second = [x + (0.1 if i % 2 else 0.05) for i, x in enumerate(first)]
    found = compare_pairs(first, second)
    assert found.difference == pytest.approx(0.075)
    assert found.standard_error == pytest.approx(0.025 * math.sqrt(80 / 79) / math.sqrt(80))
    assert 0.065 < found.low < found.difference < found.high < 0.085
    assert (found.problems, found.better, found.equal, found.worse) == (80, 80, 0, 0)
    assert found.p < 1e-3
    assert compare_pairs(first, first).p == 1


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [([], [], "one of each"), ([1.0], [1.0, 0.0], "one of each model"), ([0.5, 2.0], [0.5, 1.0], "expected .0, 1.")],
)
def test_numbers_that_cannot_be_compared(first: list[float], second: list[float], message: str) -> None:
    """They do not pair, or are no rates."""
    with pytest.raises(ValueError, match=message):
        compare_pairs(first, second)


def test_a_single_problem_has_no_interval() -> None:
    found = compare_pairs([0.0], [1.0])
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert (found.difference, found.p) == (1.0, 1.0)
