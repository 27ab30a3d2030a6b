"""From verdicts to rewards and advantages: penalties, credit per rollout, turn or step, and the algorithm's rule."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar, cast

from rlvr.algo.advantages import Rewards, compute_advantages, cost_advantages, gdpo, is_flat, subtract_costs
from rlvr.algo.credit import Advantage, StepRewards, Steps, is_flat_in_all_steps, returns_to_go, step_advantages
from rlvr.config import AlgoConfig, Config, RolloutConfig
from rlvr.core.types import Completion, Group, Verdict

T = TypeVar("T")
U = TypeVar("U")


def soft_overlong(num_tokens: int, *, max_new_tokens: int, buffer: int) -> float:
    """Return DAPO's soft overlong penalty (arXiv:2503.14476, eq. 13): 0 up to max - buffer tokens, -1 at max."""
    return -min(max(num_tokens - (max_new_tokens - buffer), 0) / buffer, 1.0)


def penalties(completion: Completion, config: RolloutConfig) -> dict[str, float]:
    """Return the penalties (each <= 0) for a completion's length by name; only those that are switched on."""
    if config.truncated != "penalize":
        return {}
    length, most = len(completion.sampled_ids), config.max_new_tokens
    return {"overlong": soft_overlong(length, max_new_tokens=most, buffer=config.overlong_buffer)}


def outcome_reward(
    completion: Completion, verdict: Verdict, config: RolloutConfig, *, shuffled: bool = False
) -> float | None:
    """Return the verdict's score plus the penalties that are switched on; None without a score.

    shuffled: the score is another rollout's, with its penalties in it (see `shuffle_verdicts`).
    """
    if verdict.score is None or shuffled:
        return verdict.score
    return verdict.score + sum(penalties(completion, config).values())


def intermediate_rewards(completion: Completion, verdict: Verdict) -> dict[str, float]:
    """Return the sums of a rollout's turn rewards and of its step scores by name, each only if the rollout has some."""
    found = {}
    if any(turn.reward for turn in completion.turns):
        found["turn_rewards"] = sum(turn.reward for turn in completion.turns)
    if verdict.steps:
        found["step_scores"] = sum(score for _, score in verdict.steps)
    return found


def reward(completion: Completion, verdict: Verdict, config: RolloutConfig) -> float | None:
    """Return the reward of a whole rollout: score and penalties, and the rewards of turns and steps."""
    outcome = outcome_reward(completion, verdict, config)
    return None if outcome is None else outcome + sum(intermediate_rewards(completion, verdict).values())


def group_rewards(groups: Sequence[Group], config: RolloutConfig) -> list[list[float | None]]:
    """Return the rewards of all groups (P x G) as they are logged; `credited_rewards` returns those to train on."""
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
    algo: AlgoConfig,
    costs: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """Return the advantages of all groups (P x G) by the algorithm's rule.

    costs: KL costs of the completions (`kl_costs`). Their centred negatives are added after the rule has normalised the
    rewards. A rule that chooses completions (raft) chooses by reward minus cost. Raises ValueError if gdpo gets no
    named parts.
    """
    rule = algo.row.advantages
    if costs is not None and algo.row.chooses:
        rewards, costs = subtract_costs(rewards, costs), None
    if rule is not None:
        # For algorithms with advantages per token these are still rewards; prepare.py makes and scales the advantages.
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
    """Return the parts of each rollout's reward by name, turn rewards and step scores too; None without a reward."""
    return [
        None
        if reward is None
        else {**verdict.parts, **({} if group.own_verdicts else intermediate_rewards(completion, verdict))}
        for completion, verdict, reward in zip(group.completions, group.verdicts, rewards, strict=True)
    ]


def has_signal(advantages: Sequence[Advantage]) -> bool:
    """Return whether any advantage of a group, or of a step of its rollouts, differs from 0.

    Equal rewards give none under a group-relative rule; reinforce and ppo have a signal there too.
    """
    values = (a.values if isinstance(a, Steps) else (a,) for a in advantages)
    return any(abs(value) > 1e-9 for row in values for value in row)


