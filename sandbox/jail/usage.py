"""What the processes of a run use together, as /proc tells it: tasks, memory and processor time.

Limits of the kernel hold for each process. The server sums them, and ends a run that uses too much.
"""

from __future__ import annotations

import _socket
import contextlib
import os
import resource
import struct
import time
from collections.abc import Iterator
from typing import NamedTuple

# Memory that the kernel keeps for what local sockets hold: no process is charged for it.

_NETLINK_SOCK_DIAG, _BY_FAMILY, _REQUEST_DUMP = 4, 20, 0x301
_DONE, _ERROR = 3, 2
_AF_UNIX = 1
# Netlink attributes of a socket: its peer, the bytes that can be read, its memory, its user. 0x74 asks for these four.
_PEER, _QUEUE, _MEMORY, _USER = 2, 4, 5, 7
_SENT = 2  # index of the bytes sent and not read, in the answer about memory
_HEADER, _ABOUT = struct.Struct("=IHHII"), struct.Struct("=HH")
_REQUEST = struct.pack("=BBHIIIII", _AF_UNIX, 0, 0, 0xFFFFFFFF, 0, 0x74, 0xFFFFFFFF, 0xFFFFFFFF)
# What is left of a closed socket is charged to nobody: at most this, with the largest buffer that can be asked for.
_LEFT_BEHIND = 2 * 212_992


class Sockets:
    """The local sockets of this network namespace, or of one user in it. Raises OSError if the kernel tells nothing."""

    def __init__(self, uid: int | None) -> None:
        self.uid = uid
        self._link = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW | _socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG)
        self._link.settimeout(1.0)
        self.memory()

    def memory(self) -> int:
        """Return the bytes that are kept for what was sent and not read."""
        return sum(
            _count_socket_memory(about)
            for about in self._all()
            if self.uid is None or about.get(_USER, (0,))[0] == self.uid
        )

    def _all(self) -> Iterator[dict[int, tuple[int, ...]]]:
        self._link.send(_HEADER.pack(_HEADER.size + len(_REQUEST), _BY_FAMILY, _REQUEST_DUMP, 0, 0) + _REQUEST)
        while True:
            data = self._link.recv(1 << 16)
            start = 0
            while start < len(data):
                size, kind, *_ = _HEADER.unpack_from(data, start)
                if kind == _DONE:
                    return
                if kind == _ERROR:
                    raise OSError("the kernel tells nothing of sockets")
                # A struct of 16 bytes comes before what is told.
                yield dict(_read_attributes(data, start + _HEADER.size + 16, start + size))
                start += (size + 3) & ~3


