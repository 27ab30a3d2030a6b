"""Sample groups of completions and verify them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rlvr.core.seeding import derive_seed
from rlvr.core.traits import BatchVerifier, PartVerifier, VerifierTraits
from rlvr.core.types import Completion, Group, Problem, Sampler, Sampling, Verdict
from rlvr.distributed import Processes, gather
from rlvr.model.load.policy import Policy
from rlvr.training.rollout.episodes import Play, play


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
    plan: Play | None = None,
) -> list[Group]:
    """Return `group_size` completions of each problem. Seeds are functions of (seed, problem id, sample, occurrence).

    numbers: which occurrence of its id each problem is (see `occurrences`); counted within `problems` unless given.
    `on_group(place, group)` gets each group as soon as it is complete. plan: the environment that the completions are
    played in, over several turns. Raises ValueError where the sampler returns groups of other sizes.
    """
    prompts = [policy.render(problem.prompt) for problem in problems]
    numbers = occurrences(problems) if numbers is None else numbers
    keys = [
        [(*seed, problem.id, i, *occurrence_key(number)) for i in range(group_size)]
        for problem, number in zip(problems, numbers, strict=True)
    ]
    seeds = [[derive_seed(*key) for key in row] for row in keys]

    def pass_on(place: int, made: Sequence[Completion]) -> None:
        if on_group is not None:
            on_group(place, Group(problems[place], tuple(prompts[place]), tuple(made)))

    if plan is not None:
        sampled = play(policy, sampler, problems, prompts, keys, sampling, plan, pass_on)
    elif on_group is None:
        sampled = sampler.generate(prompts, sampling, seeds)
    else:
        sampled = sampler.stream(prompts, sampling, seeds, pass_on)
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
    """Return the groups with verdicts, from one call of the verifier; those of environments count like its own."""
    judged = with_verdicts(groups, verifier.verify)
    count_given([completion for group in groups for completion in group.completions], verifier)
    return judged


def with_verdicts(
    groups: Sequence[Group], verify_pairs: Callable[[Sequence[tuple[Problem, str]]], list[Verdict]]
) -> list[Group]:
    """Return the groups with the verdicts of their environments or, where these gave none, of `verify_pairs`."""
    verdicts = iter(judge([(group.problem, c) for group in groups for c in group.completions], verify_pairs))
    return [
        replace(group, verdicts=tuple(next(verdicts) for _ in group.completions), own_verdicts=()) for group in groups
    ]


def judge(
    rows: Sequence[tuple[Problem, Completion]], verify_pairs: Callable[[Sequence[tuple[Problem, str]]], list[Verdict]]
) -> list[Verdict]:
    """Return a verdict on each completion: its environment's, or from one call of `verify_pairs` with what it says."""
    pairs = [(problem, completion.text) for problem, completion in rows if completion.verdict is None]
    found = iter(verify_pairs(pairs) if pairs else ())
    return [next(found) if completion.verdict is None else completion.verdict for _, completion in rows]


def count_given(completions: Sequence[Completion], verifier: BatchVerifier) -> None:
    """Count the verdicts of environments among the verifier's. Raises VerifierErrors as its `count` does."""
    given = [completion.verdict for completion in completions if completion.verdict is not None]
    if given and isinstance(verifier, PartVerifier):
        verifier.count(given)


def verify_shared(groups: Sequence[Group], verifier: BatchVerifier, accelerator: Processes) -> list[Group]:
    """Return the groups of all processes with verdicts; each process passes and verifies its own.

    A verifier whose verdicts depend on the whole batch (`whole_batch`) sees all groups on every process.
    """
    if VerifierTraits.of(verifier).whole_batch:
        return verify(gather(groups, accelerator), verifier)
    return gather(verify(groups, verifier), accelerator)
