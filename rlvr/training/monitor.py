"""A second verifier that watches the reward: it judges the same rollouts and never enters the reward.

The score that is trained on is the proxy; the monitor is what it is held against: the exact rule against a learned
model, a strict rule against a lenient one. It judges all that was sampled, also what dynamic sampling does not train
on. What is logged of a step is what the alarm (rlvr/training/alarm.py) reads.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from accelerate import Accelerator

from rlvr.config import MonitorConfig
from rlvr.distributed import share
from rlvr.training.alarm import drift, streak, suspicions
from rlvr.training.rollout import verify_shared
from rlvr.types import BatchVerifier, Group, Status, Verdict

REPEAT_N = 4  # tokens of the n-grams by which repetition is measured


@dataclass
class Monitor:
    """The verifier that watches a run, and the metrics of the steps that it has seen, as they are logged."""

    verifier: BatchVerifier
    config: MonitorConfig
    rows: list[dict[str, float]] = field(default_factory=list)

    def judge(self, groups: Sequence[Group], accelerator: Accelerator) -> list[Group]:
        """The groups with the monitor's verdicts in place of the proxy's."""
        return verify_shared(share(groups, accelerator), self.verifier, accelerator)

    def observe(
        self, groups: Sequence[Group], judged: Sequence[Group], metrics: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, str]]:
        """A step's metrics with the monitor's numbers, and the signs of hacking that hold after it, in words."""
        row = metrics | monitor_metrics(groups, judged)
        row |= drift(self.rows, row, self.config.window)
        self.rows.append(row)
        signs = suspicions(self.rows, self.config)
        row["monitor/suspicious"] = float(bool(signs))
        return row, signs

    def streak(self) -> int:
        """How many steps in a row, up to now, were suspicious."""
        return streak(self.rows)


def monitor_metrics(groups: Sequence[Group], monitor: Sequence[Group]) -> dict[str, float]:
    """What a step's rollouts look like to the proxy and to the monitor; names begin with "monitor/".

    groups, monitor: the same P groups with the proxy's and with the monitor's verdicts. Rollouts that either could not
    score are left out.

    proxy, score: mean of the proxy's and of the monitor's scores. proxy_std, score_std: deviation over the rollouts.
    proxy_se, score_se: standard error of the means, from the spread of the groups' means. groups_r: Pearson
    correlation of the groups' means. correct: share that the monitor calls correct. worth: what a point of the
    monitor's score is worth to the proxy, the slope of a regression within groups; score_within: mean variance of the
    monitor's scores within groups; score_range, proxy_range: highest less lowest score. rank: Spearman correlation
    within a group, averaged over the `ranked` groups in which neither is flat; rank_se: its standard error. proxy_only: share
    that the proxy rewards and the monitor rejects; monitor_only: the reverse. repetition: share of a completion's token
    4-grams that occurred before in it. unscored: share of rollouts that the monitor could not score.
    A number that a step does not give (no group to rank in) is left out.
    """
    pairs = [paired_scores(ours, theirs) for ours, theirs in zip(groups, monitor, strict=True)]
    pairs = [pair for pair in pairs if pair[0]]
    verdicts = [verdict for group in monitor for verdict in group.verdicts]
    ids = [completion.token_ids for group in groups for completion in group.completions]
    found = {
        "correct": portion(verdict.correct for verdict in verdicts),
        "unscored": portion(verdict.score is None for verdict in verdicts),
        "repetition": statistics.fmean(repeated_ngrams(row) for row in ids),
        **disagreement(groups, monitor),
    }
    if pairs:
        found |= level("proxy", [proxy for proxy, _ in pairs]) | level("score", [score for _, score in pairs])
        found["groups_r"] = (
            pearson(*zip(*((statistics.fmean(proxy), statistics.fmean(score)) for proxy, score in pairs))) or 0.0
        )
        found |= worth(pairs)
    found |= rank_agreement(pairs)
    return {f"monitor/{name}": value for name, value in found.items()}


def paired_scores(group: Group, monitor: Group) -> tuple[list[float], list[float]]:
    """The scores of a group by proxy and monitor, of the rollouts that both scored."""
    both = [
        (mine.score, theirs.score)
        for mine, theirs in zip(group.judged, monitor.verdicts, strict=True)
        if mine.score is not None and theirs.score is not None
    ]
    return [mine for mine, _ in both], [theirs for _, theirs in both]


def worth(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, float]:
    """The slope of the proxy on the monitor within groups (left out where the monitor is flat), its weight, its range.

    pairs: the scores of each group by proxy and by monitor.
    """
    products, squares = 0.0, 0.0
    for proxy, score in pairs:
        mean_proxy, mean_score = statistics.fmean(proxy), statistics.fmean(score)
        products += sum((p - mean_proxy) * (s - mean_score) for p, s in zip(proxy, score, strict=True))
        squares += sum((s - mean_score) ** 2 for s in score)
    proxies, scores = ([s for pair in pairs for s in pair[side]] for side in (0, 1))
    found = {
        "score_within": squares / len(scores),
        "score_range": max(scores) - min(scores),
        "proxy_range": max(proxies) - min(proxies),
    }
    return found | ({"worth": products / squares} if squares > 1e-9 else {})


def rank_agreement(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, float]:
    """Mean of the groups' rank correlations, its standard error where there is none, and how many groups have one.

    Without correlation Spearman's coefficient of n pairs has variance 1 / (n - 1).
    """
    found = [(spearman(proxy, score), len(proxy)) for proxy, score in pairs]
    known = [(rank, size) for rank, size in found if rank is not None]
    if not known:
        return {"ranked": 0.0}
    error = sum(1 / (size - 1) for _, size in known) ** 0.5 / len(known)
    return {"ranked": float(len(known)), "rank": statistics.fmean(rank for rank, _ in known), "rank_se": error}


def level(name: str, rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Mean and deviation over all scores, and the standard error of the mean over the groups."""
    values = [value for row in rows for value in row]
    means = [statistics.fmean(row) for row in rows]
    error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
    return {name: statistics.fmean(values), f"{name}_std": statistics.pstdev(values), f"{name}_se": error}


