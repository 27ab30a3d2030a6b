"""The layers of isolation of one run: prepared by the server, applied by the child.

A child copies every page of memory that it writes to, and Python writes to all that it looks at: what can be looked up
and built before the fork is.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from . import kernel, landlock, seccomp, syscalls

# Devices that a program may open. Not /dev/zero: mapped, it is shared memory that no limit counts.
DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
# The original: the program's raises no error where a limit cannot be set.
_setrlimit = resource.setrlimit
_STACK = 64 << 20  # bytes, the limit of the stack
_SIGNALS = 128  # queued, of all processes of the user
# The scratch directory holds this many files of maximum size, and this many files in all.
SCRATCH_FILES, MAX_FILES = 4, 4096


class Isolation(NamedTuple):
    """Isolation layers that a server determined once and each of its children applies.

    `landlock`: ABI version, 0 for none. `scratch`: directory that the program may write to. `ruleset`: descriptor of a
    prepared Landlock ruleset, or None. `uid`: user to become if the server had to stay root, else None. `last_pid`:
    descriptor that sets process numbers, or None.
    """

    namespaces: bool
    landlock: int
    scratch: str
    ruleset: int | None = None
    uid: int | None = None
    last_pid: int | None = None

    @property
    def place(self) -> str:
        """The directory in which a program starts. Without a mount for each run, it is made for each run."""
        return self.scratch if self.namespaces else os.path.join(self.scratch, "run")


def make_place(isolation: Isolation) -> None:
    """Make the directory of the next run, whose dates and size tell nothing of the one before."""
    os.mkdir(isolation.place, 0o700)


def limit_all() -> None:
    """Apply to this process, and so to all that it starts, what is the same for every run.

    Five limits, an empty bounding set, and no_new_privs, without which Landlock and seccomp refuse.
    """
    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_STACK, _STACK),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
    ):
        _setrlimit(what, _possible(what, value))
    kernel.bound_capabilities()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)


def _possible(what: int, value: int) -> tuple[int, int]:
    """Return soft and hard limit: `value`, or the present hard limit where that is lower."""
    hard = resource.getrlimit(what)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    return value, value


class Layers:
    """What a child applies to itself, for runs with the same limits."""

    def __init__(self, isolation: Isolation, seconds: float, memory_mb: int, processes: int, files: int, file_mb: int):
        place = isolation.place
        # Without a pid namespace the server ends a run by its process group, and may have made it already. A session of
        # its own is better: the scheduler's autogroup then gives all processes of a run together one share of the
        # processors, so that a fork bomb does not starve the server and the other runs.
        self._steps: list[Callable[[], object]] = [os.setsid if isolation.namespaces else partial(os.setpgid, 0, 0)]
        if isolation.namespaces:
            flags, size = kernel.MS_NOSUID | kernel.MS_NODEV, f"size={SCRATCH_FILES * file_mb}m,nr_inodes={MAX_FILES}"
            self._steps.append(kernel.unshare_ready(kernel.CLONE_NEWNS))
            self._steps.append(kernel.mount_ready("tmpfs", place, "tmpfs", flags, f"{size},mode=0700"))
        self._steps.append(partial(os.chdir, place))
        for what, value in (
            (resource.RLIMIT_AS, memory_mb << 20),
            (resource.RLIMIT_CPU, int(seconds) + 2),
            (resource.RLIMIT_NPROC, processes),
            (resource.RLIMIT_NOFILE, files),
            (resource.RLIMIT_FSIZE, file_mb << 20),
        ):
            self._steps.append(partial(_setrlimit, what, _possible(what, value)))
        if isolation.uid is not None:
            self._steps.append(partial(kernel.become_but_for_files, isolation.uid))
        self._steps.append(kernel.capabilities_ready(0))
        # Set last of these: the kernel resets both where ids or capabilities change.
        self._steps.append(kernel.prctl_ready(kernel.PR_SET_PDEATHSIG, signal.SIGKILL))
        self._steps.append(kernel.prctl_ready(kernel.PR_SET_DUMPABLE, 0))
        if isolation.landlock and isolation.namespaces:
            # Made by each child, whose scratch directory is a new mount.
            self._steps.append(landlock.Grants(isolation.landlock, ["/"], [isolation.scratch], DEVICES).restrict)
        free_signals = isolation.namespaces or isolation.landlock >= 6
        self._last = _filter(None) if free_signals else _filter_of_own_pid

    def apply(self, ruleset: int | None) -> None:
        """Isolate this process. `ruleset`: descriptor of a Landlock ruleset that the server has made, if it has.

        Raises OSError where a layer is refused.
        """
        for step in self._steps:
            step()
        if ruleset is not None:
            landlock.restrict(ruleset)
        self._last()


def _filter(own_pid: int | None) -> Callable[[], object]:
    return seccomp.install_ready(seccomp.build(syscalls.architecture(), own_pid))


def _filter_of_own_pid() -> None:
    _filter(os.getpid())()


@lru_cache(maxsize=8)
def _layers(isolation: Isolation, *limits: Any) -> Layers:
    return Layers(isolation, *limits)


def layers(isolation: Isolation, header: dict[str, Any]) -> Layers:
    """Return what a run with the limits in `header` needs."""
    return _layers(isolation, *(header[name] for name in ("seconds", "memory_mb", "processes", "files", "file_mb")))
