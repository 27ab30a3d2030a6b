"""The rollouts of a step: choose problems, sample groups, verify them while others are still being sampled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rlvr.distributed import gather, share
from rlvr.model.health import NotFinite
from rlvr.model.progress import beat
from rlvr.seeding import derive_seed
from rlvr.training.credit import informative_groups, keep_informative
from rlvr.training.rewards import shuffle_verdicts
from rlvr.training.rollout import occurrences, rollout, verify_shared, with_verdicts
from rlvr.training.worker import RolloutWorker
from rlvr.traits import PartVerifier
from rlvr.types import Group, Problem


def collect(worker: RolloutWorker, step: int) -> list[Group]:
    """Return all groups that are sampled for a step (from 0), verified: P, and those of dynamic sampling's rounds.

    Dynamic sampling stops when P groups carry signal; these are marked as `kept` and are trained on. Raises NotFinite,
    naming the step, where the policy's logits are not finite.
    """
    try:
        return sample_step(worker, step)
    except NotFinite as error:
        raise NotFinite(f"step {step + 1}: {error}") from error


def sample_step(worker: RolloutWorker, step: int) -> list[Group]:
    """Do as `collect`; errors do not name the step."""
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
    """Return groups of the given problems with verdicts; each process samples and verifies its share.

    A verifier that takes parts gets each group as soon as the sampler hands it over.
    earlier: the groups that the step has already; a problem that is among them gets other completions.
    """
    config = worker.config
    mine = share(problems, worker.accelerator)
    # Counted over the whole list: completions do not depend on how it is shared among processes.
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
    """Verifies groups in a background thread; each call of the verifier takes all that came in since the last.

    Verdicts are counted when all are there, in the order of the groups: the error budget holds for the whole batch.
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
