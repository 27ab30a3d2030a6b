"""The caller's side of the processes of a pool: pickling for them, their server, the workers and their items."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cloudpickle

from rlvr.core.types import RunError, Verdict

from .base import describe
from .worker import (
    KILL,
    NO_MEMORY,
    REPORT,
    REQUEST,
    SPAWN,
    frame,
    read_frame,
    seconds_waited,
    split_frames,
)

logger = logging.getLogger("rlvr.verifiers")

LOAD_SECONDS = 120.0
STOP_SECONDS = 5.0  # for killing the workers
OPT_OUT = (
    "let it run in this process, where no deadline holds: @register(NAME, isolate=False), or isolate = False as an "
    "attribute of the function or class"
)
_BOOT = (
    "import sys, socket; sys.path[:] = sys.argv[3:]; from rlvr.verifiers.runner.worker import serve; "
    "serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))"
)


class PoolError(RunError):
    """The worker processes cannot be started or keep dying, or the pool is closed."""


class Ending(NamedTuple):
    """How a worker process ended, in words, and whether it was out of memory."""

    text: str
    out_of_memory: bool = False


def dumps(value: Any) -> bytes:
    """Pickle a value for a worker, which cannot import the caller's script or notebook. `pickle.loads` reads it."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """cloudpickle, which also pickles by value what a fresh process would not find, or would find in another file."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (type, types.FunctionType)) or type(value) is _Cached:
            module = sys.modules.get(value.__module__ or "")
            if module is not None and not _can_import(module):
                cloudpickle.register_pickle_by_value(module)
                if type(value) is _Cached:
                    return _make_cached, (value.cache_parameters(),), value.__wrapped__, None, None, _fill_cached
        if type(value) is functools.cached_property:
            return _make_cached_property, (value.func, value.attrname)
        if value is dataclasses.MISSING:  # compared by identity
            return "MISSING"
        return super().reducer_override(value)


_Cached = type(functools.lru_cache(lambda: None))


def _make_cached(parameters: dict[str, Any]) -> Callable[..., Any]:
    """Return a cached function that is still empty: what it calls may refer to it, and is filled in later."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return call.__wrapped__(*args, **kwargs)  # type: ignore[attr-defined]

    return functools.lru_cache(**parameters)(call)


def _fill_cached(cached: Any, wrapped: Callable[..., Any]) -> None:
    cached.__wrapped__.__wrapped__ = wrapped


def _make_cached_property(function: Callable[[Any], Any], name: str) -> functools.cached_property[Any]:
    made = functools.cached_property(function)
    made.__set_name__(object, name)
    return made


@functools.cache
def _can_import(module: types.ModuleType) -> bool:
    """Whether a fresh process with this one's sys.path finds a module of this name in the same file."""
    name = module.__name__
    if name in sys.builtin_module_names:
        return True
    try:
        # The search looks at sys.modules first, which a fresh process does not have.
        above = name.rpartition(".")[0]
        path = sys.modules[above].__path__ if above else None
        finders = [finder for finder in sys.meta_path if hasattr(finder, "find_spec")]
        spec = next((spec for finder in finders if (spec := finder.find_spec(name, path))), None)
    except (AttributeError, KeyError):
        return False
    if name in ("__main__", "__mp_main__") or spec is None or (above and not _can_import(sys.modules[above])):
        return False
    file = getattr(module, "__file__", None)
    return file is None or not spec.has_location or os.path.realpath(file) == os.path.realpath(str(spec.origin))


def pickle_verifier(verifier: Any) -> bytes:
    """Pickle the verifier for the worker processes. Raise ValueError if it cannot be sent to another process."""
    try:
        return dumps(verifier)
    # Pickling runs the verifier's own __getstate__ and __reduce__, which may raise anything.
    except Exception as error:
        raise ValueError(
            f"the verifier {describe(verifier)} cannot be pickled for the worker processes, which make a hanging "
            f"verifier killable ({(str(error).strip().splitlines() or [type(error).__name__])[0]}); define it in a "
            f"module of its own, make open files, locks and connections inside the call, or {OPT_OUT}"
        ) from error


