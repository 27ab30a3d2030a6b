"""maj@k and best-of-k from n samples of each problem: what is right of k samples when one answer has to be given.

Exact expectations over all subsets of k samples, ties broken at random; so they are unbiased, as pass@k is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from math import comb
from typing import Any

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
    """Raise ValueError unless 1 <= k <= n."""
    if not 1 <= k <= n:
        raise ValueError(f"{k} of {n} samples; expected 1 <= k <= samples")


def majorities(rows: Sequence[Answer], k: int, threshold: float | None = None) -> dict[str, float]:
    """Return maj@k of each problem with k answers or more, by id.

    An answer is what the verifier extracted; where it extracts nothing, the completion.
    """
    return {
        name: maj_at_k([vote(row) for row in own], [is_right(row, "", threshold) for row in own], k)
        for name, own in by_problem(rows).items()
        if len(own) >= k
    }


def selected(rows: Sequence[Answer], k: int, threshold: float | None = None) -> dict[str, float]:
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
    """Return the answers of each problem, by id."""
    found: dict[str, list[Answer]] = {}
    for row in rows:
        found.setdefault(row["id"], []).append(row)
    return found


def is_right(row: Answer, prefix: str, threshold: float | None) -> bool:
    """Return whether pass@k counts an answer as right, by the verdict or score with this prefix, or else its own."""
    field = "correct" if threshold is None else "score"
    found = row.get(f"{prefix}{field}", row[field])
    return bool(found) if threshold is None else found is not None and found >= threshold
