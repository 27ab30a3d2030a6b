"""Advantage rules: from rewards to advantages, one function each.

A rule of a group takes the G rewards of one problem; a rule of the batch takes the rewards of all groups (P x G). A
reward of None (the verifier failed) does not enter a baseline and has advantage 0. Which algorithm uses which rule, and
how to add one: rlvr/algo/algorithms.py.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

Rewards = Sequence[float | None]
BatchRule = Callable[[Sequence[Rewards]], list[list[float]]]

GOOD_FROM = 0.5  # the reward from which KTO calls a completion good
EPSILON = 1e-4  # added to standard deviations, as in TRL


def drop_missing(rewards: Rewards) -> list[float]:
    """Return the rewards that are not None."""
    return [r for r in rewards if r is not None]


def sample_std(values: Sequence[float]) -> float:
    """Return the standard deviation with Bessel's correction; 0 for fewer than two values."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def center(rewards: Rewards, baseline: float) -> list[float]:
    """Return r - baseline; 0 without a reward."""
    return [0.0 if r is None else r - baseline for r in rewards]


def is_flat(rewards: Rewards) -> bool:
    """Return whether a group carries no signal: fewer than two rewards, or all of them equal."""
    values = drop_missing(rewards)
    return len(values) < 2 or max(values) - min(values) <= 1e-9


def dr_grpo(rewards: Rewards) -> list[float]:
    """Return r - mean. Dividing by the std over-weights problems nearly all right or wrong (arXiv:2503.20783)."""
    if is_flat(rewards):
        return [0.0] * len(rewards)
    return center(rewards, statistics.fmean(drop_missing(rewards)))


def grpo(rewards: Rewards) -> list[float]:
    """Return (r - mean) / (std + 1e-4), sample std (arXiv:2402.03300, 4.1.2; 1e-4 as in TRL, verl: 1e-6)."""
    scale = sample_std(drop_missing(rewards)) + EPSILON
    return [a / scale for a in dr_grpo(rewards)]


def rloo(rewards: Rewards) -> list[float]:
    """Return r minus the mean of the others, G/(G-1) (r - mean) (RLOO; Kool et al. 2019, arXiv:2402.14740)."""
    n = len(drop_missing(rewards))
    return [a * n / max(n - 1, 1) for a in dr_grpo(rewards)]


def maxrl(rewards: Rewards) -> list[float]:
    """Return (r - mean) / mean: the gradient of the log pass rate (MaxRL, arXiv:2602.02710); 0 for a mean <= 0."""
    values = drop_missing(rewards)
    mean = statistics.fmean(values) if values else 0.0
    return [a / mean if mean > 0 else 0.0 for a in dr_grpo(rewards)]


def raft(rewards: Rewards) -> list[float]:
    """Return 1 for the first of the best completions, 0 for the others (RAFT, arXiv:2304.06767; best of n).

    All 0 for a group with equal rewards: there is nothing to choose.
    """
    best = None if is_flat(rewards) else first_best(rewards, max)
    return [float(i == best) for i in range(len(rewards))]


def dpo(rewards: Rewards) -> list[float]:
    """Return +1 for the first of the best, -1 for the first of the worst, 0 for the others: the pair of online DPO.

    As in arXiv:2402.04792, with the verifier in place of its LLM judge. All 0 for a group with equal rewards: no pair.
    """
    if is_flat(rewards):
        return [0.0] * len(rewards)
    best, worst = first_best(rewards, max), first_best(rewards, min)
    return [float(i == best) - float(i == worst) for i in range(len(rewards))]


def labels(rewards: Rewards) -> list[float]:
    """Return +1 for a reward of 1/2 or more (good), -1 for a smaller one (bad): KTO's labels; 0 without a reward."""
    return [0.0 if r is None else 1.0 if r >= GOOD_FROM else -1.0 for r in rewards]


def first_best(rewards: Rewards, choose: Callable[[list[float]], float]) -> int:
    """Return the index of the first largest (`max`) or smallest (`min`) reward."""
    return list(rewards).index(choose(drop_missing(rewards)))


def keep_rewards(rewards: Rewards) -> list[float]:
    """Return the rewards, 0 where there is none: a critic turns them into advantages (rlvr/algo/gae.py)."""
    return center(rewards, 0.0)


def reinforce(groups: Sequence[Rewards]) -> list[list[float]]:
    """Return r - mean over the whole batch, whatever its groups (REINFORCE; Williams 1992, doi:10.1007/BF00992696)."""
    values = [r for group in groups for r in drop_missing(group)]
    baseline = statistics.fmean(values) if values else 0.0
    return [center(group, baseline) for group in groups]


def reinforce_pp(groups: Sequence[Rewards]) -> list[list[float]]:
    """Return r - group mean, whitened over the completions of the batch (REINFORCE++-baseline, arXiv:2501.03262).

    verl and OpenRLHF whiten over tokens, which weights a completion by its length.
    """
    return whiten([dr_grpo(group) for group in groups], groups)


def gdpo(parts: Sequence[Mapping[str, Rewards]], weights: Mapping[str, float]) -> list[list[float]]:
    """Normalize each part of the reward within its group, sum by weight, whiten (GDPO, arXiv:2601.05242); P x G.

    parts: for each group the G values of every named part. weights: of the parts by name, 1 for those that it lacks.
    """
    sums = []
    for group in parts:
        terms = [[weights.get(name, 1.0) * a for a in grpo(values)] for name, values in group.items()]
        sums.append([sum(column) for column in zip(*terms)])
    return whiten(sums, [next(iter(group.values())) for group in parts])


def whiten(advantages: Sequence[Sequence[float]], groups: Sequence[Rewards]) -> list[list[float]]:
    """Return (A - mean) / (std + 1e-4) over all completions that have a reward; 0 for the others."""
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
    """Return A / (std of the batch's raw rewards + 1e-4): TRL's scale_rewards="batch"."""
    scale = sample_std([r for group in groups for r in drop_missing(group)]) + EPSILON
    return [[a / scale for a in row] for row in advantages]


SCALES: dict[str, Callable[[Sequence[Sequence[float]], Sequence[Rewards]], list[list[float]]]] = {
    "none": lambda advantages, groups: [list(row) for row in advantages],
    "batch_std": by_batch_std,
    "whiten": whiten,
}
"""What scales the advantages of the batch (P x G), by the word of `--algo.advantage-scale`."""


def subtract_costs(rewards: Sequence[Rewards], costs: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """Return r - cost of each completion; None without a reward."""
    return [
        [None if r is None else r - cost for r, cost in zip(row, others, strict=True)]
        for row, others in zip(rewards, costs, strict=True)
    ]


def cost_advantages(
    rewards: Sequence[Rewards], costs: Sequence[Sequence[float]], baseline: BatchRule
) -> list[list[float]]:
    """Return what the costs of completions (P x G) add to the advantages: -cost minus its baseline, not scaled.

    A cost k times as large thereby weighs k times as much against any task reward, even where the rule divides by a
    spread or a mean. If the baseline is the rule itself and linear, advantages plus costs are rule(r - cost). A
    completion without a reward has no cost.
    """
    return baseline(subtract_costs([[None if r is None else 0.0 for r in row] for row in rewards], costs))


def compute_advantages(groups: Sequence[Rewards], rule: BatchRule, scale: str = "none") -> list[list[float]]:
    """Return the advantages of all groups (P x G) by a rule, scaled over the batch by SCALES[scale]."""
    return SCALES[scale](rule(groups), groups)
