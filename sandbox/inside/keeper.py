"""The keeper of a fork server without a pid namespace: it ends a run that has lost its server.

At level 3 the kernel ends every process of the namespace together with the server. Otherwise a server that is killed
leaves the processes that its run has started. The keeper is their ancestor and outlives the server: it kills them, and
removes the scratch directory. It sleeps until then.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import struct
from collections.abc import Callable

from rlvr.sandbox.inside import kernel


class Group:
    """The process group of the run in progress, 0 for none, in memory that server and keeper share."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)

    def hide(self) -> None:
        """Keep the memory from children of this process: a program could otherwise name another group."""
        self._shared.madvise(mmap.MADV_DONTFORK)

    def set(self, group: int) -> None:
        """Say whose processes are to be killed."""
        self._shared[:4] = struct.pack("=i", group)

    def get(self) -> int:
        """Return the group."""
        found: int = struct.unpack("=i", self._shared[:4])[0]
        return found


def leave_behind(group: Group, close: Callable[[], None], clean: Callable[[], None]) -> None:
    """Fork: the child returns as the server; this process becomes the keeper, and exits after the server.

    `close` closes what the keeper must not hold; `clean` removes files once no process of the run is left.
    """
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    server = os.fork()
    if server == 0:
        group.hide()
        return
    close()
    status = 0
    while True:
        try:
            ended, code = os.waitpid(-1, 0)
        except ChildProcessError:
            break
        if ended == server:
            status = code
            _kill(group.get())
    if status != 0:
        with contextlib.suppress(OSError):
            clean()
    os._exit(0 if status == 0 else 1)


def _kill(group: int) -> None:
    # None may be left, or only zombies.
    if group > 1:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
