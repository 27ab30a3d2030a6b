"""The root directory and the namespaces of a fork server (namespaces(7), user_namespaces(7), pivot_root(2)).

A server builds a root of its own once: an empty tmpfs with the interpreter, its libraries and four devices bound
into it. Each run then mounts its own scratch directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rlvr.sandbox.inside import kernel

_ALL = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)
_MS_REMOUNT = 32
# Where an environment stands in the new root that lies in the scratch directory's place outside it.
_MOVED = "/environment"
# The new root is put together on a directory that none of the paths lies in; /sys is there on every Linux.
_MOUNT_POINTS = ("/sys", "/mnt", "/srv", "/media", "/tmp")


def enter(uid: int | None, read: Iterable[str], devices: Iterable[str], scratch: str) -> None:
    """Give this process, and the children it forks from now on, their own root and namespaces. OSError where refused.

    As root the user id `uid` (None: there is no other) is taken in between: the root directory is built first, so that
    an interpreter below /root can be read, and the namespaces are then those of an ordinary user.
    """
    process = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.geteuid() == 0 and _own_mounts():
            _build_root(read, devices, scratch)
            become(uid)
            _new_user_namespace(process)
        else:
            become(uid)
            _new_user_namespace(process)
            _build_root(read, devices, scratch)
    finally:
        os.close(process)


def placed(path: str, scratch: str) -> str:
    """Where a path of the caller's stands in the new root.

    Its own place, but for what lies below the scratch directory (a virtual environment in /tmp): each run mounts an
    empty one there, which would hide it.
    """
    return _MOVED + path if _within(path, scratch) else path


def _own_mounts() -> bool:
    """Root in a container without CAP_SYS_ADMIN may not have them."""
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
    except PermissionError:
        return False
    return True


def become(uid: int | None) -> None:
    """Take an unprivileged user and group id for good, where this process is root and there is one."""
    if os.geteuid() != 0 or uid is None:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # A change of ids makes /proc/self belong to root, and the id maps are written there.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def _new_user_namespace(process: int) -> None:
    """With the others; the user and group keep their numbers in it, and no others exist."""
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(_ALL)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(name, os.O_WRONLY, dir_fd=process)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _build_root(read: Iterable[str], devices: Iterable[str], scratch: str) -> None:
    paths = [*read, *devices]
    base = next(point for point in _MOUNT_POINTS if not any(_within(path, point) for path in paths))
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    for path in read:
        attributes = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
        _bind(path, base + placed(path, scratch), attributes)
    for path in devices:
        _bind(path, base + path, kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)
    os.makedirs(base + scratch, exist_ok=True)
    kernel.pivot_root(base)
    flags = _MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, flags)


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + "/")


def _bind(path: str, target: str, attributes: int) -> None:
    if not os.path.lexists(path):
        return
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        if not os.path.lexists(target):
            os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
    kernel.mount(path, target, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.set_mount_attributes(target, attributes)
