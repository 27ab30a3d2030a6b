"""The fork server: a fresh process that forks one child per run, waits for it and kills everything it leaves behind.

The server never holds a program, its input or its output: those pass from the caller to the child in descriptors. At
level 3 it is process 1 of its pid namespace: no child can signal it, and its death ends them all.

The control socket (SOCK_SEQPACKET) carries, to the server, a JSON header with descriptors per run and `K` to kill a
run; from the server, one JSON message after start-up and one per run once all its processes are gone.

A child copies every page that it writes to, and each mapping slows the fork down: so the server imports little, and of
this package only jail, wire and testcode (host.boot_code starts it).
"""

from __future__ import annotations

import _multiprocessing  # type: ignore[import-not-found]
import _socket
import contextlib
import gc
import importlib
import io
import json
import mmap
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any, NoReturn

from . import child, interpreter, kernel, landlock, namespaces, seccomp, shared_memory, syscalls, usage
from .isolation import DEVICES, MAX_FILES, SCRATCH_FILES, Isolation, layers, limit_all, make_place

# The keeper of a fork server without a pid namespace: it ends a run that has lost its server.
#
# At level 3 the kernel ends every process of the namespace together with the server. Otherwise a server that is killed
# leaves the processes that its run has started. The keeper is their ancestor and outlives the server.
# It sleeps until then, kills them, and removes the scratch directory.


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


_MAX_DESCRIPTORS = 8
_LOOK_EVERY, _LOOK_AT_LEAST_EVERY = 0.05, 0.25
KILL = b"K"
# Common imports, preloaded for every child. Not threading and random: their after-fork hooks would double the time of a
# fork.
_COMMON = "bisect collections copy functools heapq itertools math operator re string typing".split()


def main(argument: str) -> NoReturn:
    """Run the server. `argument`: the JSON that client.Server makes, with the control socket's descriptor."""
    setting = json.loads(argument)
    # Process 1 of a pid namespace ignores signals without a handler; Python has one for SIGINT.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    control = _socket.socket(fileno=setting["control"])
    try:
        _oom_first()
        if setting["tests"]:
            # Before a change of the root directory hides it.
            importlib.import_module("rlvr.sandbox.testcode.judge")
        meter = usage.Meter()
        isolation = _enter(setting, control)
        _import_from([*setting["sys_path"], *setting["packages"]], isolation)
        if not isolation.namespaces:
            interpreter.find_in(setting["sys_path"], setting["packages"])
        interpreter.prepare(isolation.scratch)
        _multiprocessing.SemLock = shared_memory.SemLock
        group = Group()
        if not isolation.namespaces:
            leave_behind(group, control.close, lambda: _remove(isolation.scratch))
            kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        shared_memory.install()
        for module in (*_COMMON, *setting["preload"]):
            importlib.import_module(module)
        if "pytest" in setting["preload"]:
            # It imports the rest of itself when it begins.
            with contextlib.redirect_stdout(io.StringIO()):
                sys.modules["pytest"].main(["--version"])
        limit_all()
    except (OSError, ImportError, LookupError) as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        os._exit(1)
    seccomp.build(syscalls.architecture(), None)  # cached here for all children
    if not isolation.namespaces:
        make_place(isolation)
    control.send(json.dumps({"ready": os.getpid()}).encode())
    child.rehearse()
    child.hide_ours()
    gc.collect()
    gc.disable()
    gc.freeze()
    kernel.return_memory()
    # Without a namespace or user of their own, nobody knows which sockets are the run's.
    own = isolation.namespaces or (setting["uid"] is not None and isolation.uid is None)
    meter.begin(counts_sockets=own, uid=None if isolation.namespaces else setting["uid"])
    _serve(control, isolation, meter, group)
    if not isolation.namespaces:
        _remove(isolation.scratch)
    os._exit(0)


def _remove(directory: str) -> None:
    empty_directory(directory)
    os.rmdir(directory)


def _import_from(paths: list[str], isolation: Isolation) -> None:
    """Set the module search path, also of packages already imported, to the locations in the new root."""
    sys.path[:] = paths
    if isolation.namespaces:
        sys.path[:] = [namespaces.place_in_root(path, isolation.scratch) for path in paths]
        for module in list(sys.modules.values()):
            if isinstance(getattr(module, "__path__", None), list):
                module.__path__ = [namespaces.place_in_root(path, isolation.scratch) for path in module.__path__]


