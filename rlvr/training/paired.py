"""Paired comparison of two models on the same problems: a bootstrap over problems."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
AT_ONCE = 2**22  # drawn problems that are held in memory


@dataclass(frozen=True, slots=True)
class Paired:
    """Means over the shared problems, the difference (second less first) with its interval, and who is ahead where.

    p: the two-sided p-value of no difference, by flipping the signs of the problems' differences at random.
    """

    problems: int
    first: float
    second: float
    difference: float
    standard_error: float
    low: float
    high: float
    p: float
    better: int
    equal: int
    worse: int


def compare_pairs(
    first: Sequence[float],
    second: Sequence[float],
    *,
    confidence: float = 0.95,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Paired:
    """Return how two models compare by one number per problem each, in the same order.

    Problems are drawn with replacement, each with both of its numbers, so that what makes a problem hard for both
    cancels. The interval holds the middle `confidence` of the resampled mean differences (percentile bootstrap, Efron
    1979); its bounds are nan for a single problem. Raises ValueError without problems, or for lengths that differ.
    """
    if not first or len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} numbers; expected one of each model for each problem")
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    gaps = b - a
    count, stream = len(gaps), np.random.default_rng(seed)
    low = high = error = math.nan
    if count > 1:
        means = resampled_means(gaps, resamples, stream)
        low, high = (float(q) for q in np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2]))
        error = float(gaps.std(ddof=1) / math.sqrt(count))
    return Paired(
        count,
        float(a.mean()),
        float(b.mean()),
        float(gaps.mean()),
        error,
        low,
        high,
        sign_flip(gaps, resamples, stream),
        int((gaps > 0).sum()),
        int((gaps == 0).sum()),
        int((gaps < 0).sum()),
    )


def resampled_means(gaps: np.ndarray, resamples: int, stream: np.random.Generator) -> np.ndarray:
    """Return the means of `resamples` draws of P of P numbers with replacement."""
    count = len(gaps)
    rows = max(1, AT_ONCE // count)
    parts = [
        gaps[stream.integers(count, size=(min(rows, resamples - start), count))].mean(axis=1)
        for start in range(0, resamples, rows)
    ]
    return np.concatenate(parts)


def sign_flip(gaps: np.ndarray, resamples: int, stream: np.random.Generator) -> float:
    """Return the share of random sign flips whose sum is at least as far from 0; the observed one is among them."""
    own = abs(gaps.sum()) * (1 - 1e-12)
    count, rows = len(gaps), max(1, AT_ONCE // len(gaps))
    beyond = 1
    for start in range(0, resamples, rows):
        signs = stream.integers(2, size=(min(rows, resamples - start), count)) * 2 - 1
        beyond += int((np.abs(signs @ gaps) >= own).sum())
    return min(1.0, beyond / (resamples + 1))
