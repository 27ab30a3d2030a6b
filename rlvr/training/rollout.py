"""A step's data: draw problems, sample groups, verify them, shape rewards, keep the groups that teach."""

from __future__ import annotations

import functools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from accelerate import Accelerator

from rlvr.algo.advantages import compute_advantages, cost_advantages, gdpo, is_flat, subtract_costs
from rlvr.config import AlgoConfig, Config, RolloutConfig
from rlvr.distributed import gather
from rlvr.model.policy import Policy
from rlvr.seeding import derive_seed
from rlvr.types import (
    BatchVerifier,
    Completion,
    Group,
    Problem,
    Sampler,
    Sampling,
    StreamingSampler,
    Verdict,
    VerifierTraits,
)

T = TypeVar("T")
U = TypeVar("U")


def draw(items: Sequence[T], count: int, *, seed: int, step: int) -> list[T]:
    """The items of a step, `count` of them: each epoch is a permutation of its own, without replacement.

    A function of (seed, step) alone. Where an epoch ends within a step the next one fills it up, with items that the
    step does not have yet; fewer items than `count` repeat.
    """
    size = len(items)
    chosen = []
    for position in range(step * count, (step + 1) * count):
        epoch, offset = divmod(position, size)
        order = _epoch_order(size, count, seed, epoch) if count <= size else _permutation(size, seed, epoch)
        chosen.append(items[int(order[offset])])
    return chosen


Order = np.ndarray[Any, np.dtype[np.int64]]


@functools.lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int) -> Order:
    order = np.random.Generator(np.random.Philox(derive_seed(seed, "epoch", epoch))).permutation(size)
    order.flags.writeable = False
    return order


@functools.lru_cache(maxsize=4)
def _epoch_order(size: int, count: int, seed: int, epoch: int) -> Order:
    """The epoch's permutation, in which the step that the epoch begins in has nothing of the last epoch's end.

    What it has in common with that end changes places with the next items that are not in it. They are found among the
    first `count` of the epoch, so that an end differs from its permutation's only where the epoch is shorter than two
    steps; then the order depends on the epochs before, back to the last that began with a step: at most `count`.
    """
    period = count // math.gcd(size, count)
    first = epoch - epoch % period if size < 2 * count else max(epoch - 1, 0)
    order = _permutation(size, seed, first)
    for later in range(first + 1, epoch + 1):
        begun = later * size % count  # items that the step has of the epoch before
        end = set(order[size - begun :].tolist())
        order = _permutation(size, seed, later).copy()
        free = (i for i in range(count - begun, count) if order[i] not in end)
        for i in range(count - begun if begun else 0):
            if order[i] in end:
                j = next(free)
                order[i], order[j] = order[j], order[i]
    return order


def occurrences(problems: Iterable[Problem], before: Iterable[Problem] = ()) -> list[int]:
    """How often the id of each problem came already, in this list and in `before`: 0 for its first occurrence."""
    seen = Counter(problem.id for problem in before)
    numbers = []
    for problem in problems:
        numbers.append(seen[problem.id])
        seen[problem.id] += 1
    return numbers


def draw_more(
    problems: Sequence[Problem], count: int, *, seed: int, step: int, round_number: int, used: set[str]
) -> list[Problem]:
    """Further problems for dynamic sampling: a random sample that leaves out the ids in `used`."""
    order = np.random.Generator(np.random.Philox(derive_seed(seed, "more", step, round_number)))
    chosen: dict[str, Problem] = {}
    for index in order.permutation(len(problems)):
        problem = problems[int(index)]
        if problem.id not in used:
            chosen.setdefault(problem.id, problem)
        if len(chosen) == count:
            break
    return list(chosen.values())


def rollout(
    policy: Policy,
    sampler: Sampler,
    problems: Sequence[Problem],
    sampling: Sampling,
    *,
    group_size: int,
    seed: tuple[int | str, ...],
    numbers: Sequence[int] | None = None,
    on_group: Callable[[int, Group], None] | None = None,
) -> list[Group]:
    """G completions of each problem. The seed of each is a function of (seed, problem id, sample, occurrence).

    numbers: which occurrence of its id each problem is (see `occurrences`); counted within `problems` unless given.
    A streaming sampler hands each group over to `on_group(place, group)` as soon as it is drawn.
    """
    prompts = [policy.render(problem.prompt) for problem in problems]
    numbers = occurrences(problems) if numbers is None else numbers
    seeds = [
        [derive_seed(*seed, problem.id, i, *again(number)) for i in range(group_size)]
        for problem, number in zip(problems, numbers, strict=True)
    ]
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


def again(number: int) -> tuple[int | str, ...]:
    """What an occurrence adds to a seed: nothing for the first."""
    return ("occurrence", number) if number else ()


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
    if VerifierTraits.of(verifier).whole_batch:
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
    if config.truncated == "penalize":
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
    groups: Sequence[Group],
    rewards: Sequence[Sequence[float | None]],
    algo: AlgoConfig,
    costs: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """Advantages of all groups, each G, by the configured rule.

    `costs` are those of the KL divergence where it is in the reward (`kl_costs`). They enter after the rule has
    normalised the task's rewards; raft, which chooses, does so by reward minus cost.
    """
    rule = algo.row.advantages
    if costs is not None and algo.row.chooses:
        rewards, costs = subtract_costs(rewards, costs), None
    if rule is not None:
        # With a critic these are the rewards still; its advantages are scaled token by token (prepare.py).
        rows = compute_advantages(rewards, rule, "none" if algo.row.critic else algo.scale)
        if costs is None:
            return rows
        added = cost_advantages(rewards, costs, algo.row.kl_baseline)
        return [[a + b for a, b in zip(row, more, strict=True)] for row, more in zip(rows, added, strict=True)]
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


def keep_informative(groups: Sequence[Group], count: int, config: Config) -> list[Group]:
    """All groups, marked `kept` where they are trained on: the first `count` that are informative.

    Where none is, the first `count` are kept, and teach nothing but what a KL term asks of them.
    """
    informative = [not is_flat(row) for row in group_rewards(groups, config.rollout)]
    wanted = informative if any(informative) else [True] * len(groups)
    places = [place for place, holds in enumerate(wanted) if holds][:count]
    return [replace(group, kept=place in places) for place, group in enumerate(groups)]


def among_all(groups: Sequence[Group], rows: Sequence[T], dropped: Sequence[U]) -> list[T | U]:
    """The rows of the kept groups, in their places among all groups; in the other places those of `dropped`."""
    kept = iter(rows)
    return [next(kept) if group.kept else other for group, other in zip(groups, dropped, strict=True)]
