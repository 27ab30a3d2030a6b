"""Facts of the machine that a fork server needs: interpreter, library paths, user ids, task counts."""

from __future__ import annotations

import itertools
import os
import sys
import sysconfig
from functools import cache

from rlvr.sandbox import packages

_SYSTEM_PATHS = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    # Where Debian's libblas.so leads.
    "/etc/alternatives",
    "/usr/share/zoneinfo",
)
# Names of directories of other Pythons and their packages start with these.
_PYTHONS = ("python", "pypy")
_MEMORY_FILES, _ROOM = "/dev/shm", 1 << 30
_FIRST_UID = 0x40000000
_CONTAINER_UID = 61000
_SERVERS_EACH = 128
_server_numbers = itertools.count()

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    # Same string hashes, hence the same order of sets, in every run.
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Each of malloc's arenas, by default one a thread, reserves 64 MB of the address space.
    "MALLOC_ARENA_MAX": "2",
    # Functions of libraries are looked up once, not by every child in pages of its own.
    "LD_BIND_NOW": "1",
}


@cache
def interpreter() -> str:
    """Return the resolved path of the interpreter: a virtual environment's link may be unreadable for other users."""
    return os.path.realpath("/proc/self/exe")


@cache
def library_paths() -> tuple[str, ...]:
    """Return the directories of the standard library, resolved."""
    standard = os.path.realpath(sysconfig.get_path("stdlib"))
    paths = [standard, *(os.path.realpath(path) for path in sys.path if os.path.basename(path) == "lib-dynload")]
    return tuple(dict.fromkeys(path for path in paths if os.path.isdir(path)))


@cache
def readable_paths() -> tuple[str, ...]:
    """Return what a program may read, but for `hidden_paths`: standard library, libraries of interpreter and system."""
    paths = [*library_paths(), os.path.realpath(os.path.join(sys.base_prefix, "lib")), *_SYSTEM_PATHS]
    kept: list[str] = []
    for path in sorted(dict.fromkeys(paths), key=len):
        if not any(path.startswith(above + "/") and not os.path.islink(above) for above in kept):
            kept.append(path)
    return tuple(kept)


@cache
def hidden_paths() -> tuple[str, ...]:
    """Return the directories below `readable_paths` that hold packages, and other Pythons; resolved, none within
    another. What a program sees of them is named by `packages.files`."""
    found = list(packages.sites())
    standard = library_paths()[0]
    found += [os.path.join(standard, name) for name in packages.SITES]
    for directory in {os.path.realpath(path) for path in readable_paths()}:
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            path = os.path.join(directory, name)
            if name.startswith(_PYTHONS) and not (standard + "/").startswith(path + "/"):
                found.append(path)
    within = {os.path.realpath(path) for path in readable_paths()}
    there = sorted({path for path in found if os.path.isdir(path) and not os.path.islink(path)}, key=len)
    kept: list[str] = []
    for path in there:
        if any(path.startswith(above + "/") for above in within) and not any(
            path.startswith(above + "/") for above in kept
        ):
            kept.append(path)
    return tuple(kept)


@cache
def package_root() -> str:
    """Return the directory that holds the package rlvr."""
    import rlvr

    return os.path.dirname(os.path.dirname(os.path.abspath(rlvr.__file__)))


def new_uid() -> int | None:
    """Return an unprivileged user id for another server, for callers that are root; None if none is mapped.

    With all ids mapped, no other user has it. A rootless container may map only a few ids, or only root. An id that a
    process has is not given out again: limits of processes and signals hold for all processes of a user.
    """
    number = next(_server_numbers)
    numbers = [(number + more) % _SERVERS_EACH for more in range(_SERVERS_EACH)]
    for first in (_FIRST_UID + (os.getpid() & 0x3FFFFF) * _SERVERS_EACH, _CONTAINER_UID):
        mapped = [first + n for n in numbers if _mapped(first + n, "uid_map") and _mapped(first + n, "gid_map")]
        if mapped:
            taken = _users()
            return next((uid for uid in mapped if uid not in taken), mapped[0])
    return None


def _users() -> set[int]:
    """Return the ids of all users that have a process."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/status", "rb") as file:
                    found |= {int(uid) for line in file if line.startswith(b"Uid:") for uid in line.split()[1:]}
            except OSError:
                # The process has just ended.
                continue
    return found


def _mapped(number: int, name: str) -> bool:
    with open(f"/proc/self/{name}") as file:
        rows = [[int(field) for field in line.split()] for line in file]
    return any(first <= number < first + count for first, _, count in rows)


def scratch_parent() -> str | None:
    """Return where to create scratch directories below level 3: /dev/shm if it has room, else None (the default).

    Removing thousands of files is fast in memory; on a disk it may take longer than the run that left them.
    """
    if not os.access(_MEMORY_FILES, os.W_OK | os.X_OK):
        return None
    found = os.statvfs(_MEMORY_FILES)
    return _MEMORY_FILES if found.f_bavail * found.f_frsize > _ROOM else None


def tasks_of_user() -> int:
    """Count this user's threads on the whole machine, as RLIMIT_NPROC does without a user namespace."""
    user, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                # The process has just ended.
                continue
    return count
