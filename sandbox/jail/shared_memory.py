"""The parts of `multiprocessing` that need sockets with a name, other programs or /dev/shm, without them.

New processes are forked, whatever the start method; managers are reached over pairs of sockets that exist before the
processes do. Each function changes one module of the standard library after its import.
"""

from __future__ import annotations

import _thread
import contextlib
import fcntl
import itertools
import mmap
import os
import select
import struct
import time
from collections.abc import Callable
from typing import Any

# Connections to one listener at a time; a client beyond them waits. Each takes two descriptors.
_ROOM = 10
_START = b"\0start of the connection\0"
_END = b"\0end of the connection\0"
_listeners: dict[str, _Exchange] = {}
_numbers = itertools.count()


class _Exchange:
    """Pairs of sockets between a listener and clients that are forked later; a pipe holds the numbers of free pairs."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.address = f"exchange-{os.getpid()}-{next(_numbers)}"
        pairs = [connection.Pipe(duplex=True) for _ in range(_ROOM)]
        self.server_ends = [pair[0] for pair in pairs]
        self.client_ends = [pair[1] for pair in pairs]
        self.free, self.give_back = os.pipe()
        os.write(self.give_back, bytes(range(_ROOM)))
        _listeners[self.address] = self


class _Session:
    """One connection over a pair that serves others later: its end is a message."""

    def __init__(self, end: Any, closed: Callable[[bool], None]) -> None:
        self._end = end
        self._closed = closed
        self.closed = False

    def send_bytes(self, data: Any, *args: Any) -> None:
        """Send one message."""
        self._check()
        self._end.send_bytes(data, *args)

    def recv_bytes(self, most: int | None = None) -> bytes:
        """Receive one message. Raise EOFError once the other side has closed."""
        self._check()
        data: bytes = self._end.recv_bytes(most)
        if data == _END:
            self.closed = True
            self._closed(True)
            raise EOFError
        return data

    def send(self, value: Any) -> None:
        """Send one object."""
        from multiprocessing.reduction import ForkingPickler

        self.send_bytes(ForkingPickler.dumps(value))

    def recv(self) -> Any:
        """Receive one object."""
        import pickle

        return pickle.loads(self.recv_bytes())

    def poll(self, timeout: float | None = 0.0) -> bool:
        """Check whether there is a message."""
        return bool(self._end.poll(timeout))

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return int(self._end.fileno())

    def close(self) -> None:
        """End the connection."""
        if not self.closed:
            self.closed = True
            self._closed(False)

    def _check(self) -> None:
        if self.closed:
            raise OSError("handle is closed")

    def __enter__(self) -> _Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Listener:
    """In place of `multiprocessing.connection.Listener`."""

    def __init__(
        self, address: Any = None, family: str | None = None, backlog: int = 1, authkey: bytes | None = None
    ) -> None:
        from multiprocessing import connection

        self._exchange = _listeners.get(address) or _Exchange(connection)
        self._authkey = authkey
        self.address = self._exchange.address
        self.last_accepted = None
        # Pairs without a session, and those whose clients have not yet sent the end of theirs.
        self._idle = set(range(_ROOM))
        self._draining: set[int] = set()
        self._lock = _thread.allocate_lock()
        self._woken, self._wake = os.pipe()

    def accept(self) -> _Session:
        """Wait for a client."""
        connection, ends = self._exchange.connection, self._exchange.server_ends
        while True:
            with self._lock:
                watched = {ends[number].fileno(): number for number in self._idle | self._draining}
            for ready in connection.wait([*watched, self._woken]):
                if ready == self._woken:
                    os.read(self._woken, 1)
                    continue
                number = watched[ready]
                if number in self._draining:
                    if ends[number].recv_bytes() == _END:
                        with self._lock:
                            self._draining.discard(number)
                            self._idle.add(number)
                    continue
                ends[number].recv_bytes()
                with self._lock:
                    self._idle.discard(number)
                return self._welcome(_Session(ends[number], lambda ended, number=number: self._over(number, ended)))  # type: ignore[misc]

    def _welcome(self, session: _Session) -> _Session:
        if self._authkey is not None:
            self._exchange.connection.deliver_challenge(session, self._authkey)
            self._exchange.connection.answer_challenge(session, self._authkey)
        return session

    def _over(self, number: int, ended: bool) -> None:
        with self._lock:
            (self._idle if ended else self._draining).add(number)
        os.write(self._wake, b"x")

    def close(self) -> None:
        """Accept no more clients."""

    def __enter__(self) -> _Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _client(address: Any, family: str | None = None, authkey: bytes | None = None) -> _Session:
    """In place of `multiprocessing.connection.Client`."""
    from multiprocessing import util

    exchange = _listeners.get(address)
    if exchange is None:
        raise ConnectionRefusedError(f"no listener at {address!r} when this process was forked")
    number = os.read(exchange.free, 1)[0]
    end = exchange.client_ends[number]
    end.send_bytes(_START)

    def announce_end(_: bool) -> None:
        end.send_bytes(_END)
        os.write(exchange.give_back, bytes([number]))

    session = _Session(end, announce_end)
    session._closed = util.Finalize(session, announce_end, args=(False,), exitpriority=0).__call__
    session._closed = lambda _, finalizer=session._closed: finalizer()  # type: ignore[misc]
    if authkey is not None:
        exchange.connection.answer_challenge(session, authkey)
        exchange.connection.deliver_challenge(session, authkey)
    return session


def _without_named_sockets(connection: Any) -> None:
    connection.Listener, connection.Client = _Listener, _client


def _managers_known_before_forks(managers: Any) -> None:
    """Make a manager's exchange in the process that creates it, so that its later children have it too."""
    original = managers.BaseManager.__init__

    def init(self: Any, address: Any = None, *args: Any, **kwargs: Any) -> None:
        from multiprocessing import connection

        original(self, _Exchange(connection).address if address is None else address, *args, **kwargs)

    managers.BaseManager.__init__ = init


