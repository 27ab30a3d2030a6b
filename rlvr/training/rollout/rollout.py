"""The rollouts of a step: sample groups and verify them meanwhile, dynamic sampling, sampling ahead of the training."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from rlvr.config import Config
from rlvr.core.heartbeat import beat, enter
from rlvr.core.seeding import derive_seed
from rlvr.core.traits import BatchVerifier, PartVerifier, VerifierTraits
from rlvr.core.types import Completion, Group, Problem, Sampler, Sampling, Verdict
from rlvr.distributed import Apart, Processes, gather, in_thread, share
from rlvr.model.load.policy import Policy
from rlvr.model.optim.health import NotFinite

from ..checkpoint.checkpoint import AHEAD, read_groups
from ..checkpoint.folders import checkpoint_folder
from ..problems.draws import Draws
from ..step.rewards import informative_groups, keep_informative, shuffle_verdicts
from .episodes import TurnPlan, play


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
    plan: TurnPlan | None = None,
) -> list[Group]:
    """Return `group_size` completions of each problem. Seeds are functions of (seed, problem id, sample, occurrence).

    numbers: which occurrence of its id each problem is (see `occurrences`). `on_group(place, group)` gets each group
    once it is complete. plan: the environment of rollouts of several turns. Raises ValueError if the sampler returns
    other sizes.
    """
    prompts = [policy.render(problem.prompt) for problem in problems]
    numbers = occurrences(problems) if numbers is None else numbers
    keys = [
        [(*seed, problem.id, i, *(("occurrence", number) if number else ())) for i in range(group_size)]
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


def verify(groups: Sequence[Group], verifier: BatchVerifier) -> list[Group]:
    """Return the groups with verdicts, from one call of the verifier. It counts environments' verdicts as its own."""
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
    """Return a verdict on each completion: its environment's, or one from a single call of `verify_pairs`."""
    pairs = [(problem, completion.text) for problem, completion in rows if completion.verdict is None]
    found = iter(verify_pairs(pairs) if pairs else ())
    return [next(found) if completion.verdict is None else completion.verdict for _, completion in rows]


def count_given(completions: Sequence[Completion], verifier: BatchVerifier) -> None:
    """Count the verdicts of environments among the verifier's. Raises VerifierErrors as its `count` does."""
    given = [completion.verdict for completion in completions if completion.verdict is not None]
    if given and isinstance(verifier, PartVerifier):
        verifier.count(given)


def verify_shared(groups: Sequence[Group], verifier: BatchVerifier, accelerator: Processes) -> list[Group]:
    """Return the groups of all ranks with verdicts; each rank passes its own groups and verifies them.

    A verifier whose verdicts depend on the whole batch (`whole_batch`) sees all groups on every rank.
    """
    if VerifierTraits.of(verifier).whole_batch:
        return verify(gather(groups, accelerator), verifier)
    return gather(verify(groups, verifier), accelerator)


# What a rank is doing in each phase, in the words of a stall's message.
PHASES = {"sample": "sampling", "verify": "verification", "train": "update", "wait": "sampling", "monitor": "monitor"}


