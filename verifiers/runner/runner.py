"""The Runner: verdicts on many completions, in order, within deadlines."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from rlvr.core.traits import VerifierTraits
from rlvr.core.types import UNSCORED, Pair, Problem, RunError, Status, Verdict, Verifier
from rlvr.sandbox import forks
from rlvr.sandbox.limits import MOST_SLOTS, check_count, check_seconds
from rlvr.verifiers.runner.base import Failure, call_guarded, describe, log_failure, logger, misspelt_traits, verify_one
from rlvr.verifiers.runner.pool import WorkerPool
from rlvr.verifiers.runner.processes import Call, Submission, dumps, pickle_verifier

# The share of verdicts that may be errors before a run stops.


class VerifierErrors(RunError):
    """Too many verdicts are errors of the verifier or of the data for the rewards to mean anything."""


class ErrorBudget:
    """The share of verdicts that may have no score (error or bad_reference).

    `check` raises VerifierErrors when the share over all verdicts so far exceeds `share`. It waits for `min_verdicts`
    verdicts, so that one bad item of a small first batch does not stop a run, unless all verdicts so far are errors.
    """

    def __init__(self, share: float, *, min_verdicts: int = 100) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"error budget {share}: expected a share in [0, 1]")
        self.share = share
        self.min_verdicts = min_verdicts
        self.num_verdicts = 0
        self.num_errors = 0
        self.reasons: Counter[str] = Counter()

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Count verdicts."""
        for verdict in verdicts:
            self.num_verdicts += 1
            if verdict.status in UNSCORED:
                self.num_errors += 1
                self.reasons[verdict.reason] += 1

    def check(self) -> None:
        """Raise VerifierErrors when the budget is exceeded."""
        if self.num_errors <= self.share * self.num_verdicts:
            return
        if self.num_verdicts < self.min_verdicts and self.num_errors < self.num_verdicts:
            return
        reason, count = self.reasons.most_common(1)[0]
        raise VerifierErrors(
            f"{reason} ({count} times, the most frequent); {self.num_errors} of {self.num_verdicts} verdicts have no "
            f"score (error or bad_reference), above the budget of {self.share:.1%}"
        )


T = TypeVar("T")
# Items that fast_path leaves open go to the pool in batches of this size, so that both work at once.
SUBMIT_EVERY = 32
MOST_TIMEOUT = 10**6  # seconds


