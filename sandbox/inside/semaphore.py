"""Semaphore for `multiprocessing` without /dev/shm, where POSIX semaphores are files that all runs would share.

It replaces `_multiprocessing.SemLock` in a sandboxed program. Its value is the number of bytes in a pipe.
"""

from __future__ import annotations

import _thread
import fcntl
import os
import select
import struct
import time

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
