"""Root directory and namespaces of a fork server (namespaces(7), user_namespaces(7), pivot_root(2)).

A server builds its root once: an empty tmpfs with bind mounts of the interpreter, its libraries and four devices. Each
run then mounts a scratch directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from . import kernel

_ALL = (
    kernel.CLONE_NEWUSER
    | kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
)
_MS_REMOUNT = 32
# In the new root: prefix of paths that are below the scratch directory's path outside.
_MOVED = "/environment"
# The new root is assembled on a directory that contains none of the paths; every Linux has /sys.
_MOUNT_POINTS = ("/sys", "/mnt", "/srv", "/media", "/tmp")


class View(NamedTuple):
    """What of the file system a program sees: `read`, but for `hidden`, the packages {directory: names}, `devices`."""

    read: Sequence[str]
    hidden: Sequence[str]
    packages: Mapping[str, Sequence[str]]
    devices: Sequence[str]


def enter(uid: int | None, view: View, scratch: str) -> None:
    """Give this process and its future children a new root directory and namespaces. Raises OSError if refused.

    Root changes to `uid` (None: no other is mapped) in between: first it builds the root directory, so that an
    interpreter below /root can be bound; the namespaces are then those of an ordinary user.
    """
    process = os.open("/proc/self", os.O_RDONLY | os.O_DIRECTORY)
    try:
        if os.geteuid() == 0 and _own_mounts():
            _build_root(view, scratch)
            become(uid)
            _new_user_namespace(process)
        else:
            become(uid)
            _new_user_namespace(process)
            _build_root(view, scratch)
    finally:
        os.close(process)


def place_in_root(path: str, scratch: str) -> str:
    """Return a caller's path as it is in the new root.

    It is the same, except below the scratch directory (a virtual environment in /tmp), where each run mounts an empty
    directory that would hide it.
    """
    return _MOVED + path if _within(path, scratch) else path


def _own_mounts() -> bool:
    """Unshare the mount namespace. Returns False for root without CAP_SYS_ADMIN, as in a container."""
    try:
        kernel.unshare(kernel.CLONE_NEWNS)
    except PermissionError:
        return False
    return True


def become(uid: int | None) -> None:
    """Change irrevocably to an unprivileged user and group id. Does nothing unless root, or if `uid` is None."""
    if os.geteuid() != 0 or uid is None:
        return
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # After a change of ids /proc/self belongs to root unless dumpable, and the id maps are written there.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)


def _new_user_namespace(process: int) -> None:
    """Enter new namespaces of all kinds. User and group keep their ids; no others are mapped."""
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(_ALL)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(name, os.O_WRONLY, dir_fd=process)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _build_root(view: View, scratch: str) -> None:
    paths = [*view.read, *view.devices, *view.packages]
    base = next(point for point in _MOUNT_POINTS if not any(_within(path, point) for path in paths))
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    bound = kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV
    for path in view.read:
        _bind(path, base + place_in_root(path, scratch), bound)
    covers = [base + place_in_root(path, scratch) for path in view.hidden]
    for cover in covers:
        kernel.mount("tmpfs", cover, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=0755")
    for site, names in view.packages.items():
        for name in names:
            _bind(os.path.realpath(os.path.join(site, name)), base + place_in_root(f"{site}/{name}", scratch), bound)
    for path in view.devices:
        _bind(path, base + path, kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID)
    os.makedirs(base + scratch, exist_ok=True)
    _keep_from_listing(base, [place_in_root(path, scratch) for path in paths])
    kernel.pivot_root(base)
    for cover in ("/", *(cover.removeprefix(base) for cover in covers)):
        flags = _MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("none", cover, None, flags)


def _keep_from_listing(base: str, paths: Iterable[str]) -> None:
    """Let programs pass through directories on the way to what they see, and not list them: their names are ours."""
    device = os.stat(base).st_dev
    for directory in {parent for path in paths for parent in _parents(path)}:
        if os.stat(base + directory).st_dev == device:
            os.chmod(base + directory, 0o111)


def _parents(path: str) -> Iterator[str]:
    while path != "/":
        path = os.path.dirname(path)
        yield path


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