class Runner:
    """Runs a verifier over (problem, completion) pairs. Use it as a context manager, or call `close`.

    A verifier runs in killable worker processes: `workers` of them, `timeout` seconds for an item from its dispatch,
    `memory_mb` for an item beyond what a worker holds at its start; a worker is replaced after `recycle_after` items.
    Each worker has a copy of the verifier, made when the Runner is: state that a call changes (a counter, a cache)
    stays in that worker. Workers are not forked from the caller, which may hold a GPU and threads; verifiers defined in
    a script, a notebook or a function are sent to them by value .

    The verifier's traits (rlvr.core.types.VerifierTraits) change this: with `isolate = False` it runs in the caller's
    thread, where nothing can stop it; with `verify_batch` it brings its own concurrency and deadlines; `components`
    are each run as their own traits say.

    `counts` holds the number of verdicts of each status. With `error_budget`, `verify` raises VerifierErrors when the
    share of error and bad_reference verdicts exceeds it. May be called from several threads at once. Raises ValueError
    for a verifier that cannot be sent to the workers, and for traits of wrong types.
    """

    def __init__(
        self,
        verifier: Verifier,
        *,
        workers: int = 2,
        timeout: float = 10.0,
        memory_mb: int = 2048,
        recycle_after: int = 20_000,
        error_budget: float | None = None,
    ) -> None:
        check_count("workers", workers, most=MOST_SLOTS)
        check_seconds("timeout", timeout, most=MOST_TIMEOUT)
        check_count("memory_mb", memory_mb)
        check_count("recycle_after", recycle_after)
        if error_budget is not None and not 0 <= error_budget <= 1:
            raise ValueError(f"error_budget {error_budget!r:.80}: expected a share from 0 to 1")
        self.verifier = verifier
        self._traits = VerifierTraits.of(verifier)
        for name, meant in misspelt_traits(verifier).items():
            logger.warning(
                "the verifier %s has %s, which is not read; did you mean %s?", describe(verifier), name, meant
            )
        self._pickled = pickle_verifier(verifier) if runs_in_pool(verifier) else b""
        self.counts: Counter[Status] = Counter()
        self.budget = None if error_budget is None else ErrorBudget(error_budget)
        self._settings = {"workers": workers, "memory_mb": memory_mb, "recycle_after": recycle_after}
        self._parts = {
            name: Runner(part, timeout=timeout, **self._settings) for name, part in self._traits.components.items()
        }
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pool: WorkerPool | None = None
        self._closed = False
        forks.register(self)

    def after_fork(self) -> None:
        """In a forked child: the pool's thread and processes are the parent's; the next call starts others."""
        self._lock = threading.Lock()
        self._pool = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker processes. Further calls of `verify` raise RuntimeError."""
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        for part in self._parts.values():
            part.close()
        if pool is not None:
            pool.close()

    @property
    def whole_batch(self) -> bool:
        """Whether the verifier, or a component of it, must see a step's pairs in one call."""
        return self._traits.whole_batch or any(part.whole_batch for part in self._parts.values())

    def judges(self, problem: Problem) -> bool:
        """Whether the verifier, or a component of it, has something to judge of a problem."""
        problem_for = self._traits.problem_for
        return problem_for is None or any(problem_for(name, problem) is not None for name in self._parts)

    def verify(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdict of each pair, in order. Identical pairs are verified once, unless `whole_batch`.

        Raise VerifierErrors (see the class), and PoolError when worker processes cannot be started.
        """
        verdicts = self.verify_part(pairs)
        self.count(verdicts)
        return verdicts

    def verify_part(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdicts without counting them: the error budget is checked for whole batches, by `count`."""
        if self._closed:
            raise RuntimeError("this Runner is closed")
        # With whole_batch, each pair counts as often as it was sampled.
        unique, places = (pairs, range(len(pairs))) if self.whole_batch else _find_distinct(pairs)
        found = self._judge_all(unique)
        return [found[place] for place in places]

    def count(self, verdicts: Sequence[Verdict]) -> None:
        """Count the verdicts of `verify_part`. Raise VerifierErrors, see the class."""
        with self._lock:
            self.counts.update(verdict.status for verdict in verdicts)
            if self.budget is not None:
                self.budget.add(verdicts)
                self.budget.check()

    async def averify(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Run `verify` in a thread, without blocking the event loop."""
        return await asyncio.to_thread(self.verify, pairs)

    def _judge_all(self, pairs: Sequence[Pair]) -> list[Verdict]:
        if self._parts:
            return self._combined(pairs)
        if self._traits.verify_batch is not None:
            return self._own_batch(pairs, self._traits.verify_batch)
        if self._traits.isolate:
            return self._isolated(pairs)
        return [verify_one(self.verifier, problem, completion) for problem, completion in pairs]

    def _combined(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Each part's verdicts, merged by the verifier."""
        problem_for, merge, measure = self._traits.problem_for, self._traits.merge, self._traits.measure
        assert problem_for is not None
        assert merge is not None
        rows: list[dict[str, Verdict]] = [{} for _ in pairs]
        for name, part in self._parts.items():
            seen = [problem_for(name, problem) for problem, _ in pairs]
            asked = [(i, (problem, pairs[i][1])) for i, problem in enumerate(seen) if problem is not None]
            for (i, _), verdict in zip(asked, part.verify([pair for _, pair in asked])):
                rows[i][name] = verdict
        if measure is not None:
            merge = functools.partial(merge, scales=measure(rows))
        merged = [_log_outcome(call_guarded(self.verifier, functools.partial(_verdict_of, merge, row))) for row in rows]
        return [verdict.timed(sum(part.seconds for part in row.values())) for verdict, row in zip(merged, rows)]

    def _own_batch(self, pairs: Sequence[Pair], verify_batch: Callable[[Sequence[Pair]], Any]) -> list[Verdict]:
        """Verdicts of a verifier with its own concurrency. If it raises, every verdict is an error.

        A RunError is passed on: it says that the verifier cannot work at all (no model, no server, no sandbox).
        """

        def call() -> list[Verdict] | RunError:
            try:
                verdicts = [Verdict.of(verdict) for verdict in verify_batch(pairs)]
            except RunError as error:
                return error
            except MemoryError as error:  # not caused by one completion, as it would be in a worker
                raise RuntimeError("verify_batch ran out of memory") from error
            if len(verdicts) != len(pairs):
                raise ValueError(f"verify_batch returned {len(verdicts)} verdicts for {len(pairs)} pairs")
            return verdicts

        found = _log_outcome(call_guarded(self.verifier, call)) if pairs else []
        if isinstance(found, RunError):
            raise found
        return [found] * len(pairs) if isinstance(found, Verdict) else found

    def _isolated(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Verdicts of `fast_path` where it gives one, of the worker pool for the rest."""
        verdicts: list[Verdict | None] = [None] * len(pairs)
        pickled = _ProblemPickles(self.verifier)
        submitted: list[tuple[Submission, list[int]]] = []
        waiting: list[tuple[int, Call]] = []
        try:
            for i, (problem, completion) in enumerate(pairs):
                verdicts[i] = self._fast(problem, completion)
                if verdicts[i] is not None:
                    continue
                data = pickled(problem)
                if isinstance(data, Verdict):
                    verdicts[i] = data
                    continue
                waiting.append((i, Call(data, completion, _own_answer(problem))))
                if len(waiting) >= SUBMIT_EVERY:
                    submitted.append(self._submit(waiting))
                    waiting = []
            if waiting:
                submitted.append(self._submit(waiting))
            for submission, places in submitted:
                for place, verdict in zip(places, submission.wait()):
                    verdicts[place] = verdict
        except BaseException:
            for submission, _ in submitted:
                submission.abandoned = True
            raise
        return [verdict for verdict in verdicts if verdict is not None]

    def _fast(self, problem: Problem, completion: str) -> Verdict | None:
        """The verdict of the verifier's `fast_path`; None to leave it to the pool."""
        fast_path = self._traits.fast_path
        if fast_path is None:
            return None
        start = time.perf_counter()

        def call() -> Verdict | None:
            found = fast_path(problem, completion)
            return None if found is None else Verdict.of(found)

        verdict = _log_outcome(call_guarded(fast_path, call))
        return None if verdict is None else verdict.timed(time.perf_counter() - start)

    def _submit(self, waiting: list[tuple[int, Call]]) -> tuple[Submission, list[int]]:
        return self._live_pool().submit([call for _, call in waiting]), [place for place, _ in waiting]

    def _live_pool(self) -> WorkerPool:
        with self._lock:
            if self._closed:
                raise RuntimeError("this Runner is closed")
            if self._pool is None:
                self._pool = WorkerPool(self._pickled, timeout=self._timeout, **self._settings)
                # Also at exit, when nobody closed the runner.
                weakref.finalize(self, self._pool.close)
            return self._pool


def runs_in_pool(verifier: Any) -> bool:
    """Whether worker processes run it: unless it opts out, has components, or has `verify_batch`."""
    traits = VerifierTraits.of(verifier)
    return traits.isolate and traits.verify_batch is None and not traits.components


def _log_outcome(outcome: tuple[T, Failure | None]) -> T:
    """Return the first of what `guarded` returned; log the failure, if there is one."""
    found, failure = outcome
    if failure is not None:
        log_failure(failure)
    return found


def _verdict_of(call: Callable[..., Any], *args: Any) -> Verdict:
    return Verdict.of(call(*args))


def _own_answer(problem: Problem) -> str | None:
    """Return the reference as a completion; None where it is no text or number."""
    return str(problem.reference) if isinstance(problem.reference, (str, int, float)) else None


class _ProblemPickles:
    """Pickles each problem once; a problem that cannot be pickled gets an error verdict."""

    def __init__(self, verifier: Any) -> None:
        self._verifier = verifier
        self._made: dict[int, bytes | Verdict] = {}

    def __call__(self, problem: Problem) -> bytes | Verdict:
        made = self._made.get(id(problem))
        if made is None:
            made = _log_outcome(call_guarded(self._verifier, lambda: dumps(problem)))
            self._made[id(problem)] = made
        return made


def _find_distinct(pairs: Sequence[Pair]) -> tuple[list[Pair], list[int]]:
    """The distinct pairs, and for each pair its place among them."""
    unique: list[Pair] = []
    places: list[int] = []
    seen: dict[tuple[str, str], list[int]] = {}
    for problem, completion in pairs:
        held = seen.setdefault((problem.id, completion), [])
        place = next((p for p in held if _are_equal(unique[p][0], problem)), None)
        if place is None:
            place = len(unique)
            held.append(place)
            unique.append((problem, completion))
        places.append(place)
    return unique, places


def _are_equal(one: Problem, other: Problem) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except ValueError:  # arrays in a reference have no single truth value
        return False
