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

from rlvr.core import after_fork
from rlvr.core.cores import count_cores
from rlvr.core.traits import VerifierTraits
from rlvr.core.types import UNSCORED, Pair, Problem, RunError, Status, Verdict, Verifier
from rlvr.sandbox.limits import MOST_SLOTS, check_count, check_seconds

from .base import Failure, call_guarded, log_failure, verify_one
from .pool import WorkerPool
from .processes import Call, Submission, dumps, pickle_verifier


class VerifierErrors(RunError):
    """Too many verdicts are errors of the verifier or of the data for the rewards to mean anything."""


class ErrorBudget:
    """Stops a run if too many verdicts have no score (error or bad_reference).

    `check` raises VerifierErrors if their share of all verdicts so far exceeds `share`. It waits for `min_verdicts`
    verdicts, so that one bad item of a small first batch does not stop a run. If all verdicts are errors it does not
    wait.
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
        for verdict in verdicts:
            self.num_verdicts += 1
            if verdict.status in UNSCORED:
                self.num_errors += 1
                self.reasons[verdict.reason] += 1

    def check(self) -> None:
        """Raise VerifierErrors if the budget is exceeded."""
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
# Items that fast_path leaves open go to the pool in batches of this size, so that both work at the same time.
SUBMIT_EVERY = 32
MOST_TIMEOUT = 10**6  # seconds


class Runner:
    """Runs a verifier over (problem, completion) pairs. Use it as a context manager, or call `close`.

    The verifier runs in `workers` processes that can be killed; 0: one for each core, at least 2. timeout: seconds for
    an item, from its dispatch. memory_mb: memory for an item, beyond what a worker holds at its start. recycle_after: a
    worker is replaced after so many items. Each worker has a copy of the verifier, made when the Runner is made.
    Workers do not share state: a counter or a cache that a call changes stays in that worker. Workers are not forked
    from the caller, which may hold a GPU and threads. A verifier defined in a script, a notebook or a function is sent
    to them by value.

    Traits of the verifier (rlvr.core.traits.VerifierTraits) change this. With `isolate = False` it runs in the caller's
    thread, where nothing can stop it. With `verify_batch` it has its own concurrency and deadlines. Each of its
    `components` runs as that component's own traits say.

    `counts` holds the number of verdicts of each status. With `error_budget`, `verify` raises VerifierErrors if the
    share of error and bad_reference verdicts exceeds it. May be called from several threads at once. Raises ValueError
    if the verifier cannot be sent to the workers, or if a trait has the wrong type.
    """

    def __init__(
        self,
        verifier: Verifier,
        *,
        workers: int = 0,
        timeout: float = 10.0,
        memory_mb: int = 2048,
        recycle_after: int = 20_000,
        error_budget: float | None = None,
    ) -> None:
        check_count("workers", workers, least=0, most=MOST_SLOTS)
        check_seconds("timeout", timeout, most=MOST_TIMEOUT)
        check_count("memory_mb", memory_mb)
        check_count("recycle_after", recycle_after)
        if error_budget is not None and not 0 <= error_budget <= 1:
            raise ValueError(f"error_budget {error_budget!r:.80}: expected a share from 0 to 1")
        self.verifier = verifier
        self._traits = VerifierTraits.of(verifier)
        self._pickled = pickle_verifier(verifier) if runs_in_pool(verifier) else b""
        self.counts: Counter[Status] = Counter()
        self.budget = None if error_budget is None else ErrorBudget(error_budget)
        workers = workers or max(count_cores(), 2)  # two on one core: a verification that sleeps leaves it free
        self._settings = {"workers": workers, "memory_mb": memory_mb, "recycle_after": recycle_after}
        self._parts = {
            name: Runner(part, timeout=timeout, **self._settings) for name, part in self._traits.components.items()
        }
        self._timeout = timeout
        self._lock = threading.Lock()
        self._pool: WorkerPool | None = None
        self._closed = False
        after_fork.register(self)

    def after_fork(self) -> None:
        """In a forked child: forget the pool, whose thread and processes are the parent's. The next call makes one."""
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
        """Whether the verifier, or one of its components, must see all pairs of a step in one call."""
        return self._traits.whole_batch or any(part.whole_batch for part in self._parts.values())

    def judges(self, problem: Problem) -> bool:
        """Whether the verifier, or one of its components, has something to judge in a problem."""
        problem_for = self._traits.problem_for
        return problem_for is None or any(problem_for(name, problem) is not None for name in self._parts)

    def verify(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdict of each pair, in order. Identical pairs are verified once, unless `whole_batch`.

        Raise VerifierErrors (see the class), and PoolError if worker processes cannot be started.
        """
        verdicts = self.verify_part(pairs)
        self.count(verdicts)
        return verdicts

    def verify_part(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Return the verdicts without counting them. `count` checks the error budget, for a whole batch."""
        if self._closed:
            raise RuntimeError("this Runner is closed")
        # With whole_batch, each pair counts as often as it was sampled.
        unique, places = (pairs, range(len(pairs))) if self.whole_batch else _find_distinct(pairs)
        found = self._judge_all(unique)
        return [found[place] for place in places]

    def count(self, verdicts: Sequence[Verdict]) -> None:
        """Count verdicts of `verify_part`. Raise VerifierErrors (see the class)."""
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
            return self._verify_components(pairs)
        if self._traits.verify_batch is not None:
            return self._verify_as_batch(pairs, self._traits.verify_batch)
        if self._traits.isolate:
            return self._verify_in_workers(pairs)
        return [verify_one(self.verifier, problem, completion) for problem, completion in pairs]

    def _verify_components(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Run each component, and let the verifier merge the verdicts on each pair."""
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
        return [verdict.with_seconds(sum(part.seconds for part in row.values())) for verdict, row in zip(merged, rows)]

    def _verify_as_batch(self, pairs: Sequence[Pair], verify_batch: Callable[[Sequence[Pair]], Any]) -> list[Verdict]:
        """Run a verifier with its own concurrency. If it raises, every verdict is an error.

        A RunError passes through: the verifier cannot work at all (no model, no server, no sandbox).
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

    def _verify_in_workers(self, pairs: Sequence[Pair]) -> list[Verdict]:
        """Use the verdict of `fast_path` if it gives one; send the other pairs to the worker pool."""
        verdicts: list[Verdict | None] = [None] * len(pairs)
        pickled: dict[int, bytes | Verdict] = {}  # by problem; a verdict if it cannot be pickled
        submitted: list[tuple[Submission, list[int]]] = []
        waiting: list[tuple[int, Call]] = []
        caller = object()
        try:
            for i, (problem, completion) in enumerate(pairs):
                verdicts[i] = self._fast(problem, completion)
                if verdicts[i] is not None:
                    continue
                if id(problem) not in pickled:
                    outcome = call_guarded(self.verifier, functools.partial(dumps, problem))
                    pickled[id(problem)] = _log_outcome(outcome)
                data = pickled[id(problem)]
                if isinstance(data, Verdict):
                    verdicts[i] = data
                    continue
                waiting.append((i, Call(data, completion, _own_answer(problem))))
                if len(waiting) >= SUBMIT_EVERY:
                    submitted.append(self._submit(waiting, caller))
                    waiting = []
            if waiting:
                submitted.append(self._submit(waiting, caller))
            for submission, places in submitted:
                for place, verdict in zip(places, submission.wait()):
                    verdicts[place] = verdict
        except BaseException:
            for submission, _ in submitted:
                submission.abandoned = True
            raise
        return [verdict for verdict in verdicts if verdict is not None]

    def _fast(self, problem: Problem, completion: str) -> Verdict | None:
        """Return the verdict of the verifier's `fast_path`; None leaves the pair to the pool."""
        fast_path = self._traits.fast_path
        if fast_path is None:
            return None
        start = time.perf_counter()

        def call() -> Verdict | None:
            found = fast_path(problem, completion)
            return None if found is None else Verdict.of(found)

        verdict = _log_outcome(call_guarded(fast_path, call))
        return None if verdict is None else verdict.with_seconds(time.perf_counter() - start)

    def _submit(self, waiting: list[tuple[int, Call]], caller: object) -> tuple[Submission, list[int]]:
        return self._live_pool().submit([call for _, call in waiting], caller), [place for place, _ in waiting]

    def _live_pool(self) -> WorkerPool:
        with self._lock:
            if self._closed:
                raise RuntimeError("this Runner is closed")
            if self._pool is None:
                self._pool = WorkerPool(self._pickled, timeout=self._timeout, **self._settings)
                # Also closes the pool at exit, if nobody closed the runner.
                weakref.finalize(self, self._pool.close)
            return self._pool


def runs_in_pool(verifier: Any) -> bool:
    """Whether worker processes run a verifier: unless it opts out, has components, or has `verify_batch`."""
    traits = VerifierTraits.of(verifier)
    return traits.isolate and traits.verify_batch is None and not traits.components


def _log_outcome(outcome: tuple[T, Failure | None]) -> T:
    """Return the first part of a result of `call_guarded`; log the failure, if there is one."""
    found, failure = outcome
    if failure is not None:
        log_failure(failure)
    return found


def _verdict_of(call: Callable[..., Any], *args: Any) -> Verdict:
    return Verdict.of(call(*args))


def _own_answer(problem: Problem) -> str | None:
    """Return the reference as a completion; None if it is neither text nor a number."""
    return str(problem.reference) if isinstance(problem.reference, (str, int, float)) else None


def _find_distinct(pairs: Sequence[Pair]) -> tuple[list[Pair], list[int]]:
    """Return the distinct pairs, and for each pair its place among them."""
    unique: list[Pair] = []
    places: list[int] = []
    seen: dict[tuple[str, str], list[int]] = {}
    for problem, completion in pairs:
        same = seen.setdefault((problem.id, completion), [])
        place = next((p for p in same if _are_equal(unique[p][0], problem)), None)
        if place is None:
            place = len(unique)
            same.append(place)
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