class WorkerServer:
    """A running server process with the verifier loaded. Raises PoolError if it cannot be started.

    pickled: the result of `pickle_verifier`. memory_bytes: the memory of each worker beyond what it starts with. The
    server dies with the thread that makes this object.
    """

    def __init__(self, pickled: bytes, memory_bytes: int) -> None:
        self.control, theirs = socket.socketpair()
        self._reports = bytearray()
        # Numerical libraries must not start threads in a process that forks.
        single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, str(theirs.fileno()), str(os.getpid()), *sys.path],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **single},
            start_new_session=True,  # ctrl-C at the terminal is for the caller
        )
        theirs.close()
        self.control.settimeout(LOAD_SECONDS)
        try:
            self.control.sendall(frame(pickle.dumps((pickled, memory_bytes))))
            answer = read_frame(self.control)
        except (TimeoutError, BrokenPipeError, ConnectionResetError):
            answer = None
        if answer != b"":
            self.stop()
            if answer is None:
                raise PoolError("the verifier's server process did not start; see its output above")
            reason, _, trace = answer.decode().partition("\n")
            logger.error("the verifier cannot be loaded in a worker process\n%s", trace)
            raise PoolError(f"{reason}; the verifier cannot be loaded in a worker process; {OPT_OUT}")
        self.control.settimeout(None)

    def spawn(self, number: int) -> socket.socket:
        """Fork worker `number`; return the non-blocking socket to it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._request(SPAWN, number, theirs)
        theirs.close()
        return ours

    def kill(self, number: int) -> None:
        """Kill worker `number`, if it still runs, and the processes that it has started."""
        self._request(KILL, number)

    def reports(self) -> list[tuple[int, Ending]] | None:
        """Read `control` once: return the workers that have ended, and how; None if the server itself has ended."""
        try:
            data = self.control.recv(4096)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        self._reports += data
        whole = len(self._reports) // REPORT.size * REPORT.size
        ended = [
            (number, _describe_ending(status)) for number, status in REPORT.iter_unpack(bytes(self._reports[:whole]))
        ]
        del self._reports[:whole]
        return ended

    def abandon(self) -> None:
        """In a forked process: close this copy of the connection. The server is the parent's."""
        self.control.close()
        self._process.returncode = 0  # not a child of this process: nothing to wait for

    def stop(self) -> None:
        """End the server, which kills its workers and the processes that they have started."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.control.close()

    def _request(self, kind: bytes, number: int, sock: socket.socket | None = None) -> None:
        fds = [] if sock is None else [sock.fileno()]
        # If the server is dead, the pool notices when it reads `control`.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.control, [REQUEST.pack(kind, number)], fds)


def _describe_ending(status: int) -> Ending:
    if os.WIFSIGNALED(status):
        return Ending(f"was killed by signal {os.WTERMSIG(status)}")
    code = os.waitstatus_to_exitcode(status)
    return Ending("ran out of memory", True) if code == NO_MEMORY else Ending(f"ended with exit code {code}")


# The state that the pool keeps of what was submitted, of each item, and of each worker process.

START_SECONDS = 30.0


@dataclass(eq=False, slots=True)
class Submission:
    """Items that were submitted together. `caller`: the same object for all submissions of one call.

    `done` is set when `verdicts` is complete, or when `error` says why it never will be. Set `abandoned` to drop the
    items that have not begun.
    """

    verdicts: list[Verdict | None]
    left: int
    caller: object
    done: threading.Event = field(default_factory=threading.Event)
    error: PoolError | None = None
    abandoned: bool = False

    def settle(self, index: int, verdict: Verdict) -> None:
        self.verdicts[index] = verdict
        self.left -= 1
        if self.left == 0:
            self.done.set()

    def fail(self, error: PoolError) -> None:
        """Give up: no further verdict will come."""
        self.error = error
        self.done.set()

    def wait(self) -> list[Verdict | None]:
        """Wait for the verdicts. Raise PoolError if the pool has failed or was closed."""
        self.done.wait()
        if self.error is not None:
            raise self.error
        return self.verdicts


class Call(NamedTuple):
    """What a worker verifies: a completion of a pickled problem. answer: the reference as a text, if it is one."""

    problem: bytes
    completion: str
    answer: str | None = None


@dataclass(eq=False, slots=True)
class Item:
    """One check to run.

    For rlvr.verifiers.runner.blame: `deaths`: how many workers ended while they ran it. `fault`: its verdict if the
    completion is to blame for its death or hang. `late_at_start`: its deadline passed, for the first time, in the first
    call of a process.
    """

    call: Call
    submission: Submission
    index: int
    deaths: int = 0
    fault: Verdict | None = None
    late_at_start: bool = False

    def settle(self, verdict: Verdict) -> None:
        self.submission.settle(self.index, verdict)


@dataclass(eq=False, slots=True)
class Worker:
    """A worker process as the pool sees it.

    `pid` is known once the worker runs; `answered` is set once its first item is done. It works on the first item of
    `queue`, since the time `since`. While `dispatching`, the message with that item is not sent completely. `waited`:
    seconds for which it was ready and had no processor, until `since`. `served`: how many items it was given.
    """

    number: int
    sock: socket.socket
    queue: deque[Item] = field(default_factory=deque)
    pid: int = 0
    waited: float = 0.0
    answered: bool = False
    since: float = 0.0
    dispatching: bool = False
    served: int = 0
    unsent: bytearray = field(default_factory=bytearray)
    received: bytearray = field(default_factory=bytearray)

    def give(self, items: Sequence[Item]) -> None:
        """Queue items, and send as much of them as the socket takes."""
        if not self.queue:
            self.since = time.monotonic()
            self.dispatching = True
        self.queue.extend(items)
        self.served += len(items)
        self.unsent += frame(pickle.dumps([(item.call.problem, item.call.completion) for item in items]))
        self.send()

    def send(self) -> None:
        try:
            while self.unsent:
                del self.unsent[: self.sock.send(self.unsent)]
                if self.dispatching:
                    self.since = time.monotonic()
                    self.dispatching = bool(self.unsent)
        except BlockingIOError:
            pass
        except (BrokenPipeError, ConnectionResetError):
            self.unsent.clear()  # the worker has ended; the server will report it

    def receive(self) -> tuple[list[bytes], bool]:
        """Return the answers that have arrived, and whether more may come."""
        alive = True
        try:
            while data := self.sock.recv(1 << 18):
                self.received += data
                # The item is done, even if its answer is long and the pool is slow to read it.
                self.since = time.monotonic()
            alive = False
        except BlockingIOError:
            pass
        except ConnectionResetError:
            alive = False
        return list(split_frames(self.received)), alive

    def seconds(self) -> float:
        """Return how long the worker has worked on its first item."""
        return time.monotonic() - self.since

    def seconds_left(self, timeout: float) -> float:
        """Return the time until the deadline of the first item.

        Two things do not count: the start of the process, and waiting for a processor, which is read only if it
        matters.
        """
        left = (timeout if self.pid else max(timeout, START_SECONDS)) - self.seconds()
        if left > 0 or not self.pid:
            return left
        return left + max(seconds_waited(self.pid) - self.waited, 0.0)
