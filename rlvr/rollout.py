"""A step's data: draw problems, sample groups, verify them, shape rewards, keep the groups that teach."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from accelerate import Accelerator

from rlvr.advantages import compute_advantages, gdpo, is_flat
from rlvr.config import AlgoConfig, Config, RolloutConfig
from rlvr.distributed import gather
from rlvr.policy import Policy
from rlvr.seeding import derive_seed
from rlvr.types import BatchVerifier, Completion, Group, Problem, Sampler, Sampling, StreamingSampler, Verdict

T = TypeVar("T")


def draw(items: Sequence[T], count: int, *, seed: int, step: int) -> list[T]:
    """The items of a step, `count` of them: each epoch is a permutation of its own, without replacement.

    A function of (seed, step) alone. Where an epoch ends within a step the next one fills it up.
    """
    size = len(items)
    chosen = []
    for position in range(step * count, (step + 1) * count):
        epoch, offset = divmod(position, size)
        chosen.append(items[int(_permutation(size, derive_seed(seed, "epoch", epoch))[offset])])
    return chosen


@functools.lru_cache(maxsize=4)
def _permutation(size: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.random.Generator(np.random.Philox(seed)).permutation(size)


def draw_more(
    problems: Sequence[Problem], count: int, *, seed: int, step: int, round_number: int, used: set[str]
) -> list[Problem]:
    """Further problems for dynamic sampling: a random sample that leaves out the ids in `used`."""
    order = np.random.Generator(np.random.Philox(derive_seed(seed, "more", step, round_number)))
    chosen: list[Problem] = []
    for index in order.permutation(len(problems)):
        problem = problems[int(index)]
        if problem.id not in used:
            chosen.append(problem)
        if len(chosen) == count:
            break
    return chosen


def rollout(
    policy: Policy,
    sampler: Sampler,
    problems: Sequence[Problem],
    sampling: Sampling,
    *,
    group_size: int,
    seed: tuple[int | str, ...],
    on_group: Callable[[int, Group], None] | None = None,
) -> list[Group]:
    """G completions of each problem. The seed of each is a function of (seed, problem id, sample).

    A streaming sampler hands each group over to `on_group(place, group)` as soon as it is drawn.
    """
    prompts = [policy.render(problem.prompt) for problem in problems]
    seeds = [[derive_seed(*seed, problem.id, i) for i in range(group_size)] for problem in problems]
    if on_group is not None and isinstance(sampler, StreamingSampler):
        sampled = sampler.stream(
            prompts, sampling, seeds, lambda p, drawn: on_group(p, Group(problems[p], tuple(prompts[p]), tuple(drawn)))
        )
    else:
        sampled = sampler.generate(prompts, sampling, seeds)
    if [len(row) for row in sampled] != [group_size] * len(problems):
        counts = [len(row) for row in sampled]
        raise ValueError(f"the sampler returned groups of {counts}; expected {len(problems)} groups of {group_size}")
    return [
        Group(problem, tuple(prompt), tuple(completions))
        for problem, prompt, completions in zip(problems, prompts, sampled, strict=True)
    ]


def verify(groups: Sequence[Group], verifier: BatchVerifier) -> list[Group]:
    """The groups with their verdicts; all of them are judged in one call."""
    return with_verdicts(groups, verifier.verify)


def with_verdicts(
    groups: Sequence[Group], judge: Callable[[Sequence[tuple[Problem, str]]], list[Verdict]]
) -> list[Group]:
    """The groups with the verdicts of `judge`, which is called once."""
    pairs = [(group.problem, completion.text) for group in groups for completion in group.completions]
    verdicts = iter(judge(pairs))
    return [
        replace(group, verdicts=tuple(next(verdicts) for _ in group.completions), own_verdicts=()) for group in groups
    ]


def verify_shared(groups: Sequence[Group], verifier: BatchVerifier, accelerator: Accelerator) -> list[Group]:
    """The groups of all processes with their verdicts; each process hands in and judges its own.

    A verifier whose verdicts depend on the whole batch (`whole_batch`) judges all of them on every process.
    """
    if getattr(verifier, "whole_batch", False):
        return verify(gather(groups, accelerator), verifier)
    return gather(verify(groups, verifier), accelerator)


def shuffle_verdicts(groups: Sequence[Group], config: RolloutConfig, *, seed: int) -> list[Group]:
    """Control: the same rewards in random order over the whole batch, so that they carry no information.

    A verdict moves to another completion with what its own completion's length cost, in its score. The groups keep what
    was said of their completions as `own_verdicts`.
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


def soft_overlong(num_tokens: int, *, max_new_tokens: int, buffer: int) -> float:
    """DAPO's soft overlong punishment (arXiv:2503.14476, eq. 13): 0 up to max - buffer tokens, then linear to -1."""
    return -min(max(num_tokens - (max_new_tokens - buffer), 0) / buffer, 1.0)


def length_penalty(num_tokens: int, *, penalty: float, limit: int) -> float:
    """-penalty for each token beyond `limit`."""
    return -penalty * max(num_tokens - limit, 0)


def penalties(completion: Completion, config: RolloutConfig) -> dict[str, float]:
    """What a completion's length costs it, by name: only what is switched on. Each is at most 0."""
    length = len(completion.token_ids)
    costs = {}
    if config.truncated == "punish":
        costs["overlong"] = soft_overlong(length, max_new_tokens=config.max_new_tokens, buffer=config.overlong_buffer)
    if config.length_penalty:
        costs["length_penalty"] = length_penalty(length, penalty=config.length_penalty, limit=config.length_limit)
    return costs


def reward(completion: Completion, verdict: Verdict, config: RolloutConfig) -> float | None:
    """The verdict's score with the penalties that are switched on; None where there is no score."""
    return None if verdict.score is None else verdict.score + sum(penalties(completion, config).values())


def group_rewards(groups: Sequence[Group], config: RolloutConfig) -> list[list[float | None]]:
    """Rewards of all groups, each G."""
    return [
        [
            verdict.score if group.own_verdicts else reward(completion, verdict, config)
            for completion, verdict in zip(group.completions, group.verdicts)
        ]
        for group in groups
    ]


def group_advantages(
    groups: Sequence[Group], rewards: Sequence[Sequence[float | None]], algo: AlgoConfig
) -> list[list[float]]:
    """Advantages of all groups, each G, by the configured rule."""
    if algo.advantage != "gdpo":
        # With a critic these are the rewards still; its advantages are scaled token by token (rlvr/score.py).
        return compute_advantages(rewards, algo.advantage, "none" if algo.advantage == "gae" else algo.scale)
    weights = {name: float(weight) for name, _, weight in (item.partition("=") for item in algo.reward_weights)}
    names = sorted({name for group in groups for verdict in group.verdicts for name in verdict.parts})
    if not names:
        raise ValueError("algo.advantage gdpo needs a verifier with named parts, such as combine; this one gives none")
    parts = [
        {name: [None if v.score is None else v.parts.get(name, 0.0) for v in group.verdicts] for name in names}
        for group in groups
    ]
    return gdpo(parts, weights)


def has_signal(advantages: Sequence[float]) -> bool:
    """Whether any completion of a group would be pushed: equal rewards make every advantage zero."""
    return any(abs(a) > 1e-9 for a in advantages)


def informative_groups(groups: Sequence[Group], config: Config) -> list[Group]:
    """The groups whose rewards differ within them, which dynamic sampling keeps (DAPO)."""
    rewards = group_rewards(groups, config.rollout)
    return [group for group, row in zip(groups, rewards) if not is_flat(row)]
