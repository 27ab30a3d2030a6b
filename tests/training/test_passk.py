"""pass@k: golden numbers, exactness, intervals."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from rlvr.training.evaluation.passk import (
    estimate_mean,
    estimate_pass_at_k,
    estimate_pass_power_k,
    estimate_unbounded_mean,
    pass_at_k,
    pass_power_k,
    student_quantile,
)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(8, 2, 4, 0.785714), (16, 1, 8, 0.5), (8, 6, 4, 1.0), (5, 0, 3, 0.0), (5, 5, 1, 1.0), (4, 1, 1, 0.25)],
)
def test_golden_numbers(n: int, c: int, k: int, expected: float) -> None:
    """The estimator gives the known numbers; a bootstrap with replacement would give .6836, .4033 and .9961."""
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=5e-7)


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


def test_interval_is_over_problems() -> None:
    """Two problems, always and never solved, say little however many samples each had: .5, give or take anything."""
    estimate = estimate_pass_at_k([(1000, 1000), (1000, 0)], 1)
    assert estimate.mean == 0.5
    assert estimate.standard_error == pytest.approx(0.5)
    assert (estimate.low, estimate.high) == (0.0, 1.0)


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


def test_pass_power_k_averages() -> None:
    """pass^2 of (4, 2) is 1/6 and of (4, 4) is 1."""
    assert estimate_pass_power_k([(4, 2), (4, 4)], 2).mean == pytest.approx((1 / 6 + 1) / 2)
