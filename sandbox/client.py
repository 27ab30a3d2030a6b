"""Start, talk to and end one fork server; the caller's side."""

from __future__ import annotations

import array
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any

from . import host
from .limits import MAX_WALL, Limits

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
KILL = b"K"
CHUNK = 1 << 16
_OWN_TASKS = 4
_COUNT_EVERY = 5.0
# Where all runs have the caller's user: tasks by which a run may exceed its limit, since others count too, and a
# reserve beyond, so that a run that starts too many leaves some to the others until the server ends it. Not more: the
# server has to end them all in time.
_SPARE_TASKS, _RESERVED_TASKS = 64, 448


class ServerDied(RuntimeError):
    """The fork server ended or stopped answering."""


class ServerRefused(RuntimeError):
    """The fork server cannot provide the requested isolation."""


@dataclass(frozen=True)
class ServerSetting:
    """Settings of a fork server. `landlock_at_most` caps the Landlock version, for tests."""

    level: int
    preload: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    landlock_at_most: int = 1 << 30


class Server:
    """A running fork server; not thread-safe. Raises ServerDied or ServerRefused if it does not start.

    One for `tests` has imported what test code needs, and can run programs too.
    """

    def __init__(self, setting: ServerSetting, *, tests: bool = False) -> None:
        self.setting = setting
        self._tests = tests
        self._uid = host.new_uid() if os.geteuid() == 0 else None
        self._group = 0
        self._counted = (0.0, 0)
        self.scratch = (
            "/tmp"
            if setting.level == 3
            else tempfile.mkdtemp(prefix=f"rlvr-sandbox-{os.getpid()}-", dir=host.scratch_parent())
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control = ours
        argument = {
            "control": theirs.fileno(),
            "level": self.setting.level,
            "uid": self._uid,
            "scratch": self.scratch,
            "read": host.readable_paths(),
            "hidden": host.hidden_paths(),
            "packages": host.files(self.setting.packages, self.setting.preload),
            "sys_path": host.library_paths(),
            "preload": self.setting.preload,
            "tests": self._tests,
            "landlock_at_most": self.setting.landlock_at_most,
        }
        command = [
            host.interpreter(),
            "-s",
            "-S",
            "-P",
            "-B",
            "-c",
            host.boot_code("server"),
            host.package_root(),
            json.dumps(argument),
        ]
        with theirs:
            self.process = subprocess.Popen(
                command,
                env=host.ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        ours.settimeout(_START_SECONDS)
        try:
            message = json.loads(ours.recv(CHUNK) or b"{}")
        except TimeoutError as error:
            raise ServerDied(f"the fork server did not start within {_START_SECONDS:.0f} s") from error
        if "error" in message:
            raise ServerRefused(message["error"])
        if "ready" not in message:
            raise ServerDied("the fork server ended while starting")
        ours.settimeout(None)

    def header(self, mode: str, limits: Limits, waits: float = 0.0, wall: float = 0.0) -> bytes:
        """Return the header of a run as JSON: its mode and the limits that server and child enforce.

        `waits`: seconds during which it may wait for another run, or for its caller. `wall`: seconds by the clock after
        which it is ended; 0: MAX_WALL times the limit.
        """
        return json.dumps(
            {
                "mode": mode,
                "seconds": limits.seconds,
                "waits": waits,
                "wall": wall or MAX_WALL * limits.seconds,
                "memory_mb": limits.memory_mb,
                "together_mb": limits.together_mb,
                "processes": limits.processes + self._other_tasks(),
                "tasks": limits.processes + _SPARE_TASKS if self._shares_user() else 0,
                "files": limits.files,
                "file_mb": limits.file_mb,
            }
        ).encode()

    def _shares_user(self) -> bool:
        """Whether the kernel counts the run's tasks together with those of the caller and of other runs."""
        return self.setting.level < 3 and self._uid is None

    def _other_tasks(self) -> int:
        """Count the tasks that RLIMIT_NPROC charges besides the run's own, or may charge while it lasts."""
        if not self._shares_user():
            return _OWN_TASKS
        if time.monotonic() - self._counted[0] > _COUNT_EVERY:
            self._counted = (time.monotonic(), host.tasks_of_user())
        return self._counted[1] + _SPARE_TASKS + _RESERVED_TASKS

    def send(self, data: bytes, descriptors: list[int]) -> None:
        """Send one message with file descriptors. Raises ServerDied."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self.control.sendmsg([data], rights)
        except OSError as error:
            raise ServerDied(f"lost the fork server: {error.strerror}") from error

    def receive(self) -> dict[str, Any] | None:
        """Return the report of a run, or None for an intermediate message. Raises ServerDied."""
        try:
            data = self.control.recv(CHUNK)
        except OSError as error:
            raise ServerDied(f"lost the fork server: {error.strerror}") from error
        if not data:
            raise ServerDied("the fork server ended")
        message: dict[str, Any] = json.loads(data)
        if "group" in message:
            self._group = message["group"]
            return None
        self._group = 0
        return message

    def abandon(self) -> None:
        """Let go of the server in a forked process: it belongs to the parent; only this connection is closed."""
        self.control.close()
        self.process.returncode = 0  # not a child of this process, so there is nothing to wait for
        self._group = 0

    def close(self) -> None:
        """End the server and everything it runs, and remove its scratch directory."""
        if hasattr(self, "control"):
            with contextlib.suppress(OSError):
                self.control.shutdown(socket.SHUT_RDWR)
            self.control.close()
        if hasattr(self, "process"):
            # When the connection closes, the server ends its run and exits; the process waited for here exits last.
            try:
                self.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                # Its group: the server itself is a child of the process started here.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.kill()
                self.process.wait()
        if self._group:
            # Without a pid namespace a run can outlive its server.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
            self._group = 0
        if self.setting.level != 3:
            shutil.rmtree(self.scratch, ignore_errors=True)


# One run in a fork server, from the caller's side: pipes, output caps, report.

# Allowed beyond a run's time limit for killing and reaping its processes on a busy machine.
_GRACE_SECONDS = 20.0
# Among the streams: stdout, stderr, status, results.
_STATUS = 2


def make_sealed_file(data: bytes) -> int:
    """Return the descriptor of an immutable memory file with `data`."""
    descriptor = os.memfd_create("rlvr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], written)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@dataclass
class Stream:
    """Output of one pipe, up to `cap` bytes."""

    descriptor: int
    cap: int
    data: bytearray = field(default_factory=bytearray)
    over: bool = False

    def read(self) -> bool:
        """Read what is available. Returns False at the end or past the cap."""
        try:
            chunk = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return True
        self.data += chunk[: self.cap - len(self.data)]
        self.over = self.over or len(self.data) >= self.cap
        return bool(chunk) and not self.over

    def drain(self) -> None:
        """Read to the end. Call only when no process is left that could write."""
        while self.read():
            if not select.select([self.descriptor], [], [], 0)[0]:
                return


class Run:
    """A run in progress: `start`, then `read` each descriptor that poll reports, until `report` is set."""

    def __init__(self, server: Server, mode: str, payload: dict[str, Any], stdin: bytes, limits: Limits) -> None:
        self.server = server
        self.limits = limits
        self.mode = mode
        self.report: dict[str, Any] | None = None
        self.killed = False
        self._payload = json.dumps(payload).encode()
        self._stdin = stdin
        self._open: list[int] = []

    def start(
        self, channels: tuple[int, ...] = (), *, results: bool = False, waits: float = 0.0, wall: float = 0.0
    ) -> None:
        """Send the run to the server. `channels` are passed on and closed here; `results` adds a result pipe.

        `waits`, `wall`: see Server.header.
        """
        outputs = self.limits.output_kb << 10
        caps = [outputs, outputs, 1 << 12] + ([self.limits.result_kb << 10] if results else [])
        pipes = [os.pipe() for _ in caps]
        self.streams = [Stream(reading, cap) for (reading, _), cap in zip(pipes, caps)]
        self._open = [reading for reading, _ in pipes]
        for reading in self._open:
            os.set_blocking(reading, False)
        writing = [end for _, end in pipes]
        passed = [make_sealed_file(self._payload), make_sealed_file(self._stdin), *writing[:3], *channels, *writing[3:]]
        self.started = time.monotonic()
        try:
            self.server.send(self.server.header(self.mode, self.limits, waits, wall), passed)
        finally:
            for descriptor in passed:
                os.close(descriptor)

    @property
    def deadline(self) -> float:
        """Time (monotonic) at which the server counts as hung."""
        return self.started + MAX_WALL * self.limits.seconds + _GRACE_SECONDS

    def descriptors(self) -> list[int]:
        """Return the descriptors to poll. The few status bytes fit into their pipe, and are read by `finish`."""
        streams = [*self.streams[:_STATUS], *self.streams[_STATUS + 1 :]]
        return [stream.descriptor for stream in streams if not stream.over] + [self.server.control.fileno()]

    def read(self, ready: int) -> bool:
        """Read from a descriptor that is ready. Returns False if nothing more will come from it."""
        if ready == self.server.control.fileno():
            self.report = self.server.receive()
            return self.report is None
        stream = next(stream for stream in self.streams if stream.descriptor == ready)
        more = stream.read()
        if stream.over:
            self.kill()
        return more

    def kill(self) -> None:
        """Ask the server to end the run."""
        if not self.killed:
            self.killed = True
            self.server.send(KILL, [])

    def finish(self) -> None:
        """Read the rest of the output and close the pipes."""
        for stream in self.streams:
            stream.drain()
        self.close()

    def close(self) -> None:
        """Close the pipes. Idempotent."""
        while self._open:
            os.close(self._open.pop())

    def text(self, number: int) -> str:
        """Return stdout (0) or stderr (1) as text."""
        return self.streams[number].data.decode("utf-8", "replace")

    @property
    def status_bytes(self) -> bytes:
        """Status bytes of the child: isolated, compiled (see jail/child.py)."""
        return bytes(self.streams[_STATUS].data)

    @property
    def result_bytes(self) -> bytes:
        """Bytes from the result pipe; empty without one."""
        return bytes(self.streams[3].data) if len(self.streams) > 3 else b""


_ENDING = 1.0  # seconds for a program that ends


def supervise(runs: list[Run]) -> None:
    """Wait for the reports of all runs. Raises ServerDied if a server ends or does not answer in time.

    When the first run ends the others are killed: they only serve it. One that has ended by itself, as the first has
    found, has a moment to tell how.
    """
    until = 0.0
    poll = select.poll()
    owner = {}
    for run in runs:
        for descriptor in run.descriptors():
            owner[descriptor] = run
            poll.register(descriptor, select.POLLIN)
    while any(run.report is None for run in runs):
        left = min(run.deadline for run in runs if run.report is None) - time.monotonic()
        if left <= 0:
            raise ServerDied("the fork server does not answer")
        waits = min(left, max(until - time.monotonic(), 0.0)) if until else left
        for descriptor, _ in poll.poll(waits * 1000 + 1):
            run = owner[descriptor]
            if not run.read(descriptor):
                poll.unregister(descriptor)
        if runs[0].report is not None:
            until = until or time.monotonic() + (_ENDING if b"ProgramEnded" in runs[0].result_bytes else 0.0)
            for run in runs[1:]:
                if run.report is None and time.monotonic() >= until:
                    run.kill()
    for run in runs:
        run.finish()