def _oom_first() -> None:
    """Make the kernel kill this process before the caller when memory runs out. That needs no privilege."""
    # /proc may be masked; then only the limits protect the caller.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _enter(setting: dict[str, Any], control: _socket.socket) -> Isolation:
    """Isolate this process as far as the level demands and return what is left to its children. Raises OSError."""
    level, uid, scratch = setting["level"], setting["uid"], setting["scratch"]
    version = min(landlock.abi(), setting["landlock_at_most"])
    if level >= 2 and not version:
        raise OSError("Landlock: not in this kernel, or disabled")
    if level == 3:
        pids = _open_last_pid()
        view = namespaces.View(setting["read"], setting["hidden"], setting["packages"], DEVICES)
        namespaces.enter(uid, view, scratch)
        _become_first_process(control)
        return Isolation(True, version, scratch, last_pid=pids)
    root = os.geteuid() == 0 and uid is not None
    readable = interpreter.find_granted_paths(setting["read"], setting["hidden"], setting["packages"])
    if root and _readable_by(uid, [*setting["sys_path"], *setting["packages"]]):
        os.chown(scratch, uid, uid)
        namespaces.become(uid)
        root = False
    ruleset = landlock.Grants(version, readable, [scratch], DEVICES).create() if level == 2 else None
    return Isolation(False, version if level == 2 else 0, scratch, ruleset, uid if root else None)


