"""The local pool: one fork server for each slot, a thread for each, restarted on damage."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import queue
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

from rlvr.sandbox import forks
from rlvr.sandbox.client import Server, ServerDied, ServerRefused, ServerSetting
from rlvr.sandbox.inside import plain
from rlvr.sandbox.limits import MAX_PROGRAM, Job, Level, Limits, Result, Returned, RunStatus, TestJob
from rlvr.sandbox.runs import Run, supervise
from rlvr.types import RunError

logger = logging.getLogger("rlvr.sandbox")

_EXIT_MEMORY = 86
_SIGKILL, _SIGXCPU = -9, -24
_ATTEMPTS = 2


class SandboxUnavailable(RunError):
    """This machine cannot isolate programs well enough for what was asked."""


class _Slot:
    """A server for programs, and one for trusted tests, started when it is first needed."""

    def __init__(self, setting: ServerSetting, servers: dict[str, Server] | None = None) -> None:
        self.setting = setting
        self._servers = servers or {}

    def server(self, role: str) -> Server:
        if role not in self._servers:
            self._servers[role] = Server(self.setting)
        return self._servers[role]

    def abandon(self) -> None:
        """In a forked process: leave the servers to the parent."""
        while self._servers:
            self._servers.popitem()[1].abandon()

    def close(self) -> None:
        """Also after damage: the next run starts afresh."""
        while self._servers:
            self._servers.popitem()[1].close()


class Pool:
    """Runs jobs on this machine, `slots` at a time. An Executor; may be called from several threads.

    `preload`: modules that every program finds imported (their memory counts). `level`: the isolation to use; by
    default the best that the self-test finds. Level 2 is logged once; level 1 raises SandboxUnavailable without
    `allow_weak`, level 0 without `unsafe`. Close it, or use it as a context manager. A process that is forked from the
    caller's has servers of its own.
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
    ) -> None:
        from rlvr.sandbox.selftest import permitted

        count = len(os.sched_getaffinity(0)) if slots is None else slots
        if count < 1:
            raise ValueError(f"{count} slots: expected at least 1")
        self.level: Level = permitted(level, allow_weak=allow_weak, unsafe=unsafe)
        self._setting = ServerSetting(self.level.number, tuple(preload), landlock_at_most)
        self.slots = count
        self._closed = threading.Event()
        self._open()
        forks.register(self)

    def _open(self) -> None:
        self._all = [_Slot(self._setting) for _ in range(self.slots)]
        self._free: queue.LifoQueue[_Slot] = queue.LifoQueue()
        for slot in self._all:
            self._free.put(slot)
        self._threads = ThreadPoolExecutor(self.slots, thread_name_prefix="rlvr-sandbox")
        self._finalizer = weakref.finalize(self, _shut, self._all)

    def after_fork(self) -> None:
        """In the child: the threads are gone, and the servers are the parent's."""
        self._finalizer.detach()
        for slot in self._all:
            slot.abandon()
        if not self._closed.is_set():
            self._open()

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        """The results of `jobs`, in their order."""
        return list(self._threads.map(self._one, jobs))

    def run(self, job: Job | TestJob) -> Result:
        """The result of one job."""
        return self.run_many([job])[0]

    def warm(self) -> None:
        """Start every slot's server now. Runs start them otherwise."""
        list(self._threads.map(lambda slot: slot.server("program"), self._all))

    def close(self) -> None:
        """End all servers and what they run."""
        self._closed.set()
        self._threads.shutdown(wait=True)
        self._finalizer()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def _one(self, job: Job | TestJob) -> Result:
        slot = self._free.get()
        try:
            return self._tried(slot, job)
        finally:
            self._free.put(slot)

    def _tried(self, slot: _Slot, job: Job | TestJob) -> Result:
        """A run that did not begin, or lost its server, is tried once more in a new one."""
        run = _run_tests if isinstance(job, TestJob) else _run_job
        problem = ""
        for _ in range(_ATTEMPTS):
            try:
                result = run(slot, job)  # type: ignore[arg-type]
            except (ServerDied, ServerRefused) as error:
                problem = str(error)
            else:
                if result.status is not RunStatus.SANDBOX_ERROR:
                    return result
                problem = result.detail
            slot.close()
            logger.info("sandbox: %s; starting another server", problem)
        return Result(RunStatus.SANDBOX_ERROR, level=self.level.number, detail=problem)


def _shut(slots: list[_Slot]) -> None:
    for slot in slots:
        slot.close()


def _too_large(job: Job) -> Result | None:
    if len(job.program) <= MAX_PROGRAM:
        return None
    return Result(RunStatus.COMPILE_ERROR, detail=f"the program has {len(job.program)} characters")


