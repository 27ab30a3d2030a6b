"""The batches of a run in their order, sampled beside the training where rollout.max_staleness allows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from dataclasses import replace
from typing import TypeVar

from rlvr.training.checkpoint import AHEAD, checkpoint_folder, read_groups
from rlvr.training.collect import collect
from rlvr.training.run import Run
from rlvr.types import Group

T = TypeVar("T")
SECONDS_TO_END = 60.0


class RolloutPrefetcher:
    """Hands out the verified groups of each step and keeps the sampler's weights in step with the trainer's.

    With max_staleness k the batch of step s is sampled from the weights after step max(0, s - k), whatever the timing:
    in a thread of its own while the trainer trains, and weights are pushed when it is done. So nothing is being
    sampled when a step ends, and the batches `ahead` of it, by their steps, are all that a checkpoint needs besides.
    The run samples k batches more than it trains, so that it can be lengthened as if it had never ended.
    """

    def __init__(self, run: Run, start: int = 0) -> None:
        self.run = run
        self.max_staleness = run.config.sampler.max_staleness
        self.ahead: dict[int, list[Group]] = {}
        saved = checkpoint_folder(run.config.run.out_dir, start) / AHEAD
        if self.max_staleness and start and saved.exists():
            self.ahead = read_groups(saved, run.problems)
        # Times taken beside the training are no part of a step's time.
        self._beside = replace(run, seconds={})
        self._in_flight: Future[dict[int, list[Group]]] | None = None

    def __enter__(self) -> RolloutPrefetcher:
        return self

    def __exit__(self, *_: object) -> None:
        if self._in_flight is None:
            return
        interrupt = getattr(self.run.sampler, "interrupt", None)
        if interrupt is not None:
            interrupt()
        wait([self._in_flight], SECONDS_TO_END)

    def take(self, step: int) -> list[Group]:
        """The groups of a step; sampling ahead starts for what its weights are to sample."""
        groups = self.ahead.pop(step, None)
        if groups is None:
            groups = collect(self.run, step)
        missing = [later for later in range(step + 1, step + 1 + self.max_staleness) if later not in self.ahead]
        if missing:
            self._in_flight = in_thread(lambda: self._collect_all(missing))
        sleep = getattr(self.run.sampler, "sleep", None)
        if sleep is not None and not missing:
            sleep()
        return groups

    def load_weights(self) -> None:
        """Gives the sampler the trainer's weights, once nothing is being sampled any more.

        Raises what sampling or verification beside the training raised.
        """
        if self._in_flight is not None:
            with self.run.timed("wait"):
                self.ahead |= self._in_flight.result()
            self._in_flight = None
        with self.run.timed("train"):
            self.run.sampler.load_weights(self.run.policy)

    def describe(self, step: int) -> dict[str, float]:
        """What is logged of a batch's age."""
        return {"staleness": float(self.run.config.staleness(step))} if self.max_staleness else {}

    def _collect_all(self, steps: Iterable[int]) -> dict[int, list[Group]]:
        return {step: collect(self._beside, step) for step in steps}


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Starts `work` in a thread that does not keep the process alive."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="rlvr-sampling", daemon=True).start()
    return future
