"""What runs in the processes of the verifier pool: a server that has imported everything, and workers that it forks.

The server is a fresh process, never a fork of the caller, which may hold CUDA, threads and locks. It has one thread,
loads the verifier once, and forks a worker whenever it is asked for one. So a new worker costs milliseconds, not the
imports. Nothing here imports the caller's `__main__`.

A frame is a 4-byte length and a pickle. Requests to the server, and its reports, have fixed sizes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NoReturn

from rlvr.core.tracebacks import describe_raised, raised_at, users_traceback
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import Problem

from .base import OUT_OF_MEMORY, Failure, attempt, make_failure

LENGTH = struct.Struct("!I")
# A request to the server: what to do (SPAWN comes with a socket), and the number of a worker.
REQUEST = struct.Struct("!cq")
SPAWN, KILL = b"s", b"k"
# A worker's first answer, and its last one if it ends by itself.
STARTED, RETIRED = b"started ", b""
# The exit code of a worker that runs out of memory outside the verifier: while it reads or answers an item.
NO_MEMORY = 70
END_SECONDS = 5.0  # the longest wait for the end of a killed worker; one that waits for a disk may take longer
# A report of the server: number and wait status of a worker that has ended.
REPORT = struct.Struct("!qq")

_PR_SET_PDEATHSIG = 1


def frame(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


def split_frames(buffer: bytearray) -> Iterator[bytes]:
    """Remove the complete frames at the start of `buffer` and yield them."""
    start = 0
    while len(buffer) - start >= LENGTH.size:
        end = start + LENGTH.size + LENGTH.unpack_from(buffer, start)[0]
        if len(buffer) < end:
            break
        yield bytes(buffer[start + LENGTH.size : end])
        start = end
    del buffer[:start]


def read_frame(sock: socket.socket) -> bytes | None:
    """Return the next frame of a blocking socket; None at its end."""
    head = read_exactly(sock, LENGTH.size)
    return None if head is None else read_exactly(sock, LENGTH.unpack(head)[0])


def read_exactly(sock: socket.socket, size: int) -> bytes | None:
    """Return `size` bytes of a blocking socket; None if it ends before."""
    data = bytearray()
    while len(data) < size:
        more = sock.recv(min(size - len(data), 1 << 20))
        if not more:
            return None
        data += more
    return bytes(data)


def serve(control: socket.socket, parent: int) -> None:
    """Run the server process until the other end of `control` is closed.

    The first frame is (pickled verifier, bytes of memory for a worker). The answer is a frame: empty if the verifier is
    loaded, otherwise one line about the exception, and below it the traceback.
    """
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what a verifier prints must not mix with the caller's output
    first = read_frame(control)
    if first is None:
        return
    pickled, memory_bytes = pickle.loads(first)
    try:
        verifier = pickle.loads(pickled)
        warm_up = VerifierTraits.of(verifier).warm_up
        if warm_up is not None:
            warm_up()
    except BaseException as error:
        report = f"{describe_raised(error, raised_at(error))}\n{users_traceback(error)}"
        control.sendall(frame(report.encode("utf-8", "replace")))
        return
    gc.collect()
    gc.freeze()
    control.sendall(frame(b""))
    numbers: dict[int, int] = {}  # process id -> number of a worker
    wake = socket.socketpair()
    try:
        # A caller that has just ended does not read reports.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            _supervise(control, verifier, memory_bytes, numbers, parent, wake)
    finally:
        signal.set_wakeup_fd(-1)  # before its socket is closed
        for pid in numbers:
            _kill_group(pid)


def _supervise(
    control: socket.socket,
    verifier: Any,
    memory_bytes: int,
    numbers: dict[int, int],
    parent: int,
    wake: tuple[socket.socket, socket.socket],
) -> None:
    """Fork, kill and reap workers until `control` is closed or SIGTERM comes.

    numbers: maps the process id of each live worker to its number. wake: a pair of sockets; a signal writes to it and
    so ends a wait.
    """
    ends: list[int] = []
    wake_in, wake_out = wake
    wake_out.setblocking(False)
    wake_in.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    signal.set_wakeup_fd(wake_out.fileno(), warn_on_full_buffer=False)
    # From here on SIGTERM instead of SIGKILL, so that this process can still end what the workers have started.
    _die_with(parent, signal.SIGTERM)
    while not ends:
        ready, _, _ = select.select([control, wake_in], [], [])
        if wake_in in ready:
            wake_in.recv(4096)
        _reap(control, numbers)
        if control not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(control, REQUEST.size, 1)
        if not data:
            return
        kind, number = REQUEST.unpack(data)
        if kind == KILL:
            for pid in [pid for pid, other in numbers.items() if other == number]:
                _kill_group(pid)
                _wait_for_end(pid)
        else:
            numbers[_fork(fds[0], verifier, memory_bytes, (control, *wake))] = number


def _fork(fd: int, verifier: Any, memory_bytes: int, inherited: Sequence[socket.socket]) -> int:
    """Fork a worker, give it the socket `fd`, make it lead a process group. Return its process id."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for caught in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(caught, signal.SIG_DFL)
        for sock in inherited:
            sock.close()
        _work_and_exit(socket.socket(fileno=fd), verifier, memory_bytes, server)
    os.close(fd)
    # A group of its own, so that what a verifier starts dies with it. Set on both sides: either may run first.
    with contextlib.suppress(ProcessLookupError):
        os.setpgid(pid, pid)
    return pid


