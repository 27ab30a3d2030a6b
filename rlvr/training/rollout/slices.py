"""Partial rollouts (`--sampler.slice-tokens`): completions are sampled in slices, each under the weights of its time.

A pool holds the groups in progress. Problems enter it in the order in which they are drawn; in a slice each unfinished
row gets at most `slice_tokens` further tokens; a group leaves when all its rows are done, the one drawn first before
others. No group is dropped. What is cut where, and which weights sample a token, follows from counts of tokens alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from rlvr.config import Config
from rlvr.core.seeding import derive_seed
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Ask, Completion, Group, Problem, Sampling
from rlvr.distributed import gather, in_thread, share
from rlvr.model.load.policy import Policy
from rlvr.model.optim.health import NotFinite

from ..step.rewards import shuffle_verdicts
from .rollout import RolloutPrefetcher, RolloutWorker, occurrences, verify_shared

Pool = Mapping[int, Sequence[Group]]
"""Groups in progress by the step (from 0) whose problems they were drawn for, in the order of the draws."""
Runs = tuple[tuple[int, int], ...]

UNBEGUN = Completion("", finish_reason="cut")


def is_whole(group: Group) -> bool:
    """Return whether all completions of a group in progress are done."""
    return bool(group.completions) and all(completion.finish_reason != "cut" for completion in group.completions)


def add_tokens(runs: Runs, version: int, count: int) -> Runs:
    """Return a row's runs of (version, tokens) after `count` further tokens of a version."""
    if runs and runs[-1][0] == version:
        count, runs = runs[-1][1] + count, runs[:-1]
    return (*runs, (version, count)) if count else runs


def tokens_of_slice(runs: Runs, version: int, config: Config) -> int:
    """Return how many tokens a row may get in a slice: all that are left of it in its last version, if there is one.

    Dropping rows at the bound would leave fewer long completions than the policy samples. Here the bound costs a longer
    slice, and no row.
    """
    left = config.rollout.max_new_tokens - sum(count for _, count in runs)
    versions = len({*(v for v, _ in runs), version})
    return left if versions == config.sampler.max_versions else min(left, config.sampler.slice_tokens)


def join(policy: Policy, row: Completion, part: Completion, version: int, sampling: Sampling) -> Completion:
    """Return a row after a slice that sampled `part` of it, cut unless it is done. sampling: of the whole row."""
    part = end_at_stop(policy, row.token_ids, part, sampling.stop)
    ids, logprobs = row.token_ids + part.token_ids, row.logprobs + part.logprobs
    versions = add_tokens(row.versions, version, len(part.token_ids))
    stopped = part.finish_reason != "length"
    if not stopped and len(ids) < sampling.max_new_tokens:
        return Completion("", ids, logprobs, "cut", versions=versions)
    text = policy.decode(ids[:-1] if stopped and ids[-1] in policy.eos_ids else ids)
    ends = [text.find(string) + len(string) for string in sampling.stop if stopped and string in text]
    return Completion(text[: min(ends)] if ends else text, ids, logprobs, part.finish_reason, versions=versions)


def end_at_stop(policy: Policy, before: Sequence[int], part: Completion, stop: Sequence[str]) -> Completion:
    """Return the part of a row up to a stop string that began before it, where the sampler could not see it end."""
    if not stop or not before:
        return part
    most = max(len(text.encode()) for text in stop) + 8  # tokens; the first may be a partial character
    for count, _ in enumerate(part.token_ids[:most], start=1):
        text = policy.decode([*before[-most:], *part.token_ids[:count]])
        if any(string in text for string in stop):
            return replace(part, token_ids=part.token_ids[:count], logprobs=part.logprobs[:count], finish_reason="stop")
    return part


