"""The monitor: a second verifier that scores the same rollouts and never enters the reward.

The score that is trained on is the proxy. The monitor is what it is compared with: an exact rule beside a learned
model, a strict rule beside a lenient one. It scores all that was sampled, also the groups that dynamic sampling drops.
The alarm (rlvr/training/monitor/alarm.py) reads the metrics that are logged of each step.
"""

from __future__ import annotations

import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlvr.config import MonitorConfig
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Group, Status, Verdict
from rlvr.distributed import Processes, share

from ..rollout.rollout import verify_shared
from .alarm import (
    AlarmStop,
    GuardStop,
    RollBack,
    alarm_record,
    best_step,
    find_fast_signs,
    find_signs,
    is_alarming,
    measure_drift,
)

REPEAT_N = 4  # tokens: repetition is measured by n-grams of this length


@dataclass
class Monitor:
    """The second verifier of a run, and the metrics of the steps that it has seen, as they are logged."""

    verifier: BatchVerifier
    config: MonitorConfig
    rows: list[dict[str, float]] = field(default_factory=list)

    def verify(self, groups: Sequence[Group], accelerator: Processes) -> list[Group]:
        """Return the groups with the monitor's verdicts in place of the proxy's, and of an environment's."""
        blind = [
            replace(group, completions=tuple(replace(made, verdict=None) for made in group.completions))
            for group in share(groups, accelerator)
        ]
        return verify_shared(blind, self.verifier, accelerator)

    def observe(
        self, groups: Sequence[Group], monitored: Sequence[Group], metrics: dict[str, float]
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return a step's metrics with the monitor's numbers, and the signs of reward hacking after it, in words."""
        row = metrics | monitor_metrics(groups, monitored)
        row |= measure_drift(self.rows, row, self.config.window)
        self.rows.append(row)
        signs, fast = find_signs(self.rows, self.config), find_fast_signs(self.rows, self.config)
        row["monitor/suspicious"], row["monitor/falling"] = float(bool(signs)), float(bool(fast))
        return row, signs | fast

    def judge_step(
        self,
        step: int,
        signs: Mapping[str, str],
        metrics: Mapping[str, float],
        rollouts: Sequence[Mapping[str, Any]],
        evidence: Path,
    ) -> tuple[dict[str, Any] | None, GuardStop | RollBack | None]:
        """Return the alarm's record if it begins with this step, and what monitor.on_alarm asks for while it holds.

        rollouts: the step's lines of rollouts.jsonl. evidence: the file that records are written to.
        """
        before, holds = (is_alarming(rows, self.config.patience) for rows in (self.rows[:-1], self.rows))
        record = alarm_record(step, signs, metrics, rollouts) if holds and not before else None
        if holds and self.config.on_alarm == "stop":
            return record, AlarmStop(step, signs, evidence)
        if holds and self.config.on_alarm == "rollback":
            reason = f"the reward-hacking alarm at step {step}: {'; '.join(signs.values())}"
            return record, RollBack(step, "alarm", reason, newest=min(best_step(self.rows), step - 1))
        return record, None


def monitor_metrics(groups: Sequence[Group], monitor: Sequence[Group]) -> dict[str, float]:
    """Return a step's metrics of proxy and monitor; their names begin with "monitor/".

    groups, monitor: the same P groups with the proxy's and with the monitor's verdicts. Rollouts that either could not
    score are left out, except in correct (no score: not correct), unscored and repetition. A number that a step does
    not have (no group to rank in) is left out.

    proxy, score: mean of the proxy's and of the monitor's scores. proxy_std, score_std: deviation over the rollouts.
    proxy_se, score_se: standard error of the means, from the spread of the groups' means. groups_r: Pearson
    correlation of the groups' means. correct: share that the monitor calls correct. worth: what a point of the
    monitor's score is worth to the proxy, the slope of a regression within groups; score_within: mean variance of the
    monitor's scores within groups; score_range, proxy_range: highest less lowest score. rank: Spearman correlation
    within a group, averaged over the `ranked` groups in which neither is constant; rank_se: its standard error.
    proxy_only: share that the proxy accepts and the monitor rejects; monitor_only: the reverse. repetition: share of a
    completion's token 4-grams that occurred earlier in it. unscored: share of rollouts without a monitor's score.
    """
    pairs = [paired_scores(ours, theirs) for ours, theirs in zip(groups, monitor, strict=True)]
    pairs = [pair for pair in pairs if pair[0]]
    verdicts = [verdict for group in monitor for verdict in group.verdicts]
    ids = [completion.sampled_ids for group in groups for completion in group.completions]
    found = {
        "correct": share_of(verdict.correct for verdict in verdicts),
        "unscored": share_of(verdict.score is None for verdict in verdicts),
        "repetition": statistics.fmean(repeated_ngrams(row) for row in ids),
        **disagreement(groups, monitor),
    }
    if pairs:
        found |= mean_and_error("proxy", [proxy for proxy, _ in pairs])
        found |= mean_and_error("score", [score for _, score in pairs])
        found["groups_r"] = (
            pearson(*zip(*((statistics.fmean(proxy), statistics.fmean(score)) for proxy, score in pairs))) or 0.0
        )
        found |= worth_metrics(pairs)
    found |= rank_metrics(pairs)
    return {f"monitor/{name}": value for name, value in found.items()}


def paired_scores(group: Group, monitor: Group) -> tuple[list[float], list[float]]:
    """Return the scores of a group by proxy and by monitor, of the rollouts that both scored."""
    both = [
        (mine.score, theirs.score)
        for mine, theirs in zip(group.unshuffled_verdicts, monitor.verdicts, strict=True)
        if mine.score is not None and theirs.score is not None
    ]
    return [mine for mine, _ in both], [theirs for _, theirs in both]


def worth_metrics(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, float]:
    """Return the slope of the proxy on the monitor within groups, with its weight and the ranges of the scores.

    pairs: the scores of each group by proxy and by monitor. The slope is left out where the monitor is constant.
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


def rank_metrics(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> dict[str, float]:
    """Return the mean of the groups' rank correlations, its standard error, and the number of groups that have one.

    The error is that of uncorrelated scores: Spearman's coefficient of n pairs then has the variance 1 / (n - 1).
    """
    found = [(spearman(proxy, score), len(proxy)) for proxy, score in pairs]
    known = [(rank, size) for rank, size in found if rank is not None]
    if not known:
        return {"ranked": 0.0}
    error = sum(1 / (size - 1) for _, size in known) ** 0.5 / len(known)
    return {"ranked": float(len(known)), "rank": statistics.fmean(rank for rank, _ in known), "rank_se": error}


def mean_and_error(name: str, rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return mean and standard deviation over all scores, and the standard error of the mean over the groups."""
    values = [value for row in rows for value in row]
    means = [statistics.fmean(row) for row in rows]
    error = statistics.stdev(means) / len(means) ** 0.5 if len(means) > 1 else 0.0
    return {name: statistics.fmean(values), f"{name}_std": statistics.pstdev(values), f"{name}_se": error}


def which_accepted(verdicts: Sequence[Verdict]) -> Sequence[bool | None]:
    """Return which completions of a group a verifier accepts: those that score above the group's mean.

    So the word means the same for a rule (right or wrong) and for a reward model, whose scores mean something only
    relative to each other. With equal scores, what is correct is accepted; None where that is not known (a model).
    """
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    if not scores or max(scores) - min(scores) <= 1e-9:
        return [None if verdict.status is Status.PARTIAL else verdict.correct for verdict in verdicts]
    mean = statistics.fmean(scores)
    return [verdict.score is not None and verdict.score > mean for verdict in verdicts]


def disagreement(groups: Sequence[Group], monitor: Sequence[Group]) -> dict[str, float]:
    """Return the shares of rollouts that one of the two accepts and the other rejects, where neither abstains."""
    both = [
        (mine, theirs)
        for group, other in zip(groups, monitor, strict=True)
        for mine, theirs, a, b in zip(
            which_accepted(group.unshuffled_verdicts),
            which_accepted(other.verdicts),
            group.unshuffled_verdicts,
            other.verdicts,
        )
        if a.score is not None and b.score is not None and mine is not None and theirs is not None
    ]
    return {
        "proxy_only": share_of(mine and not theirs for mine, theirs in both),
        "monitor_only": share_of(theirs and not mine for mine, theirs in both),
    }


def share_of(holds: Iterable[bool]) -> float:
    values = list(holds)
    return sum(values) / max(len(values), 1)


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Return Spearman's rank correlation, ties at their average rank; None where either is constant."""
    return pearson(ranks(one), ranks(other))


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value from 1; equal values share the average of their ranks."""
    order = sorted(values)
    first = {value: order.index(value) for value in set(values)}
    return [first[value] + (order.count(value) + 1) / 2 for value in values]


def pearson(one: Sequence[float], other: Sequence[float]) -> float | None:
    if min(max(values) - min(values) for values in (one, other)) <= 1e-9:
        return None
    return statistics.correlation(one, other)


def repeated_ngrams(tokens: Sequence[Hashable], n: int = REPEAT_N) -> float:
    """Return the share of n-grams that occurred earlier in the sequence; 0 where it is shorter than n."""
    ngrams = list(zip(*(tokens[start:] for start in range(n))))
    return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0
