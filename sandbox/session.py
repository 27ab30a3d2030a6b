"""A session: programs that run one after the other in one living process and find what earlier ones have left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import time
import weakref
from collections.abc import Sequence

from rlvr.core import after_fork

from .client import Run, Server, ServerDied, ServerRefused, ServerSetting
from .execution import result_of
from .host import files as package_files
from .limits import (
    MAX_PROGRAM,
    MAX_WALL,
    Limits,
    Result,
    RunStatus,
    check_names,
    check_seconds,
    check_text,
)
from .selftest import choose_level
from .wire import values

# How long a session may be idle or busy by the clock in all; what it computes is limited by its limits.
LONGEST = 24 * 3600.0
_GRACE_SECONDS = 20.0  # for the end of a process that is killed, on a busy machine
_CHUNK = 1 << 12
_MEMORY = 86  # child.py's EXIT_MEMORY


class Session:
    """A process in the sandbox with a namespace that is kept between programs. Not thread-safe; fork-safe. Close it.

    It has a fork server of its own, with the guarantees of a single run. `limits` hold for all its programs together:
    `seconds` is processor time, counted while they run and while threads of theirs do; by the clock each program has
    MAX_WALL times as many. A program that exceeds a limit, or ends the process, ends the session; the next one begins
    with a new one, and `Result.detail` of the former says so. In a forked child it begins with a new one, too: the
    process belongs to the parent. `packages`: what programs may import, as of Pool. Raises
    SandboxUnavailable below level 2, ValueError for a package that is not installed.
    """

    def __init__(self, limits: Limits | None = None, level: int | None = None, packages: Sequence[str] = ()) -> None:
        self.limits = limits or Limits()
        check_names("packages", packages)
        package_files(tuple(packages))
        self._setting = ServerSetting(choose_level(level, allow_weak=False).number, packages=tuple(packages))
        self._open: _Conversation | None = None
        self._finalizer = weakref.finalize(self, lambda: None)
        after_fork.register(self)

    def run(self, program: str, wall: float | None = None) -> Result:
        """Run a program in the session's namespace. Its result holds what was printed since the last one.

        wall: seconds by the clock after which it is ended, by default MAX_WALL times those of the limits. Raises
        ValueError for arguments of other types or out of bounds.
        """
        check_text("program", program)
        if wall is None:
            wall = MAX_WALL * self.limits.seconds
        else:
            check_seconds("wall", wall)
        if len(program) > MAX_PROGRAM:
            detail = f"program of {len(program)} characters; at most {MAX_PROGRAM}"
            return Result(RunStatus.COMPILE_ERROR, detail=detail)
        try:
            if self._open is None:
                self._open = _Conversation(self._setting, self.limits)
                self._finalizer.detach()
                self._finalizer = weakref.finalize(self, self._open.close)
            result = self._open.run(program, wall)
        except (ServerDied, ServerRefused, OSError) as error:
            self.close()
            return Result(RunStatus.SANDBOX_ERROR, level=self._setting.level, detail=str(error))
        if self._open.over:
            self.close()
        return result

    def close(self) -> None:
        """End the process and everything that it has started. Idempotent; another program begins with a new process."""
        opened, self._open = self._open, None
        if opened is not None:
            self._finalizer.detach()
            opened.close()

    def after_fork(self) -> None:
        """Let go of the process in a forked child of the caller, to whom it belongs."""
        self._finalizer.detach()
        if self._open is not None:
            self._open.close(abandon=True)
        self._open = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Conversation:
    """One process of a session, and its server."""

    def __init__(self, setting: ServerSetting, limits: Limits) -> None:
        self.over = False
        self._limits = limits
        self._number = 0
        self._said = b""
        self._server = Server(setting)
        requests, replies = os.pipe(), os.pipe()
        self._requests, self._replies = requests[1], replies[0]
        self._pipes = [self._requests, self._replies]
        self._silent: set[int] = set()
        os.set_blocking(self._replies, False)
        os.set_blocking(self._requests, False)
        self._run = Run(self._server, "session", {}, b"", limits)
        try:
            self._run.start((requests[0], replies[1]), waits=LONGEST, wall=LONGEST)
        except BaseException:
            self.close()
            raise

    def run(self, program: str, wall: float) -> Result:
        """Send a program and wait for its end, `wall` seconds by the clock at most. Raises ServerDied."""
        started = time.monotonic()
        for stream in self._run.streams[:2]:
            stream.data.clear()
        left = memoryview(values.dumps(program) + b"\n")
        until = started + wall
        code: int | None = None
        late = False
        poll = select.poll()
        while code is None and self._run.report is None:
            wait = until - time.monotonic()
            if wait <= 0 and not late:
                late, until = True, time.monotonic() + _GRACE_SECONDS
                self._run.kill()
            elif wait <= 0:
                raise ServerDied("the fork server does not answer")
            for descriptor in {*self._run.descriptors(), self._replies} - self._silent:
                poll.register(descriptor, select.POLLIN)
            if left:
                poll.register(self._requests, select.POLLOUT)
            for ready, _ in poll.poll(max(0.0, wait) * 1000 + 1):
                poll.unregister(ready)
                if ready == self._requests:
                    left = left[self._send(left) :]
                elif ready == self._replies:
                    code = self._answer()
                elif not self._run.read(ready):
                    self._silent.add(ready)
        return self._result(code, wall if late else None, started)

    def _send(self, data: memoryview) -> int:
        """Return how many bytes the process takes; all of them where it has closed the pipe."""
        try:
            return os.write(self._requests, data)
        except BlockingIOError:
            return 0
        except BrokenPipeError:
            return len(data)

    def _answer(self) -> int | None:
        """Return the exit code that the process tells of the present program. It may be forged, to no other's harm."""
        with contextlib.suppress(BlockingIOError):
            part = os.read(self._replies, _CHUNK)
            if not part:  # it can tell nothing any more
                self._silent.add(self._replies)
                self._run.kill()
            self._said = (self._said + part)[-_CHUNK:]
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            with contextlib.suppress(values.PlainError, TypeError, KeyError):
                message = values.loads(line)
                if message["n"] == self._number and type(message["x"]) is int:
                    return int(message["x"])
        return None

    def _result(self, code: int | None, late: float | None, started: float) -> Result:
        run = self._run
        self._number += 1
        if run.report is None:
            for stream in run.streams[:2]:
                stream.drain()
            if any(stream.over for stream in run.streams[:2]):
                run.kill()
                self.over = True
        if run.report is not None:
            self.over = True
            run.finish()
            ended = result_of(run, ())
            if late is not None:
                detail = f"over {late:g} s by the clock"
                ended = dataclasses.replace(ended, status=RunStatus.TIMEOUT, detail=detail)
            elif ended.status is RunStatus.OK:
                ended = dataclasses.replace(ended, status=RunStatus.CRASH, detail="the process has ended")
            return _with_loss(ended)
        status, detail = RunStatus.OK, ""
        if code:
            status = RunStatus.MEMORY if code == _MEMORY else RunStatus.CRASH
            detail = "out of memory" if code == _MEMORY else f"exit code {code}"
        if self.over:
            status, detail = RunStatus.OUTPUT_LIMIT, "too much output"
        found = Result(
            status,
            run.text(0),
            run.text(1),
            exit_code=code,
            level=self._server.setting.level,
            seconds=time.monotonic() - started,
            detail=detail,
        )
        return _with_loss(found) if self.over else found

    def close(self, *, abandon: bool = False) -> None:
        """End the process and its server; with `abandon` close this process's ends only."""
        (self._server.abandon if abandon else self._server.close)()
        self._run.close()
        while self._pipes:
            os.close(self._pipes.pop())


def _with_loss(result: Result) -> Result:
    return dataclasses.replace(result, detail=f"{result.detail}; what was kept between calls is lost")