def accepted(verdicts: Sequence[Verdict]) -> Sequence[bool | None]:
    """Which of a group are accepted: scores above the group's mean; where all are equal, what is correct.

    So it has one meaning for a rule (right or wrong) and for a model, whose scores mean something next to each other
    only: of a group with equal scores it says nothing (None).
    """
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    if not scores or max(scores) - min(scores) <= 1e-9:
        return [None if verdict.status is Status.PARTIAL else verdict.correct for verdict in verdicts]
    mean = statistics.fmean(scores)
    return [verdict.score is not None and verdict.score > mean for verdict in verdicts]


def disagreement(groups: Sequence[Group], monitor: Sequence[Group]) -> dict[str, float]:
    """Shares of the rollouts of which both say something: accepted by one of the two and rejected by the other."""
    both = [
        (mine, theirs)
        for group, other in zip(groups, monitor, strict=True)
        for mine, theirs, a, b in zip(accepted(group.judged), accepted(other.verdicts), group.judged, other.verdicts)
        if a.score is not None and b.score is not None and mine is not None and theirs is not None
    ]
    return {
        "proxy_only": portion(mine and not theirs for mine, theirs in both),
        "monitor_only": portion(theirs and not mine for mine, theirs in both),
    }


def portion(holds: Iterable[bool]) -> float:
    """The share of True; 0 of nothing."""
    values = list(holds)
    return sum(values) / max(len(values), 1)


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their average rank; None where one of the two is flat."""
    return pearson(ranks(one), ranks(other))


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1; equal values share the average of their ranks."""
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[value] + (order.count(value) + 1) / 2 for value in values]


def pearson(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Pearson's correlation; None where one of the two is flat."""
    if min(max(values) - min(values) for values in (one, other)) <= 1e-9:
        return None
    return statistics.correlation(one, other)


def repeated_ngrams(tokens: Sequence[Hashable], n: int = REPEAT_N) -> float:
    """The share of n-grams that occurred before in the sequence; 0 where it is shorter than n."""
    ngrams = list(zip(*(tokens[start:] for start in range(n))))
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
