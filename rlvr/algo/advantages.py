"""From rewards to advantages: one function for each rule.

A reward of None (the verifier failed) takes no part in a baseline and gets advantage 0. Rules of a group take the G
rewards of one problem; rules of the batch take all groups.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

Rewards = Sequence[float | None]
BatchRule = Callable[[Sequence[Rewards]], list[list[float]]]

EPSILON = 1e-4  # added to a standard deviation, as in TRL


def scored(rewards: Rewards) -> list[float]:
    """The rewards that exist."""
    return [r for r in rewards if r is not None]


def sample_std(values: Sequence[float]) -> float:
    """Standard deviation with Bessel's correction; 0 for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def center(rewards: Rewards, baseline: float) -> list[float]:
    """r - baseline; 0 where there is no reward."""
    return [0.0 if r is None else r - baseline for r in rewards]


def is_flat(rewards: Rewards) -> bool:
    """Whether a group teaches nothing: fewer than two rewards, or all of them equal."""
    values = scored(rewards)
    return len(values) < 2 or max(values) - min(values) <= 1e-9


def dr_grpo(rewards: Rewards) -> list[float]:
    """r - mean. Not divided by the std: that over-weights problems nearly all right or wrong (arXiv:2503.20783)."""
    if is_flat(rewards):
        return [0.0] * len(rewards)
    return center(rewards, statistics.fmean(scored(rewards)))


def grpo(rewards: Rewards) -> list[float]:
    """(r - mean) / (std + 1e-4), sample std (DeepSeekMath, arXiv:2402.03300, eq. 3; epsilon as in TRL, verl: 1e-6)."""
    scale = sample_std(scored(rewards)) + EPSILON
    return [a / scale for a in dr_grpo(rewards)]


def rloo(rewards: Rewards) -> list[float]:
    """r_i minus the mean of the others, which is G/(G-1) (r_i - mean) (Kool et al. 2019; arXiv:2402.14740)."""
    n = len(scored(rewards))
    return [a * n / max(n - 1, 1) for a in dr_grpo(rewards)]


def maxrl(rewards: Rewards) -> list[float]:
    """(r - mean) / mean: the gradient of the log of the pass rate; 0 where the mean is not positive."""
    values = scored(rewards)
    mean = statistics.fmean(values) if values else 0.0
    return [a / mean if mean > 0 else 0.0 for a in dr_grpo(rewards)]


def raft(rewards: Rewards) -> list[float]:
    """1 for the first of the best completions, 0 for the others (RAFT, arXiv:2304.06767; best of n).

    A group with equal rewards has nothing to choose from: all 0.
    """
    best = None if is_flat(rewards) else first_best(rewards, max)
    return [float(i == best) for i in range(len(rewards))]


def dpo(rewards: Rewards) -> list[float]:
    """+1 for the first of the best, -1 for the first of the worst, 0 for the others: the pair of online DPO.

    (arXiv:2402.04792, whose judge is here the verifier.) A group with equal rewards gives no pair: all 0.
    """
    if is_flat(rewards):
        return [0.0] * len(rewards)
    best, worst = first_best(rewards, max), first_best(rewards, min)
    return [float(i == best) - float(i == worst) for i in range(len(rewards))]


def first_best(rewards: Rewards, choose: Callable[[list[float]], float]) -> int:
    """Index of the first largest (`max`) or smallest (`min`) reward."""
    return list(rewards).index(choose(scored(rewards)))


def unchanged(rewards: Rewards) -> list[float]:
    """Return the rewards as they are, 0 where there is none: with gae a critic turns them into advantages (gae.py)."""
    return center(rewards, 0.0)


def reinforce(groups: Sequence[Rewards]) -> list[list[float]]:
    """r minus the mean over the whole batch (Williams 1992). Groups play no part."""
    values = [r for group in groups for r in scored(group)]
    baseline = statistics.fmean(values) if values else 0.0
    return [center(group, baseline) for group in groups]


def reinforce_pp(groups: Sequence[Rewards]) -> list[list[float]]:
    """r - group mean, then whitened over the batch (REINFORCE++-baseline, arXiv:2501.03262).

    Whitened over completions; verl and OpenRLHF whiten over tokens, which weighs a completion by its length.
    """
    return whiten([dr_grpo(group) for group in groups], groups)


def gdpo(parts: Sequence[Mapping[str, Rewards]], weights: Mapping[str, float]) -> list[list[float]]:
    """Each part of the reward normalised in its group, summed by weight, whitened over the batch (GDPO).

    `parts`: for each group the G values of every named part. A part without weight counts 1.
    """
    sums = []
    for group in parts:
        terms = [[weights.get(name, 1.0) * a for a in grpo(values)] for name, values in group.items()]
        sums.append([sum(column) for column in zip(*terms)])
    return whiten(sums, [next(iter(group.values())) for group in parts])


def whiten(advantages: Sequence[Sequence[float]], groups: Sequence[Rewards]) -> list[list[float]]:
    """(A - mean) / (std + 1e-4) over all completions that have a reward; 0 for the others."""
    values = [
        a
        for row, group in zip(advantages, groups, strict=True)
        for a, r in zip(row, group, strict=True)
        if r is not None
    ]
    if not values:
        return [[0.0] * len(row) for row in advantages]
    mean, scale = statistics.fmean(values), sample_std(values) + EPSILON
    return [
        [0.0 if r is None else (a - mean) / scale for a, r in zip(row, group, strict=True)]
        for row, group in zip(advantages, groups, strict=True)
    ]


def by_batch_std(advantages: Sequence[Sequence[float]], groups: Sequence[Rewards]) -> list[list[float]]:
    """A / (std of the batch's rewards + 1e-4): TRL's scale_rewards="batch". The std is that of the raw rewards."""
    scale = sample_std([r for group in groups for r in scored(group)]) + EPSILON
    return [[a / scale for a in row] for row in advantages]


SCALES: dict[str, Callable[[Sequence[Sequence[float]], Sequence[Rewards]], list[list[float]]]] = {
    "none": lambda advantages, groups: [list(row) for row in advantages],
    "batch_std": by_batch_std,
    "whiten": whiten,
}


def subtract_costs(rewards: Sequence[Rewards], costs: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """r - cost of each completion; None where there is no reward."""
    return [
        [None if r is None else r - cost for r, cost in zip(row, others, strict=True)]
        for row, others in zip(rewards, costs, strict=True)
    ]


def cost_advantages(
    rewards: Sequence[Rewards], costs: Sequence[Sequence[float]], baseline: BatchRule
) -> list[list[float]]:
    """Return what the costs of completions add to the advantages (P x G): baseline - cost, scaled by nothing.

    So a cost that is k times as large weighs k times as much against any task reward, also where the rule divides (by
    a group's std or mean, or the batch's std). With a baseline that is the rule itself, and linear, rule(r - cost) is
    the sum of both. Where there is no reward there is no cost.
    """
    return baseline(subtract_costs([[None if r is None else 0.0 for r in row] for row in rewards], costs))


def compute_advantages(groups: Sequence[Rewards], rule: BatchRule, scale: str = "none") -> list[list[float]]:
    """Return the advantages of all groups (P x G) by a rule, scaled over the batch as SCALES[scale] does."""
    return SCALES[scale](rule(groups), groups)