def _read_attributes(data: bytes, start: int, end: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    while start < end:
        size, kind = _ABOUT.unpack_from(data, start)
        numbers = (size - _ABOUT.size) // 4
        yield kind, struct.unpack_from(f"={numbers}I", data, start + _ABOUT.size)
        start += (size + 3) & ~3


def _count_socket_memory(about: dict[int, tuple[int, ...]]) -> int:
    orphaned = not about.get(_PEER, (0,))[0] and about.get(_QUEUE, (0,))[0] > 0
    return about.get(_MEMORY, (0,) * 9)[_SENT] + (_LEFT_BEHIND if orphaned else 0)


_PAGE = resource.getpagesize()
_MOMENT = 0.01  # seconds in which a process that has a processor is seen to run
_TICKS = os.sysconf("SC_CLK_TCK")  # of the processor times, in a second


class Use(NamedTuple):
    """Tasks, and bytes of memory, of all processes of a run."""

    tasks: int
    memory: int


class Load(NamedTuple):
    """Seconds for which a process of a run was ready and waited for a processor, and those that all have computed."""

    delayed: float
    cpu: float


class _Process(NamedTuple):
    pid: int
    parent: int
    tasks: int
    resident: int  # bytes
    cpu: float = 0.0  # seconds, with those of its children that have ended
    ready: bool = False  # it runs, or waits for a processor
    shown: str = ""  # the folder of /proc that shows its memory


class Meter:
    """Reads the use of the descendants of this process.

    Make it before a change of the root directory hides /proc, and `begin` it in the process that forks.
    """

    def __init__(self) -> None:
        self._processes: int | None = None
        # /proc may be masked; then only the limits of each process hold.
        with contextlib.suppress(OSError):
            self._processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._own = _Process(0, 0, 0, 0)
        self._sockets: Sockets | None = None

    def begin(self, *, counts_sockets: bool, uid: int | None) -> None:
        """Measure the descendants of this process from now on, without the memory that it holds itself now.

        With `counts_sockets` the memory of sockets counts too: of those of user `uid`, or, if that is None, of all in
        this network namespace.
        """
        if counts_sockets:
            with contextlib.suppress(OSError):
                self._sockets = Sockets(uid)
        own = None
        if self._processes is not None:
            with contextlib.suppress(OSError):
                own = self._process(os.readlink("self", dir_fd=self._processes))
        if own is None:
            self._processes = None
        else:
            self._own = own

    def use(self, most: int) -> Use:
        """Return what all descendants use. Above `most` bytes, pages of files such as libraries are left out.

        Memory that processes share after a fork counts for each: their shares cannot be read.
        """
        found = self._descendants()
        tasks = sum(process.tasks for process in found)
        resident = sum(max(process.resident - self._own.resident, 0) for process in found)
        if resident > most:
            resident = sum(self._own_pages(process) for process in found)
        kept = 0
        if self._sockets is not None:
            # The kernel may be short of memory for its answer.
            with contextlib.suppress(OSError):
                kept = self._sockets.memory()
        return Use(tasks, resident + kept)

    def load(self) -> Load:
        """Return the load of all descendants; zeros without /proc or the scheduler's statistics."""
        found = self._descendants()
        delayed = max((self._delay(process) for process in found), default=0.0)
        return Load(delayed, sum(process.cpu for process in found))

    def delay(self) -> float:
        """Return the seconds for which this process was ready and waited for a processor; 0 where nothing tells."""
        return self._delay(self._own) if self._processes is not None else 0.0

    def is_starved(self) -> bool:
        """Whether a process is ready and gets no processor now. `delayed` counts such a wait only when it is over."""
        ready = [(process, self._read_schedule(process)) for process in self._descendants() if process.ready]
        if ready:
            time.sleep(_MOMENT)
        return any(ran is not None and self._read_schedule(process) == ran for process, ran in ready)

    def _delay(self, process: _Process) -> float:
        scheduled = self._read_schedule(process)
        return 0.0 if scheduled is None else scheduled[1] / 1e9

    def _read_schedule(self, process: _Process) -> tuple[int, int] | None:
        """Return the nanoseconds that a process had a processor, and that it was ready and waited for one."""
        # It has ended; and kernels without statistics of their scheduler have no such file.
        with contextlib.suppress(OSError, IndexError):
            ran, waited, *_ = self._read(f"{process.pid}/schedstat").split()
            return int(ran), int(waited)
        return None

    def _descendants(self) -> list[_Process]:
        if self._processes is None:
            return []
        children: dict[int, list[_Process]] = {}
        for name in os.listdir(self._processes):
            if name.isdigit() and (process := self._process(name)) is not None:
                children.setdefault(process.parent, []).append(process)
        found: list[_Process] = []
        waiting = [self._own.pid]
        while waiting:
            below = children.pop(waiting.pop(), [])
            found += below
            waiting += [process.pid for process in below]
        return found

    def _read(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._processes)
        try:
            return os.read(descriptor, 1 << 14)
        finally:
            os.close(descriptor)

    def _process(self, name: str) -> _Process | None:
        """Return a process, None where it has ended."""
        fields = self._fields(name)
        if fields is None:
            return None
        tasks, resident, shown = int(fields[17]), int(fields[21]), name
        if fields[0] == b"Z" and tasks > 1:
            # Its first thread has ended, and shows no memory any more; the others do.
            resident, shown = max(self._threads(name), default=(resident, shown))
        cpu = sum(map(int, fields[11:15])) / _TICKS
        return _Process(int(name), int(fields[1]), tasks, resident * _PAGE, cpu, fields[0] == b"R", shown)

    def _fields(self, shown: str) -> list[bytes] | None:
        """Return what `stat` holds behind the name in brackets, which may hold anything; None where it has ended."""
        with contextlib.suppress(OSError):
            return self._read(f"{shown}/stat").rpartition(b")")[2].split()
        return None

    def _threads(self, name: str) -> Iterator[tuple[int, str]]:
        """Yield the pages that each thread of a process shows, and its folder."""
        with contextlib.suppress(OSError):
            folder = os.open(f"{name}/task", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._processes)
            try:
                threads = os.listdir(folder)
            finally:
                os.close(folder)
            for thread in threads:
                shown = f"{name}/task/{thread}"
                if (fields := self._fields(shown)) is not None:
                    yield int(fields[21]), shown

    def _own_pages(self, process: _Process) -> int:
        """Return the bytes that a process has in memory without files, or swapped out; 0 where it has ended."""
        with contextlib.suppress(OSError):
            held = _bytes(self._read(f"{process.shown}/status"), b"RssAnon:", b"RssShmem:", b"VmSwap:")
            return max(held - self._own.resident, 0)
        return 0


def _bytes(text: bytes, *names: bytes) -> int:
    """Return the sum of the lines with these names, which are in kB."""
    rows = (line.split() for line in text.splitlines())
    return sum(int(row[1]) << 10 for row in rows if row and row[0] in names)