def shuffle_verdicts(groups: Sequence[Group], config: RolloutConfig, *, seed: int) -> list[Group]:
    """Return the groups with their verdicts permuted over the whole batch: a control whose rewards mean nothing.

    A permuted score includes its own completion's penalties, turn rewards and step scores. The groups keep the true
    verdicts as `own_verdicts`.
    """
    verdicts = [
        verdict
        if verdict.score is None
        else replace(
            verdict,
            score=reward(completion, verdict, config),
            parts={**verdict.parts, **intermediate_rewards(completion, verdict)},
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


def restore_places(groups: Sequence[Group], rows: Sequence[T], dropped: Sequence[U]) -> list[T | U]:
    """Return `rows` (of the kept groups) in their places among all groups, rows of `dropped` in the others."""
    kept = iter(rows)
    return [next(kept) if group.kept else other for group, other in zip(groups, dropped, strict=True)]


MOST_LOGGED = 8  # steps whose mean return is logged
Decode = Callable[[Sequence[int]], str]
GroupRewards = Sequence[float | None] | Sequence[Steps | None]  # of whole rollouts, or of their steps


def check_credit(groups: Sequence[Group], config: Config) -> None:
    """Raise ValueError for credit per step where no verdict has steps. Credit per turn is checked before a run."""
    if config.algo.credit != "step":
        return
    verdicts = [v for group in groups for v in group.unshuffled_verdicts if v.score is not None]
    if verdicts and not any(verdict.steps for verdict in verdicts):
        raise ValueError("algo.credit step needs a verifier whose verdicts have steps, and this one gives none")


def credited_rewards(groups: Sequence[Group], config: Config, decode: Decode) -> list[GroupRewards]:
    """Return the rewards (P x G) that advantages are made of: one per rollout or, by algo.credit, one per step of it.

    With rollout.truncated "mask" a completion that was cut off has no reward: it is neither trained on nor in its
    group's baseline. The advantages of the others then sum to 0 in each group. If the scores of cut-off completions
    (mostly 0) stayed in the mean, as in TRL and SkyRL, the others would be rewarded merely for ending.
    """
    credit, masked = config.algo.credit, config.rollout.truncated == "mask"
    if credit == "outcome":
        rewards: list[GroupRewards] = list(group_rewards(groups, config.rollout))
    else:
        rewards = [
            [
                step_rewards(
                    completion,
                    verdict,
                    outcome_reward(completion, verdict, config.rollout, shuffled=bool(group.own_verdicts)),
                    decode if credit == "step" else None,
                    shuffled=bool(group.own_verdicts),
                )
                for completion, verdict in zip(group.completions, group.verdicts)
            ]
            for group in groups
        ]
    if not masked:
        return rewards
    return [
        cast(GroupRewards, [None if made.cut_off else reward for made, reward in zip(group.completions, row)])
        for group, row in zip(groups, rewards)
    ]


def step_rewards(
    completion: Completion, verdict: Verdict, outcome: float | None, decode: Decode | None, *, shuffled: bool = False
) -> Steps | None:
    """Return the rewards of a rollout's steps, the outcome in the last; None without a score.

    A step is a turn of the model with the reply to it. With `decode` the last turn is cut at the verdict's steps.
    shuffled: the outcome is another rollout's and holds all its rewards, so the turns' own do not count.
    """
    if outcome is None:
        return None
    lengths, rewards = measure_turns(completion)
    steps = () if shuffled else verdict.steps
    if decode is None or not steps:
        rewards[-1] += sum(score for _, score in steps)
    else:
        start = sum(lengths[:-1])
        last = [turn.length for turn in completion.turns if turn.sampled][-1:] or [len(completion.token_ids)]
        parts = split_at_steps(completion.token_ids[start : start + last[0]], steps, decode)
        reward, rest = rewards.pop(), lengths.pop() - last[0]
        lengths += [length for length, _ in parts]
        rewards += [score for _, score in parts]
        rewards[-1] += reward
        lengths[-1] += rest
    if shuffled:
        rewards = [0.0] * len(rewards)
    rewards[-1] += outcome
    return Steps(tuple(rewards), tuple(lengths))


def measure_turns(completion: Completion) -> tuple[list[int], list[float]]:
    """Return tokens (with those of the reply) and reward of each of the model's turns; without turns, of the whole."""
    if not any(turn.sampled for turn in completion.turns):
        return [len(completion.token_ids)], [0.0]
    lengths: list[int] = []
    rewards: list[float] = []
    before = 0
    for turn in completion.turns:
        if turn.sampled:
            lengths.append(before + turn.length)
            rewards.append(turn.reward)
            before = 0
        elif lengths:
            lengths[-1] += turn.length
        else:
            before += turn.length
    return lengths, rewards


def split_at_steps(ids: Sequence[int], steps: Sequence[tuple[int, float]], decode: Decode) -> list[tuple[int, float]]:
    """Return the tokens and score of each step; at least one step.

    A token belongs to the step in which it begins: the text before it tells how many steps have ended. This is known
    before the token is sampled, so that credit per step is unbiased. Tokens after the last end are a step of score 0. A
    step in which no token begins joins the one before.
    """

    @cache
    def count_characters(count: int) -> int:
        """Return the number of characters of the first tokens; an incomplete last character does not count."""
        return len(decode(ids[:count]).rstrip("\N{REPLACEMENT CHARACTER}"))

    found: list[tuple[int, float]] = []
    done, carried = 0, 0.0
    for end, score in steps:
        place = bisect_left(range(len(ids)), end, lo=done, key=count_characters)
        if place > done:
            found.append((place - done, score + carried))
            carried = 0.0
        elif found:
            found[-1] = (found[-1][0], found[-1][1] + score)
        else:
            carried += score
        done = place
    if done < len(ids) or not found:
        found.append((len(ids) - done, carried))
    return found


def credited_advantages(
    groups: Sequence[Group],
    rewards: Sequence[GroupRewards],
    algo: AlgoConfig,
    costs: Sequence[Sequence[float]] | None = None,
) -> Sequence[Sequence[Advantage]]:
    """Return the advantages of all groups (P x G) from their `credited_rewards`: of rollouts, or of their steps.

    costs: KL costs of whole rollouts (`kl_costs`), which add the same amount to all steps of a rollout.
    """
    if algo.credit == "outcome":
        return group_advantages(groups, cast(Sequence[Rewards], rewards), algo, costs)
    steps = cast(Sequence[StepRewards], rewards)
    if algo.row.critic:  # GAE makes advantages of the rewards, see prepare.py
        return [[0.0 if found is None else found.on_last_tokens() for found in row] for row in steps]
    assert algo.row.advantages is not None
    rows = step_advantages(steps, algo.row.advantages)
    if costs is None:
        return rows
    scores = [[None if found is None else 0.0 for found in row] for row in steps]
    added = cost_advantages(scores, costs, algo.row.kl_baseline)
    return [
        [add_to_steps(a, more) for a, more in zip(row, others, strict=True)]
        for row, others in zip(rows, added, strict=True)
    ]


def add_to_steps(advantage: Advantage, amount: float) -> Advantage:
    """Return the advantage with an amount added in each step."""
    if isinstance(advantage, Steps):
        return Steps(tuple(value + amount for value in advantage.values), advantage.lengths)
    return advantage + amount


def informative_groups(groups: Sequence[Group], config: Config, decode: Decode) -> list[Group]:
    """Return the groups whose rewards are not all equal: those that dynamic sampling keeps (DAPO, arXiv:2503.14476).

    With credit per turn or step, the returns to go must differ in at least one step.
    """
    rewards = credited_rewards(groups, config, decode)
    return [group for group, row in zip(groups, rewards) if not is_uninformative(row)]


def keep_informative(groups: Sequence[Group], count: int, config: Config, decode: Decode) -> list[Group]:
    """Return all groups, with `kept` set on the first `count` informative ones, which are trained on.

    If no group is informative the first `count` are kept: a KL term can still move the policy, and reinforce and ppo
    learn from equal rewards.
    """
    informative = [not is_uninformative(row) for row in credited_rewards(groups, config, decode)]
    eligible = informative if any(informative) else [True] * len(groups)
    places = [place for place, holds in enumerate(eligible) if holds][:count]
    return [replace(group, kept=place in places) for place, group in enumerate(groups)]


def is_uninformative(row: GroupRewards) -> bool:
    """Return whether the rewards of a group carry no signal: too few of them, or all alike, in every step."""
    if any(isinstance(reward, Steps) for reward in row):
        return is_flat_in_all_steps(cast(StepRewards, row))
    return is_flat(cast(Rewards, row))


def credit_metrics(rewards: Sequence[GroupRewards]) -> dict[str, float]:
    """Return the mean number of steps, and for each of the first ones the mean return to go where there is one."""
    rows = [returns_to_go(r.values) for group in rewards for r in group if isinstance(r, Steps)]
    if not rows:
        return {}
    found = {"credit/steps": sum(map(len, rows)) / len(rows)}
    for k in range(min(MOST_LOGGED, max(map(len, rows)))):
        there = [row[k] for row in rows if len(row) > k]
        found[f"credit/return_{k + 1}"] = sum(there) / len(there)
    return found
