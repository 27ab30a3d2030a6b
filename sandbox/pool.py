"""The local pool: a thread and a fork server per slot; damaged servers are replaced."""

from __future__ import annotations

import dataclasses
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Any

from rlvr.sandbox import after_fork as forks
from rlvr.sandbox.client import Run, Server, ServerDied, ServerRefused, ServerSetting, supervise
from rlvr.sandbox.host import files as package_files
from rlvr.sandbox.limits import (
    BYTES,
    MAX_PROGRAM,
    MOST_SECONDS,
    MOST_SLOTS,
    Job,
    Level,
    Limits,
    Result,
    Returned,
    RunStatus,
    TestJob,
    check_count,
    check_names,
    encode,
)
from rlvr.sandbox.wire import values

logger = logging.getLogger("rlvr.sandbox")

# Exit codes: child.py's EXIT_MEMORY, and minus the number of the signal that ended a program.
_EXIT_MEMORY = 86
_SIGKILL, _SIGXCPU = -9, -24
_ATTEMPTS = 2


class _Slot:
    """A server for programs and another for trusted tests, each started on first use."""

    def __init__(self, setting: ServerSetting, servers: dict[str, Server] | None = None) -> None:
        self.setting = setting
        self._servers = servers or {}

    def server(self, role: str) -> Server:
        if role not in self._servers:
            self._servers[role] = Server(self.setting, tests=role == "tests")
        return self._servers[role]

    def abandon(self) -> None:
        """Leave the servers to the parent, in a forked process."""
        while self._servers:
            self._servers.popitem()[1].abandon()

    def close(self) -> None:
        """End the servers; the next run starts fresh ones."""
        while self._servers:
            self._servers.popitem()[1].close()


