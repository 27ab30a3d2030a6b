"""Distribute jobs over machines with Ray actors, each with a local pool.

An actor receives jobs: a program, its input, its calls. Expected values, comparison and rewards stay with the caller.
(A TestJob contains test code; it runs in a second sandbox on the actor's machine.)
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

from .limits import Job, Result, RunStatus, TestJob, check_count, check_names
from .pool import Pool

logger = logging.getLogger("rlvr.sandbox")

_IN_FLIGHT = 2  # batches per worker: one runs while the next one waits
_ATTEMPTS = 3
_RETURN = 120.0  # seconds in which Ray has to restart a worker that died
_MOMENT = 0.1  # seconds between two looks at workers that are away


class Worker:
    """A pool inside a Ray actor."""

    def __init__(
        self, slots: int, preload: Sequence[str], level: int | None, allow_weak: bool, packages: Sequence[str]
    ) -> None:
        self.pool = Pool(slots, preload, level, allow_weak=allow_weak, packages=packages)
        self.pool.warm()

    def level(self) -> int:
        """Return the isolation level of the actor's machine."""
        return self.pool.level.number

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        """Return the results of `jobs` in their order."""
        return self.pool.run_many(jobs)


class RayExecutor:
    """Executor over a Ray cluster. Close it, or use it as a context manager.

    Each of `workers` actors takes `slots` CPUs and has a pool of that many slots. `batch` jobs are sent at a time, to a
    worker with no batch waiting, so that slow programs do not delay the others. A batch whose worker dies is sent to
    another one, up to three times in all; then its results are SANDBOX_ERROR. So are those of all batches if no worker
    is left and Ray restarts none for two minutes. `preload`, `level`, `allow_weak` and `packages` are Pool's. `address`
    is passed to `ray.init` if Ray is not running yet.
    Raises ImportError without Ray, and SandboxUnavailable if a machine's isolation is too weak.
    """

    def __init__(
        self,
        workers: int,
        slots: int = 1,
        preload: Sequence[str] = (),
        level: int | None = None,
        *,
        allow_weak: bool = False,
        batch: int = 32,
        address: str | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        for name, value in (("workers", workers), ("slots", slots), ("batch", batch)):
            check_count(name, value)
        check_names("preload", preload)
        check_names("packages", packages)
        self._ray = import_ray()
        if not self._ray.is_initialized():
            self._ray.init(address=address)
        self.batch = batch
        # Ray restarts a worker that dies; `run_many` sends its batch again.
        actor = self._ray.remote(Worker).options(num_cpus=slots, max_restarts=-1, max_task_retries=0)
        self._workers = [
            actor.remote(slots, tuple(preload), level, allow_weak, tuple(packages)) for _ in range(workers)
        ]
        try:
            self.levels: list[int] = self._get([worker.level.remote() for worker in self._workers])
        except BaseException:
            self.close()
            raise

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        """Return the results of `jobs` in their order. Raises RuntimeError where the executor is closed."""
        if not self._workers:
            raise RuntimeError("this RayExecutor is closed")
        results: list[Result | None] = [None] * len(jobs)
        waiting = deque((start, 1) for start in range(0, len(jobs), self.batch))
        flying: dict[Any, tuple[Any, int, int]] = {}  # reference -> worker, start of the batch, attempt
        free = deque(self._workers * _IN_FLIGHT)
        while waiting or flying:
            while waiting and free:
                start, attempt = waiting.popleft()
                worker = free.popleft()
                flying[worker.run_many.remote(list(jobs[start : start + self.batch]))] = (worker, start, attempt)
            if not flying:
                free.extend(self._wait_for_restart() * _IN_FLIGHT)
                if free:
                    continue
                for start, _ in waiting:
                    results[start : start + self.batch] = _lost_results(jobs[start : start + self.batch])
                break
            [reference], _ = self._ray.wait(list(flying))
            worker, start, attempt = flying.pop(reference)
            try:
                done = self._get(reference)
            except self._ray.exceptions.RayActorError as error:
                logger.warning("sandbox: a worker of the cluster died (%s)", type(error).__name__)
                # While Ray restarts it, it refuses all calls at once: each would cost a batch one of its attempts.
                free = deque(other for other in free if other is not worker)
                if attempt < _ATTEMPTS:
                    waiting.append((start, attempt + 1))
                    continue
                done = _lost_results(jobs[start : start + self.batch])
            else:
                free.append(worker)
            results[start : start + self.batch] = done
        return [result for result in results if result is not None]

    def _wait_for_restart(self) -> list[Any]:
        """Return the workers that answer, once there are any; none if Ray restarts none of them in time."""
        until = time.monotonic() + _RETURN
        while time.monotonic() < until:
            alive = []
            for worker in self._workers:
                try:
                    self._ray.get(worker.level.remote(), timeout=until - time.monotonic())
                    alive.append(worker)
                except (self._ray.exceptions.RayActorError, self._ray.exceptions.GetTimeoutError):
                    continue
            if alive:
                return alive
            time.sleep(_MOMENT)
        return []

    def close(self) -> None:
        """End the workers and their pools. Ray keeps running."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def _get(self, references: Any) -> Any:
        """Return the workers' results. An exception of the pool is raised as itself, not as RayTaskError."""
        try:
            return self._ray.get(references)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error


def _lost_results(jobs: Sequence[Job | TestJob]) -> list[Result]:
    return [Result(RunStatus.SANDBOX_ERROR, detail="the worker of the cluster died")] * len(jobs)


def import_ray() -> ModuleType:
    """Return the module ray. Raises an ImportError that names the extra if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("the Ray executor needs the extra: pip install -e '.[ray]'") from error
    return ray
