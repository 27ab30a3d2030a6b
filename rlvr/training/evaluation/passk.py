"""pass@k, pass^k, maj@k and best@k from n samples of each problem, with confidence intervals over problems; paired
comparison of two models.
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from statistics import NormalDist
from typing import Any

import numpy as np


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {c} right in {n} samples; expected 0 <= right <= samples and 1 <= k <= samples")


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the probability that at least one of k samples is right, from c right of n: 1 - C(n-c, k) / C(n, k).

    Unbiased (arXiv:2107.03374, eq. 1), unlike 1 - (1 - c/n)^k, which samples with replacement. Computed as a product of
    ratios, so that no binomial overflows. Raises ValueError unless 0 <= c <= n and 1 <= k <= n.
    """
    _check(n, c, k)
    if n - c < k:
        return 1.0
    # C(n-c, k) / C(n, k) = prod over the c right samples of (n-c+i-k) / (n-c+i), and over k by symmetry
    if c <= k:
        return 1.0 - math.prod((n - c + i - k) / (n - c + i) for i in range(1, c + 1))
    return 1.0 - math.prod((n - c - i) / (n - i) for i in range(k))


def pass_power_k(n: int, c: int, k: int) -> float:
    """Return the probability that all k samples are right (pass^k): C(c, k) / C(n, k), unbiased.

    Raises ValueError as `pass_at_k` does.
    """
    _check(n, c, k)
    return math.prod((c - i) / (n - i) for i in range(k)) if c >= k else 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems, its standard error (nan with fewer than two problems) and the bounds of its interval."""

    mean: float
    standard_error: float
    low: float
    high: float


def estimate_mean(
    values: Sequence[float], confidence: float = 0.95, *, weights: Sequence[float] | None = None
) -> Estimate:
    """Return the mean of one number per problem, each in [0, 1], with an interval that holds at and near 0 and 1.

    The standard error is cluster-robust over problems, since samples of one problem are not independent: sqrt(sum (v -
    mean)^2 / (P (P - 1))) (arXiv:2411.00640, section 2.2). The interval is Agresti and Coull's (The American
    Statistician 52, 1998) with problems as trials: z^2 / 2 problems of value 0 and as many of 1 are added, and it is
    centre +- t sqrt(s^2 / N) of all N = P + z^2, t Student's quantile with P - 1 degrees of freedom, cut to [0, 1].
    From 10 problems on its coverage at 95 % is .95 to 1 (tests/training/test_passk.py).

    weights: the problems' sizes, for a weighted mean. A single problem's interval is [0, 1]. Raises ValueError without
    values, and for values outside [0, 1].
    """
    if not values:
        raise ValueError("no problems to average over")
    if min(values) < 0 or max(values) > 1:
        raise ValueError(f"values from {min(values)} to {max(values)}; expected numbers in [0, 1]")
    count, sizes = len(values), weights or [1.0] * len(values)
    size = math.fsum(sizes)
    mean = math.fsum(map(operator.mul, sizes, values)) / size
    if count < 2:
        return Estimate(mean, math.nan, 0.0, 1.0)

    def squares(centre: float) -> float:
        return math.fsum((w * (value - centre)) ** 2 for w, value in zip(sizes, values, strict=True))

    error = math.sqrt(squares(mean) * count / (count - 1)) / size
    added = NormalDist().inv_cdf(0.5 + confidence / 2) ** 2 / 2  # problems of value 0, and as many of value 1
    total, each = count + 2 * added, size / count
    centre = (size * mean + added * each) / (total * each)
    spread = squares(centre) + added * each**2 * (centre**2 + (1 - centre) ** 2)
    reach = student_quantile(0.5 + confidence / 2, count - 1) * math.sqrt(spread * total / (total - 1)) / (total * each)
    return Estimate(mean, error, max(0.0, min(centre - reach, mean)), min(1.0, max(centre + reach, mean)))


def mean_with_interval(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Return a mean over problems with its interval, as the record of a command has it; nothing without values."""
    if not values:
        return {}
    estimate = estimate_mean([float(value) for value in values])
    return {name: estimate.mean, f"{name}_ci": [estimate.low, estimate.high]}


