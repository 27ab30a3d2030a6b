"""Jobs spread over machines: Ray actors, each with a local pool of its own.

What an actor gets is a job: a program, its input, its calls. Expected values, comparison and rewards stay with the
caller. (A TestJob holds test code; it runs in a sandbox of its own beside the actor, as it does on one machine.)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from types import ModuleType, TracebackType
from typing import Any

from rlvr.sandbox.limits import Job, Result, RunStatus, TestJob
from rlvr.sandbox.pool import Pool

logger = logging.getLogger("rlvr.sandbox")

_IN_FLIGHT = 2  # batches of each worker: one that runs and one that waits, so that none is idle between them
_ATTEMPTS = 3


class Worker:
    """What runs in an actor: a pool."""

    def __init__(self, slots: int, preload: Sequence[str], level: int | None, allow_weak: bool) -> None:
        self.pool = Pool(slots, preload, level, allow_weak=allow_weak)
        self.pool.warm()

    def level(self) -> int:
        """The isolation of this machine."""
        return self.pool.level.number

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        """The results of `jobs`, in their order."""
        return self.pool.run_many(jobs)


class RayExecutor:
    """An Executor over a Ray cluster. Close it, or use it as a context manager.

    `workers` actors are placed where Ray finds `slots` free CPUs; each owns a pool of `slots` servers. `batch` jobs are
    sent at a time, always to a worker that has nothing waiting, so that slow programs do not hold up the others.
    A batch whose worker dies is sent to another one, up to three times; then its results are SANDBOX_ERROR. `preload`,
    `level` and `allow_weak` are the pool's. `address` is passed to `ray.init` where Ray is not running yet.
    Raises ImportError without Ray, and the pool's SandboxUnavailable where a machine isolates too weakly.
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
    ) -> None:
        for name, value in (("workers", workers), ("slots", slots), ("batch", batch)):
            if value < 1:
                raise ValueError(f"{name} {value}: expected at least 1")
        self._ray = import_ray()
        if not self._ray.is_initialized():
            self._ray.init(address=address)
        self.batch = batch
        # A worker that dies is started again by Ray; what it was doing is sent again by `run_many`.
        actor = self._ray.remote(Worker).options(num_cpus=slots, max_restarts=-1, max_task_retries=0)
        self._workers = [actor.remote(slots, tuple(preload), level, allow_weak) for _ in range(workers)]
        try:
            self.levels: list[int] = self._get([worker.level.remote() for worker in self._workers])
        except BaseException:
            self.close()
            raise

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        """The results of `jobs`, in their order."""
        results: list[Result | None] = [None] * len(jobs)
        waiting = deque((start, 1) for start in range(0, len(jobs), self.batch))
        flying: dict[Any, tuple[int, int, int]] = {}  # reference -> worker, start of the batch, attempt
        free = deque(worker for _ in range(_IN_FLIGHT) for worker in range(len(self._workers)))
        while waiting or flying:
            while waiting and free:
                (start, attempt), worker = waiting.popleft(), free.popleft()
                batch = list(jobs[start : start + self.batch])
                flying[self._workers[worker].run_many.remote(batch)] = (worker, start, attempt)
            for reference in self._ray.wait(list(flying))[0]:
                worker, start, attempt = flying.pop(reference)
                free.append(worker)
                try:
                    done = self._get(reference)
                except self._ray.exceptions.RayActorError as error:
                    logger.warning("sandbox: worker %d of the cluster is gone (%s)", worker, type(error).__name__)
                    if attempt < _ATTEMPTS:
                        waiting.append((start, attempt + 1))
                        continue
                    lost = Result(RunStatus.SANDBOX_ERROR, detail="the worker of the cluster died")
                    done = [lost] * len(jobs[start : start + self.batch])
                results[start : start + self.batch] = done
        assert all(result is not None for result in results)
        return [result for result in results if result is not None]

    def close(self) -> None:
        """End the workers and their pools. Ray itself goes on."""
        for worker in self._workers:
            self._ray.kill(worker)
        self._workers = []

    def __enter__(self) -> RayExecutor:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def _get(self, references: Any) -> Any:
        """What the workers answered; an exception of the pool as itself, not as Ray's."""
        try:
            return self._ray.get(references)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error


def import_ray() -> ModuleType:
    """Ray; ImportError that names the extra where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("the Ray executor needs the extra: pip install 'rlvr[ray]'") from error
    return ray
