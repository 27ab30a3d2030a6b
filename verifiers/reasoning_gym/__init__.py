"""The verifier `reasoning_gym`: answers to its problems, scored by the package's own scorers in the sandbox.

This process never imports the package, since some of its scorers evaluate the answer as Python. `Grader` is the
caller's side of the processes in the sandbox: one for each core, which stay alive between calls. `inside.py` is what
runs in them.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

from rlvr.core import after_fork
from rlvr.core.registry import did_you_mean, register
from rlvr.core.types import (
    Problem,
    Status,
    Verdict,
    bad_reference,
    correct,
    error,
    incorrect,
    limit,
    no_answer,
    unparseable,
)
from rlvr.sandbox import Limits, Result, RunStatus, Session

from ..extract import MAX_COMPLETION, after_thinking, boxes
from ..extract.answer import excerpt, read_answer

__all__ = ["REFUSED", "GraderFailure", "ReasoningGym", "answer_of", "check_dataset", "get_grader", "require_package"]

MAX_ANSWER = 20_000  # characters

# Data sets that are no task packs, and why.
REFUSED: Mapping[str, str] = {
    "boxnet": "its problems have no answer with which its scorer could be checked, and it fails on what is not a plan",
    "composite": "it has no problems without members; mix packs instead",
    "rush_hour": "its problems have no answer with which its scorer could be checked",
}

# Data sets with problems that have several right answers, or whose scorer allows a tolerance.
OPEN = frozenset(
    "codeio coin_flip countdown cryptarithm decimal_arithmetic graph_color jugs kakurasu knight_swap modulo_grid "
    "n_queens number_format number_sorting pool_matrix power_function propositional_logic puzzle24 quantum_lock "
    "rubiks_cube shortest_path sokoban survo tower_of_hanoi word_ladder".split()
)


def check_dataset(name: str) -> None:
    """Raise ValueError if a data set is refused or the package is not installed, LookupError for other names."""
    if name in REFUSED:
        raise ValueError(f"reasoning_gym:{name} is refused: {REFUSED[name]}")
    require_package()
    names = get_grader().ask("describe")["names"]
    if name not in names:
        raise LookupError(f"no data set {name!r} in reasoning-gym; {did_you_mean(name, set(names) - set(REFUSED))}")


def answer_of(completion: str) -> str | None:
    """Return the text in the last answer tags; otherwise in the last box; otherwise after "the answer is"; or None."""
    text = after_thinking(completion)
    if text is None:
        return None
    close = text.rfind("</answer>")
    opened = text.rfind("<answer>", 0, close) if close >= 0 else -1
    if opened >= 0:
        return text[opened + len("<answer>") : close].strip()
    if (start := text.rfind("\\boxed{")) >= 0:
        found = boxes(text)
        if found and found[-1].start >= start:
            return found[-1].text.strip()
    return read_answer(completion, "marked").text


@register("reasoning_gym")
@dataclass(frozen=True, kw_only=True)
class ReasoningGym:
    r"""Problems of reasoning-gym, scored by the package's own scorers in the sandbox.

    The reference is {"dataset": name, "config": settings, "entry": the problem as its pack wrote it}. The answer stands
    in the last <answer> tags, otherwise in \boxed{}. graded: scores between 0 and 1 are partial, otherwise they count
    as 0. least: scores up to this count as 0, since most data sets give .01 to .1 for any text. seconds: processor time
    for an answer.
    """

    graded: bool = True
    least: float = 0.1
    seconds: int = 10

    def __post_init__(self) -> None:
        if not 0 <= self.least < 1 or self.seconds < 1:
            raise ValueError(
                f"verifier 'reasoning_gym': least {self.least}, seconds {self.seconds}; "
                "expected a score in [0, 1) and at least 1 s"
            )

    def open_answers(self, reference: Any) -> bool:
        """Whether the data set has problems with several right answers, or its scorer allows a tolerance."""
        return _read_row(reference, "")[0] in OPEN

    def check_reference(self, reference: Any) -> None:
        """Raise ValueError if the reference has another form, or names a data set that is refused."""
        _read_row(reference, "")

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        return self.verify_batch([(problem, completion)])[0]

    def verify_batch(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """Return all verdicts, in order. The sandbox scores the answers, on every core."""
        prepared = [_prepare(problem, completion) for problem, completion in pairs]
        rows = [made for made in prepared if not isinstance(made, Verdict)]
        try:
            require_package()
            replies = iter(get_grader().scores(rows, self.seconds) if rows else [])
        except ValueError as failure:
            replies = iter([{"failed": str(failure)}] * len(rows))
        return [made if isinstance(made, Verdict) else self._verdict(made[3], next(replies)) for made in prepared]

    def _verdict(self, answer: str, reply: Mapping[str, Any]) -> Verdict:
        quote = excerpt(answer)
        if "failed" in reply:
            return error(f"reasoning-gym: {reply['failed']}")
        if "broken" in reply:
            return bad_reference(f"the problem cannot be read: {reply['broken']}")
        if "raised" in reply:
            return unparseable(f"not in the form that is asked for: the scorer raised {reply['raised']}", quote)
        score = reply.get("score")
        if type(score) is not float:
            if reply.get("ended") == "timeout":
                return Verdict(Status.TIMEOUT, 0.0, f"scoring it takes more than {self.seconds} s", quote)
            return limit(f"scoring it ended its process: {reply.get('ended', 'no score')}", quote)
        if score >= 1:
            return correct(quote)
        if score <= self.least or not self.graded:
            return incorrect(f"scored {score:.4g}", quote)
        return Verdict(Status.PARTIAL, score, f"scored {score:.4g}", quote)


def _read_row(reference: Any, answer: str) -> Row:
    if not isinstance(reference, Mapping) or not {"dataset", "config", "entry"} <= set(reference):
        raise ValueError('the reference is not {"dataset": ..., "config": ..., "entry": ...} of a reasoning_gym pack')
    name, entry = reference["dataset"], reference["entry"]
    if not isinstance(name, str) or not isinstance(entry, str) or not isinstance(reference["config"], Mapping):
        raise ValueError("the reference's data set and entry are not text, or its config is no mapping")
    if name in REFUSED:
        raise ValueError(f"reasoning_gym:{name} is refused: {REFUSED[name]}")
    return name, dict(reference["config"]), entry, answer


def _prepare(problem: Problem, completion: str) -> Row | Verdict:
    """Return the row to be scored, or the verdict if there is nothing to score."""
    try:
        row = _read_row(problem.reference, "")
    except ValueError as failure:
        return bad_reference(str(failure))
    if len(completion) > MAX_COMPLETION:
        return limit(f"a completion of {len(completion):,} characters; at most {MAX_COMPLETION:,} are read")
    answer = answer_of(completion)
    if not answer:
        return no_answer("no answer in answer tags or in a box")
    if len(answer) > MAX_ANSWER:
        return limit(f"an answer of {len(answer):,} characters; at most {MAX_ANSWER:,} are scored", excerpt(answer))
    return (*row[:3], answer.encode("utf-8", "replace").decode())


PACKAGE = "reasoning_gym"
MISSING = "reasoning_gym needs the package reasoning-gym: pip install -e '.[reasoning-gym]'"
# The limits of a process in all. One that has used them up is replaced.
_LIMITS = Limits(seconds=3600, memory_mb=2048, processes=64, output_kb=1 << 16)
_WALL = 60.0  # seconds of real time for a request, besides those of the answers
_ROWS, _CHARS = 32, 400_000  # of a request
_WALL_EACH = 5  # inside.WALL

Row = tuple[str, Mapping[str, Any], str, str]


class GraderFailure(RuntimeError):
    """The sandbox, or the package in it, has failed. ended: the process has ended, perhaps because of an answer."""

    def __init__(self, text: str, *, ended: bool = False) -> None:
        super().__init__(text)
        self.ended = ended


def require_package() -> None:
    """Raise ValueError, which names the extra, if reasoning-gym is not installed. Nothing is imported."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ValueError(MISSING)


