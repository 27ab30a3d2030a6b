"""Distribute jobs over machines with Ray actors, each with a local pool.

An actor receives jobs: a program, its input, its calls. Expected values, comparison and rewards stay with the caller.
(A TestJob contains test code; it runs in a second sandbox on the actor's machine.)
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from types import ModuleType, TracebackType
from typing import Any

from .limits import Job, Result, RunStatus, TestJob, check_count, check_names
from .pool import Pool

logger = logging.getLogger("rlvr.sandbox")

_IN_FLIGHT = 2  # batches per worker: one runs while the next one waits
_ATTEMPTS = 3
_RETURN = 120.0  # seconds in which Ray has to restart a worker that died
_MOMENT = 0.1  # seconds between two looks at a worker that is away


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
    another one, up to three times in all; then its results are SANDBOX_ERROR, as are those of all batches when no
    worker is left. `preload`, `level`, `allow_weak` and `packages` are Pool's. `address` is passed to `ray.init` if
    Ray is not running yet.
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
        flying: dict[Any, tuple[int, int, int]] = {}  # reference -> worker, start of the batch, attempt
        crew = _Crew(self._ray, self._workers)
        while waiting or flying:
            while waiting and (worker := crew.take()) is not None:
                start, attempt = waiting.popleft()
                batch = list(jobs[start : start + self.batch])
                flying[self._workers[worker].run_many.remote(batch)] = (worker, start, attempt)
            if not flying and crew.is_lost():
                for start, _ in waiting:
                    results[start : start + self.batch] = _lost_results(jobs[start : start + self.batch])
                break
            for reference in crew.wait(flying):
                worker, start, attempt = flying.pop(reference)
                try:
                    done = self._get(reference)
                except self._ray.exceptions.RayActorError as error:
                    logger.warning("sandbox: worker %d of the cluster died (%s)", worker, type(error).__name__)
                    crew.take_back(worker)
                    if attempt < _ATTEMPTS:
                        waiting.append((start, attempt + 1))
                        continue
                    done = _lost_results(jobs[start : start + self.batch])
                else:
                    crew.give_back(worker)
                results[start : start + self.batch] = done
        assert all(result is not None for result in results)
        return [result for result in results if result is not None]

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


class _Crew:
    """The places of workers, `_IN_FLIGHT` each. One that died gets no batch until it answers again.

    While Ray restarts a worker it refuses all calls at once: each would cost a batch one of its attempts.
    """

    def __init__(self, ray: Any, workers: Sequence[Any]) -> None:
        self._ray = ray
        self._workers = workers
        self._free = deque(worker for _ in range(_IN_FLIGHT) for worker in range(len(workers)))
        self._away: dict[int, tuple[Any, float]] = {}  # worker -> the call that it has to answer, and until when
        self._kept: Counter[int] = Counter()  # places of those that are away

    def take(self) -> int | None:
        """Return a worker with a free place, and take that; None where there is none now."""
        return self._free.popleft() if self._free else None

    def give_back(self, worker: int) -> None:
        """Take back a place whose batch is done."""
        if worker in self._away:
            self._kept[worker] += 1
        else:
            self._free.append(worker)

    def take_back(self, worker: int) -> None:
        """Take back a place of a worker that failed; none of its places is given out until it answers."""
        if worker not in self._away:
            self._kept[worker] = self._free.count(worker)
            self._free = deque(other for other in self._free if other != worker)
            self._away[worker] = (self._workers[worker].level.remote(), time.monotonic() + _RETURN)
        self._kept[worker] += 1

    def is_lost(self) -> bool:
        """Whether no worker is there, and none will come back."""
        return not self._free and not self._away

    def wait(self, flying: Iterable[Any]) -> list[Any]:
        """Return those of the references `flying` that are done, after a moment perhaps none."""
        calls = {call: worker for worker, (call, _) in self._away.items()}
        references = [*flying, *calls]
        if not references:
            return []
        done, _ = self._ray.wait(references, timeout=_MOMENT if calls else None)
        for call in [reference for reference in done if reference in calls]:
            self._note_answer(calls[call], call)
        for worker, (_, until) in list(self._away.items()):
            if time.monotonic() > until:
                logger.warning("sandbox: worker %d of the cluster did not come back in %.0f s", worker, _RETURN)
                del self._away[worker]
        return [reference for reference in done if reference not in calls]

    def _note_answer(self, worker: int, call: Any) -> None:
        try:
            self._ray.get(call)
        except self._ray.exceptions.RayActorError:
            time.sleep(_MOMENT)
            self._away[worker] = (self._workers[worker].level.remote(), self._away[worker][1])
        else:
            del self._away[worker]
            self._free.extend([worker] * self._kept.pop(worker))


def import_ray() -> ModuleType:
    """Return the module ray. Raises an ImportError that names the extra if it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise ImportError("the Ray executor needs the extra: pip install 'rlvr[ray]'") from error
    return ray