class Pool:
    """Executor that runs jobs on this machine, `slots` at a time (default: one per core). Thread-safe and fork-safe.

    `preload`: modules already imported in every program; their memory counts against its limit. `packages`: what
    programs may import beside the standard library, numpy and those modules, by the name of the package or the module,
    dependencies included; ValueError for one that is not in site-packages. `level`: isolation to
    use, by default the best that the self-test finds. Level 2 logs a warning once; level 1 raises SandboxUnavailable
    without `allow_weak`, level 0 without `unsafe`. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        slots: int | None = None,
        preload: Sequence[str] = (),
        level: int | None = None,
        *,
        allow_weak: bool = False,
        unsafe: bool = False,
        landlock_at_most: int = 1 << 30,
        packages: Sequence[str] = (),
    ) -> None:
        from rlvr.sandbox.selftest import choose_level

        if slots is not None:
            check_count("slots", slots, most=MOST_SLOTS)
        check_names("preload", preload)
        check_names("packages", packages)
        count = len(os.sched_getaffinity(0)) if slots is None else slots
        self.level: Level = choose_level(level, allow_weak=allow_weak, unsafe=unsafe)
        package_files(tuple(packages), tuple(preload))  # refuses names now instead of at the first run
        self._setting = ServerSetting(self.level.number, tuple(preload), tuple(packages), landlock_at_most)
        self.slots = count
        self._closed = threading.Event()
        self._open_slots()
        forks.register(self)

    def _open_slots(self) -> None:
        self._all = [_Slot(self._setting) for _ in range(self.slots)]
        self._free: queue.LifoQueue[_Slot] = queue.LifoQueue()
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

    def _run_twice_if_needed(self, slot: _Slot, job: Job | TestJob) -> Result:
        """Run a job; retry once, in a new server, if it did not start or the server died."""
        run = _run_tests if isinstance(job, TestJob) else _run_job
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


def _shut(slots: list[_Slot]) -> None:
    for slot in slots:
        slot.close()


def _too_large(job: Job) -> Result | None:
    if len(job.program) <= MAX_PROGRAM:
        return None
    return Result(RunStatus.COMPILE_ERROR, detail=f"program of {len(job.program)} characters; at most {MAX_PROGRAM}")


def _payload(job: Job) -> dict[str, Any]:
    calls = [
        {
            "entry": c.entry,
            "args": values.encode(list(c.args)),
            "kwargs": _keywords(c.kwargs),
        }
        for c in job.calls
    ]
    return {"program": job.program, "prelude": job.prelude, "setup": job.setup, "calls": calls}


def _keywords(kwargs: Any) -> Any:
    return values.encode(dict(kwargs))


def _run_job(slot: _Slot, job: Job) -> Result:
    refused = _too_large(job)
    if refused is not None:
        return refused
    # A setup without calls needs the mode "calls" too, which runs it after the program.
    mode = "calls" if job.calls or job.setup else "plain"
    run = Run(slot.server("program"), mode, _payload(job), encode("stdin", job.stdin, BYTES), job.limits)
    try:
        run.start(results=mode == "calls")
        supervise([run])
        result = result_of(run, _read_answers(run.result_bytes, len(job.calls)))
        if result.status is RunStatus.OK and len(result.returned) < len(job.calls):
            detail = "the program ended before it had answered every call"
            return dataclasses.replace(result, status=RunStatus.CRASH, detail=detail)
        return result
    finally:
        run.close()


def _run_tests(slot: _Slot, tests: TestJob) -> Result:
    """Serve the program's functions in one sandbox and run the tests in another, joined by two pipes."""
    job = tests.job
    refused = _too_large(job)
    if refused is not None:
        return refused
    if tests.together:
        return _run_together(slot, tests)
    requests, replies = os.pipe(), os.pipe()
    longer = Limits(min(job.limits.seconds + 2, MOST_SECONDS), job.limits.memory_mb, job.limits.total_memory_mb)
    program = Run(slot.server("program"), "serve", _payload(job), encode("stdin", job.stdin, BYTES), job.limits)
    payload = {
        "test": tests.test,
        "names": tests.names,
        "classes": tests.classes,
    }
    tester = Run(slot.server("tests"), "test", payload, b"", longer)
    try:
        # Each waits while the other one computes.
        program.start((requests[0], replies[1]), waits=longer.seconds)
        tester.start((requests[1], replies[0]), results=True, waits=longer.seconds)
        supervise([tester, program])
        if not tester.status_bytes.startswith(b"R"):
            return result_of(tester, ())
        result = result_of(program, ())
        return _with_tests(result, _verdict(tester))
    finally:
        for run in (program, tester):
            run.close()


def _run_together(slot: _Slot, tests: TestJob) -> Result:
    """Run the tests in the process of the program, after it."""
    payload = {**_payload(tests.job), "test": tests.test}
    run = Run(slot.server("tests"), "together", payload, encode("stdin", tests.job.stdin, BYTES), tests.job.limits)
    try:
        run.start(results=True)
        supervise([run])
        return _with_tests(result_of(run, ()), _verdict(run))
    finally:
        run.close()


def _verdict(tester: Run) -> dict[str, Any]:
    """Return fields of the result as the tests report them: a program in whose process they ran can forge them."""
    try:
        message = values.loads(tester.result_bytes)
    except values.PlainError:
        message = None
    if type(message) is not dict or type(message.get("passed")) is not bool:
        return {"detail": "the tests did not finish"}
    checks = message.get("checks")
    counts = (*checks, message.get("number")) if type(checks) is list and len(checks) == 2 else ()
    known = all(type(count) is int and count >= 0 for count in counts) and counts and counts[0] <= counts[1]
    found: dict[str, Any] = {"tests_passed": message["passed"], "checks": counts if known else (0, 1, 1)}
    if message["passed"]:
        return found
    error, calls = message.get("error"), message.get("text")
    found["detail"] = f"{error} at line {message.get('line')} of the tests"
    if calls:
        found["detail"] = f"wrong answer of {calls}" if error == "AssertionError" else f"{calls} raised {error}"
    if message.get("too_large"):
        found |= {"status": RunStatus.OUTPUT_LIMIT, "detail": f"{found['detail']}, after a value that was too large"}
    return found


