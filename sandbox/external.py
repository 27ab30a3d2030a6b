"""Run a program that is not Python, such as a prover, on text that a model wrote: one confined process with limits.

The layers are Landlock, seccomp and rlimits (level 2 of docs/explained/sandbox-guarantees.md), with a user id of its
own where the caller is root. The program cannot start processes, so that none outlives it; it ends with the caller's
thread, too.
"""

from __future__ import annotations

import fcntl
import glob
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import IO, Literal

from . import host
from .limits import MAX_WALL, check_count, check_seconds

_LOADERS = ("/lib64/ld-linux-*.so.*", "/lib/ld-linux-*.so.*", "/lib/ld-musl-*.so.*")
_TASKS = 64
_PLACE, _AGE = "rlvr-external-", 60.0  # names of temporary directories; seconds until an abandoned one is removed

Status = Literal["ok", "failed", "timeout", "limit", "sandbox_error"]


@dataclass(frozen=True, kw_only=True)
class ExternalLimits:
    """Limits of one run. `seconds`: processor time, rounded up; by the clock MAX_WALL times as long.

    `memory_mb`: address space. `file_kb`: size of each file that it writes, standard output and errors included. Raises
    ValueError for a limit that is no number or out of bounds.
    """

    seconds: float = 10.0
    memory_mb: int = 2048
    file_kb: int = 4096

    def __post_init__(self) -> None:
        check_seconds("limit seconds", self.seconds)
        check_count("limit memory_mb", self.memory_mb)
        check_count("limit file_kb", self.file_kb)


@dataclass(frozen=True)
class Finished:
    """The end of a run. `status`: "ok" for exit code 0, "failed" for another exit code or a crash, "timeout", "limit"
    for a file or an output that became too large, "sandbox_error" where the program did not start. `detail` tells more.
    """

    status: Status
    stdout: str
    stderr: str
    detail: str = ""


@contextmanager
def workplace() -> Iterator[str]:
    """Give a temporary directory that programs of this module may pass through, and remove it afterwards.

    The first call of a process removes those of processes that were killed: their locks have ended with them.
    """
    parent = host.scratch_parent() or tempfile.gettempdir()
    _remove_abandoned(parent)
    path = tempfile.mkdtemp(prefix=_PLACE, dir=parent)
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        os.chmod(path, 0o711)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


@cache
def _remove_abandoned(parent: str) -> None:
    """Remove the directories of `workplace` that no process holds, a minute after they were made."""
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if not name.startswith(_PLACE):
            continue
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(handle)
            if found.st_uid == os.geteuid() and found.st_mtime < time.time() - _AGE:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(handle)


def run_external(
    command: Sequence[str],
    directory: str,
    *,
    read: Sequence[str] = (),
    limits: ExternalLimits | None = None,
    environment: Mapping[str, str] | None = None,
) -> Finished:
    """Run `command` (the program's absolute path first) in `directory`, below `workplace()`: all that it may write to.

    It reads the system's libraries, `directory` and `read`. Its environment is `host.ENVIRONMENT` and `environment`.
    """
    limits = limits or ExternalLimits()
    uid = host.new_uid() if os.geteuid() == 0 else None
    if uid is not None:
        for path in (directory, *(os.path.join(directory, name) for name in os.listdir(directory))):
            os.chown(path, uid, uid)
    seconds = max(1, int(-(-limits.seconds // 1)))
    ready, status = os.pipe()
    job = {
        "command": [os.path.realpath(command[0]), *command[1:]],
        "environment": {**host.ENVIRONMENT, "HOME": directory, "TMPDIR": directory, **(environment or {})},
        "read": [*host.readable_paths(), *read],
        "write": [directory],
        "loaders": [os.path.realpath(path) for pattern in _LOADERS for path in glob.glob(pattern)],
        "uid": uid,
        "tasks": _TASKS + (0 if uid is not None else host.tasks_of_user()),
        "seconds": seconds,
        "memory_mb": limits.memory_mb,
        "file_kb": limits.file_kb,
        "status": status,
        "parent": os.getpid(),
    }
    launcher = [
        host.interpreter(),
        "-I",
        "-S",
        "-B",
        "-c",
        host.boot_code("confine"),
        host.package_root(),
        json.dumps(job),
    ]
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr, open(ready, "rb") as said:
        try:
            process = subprocess.Popen(
                launcher,
                cwd=directory,
                env=host.ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[status],
            )
        finally:
            os.close(status)
        in_time = _wait(process, time.monotonic() + MAX_WALL * seconds)
        report = said.read()
        texts = [_text(file, limits.file_kb << 10) for file in (stdout, stderr)]
    return _make_finished(process.returncode, in_time, report, texts, limits, seconds)


def _wait(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for the end, by SIGKILL at the deadline. Return whether it came by itself."""
    handle = os.pidfd_open(process.pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
    finally:
        os.close(handle)
        process.kill()
        process.wait()


def _text(file: IO[bytes], size: int) -> str:
    file.seek(0)
    return file.read(size + 1).decode(errors="replace")


def _make_finished(
    code: int, in_time: bool, report: bytes, texts: list[str], limits: ExternalLimits, seconds: int
) -> Finished:
    stdout, stderr = texts
    if not in_time or code in (-signal.SIGXCPU,):
        return Finished("timeout", stdout, stderr, f"over {limits.seconds:g} s")
    if report != b"R":
        why = report.removeprefix(b"R").removeprefix(b"E").decode(errors="replace")
        return Finished("sandbox_error", stdout, stderr, why or stderr.strip()[-200:] or "the sandbox did not start")
    if code == -signal.SIGXFSZ or max(len(stdout), len(stderr)) >= limits.file_kb << 10:
        return Finished("limit", stdout, stderr, f"over {limits.file_kb} kB of output")
    if code == -signal.SIGKILL:
        # The hard limit of processor time sends it; so does a machine that is out of memory.
        return Finished("timeout", stdout, stderr, f"over {limits.seconds:g} s, or out of memory")
    if code:
        return Finished("failed", stdout, stderr, f"ended by signal {-code}" if code < 0 else f"exit code {code}")
    return Finished("ok", stdout, stderr)