def _fork_instead(module: Any) -> None:
    """Start processes of other start methods by a fork: no program can be executed."""
    from multiprocessing import popen_fork

    class Popen(popen_fork.Popen):
        method = module.Popen.method

    module.Popen = Popen


def _no_tracker(tracker: Any) -> None:
    """Track nothing: what a run leaves is deleted."""
    for name in ("register", "unregister", "ensure_running"):
        setattr(tracker, name, lambda *_: None)


def _no_server(forkserver: Any) -> None:
    forkserver.ensure_running = lambda: None


def _arenas_in_scratch(heap: Any) -> None:
    """Put shared values into files of the scratch directory."""
    heap.Arena._dir_candidates = []


def _memory_in_scratch(shared_memory: Any) -> None:
    """Make named shared memory files of the scratch directory."""
    scratch = os.getcwd()

    class Files:
        @staticmethod
        def shm_open(name: str, flags: int, mode: int = 0o600) -> int:
            return os.open(os.path.join(scratch, ".shm-" + name.strip("/")), flags, mode)

        @staticmethod
        def shm_unlink(name: str) -> None:
            os.unlink(os.path.join(scratch, ".shm-" + name.strip("/")))

    shared_memory._posixshmem = Files


PATCHES: dict[str, Callable[[Any], None]] = {
    "multiprocessing.connection": _without_named_sockets,
    "multiprocessing.managers": _managers_known_before_forks,
    "multiprocessing.popen_spawn_posix": _fork_instead,
    "multiprocessing.popen_forkserver": _fork_instead,
    "multiprocessing.forkserver": _no_server,
    "multiprocessing.resource_tracker": _no_tracker,
    "multiprocessing.heap": _arenas_in_scratch,
    "multiprocessing.shared_memory": _memory_in_scratch,
}


