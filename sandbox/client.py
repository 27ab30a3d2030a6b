"""The caller's side of one fork server."""

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

from rlvr.sandbox import host
from rlvr.sandbox.limits import Limits

# The packages are entered by hand: their own __init__ would import what the caller needs and the server does not.
_BOOT = """
import sys
for name in ("rlvr", "rlvr.sandbox", "rlvr.sandbox.inside"):
    package = type(sys)(name)
    package.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = package
from rlvr.sandbox.inside.server import main
main(sys.argv[2])
"""
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
KILL = b"K"
CHUNK = 1 << 16
_OWN_TASKS = 4
_COUNT_EVERY = 5.0


class ServerDied(RuntimeError):
    """The fork server is gone, or does not answer."""


class ServerRefused(RuntimeError):
    """The fork server cannot give the isolation that was asked for."""


@dataclass(frozen=True)
class ServerSetting:
    """How to start a fork server. `landlock_at_most` hides newer Landlock versions, for tests."""

    level: int
    preload: tuple[str, ...] = ()
    landlock_at_most: int = 1 << 30


class Server:
    """A running fork server. Used by one thread at a time."""

    def __init__(self, setting: ServerSetting) -> None:
        self.setting = setting
        self._uid = host.new_uid() if os.geteuid() == 0 else None
        self._group = 0
        self._counted = (0.0, 0)
        self.scratch = (
            "/tmp" if setting.level == 3 else tempfile.mkdtemp(prefix="rlvr-sandbox-", dir=host.scratch_parent())
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
            "sys_path": host.library_paths(),
            "preload": self.setting.preload,
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
            raise ServerDied(f"the fork server did not start in {_START_SECONDS:.0f} s") from error
        if "error" in message:
            raise ServerRefused(message["error"])
        if "ready" not in message:
            raise ServerDied("the fork server ended at its start")
        ours.settimeout(None)

    def header(self, mode: str, limits: Limits) -> bytes:
        """What the server and the child need to know of a run."""
        return json.dumps(
            {
                "mode": mode,
                "seconds": limits.seconds,
                "memory_mb": limits.memory_mb,
                "processes": limits.processes + self._other_tasks(),
                "files": limits.files,
                "file_mb": limits.file_mb,
            }
        ).encode()

    def _other_tasks(self) -> int:
        """Tasks that RLIMIT_NPROC counts besides the run's own."""
        if self.setting.level == 3 or self._uid is not None:
            return _OWN_TASKS
        if time.monotonic() - self._counted[0] > _COUNT_EVERY:
            # Spare for what starts before the next count.
            self._counted = (time.monotonic(), host.tasks_of_user() + 64)
        return self._counted[1]

    def send(self, data: bytes, descriptors: list[int]) -> None:
        """One message with descriptors."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        try:
            self.control.sendmsg([data], rights)
        except OSError as error:
            raise ServerDied(f"the fork server is gone: {error.strerror}") from error

    def receive(self) -> dict[str, Any] | None:
        """The report on a run, or None for a message on the way to it. ServerDied where the server is gone."""
        try:
            data = self.control.recv(CHUNK)
        except OSError as error:
            raise ServerDied(f"the fork server is gone: {error.strerror}") from error
        if not data:
            raise ServerDied("the fork server is gone")
        message: dict[str, Any] = json.loads(data)
        if "group" in message:
            self._group = message["group"]
            return None
        self._group = 0
        return message

    def abandon(self) -> None:
        """In a forked process: the server is the parent's. Only this copy of the connection is closed."""
        self.control.close()
        self.process.returncode = 0  # it is no child of this process, and not to be waited for
        self._group = 0

    def close(self) -> None:
        """End the server and whatever it runs; nothing stays behind."""
        if hasattr(self, "control"):
            with contextlib.suppress(OSError):
                self.control.shutdown(socket.SHUT_RDWR)
            self.control.close()
        if hasattr(self, "process"):
            # At the end of its connection the server ends what it runs, and its parent waits for it: then all is gone.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_SECONDS)
            self.process.kill()
            self.process.wait()
        if self._group:
            # Without a pid namespace a run outlives its server.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._group, signal.SIGKILL)
            self._group = 0
        if self.setting.level != 3:
            shutil.rmtree(self.scratch, ignore_errors=True)
