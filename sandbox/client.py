"""Start, talk to and end one fork server; the caller's side."""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any

from rlvr.sandbox import host, packages
from rlvr.sandbox.limits import MAX_WALL, Limits

# Register stub packages, so that rlvr/__init__ and rlvr/sandbox/__init__ are not executed in the server.
_BOOT = """
import sys
for name in ("rlvr", "rlvr.sandbox", "rlvr.sandbox.inside"):
    package = type(sys)(name)
    package.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = package
from rlvr.sandbox.jail.server import main
main(sys.argv[2])
"""
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
            "packages": packages.files(self.setting.packages, self.setting.preload),
            "sys_path": host.library_paths(),
            "preload": self.setting.preload,
            "tests": self._tests,
            "landlock_at_most": self.setting.landlock_at_most,
        }
        command = [host.interpreter(), "-s", "-S", "-P", "-B", "-c", _BOOT, host.package_root(), json.dumps(argument)]
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