# Semaphore for `multiprocessing` without /dev/shm, where POSIX semaphores are files that all runs would share.
#
# It replaces `_multiprocessing.SemLock` in a sandboxed program. Its value is the number of bytes in a pipe.

_RECURSIVE = 0
_FIONREAD = 0x541B


class SemLock:
    """The part of `_multiprocessing.SemLock` that `multiprocessing.synchronize` uses, for forked processes."""

    # A pipe holds 65,536 bytes.
    SEM_VALUE_MAX = 32767
    name = None

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        self.kind, self.maxvalue = kind, maxvalue
        self.handle, self._write = os.pipe()
        os.set_blocking(self.handle, False)
        self._held = 0
        self._owner = 0
        os.write(self._write, b"x" * value)

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Decrement the value. Returns False if that is not possible in time."""
        if self.kind == _RECURSIVE and self._is_mine():
            self._held += 1
            return True
        deadline = None if timeout is None else time.monotonic() + max(timeout, 0)
        while not self._take():
            left = None if deadline is None else deadline - time.monotonic()
            if not block or (left is not None and left <= 0):
                return False
            select.select([self.handle], [], [], left)
        self._held += 1
        self._owner = _thread.get_ident()
        return True

    def _take(self) -> bool:
        try:
            return bool(os.read(self.handle, 1))
        except BlockingIOError:
            return False

    def release(self) -> None:
        """Increment the value. Raises AssertionError or ValueError like the original."""
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        self._held -= 1
        os.write(self._write, b"x")

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == _thread.get_ident()

    def _count(self) -> int:
        return self._held

    def _get_value(self) -> int:
        waiting: int = struct.unpack("i", fcntl.ioctl(self.handle, _FIONREAD, b"\0" * 4))[0]
        return waiting

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._held = 0

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        for descriptor in (self.handle, self._write):
            try:
                os.close(descriptor)
            except OSError:
                # Closed by the program.
                continue


# Shared memory maps of `mmap` in files of the scratch directory, whose size is limited.
#
# The kernel counts shared memory without a file for no process that has not touched it: no limit would hold. The filter
# of system calls therefore refuses it, and `mmap.mmap(-1, length)` maps an unnamed file instead.

_original = mmap.mmap


def _unnamed_file() -> int:
    """Open a new file that has no name, in the current directory or in that of temporary files."""
    flags = os.O_RDWR | os.O_CLOEXEC
    for folder in (".", os.environ.get("HOME", "/tmp")):
        with contextlib.suppress(OSError):
            return os.open(folder, flags | os.O_TMPFILE, 0o600)
        name = os.path.join(folder, f".map-{os.getpid()}-{os.urandom(8).hex()}")
        with contextlib.suppress(OSError):
            descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(name)
            return descriptor
    raise PermissionError("no directory for a shared memory map")


class SharedMap(_original):
    """`mmap.mmap`, with a file of its own where it would share memory without one."""

    def __new__(cls, fileno: int, length: int, *args: Any, **kwargs: Any) -> SharedMap:
        """Map the file, or memory where `fileno` is -1."""
        flags = args[0] if args else kwargs.get("flags", mmap.MAP_SHARED)
        if fileno != -1 or flags & mmap.MAP_PRIVATE:
            return super().__new__(cls, fileno, length, *args, **kwargs)
        descriptor = _unnamed_file()
        try:
            os.ftruncate(descriptor, length)
            if args:
                args = (flags & ~mmap.MAP_ANONYMOUS, *args[1:])
            elif "flags" in kwargs:
                kwargs["flags"] = flags & ~mmap.MAP_ANONYMOUS
            return super().__new__(cls, descriptor, length, *args, **kwargs)
        finally:
            os.close(descriptor)


SharedMap.__name__ = SharedMap.__qualname__ = "mmap"
SharedMap.__module__ = "mmap"


def install() -> None:
    """Have every import of `mmap` find the replacement."""
    mmap.mmap = SharedMap  # type: ignore[misc]