def _open_last_pid() -> int | None:
    """Open the file that sets the number of a namespace's next process; None where it cannot be written to."""
    try:
        return os.open("/proc/sys/kernel/ns_last_pid", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _become_first_process(control: _socket.socket) -> None:
    """Fork: the child returns as process 1 of the pid namespace; the parent waits for it and exits."""
    pid = os.fork()
    if pid == 0:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        return
    control.close()
    os.waitpid(pid, 0)
    os._exit(0)


def _readable_by(uid: int, paths: list[str]) -> bool:
    """Check whether that user can read the standard library, which may be below /root.

    If not, and without a new root directory, the server stays root and its children change their user for everything
    but file access.
    """
    there = [path for path in paths if os.path.isdir(path)]
    pid = os.fork()
    if pid == 0:
        namespaces.become(uid)
        os._exit(0 if all(os.access(path, os.R_OK | os.X_OK) for path in there) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _serve(control: _socket.socket, isolation: Isolation, meter: usage.Meter, group: Group) -> None:
    while True:
        data, descriptors = _receive(control)
        if not data:
            return
        if data == KILL:
            # Sent while its run was ending.
            continue
        header = json.loads(data)
        prepared = layers(isolation, header)
        pid = os.fork()
        if pid == 0:
            control.close()
            child.run(isolation, prepared, header["mode"], descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if not isolation.namespaces:
            _join_group(pid)
            group.set(pid)
            control.send(json.dumps({"group": pid}).encode())
        reason = _watch(control, pid, header, isolation, meter)
        report = _end(pid, isolation)
        if not isolation.namespaces:
            group.set(0)
        if reason == "gone":
            return
        _forget(isolation)
        control.send(json.dumps({**report, "reason": reason}).encode())


def _forget(isolation: Isolation) -> None:
    """Remove what would tell the next run of this one: files, the state of their directory, process numbers counted."""
    if not isolation.namespaces:
        empty_directory(isolation.scratch)
        make_place(isolation)
    elif isolation.last_pid is not None:
        # Refused without the rights over this namespace; then only the numbers tell how many processes there were.
        with contextlib.suppress(OSError):
            os.pwrite(isolation.last_pid, b"1", 0)


def _receive(control: _socket.socket) -> tuple[bytes, list[int]]:
    data, rights, _, _ = control.recvmsg(1 << 16, _socket.CMSG_LEN(4 * _MAX_DESCRIPTORS))
    descriptors: list[int] = []
    for _, _, packed in rights:
        descriptors += struct.unpack(f"{len(packed) // 4}i", packed)
    return data, descriptors


def _join_group(pid: int) -> None:
    """Put the child into its process group. It does so itself too: either may come first."""
    # It may have ended or done so already.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def _watch(control: _socket.socket, pid: int, header: dict[str, Any], isolation: Isolation, meter: usage.Meter) -> str:
    """Wait until a run is over. Returns why: "ended", "timeout", "killed", "gone" (caller ended), or `_exceeded`."""
    begun, delayed = time.monotonic(), meter.delay()
    deadline = begun + header["seconds"]
    pause = _LOOK_EVERY
    had_room = _has_room(isolation)
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(control, select.POLLIN)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                left = _time_left(header, meter, begun, delayed)
                deadline = time.monotonic() + left
            # On a busy machine this process may come here long after the run has ended: so it looks before it judges.
            ready = dict(poll.poll(min(left, pause) * 1000 + 1 if left > 0 else 0))
            if control.fileno() in ready:
                return "killed" if control.recv(1 << 16) == KILL else "gone"
            if handle in ready:
                return "ended"
            if left <= 0:
                return "timeout"
            start = time.monotonic()
            exceeded = _find_exceeded_limit(header, isolation, meter)
            if exceeded:
                return exceeded
            if had_room and not _has_room(isolation):
                return "scratch"
            # Many processes on the machine make the measurement slow.
            pause = min(max(_LOOK_EVERY, 10 * (time.monotonic() - start)), _LOOK_AT_LEAST_EVERY)
    finally:
        os.close(handle)


def _time_left(header: dict[str, Any], meter: usage.Meter, begun: float, delayed: float) -> float:
    """Return the seconds that a run still has when its limit has passed by the clock; 0 on a machine that is free.

    Time in which the run was ready but had no processor does not count, nor does time that this process has waited for
    a processor since `begun`; `delayed` is what it had waited before that.
    """
    elapsed, load = time.monotonic() - begun, meter.load()
    own = max(elapsed - max(load.delayed, meter.delay() - delayed) - header["waits"], load.cpu)
    left = header["seconds"] - own
    if left <= 0 and load.cpu < header["seconds"] and elapsed < header["wall"] and meter.is_starved():
        left = _LOOK_EVERY
    if header["waits"] and left > 0:
        # What is left of its processor time says nothing of when it will use it.
        left = max(left, _LOOK_EVERY)
    return min(left, header["wall"] - elapsed)


def _find_exceeded_limit(header: dict[str, Any], isolation: Isolation, meter: usage.Meter) -> str:
    """Return which limit a run exceeds with all its processes together: "memory", "processes", "scratch" or none."""
    most = header["together_mb"] << 20
    use = meter.use(most)
    if use.memory > most:
        return "memory"
    if header["tasks"] and use.tasks > header["tasks"]:
        return "processes"
    # A tmpfs has a size limit; a directory has to be measured.
    if not isolation.namespaces and _overfull(isolation.scratch, SCRATCH_FILES * header["file_mb"] << 20):
        return "scratch"
    return ""


def _has_room(isolation: Isolation) -> bool:
    """Whether a twentieth of the scratch directory's file system is free.

    Without a mount of its own a run can hold files that it has deleted, which no directory shows.
    """
    if isolation.namespaces:
        return True
    found = os.statvfs(isolation.scratch)
    return found.f_bavail * 20 >= found.f_blocks


def _overfull(directory: str, most: int) -> bool:
    """Check whether the files below a directory exceed `most` bytes, or cannot be measured: too many or too deep."""
    size = seen = 0
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if size > most or seen > MAX_FILES:
                        return True
        except FileNotFoundError:
            # The program has just removed it.
            continue
        except OSError:
            return True
    return False


def _end(pid: int, isolation: Isolation) -> dict[str, Any]:
    """Kill and reap every process of the run. None can leave the group: setsid and setpgid have no effect."""
    # Perhaps only zombies are left.
    with contextlib.suppress(ProcessLookupError):
        if isolation.namespaces:
            os.kill(-1, signal.SIGKILL)
        else:
            os.killpg(pid, signal.SIGKILL)
    status, cpu = 0, 0.0
    while True:
        try:
            ended, code, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return {"exit": os.waitstatus_to_exitcode(status), "cpu": cpu}
        cpu += usage.ru_utime + usage.ru_stime
        if ended == pid:
            status = code


def empty_directory(directory: str) -> None:
    """Delete the contents of a directory at any depth and with any modes. No process may be using it."""
    here = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    path: list[str] = []
    left = [_unlink_files(here)]
    while left:
        if left[-1]:
            path.append(left[-1].pop())
            os.chmod(path[-1], 0o700, dir_fd=here)
            here = _step(here, path[-1])
            left.append(_unlink_files(here))
        else:
            left.pop()
            if path:
                here = _step(here, "..")
                os.rmdir(path.pop(), dir_fd=here)
    os.close(here)


def _step(directory: int, name: str) -> int:
    following = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
    os.close(directory)
    return following


def _unlink_files(directory: int) -> list[str]:
    """Delete files and empty directories in a directory. Returns the names of the other directories."""
    found = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=directory)
                continue
            try:
                os.rmdir(entry.name, dir_fd=directory)
            except OSError:
                found.append(entry.name)
    return found