def sample_rows(worker: RolloutWorker, drawn: Sequence[tuple[int, Group]], version: int) -> list[Group]:
    """Return groups, each with the step that it was drawn for, after a slice under the weights of `version`."""
    config, sampling = worker.config, worker.config.sampling()
    rows = [list(group.completions or [UNBEGUN] * config.rollout.group_size) for _, group in drawn]
    asks, places = list[Ask](), list[tuple[int, int]]()
    for g, (step, group) in enumerate(drawn):
        for i, row in enumerate(rows[g]):
            if row.finish_reason == "cut":
                asked = replace(sampling, max_new_tokens=tokens_of_slice(row.versions, version, config))
                seed = derive_seed(*row_key(config, step, group, i))
                name = f"{step}/{group.problem.id}/{group.occurrence}"
                asks.append(Ask((*group.prompt_ids, *row.token_ids), asked, seed, len(row.token_ids), name))
                places.append((g, i))

    def keep(place: int, part: Completion) -> None:
        g, i = places[place]
        rows[g][i] = join(worker.policy, rows[g][i], part, version, sampling)

    worker.sampler.sample_rows(asks, keep)
    return [replace(group, completions=tuple(row)) for (_, group), row in zip(drawn, rows, strict=True)]


def row_key(config: Config, step: int, group: Group, sample: int) -> tuple[int | str, ...]:
    """Return what the random numbers of a row are derived from: the same as without slices."""
    again = ("occurrence", group.occurrence) if group.occurrence else ()
    return (config.run.seed, "rollout", step, group.problem.id, sample, *again)


def sample_slice(worker: RolloutWorker, pool: Pool, version: int) -> dict[int, list[Group]]:
    """Return the pool after a slice under the weights of `version`, which is the number of steps that trained them.

    Each rank samples its share. Groups that are whole have verdicts, unless the verifier judges whole batches. Raises
    NotFinite, which names the step, for logits that are not finite.
    """
    unfinished = [(step, group) for step, groups in sorted(pool.items()) for group in groups if not is_whole(group)]
    try:
        with worker.timer("sample"):
            made = gather(sample_rows(worker, share(unfinished, worker.accelerator), version), worker.accelerator)
    except NotFinite as error:
        raise NotFinite(f"step {version + 1}: {error}") from error
    if not VerifierTraits.of(worker.verifier).whole_batch:
        with worker.timer("verify"):
            whole = share([group for group in made if is_whole(group)], worker.accelerator)
            judged = iter(verify_shared(whole, worker.verifier, worker.accelerator))
        made = [next(judged) if is_whole(group) else group for group in made]
    sampled = {id(group): new for (_, group), new in zip(unfinished, made, strict=True)}
    return {step: [sampled.get(id(group), group) for group in groups] for step, groups in pool.items()}


