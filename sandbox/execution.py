"""One job in a fork server: programs, their calls, test code beside or after them, and the result of each."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from .client import Run, Server, ServerSetting, supervise
from .limits import (
    BYTES,
    MAX_PROGRAM,
    MOST_SECONDS,
    Job,
    Limits,
    Result,
    Returned,
    RunStatus,
    TestJob,
    encode,
)
from .wire import values

# Exit codes: child.py's EXIT_MEMORY, and minus the number of the signal that ended a program.
_EXIT_MEMORY = 86
_SIGKILL, _SIGXCPU = -9, -24


class Slot:
    """A server for programs, one for tests, and one for tests that use pytest, each started on first use."""

    def __init__(self, setting: ServerSetting) -> None:
        self.setting = setting
        self._servers: dict[str, Server] = {}

    def server(self, role: str) -> Server:
        """Return the server for "program", "tests" or "pytest"."""
        if role not in self._servers:
            more = ("pytest",) if role == "pytest" else ()
            setting = dataclasses.replace(self.setting, preload=(*self.setting.preload, *more))
            self._servers[role] = Server(setting, tests=role != "program")
        return self._servers[role]

    def abandon(self) -> None:
        """Leave the servers to the parent, in a forked process."""
        while self._servers:
            self._servers.popitem()[1].abandon()

    def close(self) -> None:
        """End the servers; the next run starts fresh ones."""
        while self._servers:
            self._servers.popitem()[1].close()


def _too_large(job: Job) -> Result | None:
    if len(job.program) <= MAX_PROGRAM:
        return None
    return Result(RunStatus.COMPILE_ERROR, detail=f"program of {len(job.program)} characters; at most {MAX_PROGRAM}")


def _payload(job: Job) -> dict[str, Any]:
    calls = [
        {"entry": c.entry, "args": values.encode(list(c.args)), "kwargs": values.encode(dict(c.kwargs))}
        for c in job.calls
    ]
    return {"program": job.program, "prelude": job.prelude, "setup": job.setup, "calls": calls}


def run_job(slot: Slot, job: Job) -> Result:
    """Run one program, with its calls. Raises ServerDied or ServerRefused."""
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


def run_tests(slot: Slot, tests: TestJob) -> Result:
    """Run tests beside a program, or in its process.

    Beside: if the tests pass and the program has changed one of their containers, they may have computed an expected
    value from it. So they run a second time, in which their containers stay as they were. The same checks must be
    executed and hold.
    """
    refused = _too_large(tests.job)
    if refused is not None:
        return refused
    if tests.together:
        return _run_together(slot, tests)
    seed = int.from_bytes(os.urandom(8), "big")
    result, report = _run_beside(slot, tests, seed, keeps=False)
    if not (result.tests_passed and report.get("altered")):
        return result
    again, second = _run_beside(slot, tests, seed, keeps=True)
    if again.tests_passed and second.get("trace") != report.get("trace"):
        detail = "the program changes which checks are executed"
        return dataclasses.replace(again, tests_passed=False, detail=detail)
    return again


def _run_beside(slot: Slot, tests: TestJob, seed: int, *, keeps: bool) -> tuple[Result, dict[str, Any]]:
    """Serve the program's functions in one sandbox and run the tests in another, joined by two pipes.

    Return the result, and what the tests have reported.
    """
    job = tests.job
    requests, replies = os.pipe(), os.pipe()
    longer = Limits(min(job.limits.seconds + 2, MOST_SECONDS), job.limits.memory_mb, job.limits.total_memory_mb)
    program = Run(slot.server("program"), "serve", _payload(job), encode("stdin", job.stdin, BYTES), job.limits)
    payload: dict[str, Any] = {"test": tests.test, "names": tests.names, "classes": tests.classes}
    payload |= {"keeps": keeps, "seed": seed}
    tester = Run(slot.server("pytest" if tests.uses_pytest else "tests"), "test", payload, b"", longer)
    try:
        # Each waits while the other one computes.
        program.start((requests[0], replies[1]), waits=longer.seconds)
        tester.start((requests[1], replies[0]), results=True, waits=longer.seconds)
        supervise([tester, program])
        if not tester.status_bytes.startswith(b"R"):
            return result_of(tester, ()), {}
        report = _read_report(tester)
        return _with_tests(result_of(program, ()), _verdict(report)), report
    finally:
        for run in (program, tester):
            run.close()


def _run_together(slot: Slot, tests: TestJob) -> Result:
    """Run the tests in the process of the program, after it."""
    payload = {**_payload(tests.job), "test": tests.test, "pytest": tests.uses_pytest}
    server = slot.server("pytest" if tests.uses_pytest else "tests")
    run = Run(server, "together", payload, encode("stdin", tests.job.stdin, BYTES), tests.job.limits)
    try:
        run.start(results=True)
        supervise([run])
        return _with_tests(result_of(run, ()), _verdict(_read_report(run)))
    finally:
        run.close()


def _read_report(tester: Run) -> dict[str, Any]:
    """Return what tests report, {} if that cannot be read. A program in whose process they ran can forge it."""
    try:
        message = values.loads(tester.result_bytes)
    except values.PlainError:
        return {}
    return message if type(message) is dict else {}


def _verdict(message: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of the result as the tests report them."""
    if type(message.get("passed")) is not bool:
        return {"detail": "the tests did not finish"}
    checks = message.get("checks")
    counts = (*checks, message.get("number")) if type(checks) is list and len(checks) == 2 else ()
    known = all(type(count) is int and count >= 0 for count in counts) and counts and counts[0] <= counts[1]
    found: dict[str, Any] = {"tests_passed": message["passed"], "checks": counts if known else (0, 1, 1)}
    if message["passed"]:
        return found
    error, calls = message.get("error"), message.get("text")
    found["detail"] = f"{error} at line {message.get('line')} of the tests"
    if error == "BuiltinRedefined":
        found["detail"] = f"the program defines {calls}, which the tests use as the builtin"
    elif calls:
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
        value = values.decode(message["v"], array=values.Array)
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
        why = said.decode("utf-8", "replace")[1:]
        return RunStatus.SANDBOX_ERROR, why or f"ended with {code} before isolation was complete"
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
