"""The parts of `multiprocessing` that need other programs or /dev/shm, without them. Managers need sockets, and fail.

New processes are forked, whatever the start method. Each function changes one module of the standard library after its
import.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import mmap
import os
import select
import struct
import time
from collections.abc import Callable
from typing import Any


def _fork_instead(module: Any) -> None:
    """Start processes of other start methods by a fork: no program can be executed."""
    from multiprocessing import popen_fork

    class Popen(popen_fork.Popen):
        method = module.Popen.method

    module.Popen = Popen


def _no_tracker(tracker: Any) -> None:
    """Track nothing: what a run leaves is deleted."""
    for name in ("register", "unregister", "ensure_running"):
        setattr(tracker, name, lambda *_: None)


def _no_server(forkserver: Any) -> None:
    forkserver.ensure_running = lambda: None


def _arenas_in_scratch(heap: Any) -> None:
    """Put shared values into files of the scratch directory."""
    heap.Arena._dir_candidates = []


def _memory_in_scratch(shared_memory: Any) -> None:
    """Make named shared memory files of the scratch directory."""
    scratch = os.getcwd()

    class Files:
        @staticmethod
        def shm_open(name: str, flags: int, mode: int = 0o600) -> int:
            return os.open(os.path.join(scratch, ".shm-" + name.strip("/")), flags, mode)

        @staticmethod
        def shm_unlink(name: str) -> None:
            os.unlink(os.path.join(scratch, ".shm-" + name.strip("/")))

    shared_memory._posixshmem = Files


PATCHES: dict[str, Callable[[Any], None]] = {
    "multiprocessing.popen_spawn_posix": _fork_instead,
    "multiprocessing.popen_forkserver": _fork_instead,
    "multiprocessing.forkserver": _no_server,
    "multiprocessing.resource_tracker": _no_tracker,
    "multiprocessing.heap": _arenas_in_scratch,
    "multiprocessing.shared_memory": _memory_in_scratch,
}


# Semaphore for `multiprocessing` without /dev/shm, where POSIX semaphores are files that all runs would share.
#
# It replaces `_multiprocessing.SemLock` in a sandboxed program. Its value is the number of bytes in a pipe.

_RECURSIVE = 0
_FIONREAD = 0x541B


class SemLock:
    """The part of `_multiprocessing.SemLock` that `multiprocessing.synchronize` uses, for forked processes."""

    # A pipe holds 65,536 bytes.
    SEM_VALUE_MAX = 32767
    name = None

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue = kind, maxvalue
        self.handle, self._write = os.pipe()
        os.set_blocking(self.handle, False)
        self._held = 0
        self._owner = 0
        os.write(self._write, b"x" * value)

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Decrement the value. Returns False if that is not possible in time."""
        if self.kind == _RECURSIVE and self._is_mine():
            self._held += 1
            return True
        deadline = None if timeout is None else time.monotonic() + max(timeout, 0)
        while not self._take():
            left = None if deadline is None else deadline - time.monotonic()
            if not block or (left is not None and left <= 0):
                return False
            select.select([self.handle], [], [], left)
        self._held += 1
        self._owner = _thread.get_ident()
        return True

    def _take(self) -> bool:
        try:
            return bool(os.read(self.handle, 1))
        except BlockingIOError:
            return False

    def release(self) -> None:
        """Increment the value. Raises AssertionError or ValueError like the original."""
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        self._held -= 1
        os.write(self._write, b"x")

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == _thread.get_ident()

    def _count(self) -> int:
        return self._held

    def _get_value(self) -> int:
        waiting: int = struct.unpack("i", fcntl.ioctl(self.handle, _FIONREAD, b"\0" * 4))[0]
        return waiting

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._held = 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        for descriptor in (self.handle, self._write):
            try:
                os.close(descriptor)
            except OSError:
                # Closed by the program.
                continue


# Shared memory maps of `mmap` in files of the scratch directory, whose size is limited.
#
# The kernel counts shared memory without a file for no process that has not touched it: no limit would hold. The filter
# of system calls therefore refuses it, and `mmap.mmap(-1, length)` maps an unnamed file instead.

_original = mmap.mmap


def _unnamed_file() -> int:
    """Open a new file that has no name, in the current directory or in that of temporary files."""
    flags = os.O_RDWR | os.O_CLOEXEC
    for folder in (".", os.environ.get("HOME", "/tmp")):
        with contextlib.suppress(OSError):
            return os.open(folder, flags | os.O_TMPFILE, 0o600)
        name = os.path.join(folder, f".map-{os.getpid()}-{os.urandom(8).hex()}")
        with contextlib.suppress(OSError):
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(name)
            return descriptor
    raise PermissionError("no directory for a shared memory map")


class SharedMap(_original):
    """`mmap.mmap`, with a file of its own where it would share memory without one."""

    def __new__(cls, fileno: int, length: int, *args: Any, **kwargs: Any) -> SharedMap:
        """Map the file, or memory where `fileno` is -1."""
        flags = args[0] if args else kwargs.get("flags", mmap.MAP_SHARED)
        if fileno != -1 or flags & mmap.MAP_PRIVATE:
            return super().__new__(cls, fileno, length, *args, **kwargs)
        descriptor = _unnamed_file()
        try:
            os.ftruncate(descriptor, length)
            if args:
                args = (flags & ~mmap.MAP_ANONYMOUS, *args[1:])
            elif "flags" in kwargs:
                kwargs["flags"] = flags & ~mmap.MAP_ANONYMOUS
            return super().__new__(cls, descriptor, length, *args, **kwargs)
        finally:
            os.close(descriptor)


SharedMap.__name__ = SharedMap.__qualname__ = "mmap"
SharedMap.__module__ = "mmap"


def install() -> None:
    """Have every import of `mmap` find the replacement."""
    mmap.mmap = SharedMap  # type: ignore[misc]