class SlicedRollouts(RolloutPrefetcher):
    """Rollouts in slices: k = sampler.max_staleness steps' groups are in progress; P whole ones leave for each step.

    A step takes whole groups, the one drawn first before others. If they are fewer than P, further slices are sampled
    with the present weights, for which the trainer waits. Then the problems of one more step enter, and one slice is
    sampled: beside the training, or before it if the sampler's weights are the trainer's own. `ahead` is the pool.
    """

    def __init__(self, worker: RolloutWorker, start: int = 0) -> None:
        super().__init__(worker, start)
        self._next = start + self.max_staleness if start else 0  # the step whose problems enter next
        self._metrics: dict[str, float] = {}

    def take(self, step: int) -> list[Group]:
        """Return P whole groups, and sample a slice of the others under the present weights."""
        self._draw_until(step + self.max_staleness - 1)
        count, waited = self.worker.config.rollout.problems_per_step, 0
        while len(self._whole()) < count:
            self.ahead = sample_slice(self.worker, self.ahead, step)
            waited += 1
        taken = self._whole()[:count]
        left = {id(group) for _, group in taken}
        ahead = {s: [group for group in groups if id(group) not in left] for s, groups in self.ahead.items()}
        self.ahead = {s: groups for s, groups in ahead.items() if groups}
        groups = self._finish(step, [group for _, group in taken])
        self._metrics = {"slices/waited": float(waited), **slice_metrics(step, [s for s, _ in taken], groups)}
        self._draw_until(step + self.max_staleness)
        if self.worker.config.sampler.has_own_weights:
            self._in_flight = in_thread(partial(sample_slice, self._background, self.ahead, step))
        else:
            self.ahead = sample_slice(self.worker, self.ahead, step)
            self.worker.sampler.sleep()
        self._taken = groups
        return groups

    def describe(self, step: int) -> dict[str, float]:
        """Return metrics of the sampler, of a step's problems and of its slices."""
        return self.worker.sampler.measures() | self.worker.draws.describe(step, self._taken) | self._metrics

    def _draw_until(self, last: int) -> None:
        """Let the problems of the steps up to `last` enter."""
        for step in range(self._next, last + 1):
            problems = self.worker.draws.of_step(step)
            self.ahead[step] = [self._enter(*item) for item in zip(problems, occurrences(problems), strict=True)]
        self._next = max(self._next, last + 1)

    def _enter(self, problem: Problem, occurrence: int) -> Group:
        return Group(problem, tuple(self.worker.policy.render(problem.prompt)), (), occurrence=occurrence)

    def _whole(self) -> list[tuple[int, Group]]:
        """Return the whole groups in the order of the draws, with the step that each was drawn for."""
        return [(step, group) for step, groups in sorted(self.ahead.items()) for group in groups if is_whole(group)]

    def _finish(self, step: int, groups: list[Group]) -> list[Group]:
        """Return the groups of a step with the verdicts that they are trained with."""
        worker, config = self.worker, self.worker.config
        if VerifierTraits.of(worker.verifier).whole_batch:
            with worker.timer("verify"):
                groups = verify_shared(share(groups, worker.accelerator), worker.verifier, worker.accelerator)
        if config.run.shuffle_rewards:
            groups = shuffle_verdicts(groups, config.rollout, seed=derive_seed(config.run.seed, "shuffle", step))
        return groups


def slice_metrics(step: int, drawn: Sequence[int], groups: Sequence[Group]) -> dict[str, float]:
    """Return the metrics of a step's groups, each drawn for its own step; see rlvr/runs/metrics.txt, [Slices].

    A late group was drawn for an earlier step: others, which were whole before it, were trained in its place.
    """
    completions = [completion for group in groups for completion in group.completions]
    ages = [(step - version, count) for completion in completions for version, count in completion.versions]
    tokens = sum(count for _, count in ages)
    late = [group for group, of in zip(groups, drawn, strict=True) if of < step]
    prompt = [group for group, of in zip(groups, drawn, strict=True) if of >= step]
    found = {
        "slices/cut": sum(len(c.versions) > 1 for c in completions) / len(completions),
        "slices/versions": sum(len(c.versions) for c in completions) / len(completions),
        "slices/versions_most": float(max(len(c.versions) for c in completions)),
        "slices/age": sum(age * count for age, count in ages) / tokens,
        "slices/age_most": float(max(age for age, _ in ages)),
        "slices/late": len(late) / len(groups),
    }
    if late and prompt:
        found["slices/late_length"] = mean_length(late) / mean_length(prompt)
        found["slices/late_correct"] = share_correct(late) - share_correct(prompt)
    return found


def mean_length(groups: Sequence[Group]) -> float:
    """Return the mean tokens of the groups' completions."""
    lengths = [len(completion.sampled_ids) for group in groups for completion in group.completions]
    return sum(lengths) / len(lengths)


def share_correct(groups: Sequence[Group]) -> float:
    """Return the share of the groups' completions that are correct."""
    verdicts = [verdict for group in groups for verdict in group.unshuffled_verdicts]
    return sum(verdict.correct for verdict in verdicts) / len(verdicts)


def open_rollouts(worker: RolloutWorker, start: int) -> RolloutPrefetcher:
    """Return what samples the steps from `start` on: in slices if sampler.slice_tokens asks for them."""
    return (SlicedRollouts if worker.config.sampler.slice_tokens else RolloutPrefetcher)(worker, start)
