"""Paired comparison: by hand, and the coverage of its interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from rlvr.training.evaluation.passk import compare_pairs, paired_interval

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


@pytest.mark.parametrize(("first", "second"), [([], []), ([1.0], [1.0, 0.0])])
def test_numbers_that_do_not_pair(first: list[float], second: list[float]) -> None:
    """ValueError."""
    with pytest.raises(ValueError, match="one of each model for each problem"):
        compare_pairs(first, second)


def test_numbers_that_are_no_rates() -> None:
    """ValueError: the interval is for numbers in [0, 1]."""
    with pytest.raises(ValueError, match="expected \\[0, 1\\]"):
        compare_pairs([0.5, 2.0], [0.5, 1.0])


def test_a_single_problem_has_no_interval() -> None:
    found = compare_pairs([0.0], [1.0])
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert (found.difference, found.p) == (1.0, 1.0)
