"""System calls that Python does not wrap. Every failure raises an OSError that names the call."""

from __future__ import annotations

import contextlib
import ctypes
import os
from functools import cache
from typing import Any

from . import syscalls

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 4, 8, 24, 36
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SETUID = 7


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _number(name: str) -> int:
    return syscalls.sandbox_calls(syscalls.architecture())[name]


def _check(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


class Call:
    """A call of libc with its arguments ready; called, it returns what libc does, or raises OSError for a failure."""

    __slots__ = ("_arguments", "_function", "_what")

    def __init__(self, function: Any, arguments: tuple[Any, ...], what: str) -> None:
        self._function, self._arguments, self._what = function, arguments, what

    def __call__(self) -> int:
        """Make the call."""
        return _check(self._function(*self._arguments), self._what)


def syscall_ready(name: str, *arguments: object) -> Call:
    """Return a system call that libc may not know, by its name in syscalls.py. Integers are passed as C longs."""
    longs = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return Call(_libc().syscall, (ctypes.c_long(_number(name)), *longs), name)


def syscall(name: str, *arguments: object) -> int:
    """Make a system call: see `syscall_ready`."""
    return syscall_ready(name, *arguments)()


def prctl_ready(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> Call:
    """Return a call of prctl(2)."""
    return Call(_libc().prctl, (option, *(ctypes.c_ulong(value) for value in (a, b, c, d))), f"prctl {option}")


def prctl(option: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0) -> int:
    """Call prctl(2)."""
    return prctl_ready(option, a, b, c, d)()


def unshare_ready(flags: int) -> Call:
    """Return a call that creates new namespaces for the process that makes it (unshare(2))."""
    return Call(_libc().unshare, (flags,), f"unshare {flags:#x}")


def unshare(flags: int) -> None:
    """Create new namespaces for this process."""
    unshare_ready(flags)()


def mount_ready(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> Call:
    """Return a call of mount(2)."""
    arguments = (
        source.encode(),
        target.encode(),
        kind and kind.encode(),
        ctypes.c_ulong(flags),
        data and data.encode(),
    )
    return Call(_libc().mount, arguments, f"mount {target}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    """Call mount(2)."""
    mount_ready(source, target, kind, flags, data)()


def unmount(target: str) -> None:
    """Detach the mount at `target`."""
    _check(_libc().umount2(target.encode(), MNT_DETACH), f"umount {target}")


def set_mount_attributes(path: str, attributes: int) -> None:
    """Add attributes to a mount and to those below it (mount_setattr(2), Linux 5.12)."""
    setting = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    size = ctypes.sizeof(setting)
    syscall("mount_setattr", AT_FDCWD, ctypes.c_char_p(path.encode()), AT_RECURSIVE, ctypes.byref(setting), size)


def pivot_root(root: str) -> None:
    """Make the mount point `root` the root directory and detach the former one."""
    os.chdir(root)
    syscall("pivot_root", ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    unmount(".")
    os.chdir("/")


def bound_capabilities() -> None:
    """Empty the bounding and the ambient set of this thread and all that it starts; the former only if permitted.

    What the thread holds it keeps.
    """
    for capability in range(64):
        try:
            prctl(PR_CAPBSET_DROP, capability)
        except OSError:
            # EPERM without CAP_SETPCAP, EINVAL past the last capability. In both cases the bounding set has no effect:
            # no_new_privs is set, and execve is not allowed.
            break
    # Linux has an ambient set since 4.3.
    with contextlib.suppress(OSError):
        prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)


def capabilities_ready(bits: int) -> Call:
    """Return the call that reduces a thread's capabilities to these, permitted and effective; none is inheritable.

    The ambient set keeps none that is in no other (capset(2)).
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    sets = (ctypes.c_uint32 * 6)(bits, bits)
    return syscall_ready("capset", ctypes.byref(header), ctypes.byref(sets))


def return_memory() -> None:
    """Give the pages of freed memory back (malloc_trim(3)), so that no fork has to share them. Only glibc can."""
    with contextlib.suppress(AttributeError):
        _libc().malloc_trim(0)


def become_but_for_files(uid: int) -> None:
    """Change from root to `uid` for everything but file access, which stays root's (setfsuid(2)).

    For an interpreter that only root can read: root's files, without root's capabilities. Process limits and the right
    to signal are those of `uid`.
    """
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    prctl(PR_SET_KEEPCAPS, 1)
    os.setresuid(uid, uid, uid)
    capabilities_ready(1 << _CAP_SETUID)()
    _libc().setfsuid(0)
    # setfsuid reports no failure: it returns the previous id.
    if _libc().setfsuid(-1) != 0:
        raise OSError("setfsuid 0 had no effect")
