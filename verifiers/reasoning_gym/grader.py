"""The processes in the sandbox that make and score problems of reasoning-gym: one for each core, kept between calls."""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from rlvr.sandbox import Limits, Result, RunStatus, Session, forks

PACKAGE = "reasoning_gym"
MISSING = "reasoning_gym needs the package reasoning-gym: pip install 'rlvr[reasoning-gym]'"
# Of a process in all; one that has used it up is replaced.
_LIMITS = Limits(seconds=3600, memory_mb=2048, processes=64, output_kb=1 << 16)
_WALL = 60.0  # seconds by the clock beyond those of the answers
_ROWS, _CHARS = 32, 400_000  # of a request
_WALL_EACH = 5  # inside.WALL

Row = tuple[str, Mapping[str, Any], str, str]


class GraderFailure(RuntimeError):
    """The sandbox, or the package in it, failed. `ended`: the process ended, which an answer may have brought about."""

    def __init__(self, text: str, *, ended: bool = False) -> None:
        super().__init__(text)
        self.ended = ended


def require_package() -> None:
    """Raise ValueError, which names the extra, where reasoning-gym is not installed. Nothing is imported."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ValueError(MISSING)


class Grader:
    """Processes in the sandbox with reasoning-gym imported. Thread-safe and fork-safe; each starts on first use."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._reset()
        forks.register(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._places = threading.Semaphore(self.slots)

    def after_fork(self) -> None:
        """Start over in a forked child, to which the processes do not belong."""
        self._reset()  # the sessions let go of them themselves

    def ask(self, do: str, wall: float = _WALL, **values: Any) -> dict[str, Any]:
        """Return the reply to a request (see inside.py). Raise GraderFailure."""
        with self._places:
            session = self._take()
            request = json.dumps({"do": do, "with": values})
            result = session.run(f"serve({request!r})", wall)
            if result.status is not RunStatus.OK:
                session.close()
                raise _failure(result)
            with self._lock:
                self._idle.append(session)
        try:
            reply = json.loads(result.stdout.rstrip("\n").rpartition("\n")[2])
        except ValueError as error:
            raise GraderFailure("no reply from the process in the sandbox", ended=True) from error
        if not isinstance(reply, dict):
            raise GraderFailure("a reply of the process in the sandbox cannot be read", ended=True)
        if "failed" in reply:
            raise GraderFailure(str(reply["failed"]))
        return reply

    def scores(self, rows: Sequence[Row], seconds: int) -> list[dict[str, Any]]:
        """Return a reply for each (data set, settings, problem, answer): its score, or how scoring ended."""
        chunks = _chunks(rows, -(-len(rows) // self.slots))
        with ThreadPoolExecutor(self.slots) as threads:
            return [reply for made in threads.map(lambda chunk: self._scored(chunk, seconds), chunks) for reply in made]

    def _scored(self, rows: Sequence[Row], seconds: int) -> list[dict[str, Any]]:
        try:
            replies = self.ask("scores", _WALL + _WALL_EACH * seconds * len(rows), rows=rows, seconds=seconds)["scores"]
            if len(replies) == len(rows):
                return [reply if isinstance(reply, dict) else {} for reply in replies]
        except GraderFailure as error:
            if len(rows) == 1:
                return [{"ended": "crash"} if error.ended else {"failed": str(error)}]
        # Which of the answers ended the process shows when each is alone.
        return [self._scored([row], seconds)[0] for row in rows] if len(rows) > 1 else [{"ended": "crash"}]

    def _take(self) -> Session:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        session = Session(_LIMITS, packages=(PACKAGE,))
        result = session.run(_program(), _WALL)
        if result.status is not RunStatus.OK:
            session.close()
            raise GraderFailure(f"reasoning-gym cannot be imported in the sandbox: {_last_line(result)}")
        return session


def _failure(result: Result) -> GraderFailure:
    ended = result.status is not RunStatus.SANDBOX_ERROR
    return GraderFailure(f"{result.status}: {result.detail or _last_line(result)}", ended=ended)


def _last_line(result: Result) -> str:
    return result.stderr.rstrip().rpartition("\n")[2][:200] or result.detail


def _chunks(rows: Sequence[Row], most: int) -> list[list[Row]]:
    """Divide rows, in order, into requests of bounded size."""
    chunks: list[list[Row]] = []
    size = 0
    for row in rows:
        chars = len(row[2]) + 6 * len(row[3])  # an escape has six characters
        if not chunks or len(chunks[-1]) >= min(most, _ROWS) or size + chars > _CHARS:
            chunks.append([])
            size = 0
        chunks[-1].append(row)
        size += chars
    return chunks


@cache
def _program() -> str:
    return importlib.resources.files(__package__).joinpath("inside.py").read_text("utf-8")


@cache
def shared() -> Grader:
    """Return the grader of this process, with a slot for each core."""
    return Grader(len(os.sched_getaffinity(0)))
