"""What the tokens of a rollout are credited with: its reward as a whole, or the rewards of its turns and steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import cast

from rlvr.algo.advantages import Rewards, cost_advantages, is_flat
from rlvr.algo.credit import (
    Advantage,
    StepRewards,
    Steps,
    is_flat_in_all_steps,
    returns_to_go,
    step_advantages,
)
from rlvr.config import AlgoSettings, Config
from rlvr.training.rewards import group_advantages, group_rewards, outcome_reward
from rlvr.types import Completion, Group, Verdict

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
    """Return the rewards (P x G) that advantages are made of: of whole rollouts, or by algo.credit of their steps.

    decode: of token ids into text without special tokens.

    With rollout.truncated "mask" a completion that was cut off has none, like one without a score: it is neither
    trained on nor in the baseline of its group. The advantages of those that ended then sum to 0 in each group, so
    that they learn to be right and nothing of ending. With its score in the mean (as in TRL and SkyRL), mostly 0,
    their sum would be above 0: a reward for ending, the larger the more were cut; and a group whose rewards differ
    only in what is masked would count as one with signal.
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
    return [without_cut_off(group, row) for group, row in zip(groups, rewards)] if masked else rewards


def without_cut_off(group: Group, rewards: GroupRewards) -> GroupRewards:
    """Return the rewards of a group's rollouts, None for those that a limit of tokens ended."""
    kept = [None if completion.cut_off else reward for completion, reward in zip(group.completions, rewards)]
    return cast(GroupRewards, kept)


def step_rewards(
    completion: Completion, verdict: Verdict, outcome: float | None, decode: Decode | None, *, shuffled: bool = False
) -> Steps | None:
    """Return the rewards of a rollout's steps, the outcome in the last; None without a score.

    A step is a turn of the model with the reply to it; with `decode` the last turn is cut at the verdict's steps.
    shuffled: the outcome is another rollout's, and holds all rewards of that; the turns' own do not count.
    """
    if outcome is None:
        return None
    lengths, rewards = turns_of(completion)
    steps = () if shuffled else verdict.steps
    if decode is None or not steps:
        rewards[-1] += sum(score for _, score in steps)
    else:
        start = sum(lengths[:-1])
        last = [turn.length for turn in completion.turns if turn.sampled][-1:] or [len(completion.token_ids)]
        parts = cut(completion.token_ids[start : start + last[0]], steps, decode)
        reward, rest = rewards.pop(), lengths.pop() - last[0]
        lengths += [length for length, _ in parts]
        rewards += [score for _, score in parts]
        rewards[-1] += reward
        lengths[-1] += rest
    if shuffled:
        rewards = [0.0] * len(rewards)
    rewards[-1] += outcome
    return Steps(tuple(rewards), tuple(lengths))


def turns_of(completion: Completion) -> tuple[list[int], list[float]]:
    """Return tokens and reward of each turn of the model, the reply to it counted in; without turns, of the whole."""
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


def cut(ids: Sequence[int], steps: Sequence[tuple[int, float]], decode: Decode) -> list[tuple[int, float]]:
    """Return the tokens of each step, and its score; at least one step.

    A token belongs to the step in which it begins, that is, by the number of ends that the text of the tokens before it
    has reached: that is settled when the token is sampled. Tokens after the last end are a step of their own, with
    score 0. A step in which no token begins is joined to the one before.
    """

    @cache
    def reached(count: int) -> int:
        """Return the characters of the first tokens; the bytes of one that is not complete make none."""
        return len(decode(ids[:count]).rstrip("\N{REPLACEMENT CHARACTER}"))

    found: list[tuple[int, float]] = []
    done, carried = 0, 0.0
    for end, score in steps:
        place = bisect_left(range(len(ids)), end, lo=done, key=reached)
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
    algo: AlgoSettings,
    costs: Sequence[Sequence[float]] | None = None,
) -> Sequence[Sequence[Advantage]]:
    """Return the advantages of all groups (P x G) from their `credited_rewards`: of rollouts, or of their steps.

    costs: KL costs of whole rollouts, as in `group_advantages`; what they add is the same in all steps of a rollout.
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
        [raised(a, more) for a, more in zip(row, others, strict=True)] for row, others in zip(rows, added, strict=True)
    ]


def raised(advantage: Advantage, amount: float) -> Advantage:
    """Return the advantage with an amount added in each step."""
    if isinstance(advantage, Steps):
        return Steps(tuple(value + amount for value in advantage.values), advantage.lengths)
    return advantage + amount


def informative_groups(groups: Sequence[Group], config: Config, decode: Decode) -> list[Group]:
    """Return the groups whose rewards are not all equal: those that dynamic sampling keeps (DAPO, arXiv:2503.14476).

    With credit per turn or step, those whose returns to go are not all equal in every step.
    """
    rewards = credited_rewards(groups, config, decode)
    return [group for group, row in zip(groups, rewards) if not is_uninformative(row)]


def keep_informative(groups: Sequence[Group], count: int, config: Config, decode: Decode) -> list[Group]:
    """Return all groups, with `kept` set on those that are trained on: the first `count` informative ones.

    Where no group is informative, the first `count` are kept: under a group-relative rule only a KL term can then move
    the policy; reinforce and ppo learn from equal rewards too.
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
    """Return the mean number of steps, and of the first ones the mean return to go over the rollouts that have it."""
    rows = [returns_to_go(r.values) for group in rewards for r in group if isinstance(r, Steps)]
    if not rows:
        return {}
    found = {"credit/steps": sum(map(len, rows)) / len(rows)}
    for k in range(min(MOST_LOGGED, max(map(len, rows)))):
        there = [row[k] for row in rows if len(row) > k]
        found[f"credit/return_{k + 1}"] = sum(there) / len(there)
    return found
