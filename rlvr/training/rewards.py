"""From verdicts to rewards and advantages: penalties, shuffling, the advantage rule."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from rlvr.algo.advantages import compute_advantages, cost_advantages, gdpo, subtract_costs
from rlvr.algo.credit import Advantage, Steps
from rlvr.config import AlgoSettings, RolloutConfig
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


def outcome_reward(
    completion: Completion, verdict: Verdict, config: RolloutConfig, *, shuffled: bool = False
) -> float | None:
    """Return the verdict's score plus the penalties that are switched on; None without a score.

    shuffled: the score is another rollout's, with its penalties in it (see `shuffle_verdicts`).
    """
    if verdict.score is None or shuffled:
        return verdict.score
    return verdict.score + sum(penalties(completion, config).values())


def within_rewards(completion: Completion, verdict: Verdict) -> dict[str, float]:
    """Return what a rollout earns before its end by name: the rewards of turns, and of steps; only those it has."""
    found = {}
    if any(turn.reward for turn in completion.turns):
        found["turn_rewards"] = sum(turn.reward for turn in completion.turns)
    if verdict.steps:
        found["step_scores"] = sum(score for _, score in verdict.steps)
    return found


def reward(completion: Completion, verdict: Verdict, config: RolloutConfig) -> float | None:
    """Return the reward of a whole rollout: score and penalties, and the rewards of turns and steps."""
    outcome = outcome_reward(completion, verdict, config)
    return None if outcome is None else outcome + sum(within_rewards(completion, verdict).values())


def group_rewards(groups: Sequence[Group], config: RolloutConfig) -> list[list[float | None]]:
    """Return the rewards of all groups (P x G), as they are logged; which of them count: `credited_rewards`."""
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
        # Where tokens get their own these are still the rewards; prepare.py makes and scales the advantages.
        rows = compute_advantages(rewards, rule, "none" if algo.row.per_token else algo.scale)
        if costs is None:
            return rows
        added = cost_advantages(rewards, costs, algo.row.kl_baseline)
        return [[a + b for a, b in zip(row, more, strict=True)] for row, more in zip(rows, added, strict=True)]
    weights = {name: float(weight) for name, _, weight in (item.partition("=") for item in algo.reward_weights)}
    names = sorted({name for group in groups for verdict in group.verdicts for name in verdict.parts})
    if not names:
        raise ValueError("algo gdpo needs a verifier with named parts, such as combine; this one gives none")
    named = [named_rewards(group, row) for group, row in zip(groups, rewards, strict=True)]
    names += sorted({name for group in named for found in group for name in found or ()} - set(names))
    parts = [
        {name: [None if found is None else found.get(name, 0.0) for found in group] for name in names}
        for group in named
    ]
    return gdpo(parts, weights)


def named_rewards(group: Group, rewards: Sequence[float | None]) -> list[dict[str, float] | None]:
    """Return the named parts of each rollout's reward, those earned within it counted in; None without a reward."""
    return [
        None
        if reward is None
        else {**verdict.parts, **({} if group.own_verdicts else within_rewards(completion, verdict))}
        for completion, verdict, reward in zip(group.completions, group.verdicts, rewards, strict=True)
    ]


def has_signal(advantages: Sequence[Advantage]) -> bool:
    """Return whether any advantage of a group, or of a step of its rollouts, differs from 0.

    Equal rewards make all of them 0 under a group-relative rule; reinforce and ppo have a signal there too.
    """
    values = (a.values if isinstance(a, Steps) else (a,) for a in advantages)
    return any(abs(value) > 1e-9 for row in values for value in row)


def shuffle_verdicts(groups: Sequence[Group], config: RolloutConfig, *, seed: int) -> list[Group]:
    """Return the groups with their verdicts permuted over the whole batch: a control whose rewards mean nothing.

    A verdict keeps all rewards of its own completion in its score: length penalties, those of turns and of steps. The
    groups keep the verdicts of their own completions as `own_verdicts`.
    """
    verdicts = [
        verdict
        if verdict.score is None
        else replace(
            verdict,
            score=reward(completion, verdict, config),
            parts={**verdict.parts, **within_rewards(completion, verdict)},
            steps=(),
        )
        for group in groups
        for completion, verdict in zip(group.completions, group.verdicts, strict=True)
    ]
    random.Random(seed).shuffle(verdicts)
    shuffled = iter(verdicts)
    return [
        replace(group, verdicts=tuple(next(shuffled) for _ in group.completions), own_verdicts=group.verdicts)
        for group in groups
    ]


def among_all(groups: Sequence[Group], rows: Sequence[T], dropped: Sequence[U]) -> list[T | U]:
    """Return `rows` (of the kept groups) in their places among all groups, rows of `dropped` in the others."""
    kept = iter(rows)
    return [next(kept) if group.kept else other for group, other in zip(groups, dropped, strict=True)]