class Timer:
    """Seconds of a step by phase (PHASES). noted: report the phase to the stall watchdog; not for background work."""

    def __init__(self, *, noted: bool = True) -> None:
        self.seconds: dict[str, float] = {}
        self.beside = 0.0  # seconds of sampling and verification while the trainer trained
        self.noted = noted

    def clear(self) -> None:
        """Forget all phases: a step begins."""
        self.seconds.clear()
        self.beside = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time spent within to `seconds[phase]`."""
        if self.noted:
            enter(PHASES[phase])
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


@dataclass
class RolloutWorker:
    """Makes the rollouts: renders problems with the policy's tokenizer, samples completions, verifies them.

    plan: the environment of rollouts of several turns. shares: maps pack name to its fraction of drawn problems (sums
    to 1). draws: chooses the problems of a step; made from the settings unless given. timer: times the phases of the
    present step.
    """

    config: Config
    policy: Policy
    sampler: Sampler
    problems: Sequence[Problem]
    verifier: BatchVerifier
    accelerator: Processes
    timer: Timer = field(default_factory=Timer)
    plan: TurnPlan | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    draws: Draws = None  # type: ignore[assignment]  # made of the settings below

    def __post_init__(self) -> None:
        if self.draws is None:
            self.draws = Draws(self.config, self.problems, self.shares)


def collect(worker: RolloutWorker, step: int) -> list[Group]:
    """Return all verified groups that are sampled for a step (from 0): P, and those of dynamic sampling's rounds.

    Dynamic sampling stops when P groups carry signal; these are marked `kept` and trained on. Raises NotFinite, which
    names the step, for logits that are not finite.
    """
    try:
        return sample_step(worker, step)
    except NotFinite as error:
        raise NotFinite(f"step {step + 1}: {error}") from error


def sample_step(worker: RolloutWorker, step: int) -> list[Group]:
    """Do what `collect` does, without naming the step in errors."""
    config, count = worker.config, worker.config.rollout.problems_per_step
    groups = sample_and_verify(worker, worker.draws.of_step(step), step)
    for round_number in range(config.rollout.resample_rounds):
        if len(informative_groups(groups, config, worker.policy.decode)) >= count:
            break
        extra = worker.draws.further(step, round_number, {group.problem.id for group in groups})
        if not extra:
            break
        fresh = sample_and_verify(worker, extra, step, groups)
        groups += [replace(group, round=round_number + 1) for group in fresh]
    return keep_informative(groups, count, config, worker.policy.decode) if config.rollout.resample_rounds else groups


def sample_and_verify(
    worker: RolloutWorker, problems: Sequence[Problem], step: int, earlier: Sequence[Group] = ()
) -> list[Group]:
    """Return groups of the given problems with verdicts. Each rank samples and verifies its share.

    A verifier that takes parts of a batch gets each group as soon as it is sampled. earlier: the step's groups so far;
    a problem that is among them gets other completions.
    """
    config = worker.config
    mine = share(problems, worker.accelerator)
    # Counted over the whole list, so that completions do not depend on how ranks share it.
    numbers = occurrences(problems, [group.problem for group in earlier])
    sample = partial(
        rollout,
        worker.policy,
        worker.sampler,
        mine,
        config.sampling(),
        group_size=config.rollout.group_size,
        seed=(config.run.seed, "rollout", step),
        numbers=share(numbers, worker.accelerator),
        plan=worker.plan,
    )
    verifier = worker.verifier
    if isinstance(verifier, PartVerifier) and not verifier.whole_batch:
        with Verification(verifier) as verification:
            with worker.timer("sample"):
                sample(on_group=verification.add)
            with worker.timer("verify"):
                groups = gather(verification.finish(len(mine)), worker.accelerator)
    else:
        with worker.timer("sample"):
            groups = sample()
        with worker.timer("verify"):
            groups = verify_shared(groups, verifier, worker.accelerator)
    if config.run.shuffle_rewards:
        groups = shuffle_verdicts(groups, config.rollout, seed=derive_seed(config.run.seed, "shuffle", step))
    return groups


class Verification:
    """Verifies groups in a thread; each call of the verifier takes all that came in since the last.

    Verdicts are counted at the end, in the order of the groups: the error budget holds for the whole batch.
    """

    def __init__(self, verifier: PartVerifier) -> None:
        self.verifier = verifier
        self._waiting: queue.SimpleQueue[tuple[int, Group] | None] = queue.SimpleQueue()
        self._verified: dict[int, Group] = {}
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="rlvr-verification", daemon=True)

    def __enter__(self) -> Verification:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)

    def add(self, place: int, group: Group) -> None:
        """Add a group to be verified. Raises what the verifier has raised meanwhile."""
        beat()
        if self._error is not None:
            raise self._error
        self._waiting.put((place, group))

    def finish(self, count: int) -> list[Group]:
        """Wait, and return all `count` groups with verdicts in order of place. Raises what the verifier raised."""
        self._waiting.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error
        if sorted(self._verified) != list(range(count)):
            raise ValueError(f"the sampler handed over {len(self._verified)} groups of {count}; expected all of them")
        groups = [self._verified[place] for place in range(count)]
        self.verifier.count([verdict for group in groups for verdict in group.verdicts])
        return groups

    def _work(self) -> None:
        try:
            while (items := self._next()) is not None:
                places, groups = zip(*items)
                self._verified.update(zip(places, with_verdicts(groups, self.verifier.verify_part)))
                beat()
        except BaseException as error:  # raised again by add and finish
            self._error = error

    def _next(self) -> list[tuple[int, Group]] | None:
        """Return the waiting groups, at least one; None at the end."""
        items = [self._waiting.get()]
        while not self._waiting.empty():
            items.append(self._waiting.get())
        if items[-1] is None:  # the end: left for the next call
            self._waiting.put(None)
        return [item for item in items if item is not None] or None


T = TypeVar("T")
SECONDS_TO_END = 60.0


class RolloutPrefetcher:
    """Returns the verified groups of each step, and updates the sampler's weights after it.

    With max_staleness k, step s (from 0) is sampled with the weights after max(0, s - k) updates, whatever the timing:
    a background thread samples while the trainer updates, and weights are pushed once both have finished. So nothing is
    being sampled when a step ends, and a checkpoint needs only `ahead`: the rollouts of later steps. A run samples k
    steps more than it trains, so that raising run.steps continues it exactly (unless optim.decay_steps 0 ties the
    learning rate to run.steps)."""

    def __init__(self, worker: RolloutWorker, start: int = 0) -> None:
        self.worker = worker
        self.max_staleness = worker.config.sampler.max_staleness
        self.ahead: dict[int, list[Group]] = {}
        saved = checkpoint_folder(worker.config.run.out_dir, start) / AHEAD
        if self.max_staleness and start and saved.exists():
            self.ahead = read_groups(saved, worker.problems)
        # Background sampling has its own timer, and its own process group: its gathers never mix with the training's.
        apart = Apart(worker.accelerator) if self.max_staleness else worker.accelerator
        self._background = replace(worker, timer=Timer(noted=False), accelerator=apart)
        self._in_flight: Future[dict[int, list[Group]]] | None = None
        self._taken: list[Group] = []
        if start:
            worker.draws.restore(checkpoint_folder(worker.config.run.out_dir, start))

    def __enter__(self) -> RolloutPrefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_flight is None:
            return
        self.worker.sampler.interrupt()
        wait([self._in_flight], SECONDS_TO_END)

    def take(self, step: int) -> list[Group]:
        """Return the groups of a step, and start sampling the later steps that use the present weights."""
        groups = self.ahead.pop(step, None)
        if groups is None:
            groups = collect(self.worker, step)
        self._taken = groups
        missing = [later for later in range(step + 1, step + 1 + self.max_staleness) if later not in self.ahead]
        if missing:
            self._in_flight = in_thread(lambda: {later: collect(self._background, later) for later in missing})
        else:
            self.worker.sampler.sleep()
        return groups

    def load_weights(self) -> None:
        """Wait for background sampling, then give the sampler the policy's weights.

        Also passes the step's outcomes to the draws of later problems. Raises what sampling or verification raised in
        the background.
        """
        if self._in_flight is not None:
            with self.worker.timer("wait"):
                self.ahead |= self._in_flight.result()
            self._in_flight = None
            self.worker.timer.beside = sum(self._background.timer.seconds.values())
            self._background.timer.clear()
        self.worker.draws.observe(self._taken)
        with self.worker.timer("train"):
            self.worker.sampler.load_weights(self.worker.policy)

    def describe(self, step: int) -> dict[str, float]:
        """Return metrics of the sampler, of a step's problems and, with sampler.max_staleness, "staleness" in steps."""
        lag = {"staleness": float(self.worker.config.staleness(step))} if self.max_staleness else {}
        return self.worker.sampler.measures() | self.worker.draws.describe(step, self._taken) | lag
