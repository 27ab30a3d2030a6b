"""One run in a fork server, from the caller's side: pipes, output caps, report."""

from __future__ import annotations

import fcntl
import json
import os
import select
import time
from dataclasses import dataclass, field
from typing import Any

from rlvr.sandbox.client import CHUNK, KILL, Server, ServerDied
from rlvr.sandbox.limits import MAX_WALL, Limits

# Allowed beyond a run's time limit for killing and reaping its processes on a busy machine.
_GRACE_SECONDS = 20.0
# Among the streams: stdout, stderr, status, results.
_STATUS = 2


def sealed(data: bytes) -> int:
    """Return the descriptor of an immutable memory file with `data`."""
    descriptor = os.memfd_create("rlvr", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    written = 0
    while written < len(data):
        written += os.pwrite(descriptor, data[written:], written)
    seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


@dataclass
class Stream:
    """Output of one pipe, up to `cap` bytes."""

    descriptor: int
    cap: int
    data: bytearray = field(default_factory=bytearray)
    over: bool = False

    def read(self) -> bool:
        """Read what is available. Returns False at the end or past the cap."""
        try:
            chunk = os.read(self.descriptor, CHUNK)
        except BlockingIOError:
            return True
        self.data += chunk[: self.cap - len(self.data)]
        self.over = self.over or len(self.data) >= self.cap
        return bool(chunk) and not self.over

    def drain(self) -> None:
        """Read to the end. Call only when no process is left that could write."""
        while self.read():
            if not select.select([self.descriptor], [], [], 0)[0]:
                return


class Run:
    """A run in progress: `start`, then `read` each descriptor that poll reports, until `report` is set."""

    def __init__(self, server: Server, mode: str, payload: dict[str, Any], stdin: bytes, limits: Limits) -> None:
        self.server = server
        self.limits = limits
        self.mode = mode
        self.report: dict[str, Any] | None = None
        self.killed = False
        self._payload = json.dumps(payload).encode()
        self._stdin = stdin
        self._open: list[int] = []

    def start(
        self, channels: tuple[int, ...] = (), *, results: bool = False, waits: float = 0.0, wall: float = 0.0
    ) -> None:
        """Send the run to the server. `channels` are passed on and closed here; `results` adds a result pipe.

        `waits`, `wall`: see Server.header.
        """
        outputs = self.limits.output_kb << 10
        caps = [outputs, outputs, 1 << 12] + ([self.limits.result_kb << 10] if results else [])
        pipes = [os.pipe() for _ in caps]
        self.streams = [Stream(reading, cap) for (reading, _), cap in zip(pipes, caps)]
        self._open = [reading for reading, _ in pipes]
        for reading in self._open:
            os.set_blocking(reading, False)
        writing = [end for _, end in pipes]
        passed = [sealed(self._payload), sealed(self._stdin), *writing[:3], *channels, *writing[3:]]
        self.started = time.monotonic()
        try:
            self.server.send(self.server.header(self.mode, self.limits, waits, wall), passed)
        finally:
            for descriptor in passed:
                os.close(descriptor)

    @property
    def deadline(self) -> float:
        """Time (monotonic) at which the server counts as hung."""
        return self.started + MAX_WALL * self.limits.seconds + _GRACE_SECONDS

    def descriptors(self) -> list[int]:
        """Return the descriptors to poll. The few status bytes fit into their pipe, and are read by `finish`."""
        streams = [*self.streams[:_STATUS], *self.streams[_STATUS + 1 :]]
        return [stream.descriptor for stream in streams if not stream.over] + [self.server.control.fileno()]

    def read(self, ready: int) -> bool:
        """Read from a descriptor that is ready. Returns False if nothing more will come from it."""
        if ready == self.server.control.fileno():
            self.report = self.server.receive()
            return self.report is None
        stream = next(stream for stream in self.streams if stream.descriptor == ready)
        more = stream.read()
        if stream.over:
            self.kill()
        return more

    def kill(self) -> None:
        """Ask the server to end the run."""
        if not self.killed:
            self.killed = True
            self.server.send(KILL, [])

    def finish(self) -> None:
        """Read the rest of the output and close the pipes."""
        for stream in self.streams:
            stream.drain()
        self.close()

    def close(self) -> None:
        """Close the pipes. Idempotent."""
        while self._open:
            os.close(self._open.pop())

    def text(self, number: int) -> str:
        """Return stdout (0) or stderr (1) as text."""
        return self.streams[number].data.decode("utf-8", "replace")

    @property
    def status_bytes(self) -> bytes:
        """Status bytes of the child: isolated, compiled (see inside/child.py)."""
        return bytes(self.streams[_STATUS].data)

    @property
    def result_bytes(self) -> bytes:
        """Bytes from the result pipe; empty without one."""
        return bytes(self.streams[3].data) if len(self.streams) > 3 else b""


_ENDING = 1.0  # seconds for a program that ends


def supervise(runs: list[Run]) -> None:
    """Wait for the reports of all runs. Raises ServerDied if a server ends or does not answer in time.

    When the first run ends the others are killed: they only serve it. One that has ended by itself, as the first has
    found, has a moment to tell how.
    """
    until = 0.0
    poll = select.poll()
    owner = {}
    for run in runs:
        for descriptor in run.descriptors():
            owner[descriptor] = run
            poll.register(descriptor, select.POLLIN)
    while any(run.report is None for run in runs):
        left = min(run.deadline for run in runs if run.report is None) - time.monotonic()
        if left <= 0:
            raise ServerDied("the fork server does not answer")
        waits = min(left, max(until - time.monotonic(), 0.0)) if until else left
        for descriptor, _ in poll.poll(waits * 1000 + 1):
            run = owner[descriptor]
            if not run.read(descriptor):
                poll.unregister(descriptor)
        if runs[0].report is not None:
            until = until or time.monotonic() + (_ENDING if b"ProgramEnded" in runs[0].result_bytes else 0.0)
            for run in runs[1:]:
                if run.report is None and time.monotonic() >= until:
                    run.kill()
    for run in runs:
        run.finish()
