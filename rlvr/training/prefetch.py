"""The rollouts of each step, sampled in the background while the trainer trains if sampler.max_staleness allows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TypeVar

from rlvr.distributed import Apart
from rlvr.training.checkpoint import AHEAD, checkpoint_folder, read_groups
from rlvr.training.collect import collect
from rlvr.training.worker import RolloutWorker, Timer
from rlvr.types import Group

T = TypeVar("T")
SECONDS_TO_END = 60.0


class RolloutPrefetcher:
    """Returns the verified groups of each step, and updates the sampler's weights after each step.

    With max_staleness k batch s (from 0) is sampled from the weights after max(0, s - k) updates, whatever the timing:
    a background thread samples while the trainer trains, and weights are pushed when both are done. So nothing is being
    sampled when a step ends, and a checkpoint needs to hold no more than `ahead`: the rollouts of later steps, by step.
    A run samples k steps more than it trains, so that raising run.steps continues it exactly (except for a learning
    rate that decays until run.steps, with optim.decay_steps 0).
    """

    def __init__(self, worker: RolloutWorker, start: int = 0) -> None:
        self.worker = worker
        self.max_staleness = worker.config.sampler.max_staleness
        self.ahead: dict[int, list[Group]] = {}
        saved = checkpoint_folder(worker.config.run.out_dir, start) / AHEAD
        if self.max_staleness and start and saved.exists():
            self.ahead = read_groups(saved, worker.problems)
        # Timings of background sampling are not counted in the step, and its gathers do not meet those of the training.
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
            self._in_flight = in_thread(lambda: self._collect_all(missing))
        else:
            self.worker.sampler.sleep()
        return groups

    def load_weights(self) -> None:
        """Wait for background sampling, then give the sampler the policy's weights.

        The step's outcomes are told to what draws the problems of later ones. Raises what sampling or verification
        raised in the background.
        """
        if self._in_flight is not None:
            with self.worker.timer("wait"):
                self.ahead |= self._in_flight.result()
            self._in_flight = None
        self.worker.draws.observe(self._taken)
        with self.worker.timer("train"):
            self.worker.sampler.load_weights(self.worker.policy)

    def describe(self, step: int) -> dict[str, float]:
        """Return the sampler's metrics, those of a step's problems, and of its policy lag.

        That is "staleness" in steps, if sampler.max_staleness is set.
        """
        lag = {"staleness": float(self.worker.config.staleness(step))} if self.max_staleness else {}
        return self.worker.sampler.measures() | self.worker.draws.describe(step, self._taken) | lag

    def _collect_all(self, steps: Iterable[int]) -> dict[int, list[Group]]:
        return {step: collect(self._background, step) for step in steps}


def in_thread(work: Callable[[], T], name: str = "rlvr-sampling") -> Future[T]:
    """Run `work` in a daemon thread of this name, which does not keep the process alive; return its future."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return future
