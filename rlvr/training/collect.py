"""A step's rollouts: draw problems, sample groups, verify them while others are still being sampled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rlvr.distributed import gather, share
from rlvr.model.health import NotFinite
from rlvr.seeding import derive_seed
from rlvr.training.rollout import (
    draw,
    draw_more,
    informative_groups,
    keep_informative,
    occurrences,
    rollout,
    shuffle_verdicts,
    verify_shared,
    with_verdicts,
)
from rlvr.training.run import Run
from rlvr.types import Group, PartVerifier, Problem, StreamingSampler


def collect(run: Run, step: int) -> list[Group]:
    """The verified groups of a step, all that were sampled: P of them, and with dynamic sampling those of its rounds.

    Dynamic sampling goes on until P of them carry signal, and marks those as `kept`: they are trained on. Raises
    NotFinite, naming the step, where the policy's logits are not finite.
    """
    try:
        return sample_step(run, step)
    except NotFinite as error:
        raise NotFinite(f"step {step + 1}: {error}") from error


def sample_step(run: Run, step: int) -> list[Group]:
    """`collect`, with errors that do not know of steps."""
    config, seed = run.config, run.config.run.seed
    count = config.rollout.problems_per_step
    groups = sample_and_verify(run, draw(run.problems, count, seed=seed, step=step), step)
    for round_number in range(config.rollout.resample_rounds):
        if len(informative_groups(groups, config)) >= count:
            break
        used = {group.problem.id for group in groups}
        extra = draw_more(run.problems, count, seed=seed, step=step, round_number=round_number, used=used)
        if not extra:
            break
        fresh = sample_and_verify(run, extra, step, groups)
        groups += [replace(group, round=round_number + 1) for group in fresh]
    return keep_informative(groups, count, config) if config.rollout.resample_rounds else groups


def sample_and_verify(run: Run, problems: Sequence[Problem], step: int, earlier: Sequence[Group] = ()) -> list[Group]:
    """Groups of the given problems with their verdicts, each process doing its share.

    A group is verified as soon as it is drawn where the sampler hands groups over and the verifier takes parts.
    `earlier`: the groups that the step has already; a problem that is among them gets other completions.
    """
    config = run.config
    mine = share(problems, run.accelerator)
    # Counted over the whole list: what a process draws does not depend on how the list is shared.
    numbers = occurrences(problems, [group.problem for group in earlier])
    sample = partial(
        rollout,
        run.policy,
        run.sampler,
        mine,
        config.sampling(),
        group_size=config.rollout.group_size,
        seed=(config.run.seed, "rollout", step),
        numbers=share(numbers, run.accelerator),
    )
    verifier = run.verifier
    if isinstance(run.sampler, StreamingSampler) and isinstance(verifier, PartVerifier) and not verifier.whole_batch:
        with Verification(verifier) as verification:
            with run.timed("sample"):
                sample(on_group=verification.add)
            with run.timed("verify"):
                groups = gather(verification.finish(len(mine)), run.accelerator)
    else:
        with run.timed("sample"):
            groups = sample()
        with run.timed("verify"):
            groups = verify_shared(groups, verifier, run.accelerator)
    if config.run.shuffle_rewards:
        groups = shuffle_verdicts(groups, config.rollout, seed=derive_seed(config.run.seed, "shuffle", step))
    return groups


class Verification:
    """Verifies groups in a thread of its own, in one call what has come in since the last.

    Verdicts are counted when all are there, in the order of the groups: the error budget is that of the whole batch.
    """

    def __init__(self, verifier: PartVerifier) -> None:
        self.verifier = verifier
        self._waiting: queue.SimpleQueue[tuple[int, Group] | None] = queue.SimpleQueue()
        self._verified: dict[int, Group] = {}
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="rlvr-verification", daemon=True)

    def __enter__(self) -> Verification:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._waiting.put(None)

    def add(self, place: int, group: Group) -> None:
        """Hands over a group. Raises what the verifier has raised meanwhile."""
        if self._problem is not None:
            raise self._problem
        self._waiting.put((place, group))

    def finish(self, count: int) -> list[Group]:
        """All `count` groups with their verdicts, by their places. Raises what the verifier raised."""
        self._waiting.put(None)
        self._thread.join()
        if self._problem is not None:
            raise self._problem
        if sorted(self._verified) != list(range(count)):
            raise ValueError(f"the sampler handed over {len(self._verified)} groups of {count}; expected all of them")
        groups = [self._verified[place] for place in range(count)]
        self.verifier.count([verdict for group in groups for verdict in group.verdicts])
        return groups

    def _work(self) -> None:
        try:
            while (some := self._next()) is not None:
                places, groups = zip(*some)
                self._verified.update(zip(places, with_verdicts(groups, self.verifier.verify_part)))
        except BaseException as error:  # raised again where the batch is waited for
            self._problem = error

    def _next(self) -> list[tuple[int, Group]] | None:
        """What waits, at least one group; None at the end."""
        some = [self._waiting.get()]
        while not self._waiting.empty():
            some.append(self._waiting.get())
        if some[-1] is None:  # it stays for the next call
            self._waiting.put(None)
        return [item for item in some if item is not None] or None