class Grader:
    """Processes in the sandbox with reasoning-gym imported. Safe for threads and forks; each starts on first use."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._reset()
        after_fork.register(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Session] = []
        self._places = threading.Semaphore(self.slots)

    def after_fork(self) -> None:
        """In a forked child: start over, since the processes are the parent's. Sessions let go of them themselves."""
        self._reset()

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
        chunks = _divide_rows(rows, -(-len(rows) // self.slots))
        with ThreadPoolExecutor(self.slots) as threads:
            return [
                reply for made in threads.map(lambda chunk: self._score_rows(chunk, seconds), chunks) for reply in made
            ]

    def _score_rows(self, rows: Sequence[Row], seconds: int) -> list[dict[str, Any]]:
        try:
            replies = self.ask("scores", _WALL + _WALL_EACH * seconds * len(rows), rows=rows, seconds=seconds)["scores"]
            if len(replies) == len(rows):
                return [reply if isinstance(reply, dict) else {} for reply in replies]
        except GraderFailure as error:
            if len(rows) == 1:
                return [{"ended": "crash"} if error.ended else {"failed": str(error)}]
        # Score each answer alone, to see which one ended the process.
        return [self._score_rows([row], seconds)[0] for row in rows] if len(rows) > 1 else [{"ended": "crash"}]

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


def _divide_rows(rows: Sequence[Row], most: int) -> list[list[Row]]:
    """Divide rows into requests of bounded size, in order."""
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
    return importlib.resources.files(__name__).joinpath("inside.py").read_text("utf-8")


@cache
def get_grader() -> Grader:
    return Grader(len(os.sched_getaffinity(0)))