def _reap(control: socket.socket, numbers: dict[int, int]) -> None:
    """Report the workers that have ended, and kill the processes that they have left running."""
    while numbers:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None:
            return
        # Done before the process id is released, so that no other process group can have it.
        _kill_group(ended.si_pid)
        _, status = os.waitpid(ended.si_pid, 0)
        if ended.si_pid in numbers:
            control.sendall(REPORT.pack(numbers.pop(ended.si_pid), status))


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _wait_for_end(pid: int) -> None:
    """Wait until a killed worker has ended, so that the next one finds what it held free; its memory takes a while."""
    deadline = time.monotonic() + END_SECONDS
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None and time.monotonic() < deadline:
        time.sleep(0.001)


def _work_and_exit(sock: socket.socket, verifier: Any, memory_bytes: int, server: int) -> NoReturn:
    code = 1
    try:
        _die_with(server)
        _limit_memory(memory_bytes)
        work(sock, verifier)
        code = 0
    except MemoryError:
        code = NO_MEMORY  # while reading or answering an item, outside the verifier
    finally:
        os._exit(code)


def work(sock: socket.socket, verifier: Callable[[Problem, str], Any]) -> None:
    """Run a worker: verify the items of each frame, and answer each item as soon as it is done.

    A frame is a list of (pickled problem, completion). An answer is (verdict, failure or None, seconds for which this
    process has waited for a processor until now). The first answer is STARTED and the process id. Returns at the end of
    the stream, or after an item that ran out of memory, since the heap may be fragmented then.
    """
    own = os.getpid()
    schedule = open_schedule(own)
    sock.sendall(frame(STARTED + b"%d" % own))
    load_problem = lru_cache(maxsize=256)(pickle.loads)
    sent: set[str] = set()
    while (data := read_frame(sock)) is not None:
        for pickled, completion in pickle.loads(data):
            failure: Failure | None
            try:
                problem = load_problem(pickled)
            # Unpickling runs constructors of a user's types, which may raise anything.
            except Exception as error:
                verdict, failure = make_failure(verifier, error)
            else:
                verdict, failure = attempt(verifier, problem, completion)
            if failure is not None and failure.kind in sent:
                failure = None
            try:
                answer = pickle.dumps((verdict, failure, waited_by(schedule)))
            # Pickling what the verifier put into its verdict may raise anything, too.
            except Exception as error:
                answer = pickle.dumps((*make_failure(verifier, error), waited_by(schedule)))
            if failure is not None:
                sent.add(failure.kind)
            sock.sendall(frame(answer))
            if verdict.reason == OUT_OF_MEMORY:
                sock.sendall(frame(RETIRED))
                return


def seconds_waited(pid: int) -> float:
    """Return for how long a process was ready and had no processor; 0 if the system does not say."""
    schedule = open_schedule(pid)
    try:
        return waited_by(schedule)
    finally:
        if schedule is not None:
            os.close(schedule)


def open_schedule(pid: int) -> int | None:
    """Open the scheduler's statistics of a process (Linux); None if there are none."""
    try:
        return os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def waited_by(schedule: int | None) -> float:
    """Return the seconds for which the process of these statistics was ready and had no processor."""
    try:
        return 0.0 if schedule is None else int(os.pread(schedule, 64, 0).split()[1]) / 1e9
    except (OSError, IndexError):  # the process has ended
        return 0.0


def _limit_memory(memory_bytes: int) -> None:
    """Limit the address space to its present size plus `memory_bytes`. Write no core files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        with open("/proc/self/statm") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
    except FileNotFoundError:
        size = 0
    total = size + memory_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    if hard != resource.RLIM_INFINITY:
        total = min(total, hard)
    resource.setrlimit(resource.RLIMIT_AS, (total, total))


def _die_with(parent: int, number: int = signal.SIGKILL) -> None:
    """Ask the kernel (Linux) to signal this process when the thread that started it ends. Exit if it has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
