"""Partial rollouts (`--sampler.slice-tokens`): completions are sampled in slices, each under the weights of its time.

A pool holds the groups in progress. Problems enter it in the order in which they are drawn; in a slice each unfinished
row gets at most `slice_tokens` further tokens; a group leaves when all its rows are done, the one drawn first before
others. No group is dropped. What is cut where, and which weights sample a token, follows from counts of tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from rlvr.config import Config
from rlvr.core.seeding import derive_seed
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Ask, Completion, Group, Problem
from rlvr.distributed import gather, in_thread, share
from rlvr.model.optim.health import NotFinite

from ..step.rewards import shuffle_verdicts
from .cuts import UNBEGUN, Runs, join
from .episodes import Episode, Episodes, Join, Seed, TurnPlan, close
from .rollout import RolloutPrefetcher, RolloutWorker, occurrences, verify_shared

Keep = Callable[[int, Completion], None]
Live = dict[Seed, Episode]
"""Rollouts with an environment that a slice has cut in this process, by the key of their random numbers."""
Pool = Mapping[int, Sequence[Group]]
"""Groups in progress by the step (from 0) whose problems they were drawn for, in the order of the draws."""


def is_whole(group: Group) -> bool:
    """Return whether all completions of a group in progress are done."""
    return bool(group.completions) and all(completion.finish_reason != "cut" for completion in group.completions)


def tokens_of_slice(runs: Runs, version: int, config: Config) -> int:
    """Return how many tokens a row may get in a slice: slice_tokens, or all that are left in its last version.

    Dropping rows at that bound would leave fewer long completions than the policy samples. Here the bound costs a
    longer slice, and no row.
    """
    left = config.rollout.max_new_tokens - sum(count for _, count in runs)
    versions = len({*(v for v, _ in runs), version})
    return left if versions == config.sampler.max_versions else min(left, config.sampler.slice_tokens)


@dataclass(frozen=True)
class Unfinished:
    """A row in a slice. name: of its group. key: what its random numbers are derived from. tokens: the most it gets."""

    group: Group
    row: Completion
    name: str
    key: Seed
    tokens: int


def sample_rows(worker: RolloutWorker, drawn: Sequence[tuple[int, Group]], version: int, live: Live) -> list[Group]:
    """Return groups, each with the step that it was drawn for, after a slice under the weights of `version`."""
    config = worker.config
    rows = [list(group.completions or [UNBEGUN] * config.rollout.group_size) for _, group in drawn]
    places = [(g, i) for g, row in enumerate(rows) for i, made in enumerate(row) if made.finish_reason == "cut"]
    unfinished = []
    for g, i in places:
        (step, group), row = drawn[g], rows[g][i]
        key = row_key(config, step, group, i)
        name = f"{step}/{group.problem.id}/{group.occurrence}"
        unfinished.append(Unfinished(group, row, name, key, tokens_of_slice(row.versions, version, config)))

    def keep(place: int, made: Completion) -> None:
        g, i = places[place]
        rows[g][i] = made

    add = partial(join, policy=worker.policy, version=version)
    if worker.plan is None:
        continue_rows(worker, unfinished, add, keep)
    else:
        continue_episodes(worker, worker.plan, unfinished, add, keep, live)
    return [replace(group, completions=tuple(row)) for (_, group), row in zip(drawn, rows, strict=True)]


def continue_rows(worker: RolloutWorker, rows: Sequence[Unfinished], add: Join, keep: Keep) -> None:
    """Sample a slice of rows without an environment, and hand over each as it is then."""
    sampling = worker.config.sampling()
    asks = []
    for item in rows:
        ids = item.row.token_ids
        asked = replace(sampling, max_new_tokens=item.tokens)
        asks.append(Ask((*item.group.prompt_ids, *ids), asked, derive_seed(*item.key), len(ids), item.name))
    worker.sampler.sample_rows(asks, lambda place, part: keep(place, add(rows[place].row, part, sampling)))


def continue_episodes(
    worker: RolloutWorker, plan: TurnPlan, rows: Sequence[Unfinished], add: Join, keep: Keep, live: Live
) -> None:
    """Play a slice of rollouts with an environment. Those that are cut stay in `live`, with their environments."""
    episodes = [episode_of(item, live) for item in rows]
    for episode, item in zip(episodes, rows, strict=True):
        episode.left = item.tokens

    def hand_over(place: int, made: Completion) -> None:
        if made.finish_reason == "cut":
            live[rows[place].key] = episodes[place]
        keep(place, made)

    with Episodes(worker.policy, episodes, worker.config.sampling(), plan, hand_over, add) as running:
        worker.sampler.converse(running)


def episode_of(item: Unfinished, live: Live) -> Episode:
    """Return the rollout of a row: the one that is live, or one whose environment plays its turns again."""
    episode, row = live.pop(item.key, None), item.row
    if episode is not None and len(episode.ids) == len(row.token_ids):
        return episode
    if episode is not None:  # another rank went on with it
        close(episode)
    group, spent = item.group, sum(count for _, count in row.versions)
    made = Episode(group.problem, group.prompt_ids, item.key, list(row.token_ids), list(row.logprobs), list(row.turns))
    made.spent, made.versions = spent, row.versions
    made.begun = len(row.token_ids) - sum(turn.length for turn in row.turns)
    return made


def row_key(config: Config, step: int, group: Group, sample: int) -> Seed:
    """Return what the random numbers of a row are derived from: the same as without slices."""
    again = ("occurrence", group.occurrence) if group.occurrence else ()
    return (config.run.seed, "rollout", step, group.problem.id, sample, *again)


def sample_slice(worker: RolloutWorker, pool: Pool, version: int, live: Live) -> dict[int, list[Group]]:
    """Return the pool after a slice under the weights of `version`, which is the number of steps that trained them.

    Each rank samples its share. live: what it keeps for the next slice. Groups that are whole have verdicts, unless the
    verifier judges whole batches. Raises NotFinite, which names the step, for logits that are not finite.
    """
    unfinished = [(step, group) for step, groups in sorted(pool.items()) for group in groups if not is_whole(group)]
    try:
        with worker.timer("sample"):
            mine = share(unfinished, worker.accelerator)
            made = gather(sample_rows(worker, mine, version, live), worker.accelerator)
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
        self._live: Live = {}

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for episode in self._live.values():
            close(episode)

    def take(self, step: int) -> list[Group]:
        """Return P whole groups, and sample a slice of the others under the present weights."""
        self._draw_until(step + self.max_staleness - 1)
        count, waited = self.worker.config.rollout.problems_per_step, 0
        while len(self._whole()) < count:
            self.ahead = sample_slice(self.worker, self.ahead, step, self._live)
            waited += 1
        taken = self._whole()[:count]
        left = {id(group) for _, group in taken}
        ahead = {s: [group for group in groups if id(group) not in left] for s, groups in self.ahead.items()}
        self.ahead = {s: groups for s, groups in ahead.items() if groups}
        groups = self._finish(step, [group for _, group in taken])
        self._metrics = {"slices/waited": float(waited), **slice_metrics(step, [s for s, _ in taken], groups)}
        self._draw_until(step + self.max_staleness)
        if self.worker.config.sampler.has_own_weights:
            self._in_flight = in_thread(partial(sample_slice, self._background, self.ahead, step, self._live))
        else:
            self.ahead = sample_slice(self.worker, self.ahead, step, self._live)
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
        "slices/age": sum(age * count for age, count in ages) / max(tokens, 1),
        "slices/age_most": float(max((age for age, _ in ages), default=0)),
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
