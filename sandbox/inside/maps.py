"""Shared memory maps of `mmap` in files of the scratch directory, whose size is limited.

The kernel counts shared memory without a file for no process that has not touched it: no limit would hold. The filter
of system calls therefore refuses it, and `mmap.mmap(-1, length)` maps an unnamed file instead.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Any

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
