"""The local pool: a thread and a fork server per slot; damaged servers are replaced."""

from __future__ import annotations

import logging
import os
import queue
import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from types import TracebackType

from rlvr.core import after_fork

from .client import ServerDied, ServerRefused, ServerSetting
from .execution import Slot, run_job, run_tests
from .host import files as package_files
from .limits import MOST_SLOTS, Job, Level, Result, RunStatus, TestJob, check_count, check_names
from .selftest import choose_level

logger = logging.getLogger("rlvr.sandbox")

_ATTEMPTS = 2


class Pool:
    """Executor that runs jobs on this machine, `slots` at a time (default: one per core). Thread-safe and fork-safe.

    `preload`: modules already imported in every program; their memory counts against its limit. `packages`: what
    programs may import beside the standard library, numpy and those modules, by the name of the package or the module,
    dependencies included; ValueError for one that is not in site-packages. `level`: isolation to
    use, by default the best that the self-test finds. Level 2 logs a warning once; level 1 raises SandboxUnavailable
    without `allow_weak`. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        slots: int | None = None,
        preload: Sequence[str] = (),
        level: int | None = None,
        *,
        allow_weak: bool = False,
        landlock_at_most: int = 1 << 30,
        packages: Sequence[str] = (),
    ) -> None:
        if slots is not None:
            check_count("slots", slots, most=MOST_SLOTS)
        check_names("preload", preload)
        check_names("packages", packages)
        count = len(os.sched_getaffinity(0)) if slots is None else slots
        self.level: Level = choose_level(level, allow_weak=allow_weak)
        package_files(tuple(packages), tuple(preload))  # refuses names now instead of at the first run
        self._setting = ServerSetting(self.level.number, tuple(preload), tuple(packages), landlock_at_most)
        self.slots = count
        self._closed = threading.Event()
        self._open_slots()
        after_fork.register(self)

    def _open_slots(self) -> None:
        self._all = [Slot(self._setting) for _ in range(self.slots)]
        self._free: queue.LifoQueue[Slot] = queue.LifoQueue()
        for slot in self._all:
            self._free.put(slot)
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="rlvr-sandbox")
        self._finalizer = weakref.finalize(self, _shut, self._all)

    def after_fork(self) -> None:
        """Start over in a forked child, where the threads are missing and the servers are the parent's."""
        self._finalizer.detach()
        for slot in self._all:
            slot.abandon()
        if not self._closed.is_set():
            self._open_slots()

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        """Return the results of `jobs` in their order. Raises RuntimeError where the pool is closed."""
        self._check_open()
        futures = [self._threads.submit(self._one, job) for job in jobs]
        try:
            # Wakes this thread once, not after every job.
            wait(futures, return_when=FIRST_EXCEPTION)
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def run(self, job: Job | TestJob) -> Result:
        """Return the result of one job."""
        return self.run_many([job])[0]

    def warm(self) -> None:
        """Start every slot's server now instead of on first use. Raises as `run_many`."""
        self._check_open()
        list(self._threads.map(lambda slot: slot.server("program"), self._all))

    def close(self) -> None:
        """End all servers and their runs. Idempotent."""
        self._closed.set()
        self._threads.shutdown(wait=True)
        self._finalizer()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise RuntimeError("this Pool is closed")

    def __enter__(self) -> Pool:
        self._check_open()
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def _one(self, job: Job | TestJob) -> Result:
        slot = self._free.get()
        try:
            return self._run_twice_if_needed(slot, job)
        finally:
            self._free.put(slot)

    def _run_twice_if_needed(self, slot: Slot, job: Job | TestJob) -> Result:
        """Run a job; retry once, in a new server, if it did not start or the server died."""
        run = run_tests if isinstance(job, TestJob) else run_job
        detail = ""
        for _ in range(_ATTEMPTS):
            try:
                result = run(slot, job)  # type: ignore[arg-type]
            except (ServerDied, ServerRefused) as error:
                detail = str(error)
            else:
                if result.status is not RunStatus.SANDBOX_ERROR:
                    return result
                detail = result.detail
            slot.close()
            logger.info("sandbox: %s; starting another server", detail)
        return Result(RunStatus.SANDBOX_ERROR, level=self.level.number, detail=detail)


def _shut(slots: list[Slot]) -> None:
    for slot in slots:
        slot.close()
