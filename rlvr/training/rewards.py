"""From verdicts to rewards and advantages: penalties, shuffling, the advantage rule, the groups that carry signal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from rlvr.algo.advantages import compute_advantages, cost_advantages, gdpo, is_flat, subtract_costs
from rlvr.config import AlgoSettings, Config, RolloutConfig
from rlvr.types import Completion, Group, Verdict

T = TypeVar("T")
U = TypeVar("U")


def soft_overlong(num_tokens: int, *, max_new_tokens: int, buffer: int) -> float:
    """Return DAPO's soft overlong penalty (arXiv:2503.14476, eq. 13): 0 up to max - buffer tokens, -1 at max."""
    return -min(max(num_tokens - (max_new_tokens - buffer), 0) / buffer, 1.0)


def length_penalty(num_tokens: int, *, penalty: float, limit: int) -> float:
    """Return -penalty for each token beyond `limit`."""
    return -penalty * max(num_tokens - limit, 0)


def penalties(completion: Completion, config: RolloutConfig) -> dict[str, float]:
    """Return the penalties (each <= 0) for a completion's length by name; only those that are switched on."""
    length = len(completion.sampled_ids)
    costs = {}
    if config.truncated == "penalize":
        costs["overlong"] = soft_overlong(length, max_new_tokens=config.max_new_tokens, buffer=config.overlong_buffer)
    if config.length_penalty:
        costs["length_penalty"] = length_penalty(length, penalty=config.length_penalty, limit=config.length_limit)
    return costs


def reward(completion: Completion, verdict: Verdict, config: RolloutConfig) -> float | None:
    """Return the verdict's score plus rewards of turns, and penalties that are switched on; None without a score."""
    if verdict.score is None:
        return None
    return verdict.score + sum(turn.reward for turn in completion.turns) + sum(penalties(completion, config).values())


def group_rewards(groups: Sequence[Group], config: RolloutConfig) -> list[list[float | None]]:
    """Return the rewards of all groups (P x G)."""
    return [
        [
            verdict.score if group.own_verdicts else reward(completion, verdict, config)
            for completion, verdict in zip(group.completions, group.verdicts)
        ]
        for group in groups
    ]


def group_advantages(
    groups: Sequence[Group],
    rewards: Sequence[Sequence[float | None]],
    algo: AlgoSettings,
    costs: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """Return the advantages of all groups (P x G) by the algorithm's rule.

    costs: the KL costs of the completions where the KL term is in the reward (`kl_costs`). Their centred negatives are
    added after the rule has normalised the task's rewards. A rule that chooses completions (raft) chooses by reward
    minus cost. Raises ValueError where the rule needs named parts of the reward and the verifier gives none.
    """
    rule = algo.row.advantages
    if costs is not None and algo.row.chooses:
        rewards, costs = subtract_costs(rewards, costs), None
    if rule is not None:
        # With a critic these are still the rewards; its advantages are per token, and scaled in prepare.py.
        rows = compute_advantages(rewards, rule, "none" if algo.row.critic else algo.scale)
        if costs is None:
            return rows
        added = cost_advantages(rewards, costs, algo.row.kl_baseline)
        return [[a + b for a, b in zip(row, more, strict=True)] for row, more in zip(rows, added, strict=True)]
    weights = {name: float(weight) for name, _, weight in (item.partition("=") for item in algo.reward_weights)}
    names = sorted({name for group in groups for verdict in group.verdicts for name in verdict.parts})
    if not names:
        raise ValueError("algo gdpo needs a verifier with named parts, such as combine; this one gives none")
    parts = [
        {name: [None if v.score is None else v.parts.get(name, 0.0) for v in group.verdicts] for name in names}
        for group in groups
    ]
    return gdpo(parts, weights)


def has_signal(advantages: Sequence[float]) -> bool:
    """Return whether any advantage of a group differs from 0.

    Equal rewards make all of them 0 under a group-relative rule; reinforce and ppo have a signal there too.
    """
    return any(abs(a) > 1e-9 for a in advantages)


def shuffle_verdicts(groups: Sequence[Group], config: RolloutConfig, *, seed: int) -> list[Group]:
    """Return the groups with their verdicts permuted over the whole batch: a control whose rewards mean nothing.

    A verdict keeps its own completion's length penalties, in its score. The groups keep the verdicts of
    their own completions as `own_verdicts`.
    """
    verdicts = [
        verdict if verdict.score is None else replace(verdict, score=reward(completion, verdict, config))
        for group in groups
        for completion, verdict in zip(group.completions, group.verdicts, strict=True)
    ]
    random.Random(seed).shuffle(verdicts)
    shuffled = iter(verdicts)
    return [
        replace(group, verdicts=tuple(next(shuffled) for _ in group.completions), own_verdicts=group.verdicts)
        for group in groups
    ]


def informative_groups(groups: Sequence[Group], config: Config) -> list[Group]:
    """Return the groups whose rewards are not all equal: those that dynamic sampling keeps (DAPO, arXiv:2503.14476)."""
    rewards = group_rewards(groups, config.rollout)
    return [group for group, row in zip(groups, rewards) if not is_flat(row)]


def keep_informative(groups: Sequence[Group], count: int, config: Config) -> list[Group]:
    """Return all groups, with `kept` set on those that are trained on: the first `count` informative ones.

    Where no group is informative, the first `count` are kept: under a group-relative rule only a KL term can then move
    the policy; reinforce and ppo learn from equal rewards too.
    """
    informative = [not is_flat(row) for row in group_rewards(groups, config.rollout)]
    eligible = informative if any(informative) else [True] * len(groups)
    places = [place for place, holds in enumerate(eligible) if holds][:count]
    return [replace(group, kept=place in places) for place, group in enumerate(groups)]


def among_all(groups: Sequence[Group], rows: Sequence[T], dropped: Sequence[U]) -> list[T | U]:
    """Return `rows` (of the kept groups) in their places among all groups, rows of `dropped` in the others."""
    kept = iter(rows)
    return [next(kept) if group.kept else other for group, other in zip(groups, dropped, strict=True)]
