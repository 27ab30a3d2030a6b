"""One run at a time in a folder: a lock that the kernel releases when its holder dies. Standard library only."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK = "lock"
SECONDS_TO_WAIT = 1.0  # a check whether the folder is free holds the lock for an instant

# Descriptors of this process's locks. A forked child closes its copies; an open one would keep the lock alive after the
# process that took it.
HELD: set[int] = set()


def _close_copies() -> None:
    for descriptor in HELD:
        os.close(descriptor)
    HELD.clear()


os.register_at_fork(after_in_child=_close_copies)


@contextmanager
def locked(folder: Path) -> Iterator[str | None]:
    """Create the folder and hold its lock. ValueError, naming the holder, where another run has it.

    Yields a line to show where the file system has no locks. Folders that were created in vain, and hold nothing but
    the lock, are removed at the end.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    descriptor, warning = _take(folder)
    HELD.add(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield warning
    finally:
        if descriptor in HELD:  # a forked child has closed its copy
            HELD.discard(descriptor)
            if made and os.listdir(folder) == [LOCK]:
                os.unlink(folder / LOCK)
                with suppress(OSError):  # another run has started there
                    for path in made:
                        path.rmdir()
            os.close(descriptor)


def _take(folder: Path) -> tuple[int, str | None]:
    """Return the descriptor of the locked file, and a warning where the file system has no locks."""
    deadline = time.monotonic() + SECONDS_TO_WAIT
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The previous holder may have removed the file between our opening and locking it.
            if os.fstat(descriptor).st_nlink:
                return descriptor, None
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise ValueError(describe_holder(folder)) from None
        except OSError as error:  # a network file system mounted without locks
            return descriptor, f"{folder} cannot be locked ({error.strerror}): no other run may write there meanwhile"
        os.close(descriptor)
        time.sleep(0.05)


def check_unlocked(folder: Path) -> None:
    """Raise ValueError, naming the holder, where a run is writing in the folder. Writes nothing."""
    if is_locked(folder):
        raise ValueError(describe_holder(folder))


def is_locked(folder: Path) -> bool:
    """Return whether a run is writing in the folder, as far as its lock tells. Writes nothing."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:  # missing or unreadable: taking the lock will say more
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks here
        return False
    finally:
        os.close(descriptor)
    return False


def describe_holder(folder: Path) -> str:
    """Return who holds the lock of a folder, in one line."""
    who = holder(folder) or "its process is not known"
    return f"another run is writing in {folder} ({who}); choose another folder, or wait until it has ended"


def holder(folder: Path) -> str:
    """Return the process that took the lock of a folder last, "" where that is not known."""
    try:
        held = json.loads((folder / LOCK).read_text())
        return f"process {held['pid']} on {held['host']}"
    except (OSError, ValueError, KeyError, TypeError):  # between taking the lock and writing into it
        return ""