def _payload(job: Job) -> dict[str, Any]:
    calls = [
        {
            "entry": c.entry,
            "expression": c.expression,
            "args": plain.encode(list(c.args)),
            "kwargs": _keywords(c.kwargs),
        }
        for c in job.calls
    ]
    return {"program": job.program, "setup": job.setup, "calls": calls}


def _keywords(kwargs: Any) -> Any:
    return plain.encode(dict(kwargs))


def _run_job(slot: _Slot, job: Job) -> Result:
    refused = _too_large(job)
    if refused is not None:
        return refused
    # A set-up without calls is a call of nothing: what matters is that it runs after the program.
    mode = "calls" if job.calls or job.setup else "plain"
    stdin = job.stdin.encode("utf-8", "surrogateescape")
    run = Run(slot.server("program"), mode, _payload(job), stdin, job.limits)
    try:
        run.start(results=mode == "calls")
        supervise([run])
        result = _result(run, _returned(run.result_bytes, len(job.calls)))
        if result.status is RunStatus.OK and len(result.returned) < len(job.calls):
            detail = "the program ended before it had answered every call"
            return dataclasses.replace(result, status=RunStatus.CRASH, detail=detail)
        return result
    finally:
        run.close()


def _run_tests(slot: _Slot, tests: TestJob) -> Result:
    """The program serves calls in one sandbox, the tests make them in another; two pipes join them."""
    job = tests.job
    refused = _too_large(job)
    if refused is not None:
        return refused
    asked, told = os.pipe(), os.pipe()
    longer = Limits(seconds=job.limits.seconds + 2, memory_mb=job.limits.memory_mb)
    stdin = job.stdin.encode("utf-8", "surrogateescape")
    program = Run(slot.server("program"), "serve", _payload(job), stdin, job.limits)
    payload = {"test": tests.test, "names": list(tests.names), "classes": list(tests.classes)}
    judge = Run(slot.server("tests"), "test", payload, b"", longer)
    try:
        program.start((asked[0], told[1]))
        judge.start((asked[1], told[0]), results=True)
        supervise([judge, program])
        if not judge.status_bytes.startswith(b"R"):
            return _result(judge, ())
        result = _result(program, ())
        passed, detail = _verdict(judge)
        return _with_tests(result, passed, detail)
    finally:
        for run in (program, judge):
            run.close()


def _verdict(judge: Run) -> tuple[bool | None, str]:
    """What the test program said: trusted code, which has only ever seen plain data."""
    try:
        message = json.loads(judge.result_bytes)
    except ValueError:
        return None, "the tests did not come to their end"
    if message["passed"]:
        return True, ""
    return False, f"{message['error']} at line {message['line']} of the tests"


def _with_tests(result: Result, passed: bool | None, detail: str) -> Result:
    # A program that has ended, or been stopped, before its tests did has not passed them.
    ended_well = result.status is RunStatus.OK
    return dataclasses.replace(
        result, tests_passed=passed if ended_well else None, detail=detail if ended_well else result.detail
    )


def _returned(data: bytes, calls: int) -> tuple[Returned, ...]:
    """The answers in order, up to the first that is missing. The program may have written anything."""
    answers: dict[int, Returned] = {}
    # What follows the answers was not asked for, and there may be a million lines of it.
    for line in data.split(b"\n", 4 * calls + 16)[:-1]:
        try:
            message = plain.loads(line)
            number = message["n"]
            if type(number) is int and number not in answers:
                answers[number] = _answer(message)
        except (plain.PlainError, TypeError, KeyError):
            continue
    found = []
    for number in range(calls):
        if number not in answers:
            break
        found.append(answers[number])
    return tuple(found)


def _answer(message: dict[str, Any]) -> Returned:
    if "x" in message:
        return Returned(raised=str(message["x"])[:80] or "an exception")
    try:
        return Returned(plain.decode(message["v"]))
    except plain.PlainError as error:
        return Returned(plain.Opaque(str(error)))


def _result(run: Run, returned: tuple[Returned, ...]) -> Result:
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
        ] or f"ended with {code} before it was isolated"
    if any(stream.over for stream in run.streams):
        return RunStatus.OUTPUT_LIMIT, "too much output"
    if report["why"] == "scratch":
        return RunStatus.OUTPUT_LIMIT, "too many or too large files"
    if report["why"] == "timeout":
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
    """One job in a server of its own, which is closed afterwards; nothing is tried again."""
    slot = _Slot(server.setting, {"program": server})
    try:
        return _run_job(slot, job)
    finally:
        slot.close()