def _with_tests(result: Result, found: dict[str, Any]) -> Result:
    if result.status is not RunStatus.OK:
        # A program that ended or was stopped before its tests finished has not passed them.
        return dataclasses.replace(result, checks=found.get("checks", result.checks))
    return dataclasses.replace(result, **found)


def _read_answers(data: bytes, calls: int) -> tuple[Returned, ...]:
    """Return the answers. `data` may come from the program: not trusted.

    None at all where there are other lines than one for each call, in order: for which calls the program's processes
    have written them cannot be told.
    """
    found: list[Returned] = []
    # Split no further: after the answers the program may have written a million lines.
    for line in data.split(b"\n", calls + 1)[:-1]:
        try:
            message = values.loads(line)
            if type(message) is not dict or message["n"] != len(found) or len(found) == calls:
                return ()
            found.append(_answer(message))
        except (values.PlainError, TypeError, KeyError):
            return ()
    return tuple(found)


def _answer(message: dict[str, Any]) -> Returned:
    if "x" in message:
        return Returned(raised=str(message["x"])[:80] or "an exception")
    try:
        value = values.decode(message["v"])
    except values.TooLarge as error:
        return Returned(values.Opaque(str(error)), too_large=True)
    except values.PlainError as error:
        return Returned(values.Opaque(str(error)))
    return Returned(value, too_large=isinstance(value, values.Opaque) and value.too_large)


def result_of(run: Run, returned: tuple[Returned, ...]) -> Result:
    """Return the result of a run that has ended."""
    assert run.report is not None
    status, detail = _status(run, run.report)
    return Result(
        status,
        stdout=run.text(0),
        stderr=run.text(1),
        returned=returned,
        exit_code=run.report["exit"],
        level=run.server.setting.level,
        seconds=time.monotonic() - run.started,
        cpu_seconds=run.report["cpu"],
        detail=detail,
    )


def _status(run: Run, report: dict[str, Any]) -> tuple[RunStatus, str]:
    said, code = run.status_bytes, report["exit"]
    if not said.startswith(b"R"):
        return RunStatus.SANDBOX_ERROR, said.decode("utf-8", "replace")[
            1:
        ] or f"ended with {code} before isolation was complete"
    if any(stream.over for stream in run.streams):
        return RunStatus.OUTPUT_LIMIT, "too much output"
    if report["reason"] == "scratch":
        return RunStatus.OUTPUT_LIMIT, "too many or too large files"
    if report["reason"] == "memory":
        return RunStatus.MEMORY, f"over {run.limits.together_mb} MB in all processes together"
    if report["reason"] == "processes":
        return RunStatus.CRASH, f"over {run.limits.processes} processes and threads"
    if report["reason"] == "timeout":
        return RunStatus.TIMEOUT, f"over {run.limits.seconds:g} s"
    if b"S" in said:
        return RunStatus.COMPILE_ERROR, run.text(1).strip()[-200:]
    if run.killed or code == 0:
        return RunStatus.OK, ""
    if code == _SIGXCPU or (code == _SIGKILL and report["cpu"] > run.limits.seconds):
        return RunStatus.TIMEOUT, f"over {run.limits.seconds:g} s of CPU time"
    if code == _EXIT_MEMORY:
        return RunStatus.MEMORY, f"over {run.limits.memory_mb} MB"
    return RunStatus.CRASH, f"exit code {code}" if code > 0 else f"signal {-code}"


def run_once(server: Server, job: Job) -> Result:
    """Run one job in `server` and close it afterwards, without a retry."""
    slot = _Slot(server.setting, {"program": server})
    try:
        return _run_job(slot, job)
    finally:
        slot.close()