def estimate_unbounded_mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean of one number per problem and its t interval, for numbers of any size (a reward model's scores).

    The bounds are nan for a single problem, and for values that are all equal. Raises ValueError without values.
    """
    if not values:
        raise ValueError("no problems to average over")
    count = len(values)
    mean = math.fsum(values) / count
    if min(values) == max(values):
        return Estimate(mean, math.nan if count < 2 else 0.0, math.nan, math.nan)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count * (count - 1)))
    reach = student_quantile(0.5 + confidence / 2, count - 1) * error
    return Estimate(mean, error, mean - reach, mean + reach)


@functools.lru_cache
def student_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t distribution with `freedom` >= 1 degrees, for a probability in (.5, 1).

    By bisection of the distribution function, to 1e-12 of its value.
    """
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < probability else (low, middle)
    return high


def student_cdf(t: float, freedom: int) -> float:
    """Return P(T <= t), t >= 0, for whole degrees of freedom: the sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for i in range(freedom // 2):
        total += term
        step = 2 * i + 1 + odd
        term *= square * step / (step + 1)
    within = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return (1 + within) / 2


def estimate_pass_at_k(counts: Iterable[tuple[int, int]], k: int, confidence: float = 0.95) -> Estimate:
    """Return pass@k averaged over problems, from the (samples, right ones) of each; samples may differ."""
    return estimate_mean([pass_at_k(n, c, k) for n, c in counts], confidence)


def estimate_pass_power_k(counts: Iterable[tuple[int, int]], k: int, confidence: float = 0.95) -> Estimate:
    """Return pass^k averaged over problems, from the (samples, right ones) of each."""
    return estimate_mean([pass_power_k(n, c, k) for n, c in counts], confidence)


# maj@k and best@k are exact expectations over all subsets of k samples, ties broken at random: unbiased, as pass@k is.

Answer = Mapping[str, Any]
NO_ANSWER = ("no_answer", "unparseable", "limit", "timeout")


def maj_at_k(answers: Sequence[Hashable | None], right: Sequence[bool], k: int) -> float:
    """Return the probability that the most frequent answer of k samples is right, ties broken at random.

    answers: of n samples, None for a sample that gives no answer, which has no vote. right: whether each is right; all
    right samples count as one answer, however they spell it. Raises ValueError unless 1 <= k <= n.
    """
    check(len(answers), k)
    votes = Counter(a for a, ok in zip(answers, right, strict=True) if not ok and a is not None)
    abstain = sum(a is None and not ok for a, ok in zip(answers, right))
    ours = sum(right)
    ways: Counter[int] = Counter()  # of winning with so many ties; whole numbers, which neither round nor overflow
    for won in range(1, min(ours, k) + 1):
        for ties, count in enumerate(others_at_most(list(votes.values()), abstain, k - won, won)):
            ways[ties] += comb(ours, won) * count
    return float(sum(Fraction(count, ties + 1) for ties, count in ways.items()) / comb(len(answers), k))


def others_at_most(sizes: Sequence[int], free: int, total: int, most: int) -> list[int]:
    """Return in how many ways `total` samples are chosen with at most `most` of each answer, by how many have `most`.

    sizes: samples of each answer; free: samples without a bound.
    """
    # Answers with fewer samples than the bound are free too.
    free += sum(size for size in sizes if size < most)
    table = [[comb(free, chosen)] for chosen in range(total + 1)]  # by samples chosen, then by answers that have `most`
    for size in (size for size in sizes if size >= most):
        wider = [[0] * (len(row) + 1) for row in table]
        for chosen, row in enumerate(table):
            for taken in range(min(most, total - chosen) + 1):
                ways, tie = comb(size, taken), int(taken == most)
                for ties, count in enumerate(row):
                    wider[chosen + taken][ties + tie] += ways * count
        table = wider
    return table[total]


def best_of_k(scores: Sequence[float], right: Sequence[bool], k: int) -> float:
    """Return the probability that the sample of the highest score among k is right, ties broken at random.

    Raises ValueError unless 1 <= k <= n.
    """
    check(len(scores), k)
    totals = Counter(scores)
    good = Counter(score for score, ok in zip(scores, right, strict=True) if ok)
    found, below = Fraction(0), 0
    for score in sorted(totals):
        size = totals[score]
        found += Fraction((comb(below + size, k) - comb(below, k)) * good[score], size)
        below += size
    return float(found / comb(len(scores), k))


def best_of_kl(k: int) -> float:
    """Return log k - (k - 1) / k, in nats: a bound of the KL divergence of the best of k samples from the policy.

    The divergence is that (arXiv:2009.01325, appendix G.3) where no two samples score the same and each by itself is
    unlikely; else it is less (arXiv:2401.01879). Raises ValueError for k below 1.
    """
    if k < 1:
        raise ValueError(f"the best of {k} samples; expected 1 or more")
    return math.log(k) - (k - 1) / k


def check(n: int, k: int) -> None:
    if not 1 <= k <= n:
        raise ValueError(f"{k} of {n} samples; expected 1 <= k <= samples")


def maj_at_k_by_problem(rows: Sequence[Answer], k: int, threshold: float | None = None) -> dict[str, float]:
    """Return maj@k of each problem with k answers or more, by id.

    An answer is what the verifier extracted; where it extracts nothing, the completion.
    """
    return {
        name: maj_at_k([vote(row) for row in own], [is_right(row, "", threshold) for row in own], k)
        for name, own in by_problem(rows).items()
        if len(own) >= k
    }


def best_of_k_by_problem(rows: Sequence[Answer], k: int, threshold: float | None = None) -> dict[str, float]:
    """Return best@k of each problem with k answers or more that a selector scored, by id."""
    scored = [row for row in rows if row.get("selector_score") is not None]
    return {
        name: best_of_k([row["selector_score"] for row in own], [is_right(row, "", threshold) for row in own], k)
        for name, own in by_problem(scored).items()
        if len(own) >= k
    }


def vote(row: Answer) -> str | None:
    """Return what a sample votes for; None where it gives no answer."""
    if row.get("extracted") is not None:
        return str(row["extracted"])
    text = row.get("completion")
    return None if row["status"] in NO_ANSWER or text is None else str(text).strip()


def by_problem(rows: Sequence[Answer]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return found


def is_right(row: Answer, prefix: str, threshold: float | None) -> bool:
    """Return whether pass@k counts an answer as right, by the verdict or score with this prefix, or else its own."""
    field = "correct" if threshold is None else "score"
    found = row.get(f"{prefix}{field}", row[field])
    return bool(found) if threshold is None else found is not None and found >= threshold


RESAMPLES = 10_000
AT_ONCE = 2**22  # signs that are held in memory


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
    """Return how two models compare by one number per problem each, in [0, 1] and in the same order.

    The interval is Student's t over the problems' differences with two added, one gain and one loss as large as the
    largest difference (1 if all are equal): the adjusted interval for paired proportions (Bonett and Price, Journal of
    Educational and Behavioral Statistics 37, 2012). A bootstrap or plain t interval is too narrow for few problems.
    Coverage: tests/training/test_passk.py. No interval knows of a rare problem that was not drawn: where one in twenty
    goes from 0 to 1 and the rest hardly changes, 20 problems give .7. The bounds are nan for a single problem.
    `resamples` and `seed` are those of the sign flips.

    Raises ValueError without problems, for lengths that differ, and for numbers outside [0, 1].
    """
    if not first or len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} numbers; expected one of each model for each problem")
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if not all(((side >= 0) & (side <= 1)).all() for side in (a, b)):
        raise ValueError(f"numbers from {min(a.min(), b.min())} to {max(a.max(), b.max())}; expected [0, 1]")
    gaps = b - a
    count = len(gaps)
    low, high = paired_interval(gaps, confidence)
    return Paired(
        count,
        float(a.mean()),
        float(b.mean()),
        float(gaps.mean()),
        float(gaps.std(ddof=1) / math.sqrt(count)) if count > 1 else math.nan,
        low,
        high,
        sign_flip(gaps, resamples, np.random.default_rng(seed)),
        int((gaps > 0).sum()),
        int((gaps == 0).sum()),
        int((gaps < 0).sum()),
    )


def paired_interval(gaps: np.ndarray, confidence: float = 0.95) -> tuple[float, float]:
    """Return the bounds of the mean of P differences in [-1, 1], as `compare_pairs` says; nan for a single one."""
    count = len(gaps)
    if count < 2:
        return math.nan, math.nan
    furthest = float(np.abs(gaps).max()) or 1.0
    adjusted = np.append(gaps, [furthest, -furthest])
    error = float(adjusted.std(ddof=1)) / math.sqrt(count + 2)
    reach = student_quantile(0.5 + confidence / 2, count - 1) * error
    centre, mean = float(adjusted.mean()), float(gaps.mean())
    return max(-1.0, min(centre - reach, mean)), min(1.0, max(centre + reach, mean))


def sign_flip(gaps: np.ndarray, resamples: int, stream: np.random.Generator) -> float:
    """Return the share of random sign flips whose sum is at least as far from 0; the observed one is among them."""
    own = abs(gaps.sum()) * (1 - 1e-12)
    count, rows = len(gaps), max(1, AT_ONCE // len(gaps))
    beyond = 1
    for start in range(0, resamples, rows):
        signs = stream.integers(2, size=(min(rows, resamples - start), count)) * 2 - 1
        beyond += int((np.abs(signs @ gaps) >= own).sum())
    return min(1.0, beyond / (resamples + 1))
