"""The caller's side of the pool's server process: starting it, its requests and reports."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import subprocess
import sys
from typing import Any, NamedTuple

from rlvr.types import RunError
from rlvr.verifiers.runner import by_value
from rlvr.verifiers.runner.base import describe
from rlvr.verifiers.runner.worker import KILL, NO_MEMORY, REPORT, REQUEST, SPAWN, frame, read_frame

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
    """The end of a worker process, in words, and whether it was out of memory."""

    text: str
    out_of_memory: bool = False


class WorkerServer:
    """A running server process with the verifier loaded. Raises PoolError when it cannot be started.

    `pickled` is the result of `pickle_verifier`, `memory_bytes` the memory of each worker beyond what it starts with.
    The server dies with the thread that makes this object.
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
        """Fork worker `number`. Returns the (non-blocking) socket to it."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self._request(SPAWN, number, theirs)
        theirs.close()
        return ours

    def kill(self, number: int) -> None:
        """Kill worker `number`, if it still runs, and what it has started."""
        self._request(KILL, number)

    def reports(self) -> list[tuple[int, Ending]] | None:
        """Read `control` once: return the workers that have ended, and how; None when the server itself has."""
        try:
            data = self.control.recv(4096)
        except ConnectionResetError:
            data = b""
        if not data:
            return None
        self._reports += data
        whole = len(self._reports) // REPORT.size * REPORT.size
        ended = [(number, _ending(status)) for number, status in REPORT.iter_unpack(bytes(self._reports[:whole]))]
        del self._reports[:whole]
        return ended

    def abandon(self) -> None:
        """In a forked process: close this copy of the connection; the server is the parent's."""
        self.control.close()
        self._process.returncode = 0  # not a child of this process: nothing to wait for

    def stop(self) -> None:
        """End the server, which kills its workers and what they have started."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.control.close()

    def _request(self, kind: bytes, number: int, sock: socket.socket | None = None) -> None:
        fds = [] if sock is None else [sock.fileno()]
        # The pool notices a dead server when it reads `control`.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self.control, [REQUEST.pack(kind, number)], fds)


def _ending(status: int) -> Ending:
    """Return a wait status in words."""
    if os.WIFSIGNALED(status):
        return Ending(f"was killed by signal {os.WTERMSIG(status)}")
    code = os.waitstatus_to_exitcode(status)
    return Ending("ran out of memory", True) if code == NO_MEMORY else Ending(f"ended with exit code {code}")


def pickle_verifier(verifier: Any) -> bytes:
    """Pickle the verifier for the worker processes. Raise ValueError where it cannot be sent to another process."""
    try:
        return by_value.dumps(verifier)
    # Pickling runs the verifier's own __getstate__ and __reduce__, which may raise anything.
    except Exception as error:
        raise ValueError(
            f"the verifier {describe(verifier)} cannot be pickled for the worker processes, which make a hanging "
            f"verifier killable ({_first_line(error)}); define it in a module of its own, make open files, "
            f"locks and connections inside the call, or {OPT_OUT}"
        ) from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
