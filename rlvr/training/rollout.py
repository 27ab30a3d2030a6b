"""Sample groups of completions and verify them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rlvr.distributed import Processes, gather
from rlvr.model.policy import Policy
from rlvr.seeding import derive_seed
from rlvr.traits import VerifierTraits
from rlvr.types import BatchVerifier, Group, Problem, Sampler, Sampling, Verdict


def occurrences(problems: Iterable[Problem], before: Iterable[Problem] = ()) -> list[int]:
    """Return for each problem how often its id came earlier, in this list and in `before`: 0 for the first time."""
    seen = Counter(problem.id for problem in before)
    numbers = []
    for problem in problems:
        numbers.append(seen[problem.id])
        seen[problem.id] += 1
    return numbers


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
    """Return `group_size` completions of each problem. Seeds are functions of (seed, problem id, sample, occurrence).

    numbers: which occurrence of its id each problem is (see `occurrences`); counted within `problems` unless given.
    `on_group(place, group)` gets each group as soon as the sampler has completed it. Raises ValueError where the
    sampler returns groups of other sizes.
    """
    prompts = [policy.render(problem.prompt) for problem in problems]
    numbers = occurrences(problems) if numbers is None else numbers
    seeds = [
        [derive_seed(*seed, problem.id, i, *occurrence_key(number)) for i in range(group_size)]
        for problem, number in zip(problems, numbers, strict=True)
    ]
    if on_group is None:
        sampled = sampler.generate(prompts, sampling, seeds)
    else:
        sampled = sampler.stream(
            prompts, sampling, seeds, lambda p, made: on_group(p, Group(problems[p], tuple(prompts[p]), tuple(made)))
        )
    if [len(row) for row in sampled] != [group_size] * len(problems):
        counts = [len(row) for row in sampled]
        raise ValueError(f"the sampler returned groups of {counts}; expected {len(problems)} groups of {group_size}")
    return [
        Group(problem, tuple(prompt), tuple(completions))
        for problem, prompt, completions in zip(problems, prompts, sampled, strict=True)
    ]


def occurrence_key(number: int) -> tuple[int | str, ...]:
    """Return what an occurrence adds to a seed: nothing for the first."""
    return ("occurrence", number) if number else ()


def verify(groups: Sequence[Group], verifier: BatchVerifier) -> list[Group]:
    """Return the groups with verdicts, from one call of the verifier."""
    return with_verdicts(groups, verifier.verify)


def with_verdicts(
    groups: Sequence[Group], verify_pairs: Callable[[Sequence[tuple[Problem, str]]], list[Verdict]]
) -> list[Group]:
    """Return the groups with the verdicts of `verify_pairs`, which is called once."""
    pairs = [(group.problem, completion.text) for group in groups for completion in group.completions]
    verdicts = iter(verify_pairs(pairs))
    return [
        replace(group, verdicts=tuple(next(verdicts) for _ in group.completions), own_verdicts=()) for group in groups
    ]


def verify_shared(groups: Sequence[Group], verifier: BatchVerifier, accelerator: Processes) -> list[Group]:
    """Return the groups of all processes with verdicts; each process passes and verifies its own.

    A verifier whose verdicts depend on the whole batch (`whole_batch`) sees all groups on every process.
    """
    if VerifierTraits.of(verifier).whole_batch:
        return verify(gather(groups, accelerator), verifier)
    return gather(verify(groups, verifier), accelerator)
