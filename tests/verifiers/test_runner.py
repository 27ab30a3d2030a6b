"""The runner and its pool: order, deadlines, poison, threads, processes left behind."""

from __future__ import annotations

import asyncio
import os
import threading
from itertools import pairwise

import pytest

from rlvr.core.types import Problem, RunError, Status, Verdict, correct, incorrect
from rlvr.verifiers.runner import ErrorBudget, Runner, VerifierErrors
from rlvr.verifiers.runner.base import check_references, verify_one
from tests.helpers.machine import as_expected, pairs_of


def test_verdicts_come_in_order(poison):
    """Three workers and several messages do not mix up the answers; each has a duration, each status is counted."""
    with Runner(poison.Poison(), workers=3) as runner:
        verdicts = runner.verify(pairs_of(3000))
        assert as_expected(verdicts)
        assert all(verdict.seconds > 0 for verdict in verdicts)
        assert runner.counts == {Status.CORRECT: 1500, Status.INCORRECT: 1500}
        assert runner.verify([]) == []


@pytest.mark.parametrize(
    ("completion", "status"),
    [
        ("hang", Status.TIMEOUT),
        ("allocate", Status.LIMIT),
        ("grow", Status.LIMIT),
        ("raise", Status.ERROR),
        ("sys.exit", Status.ERROR),
        ("strange verdict", Status.ERROR),
    ],
)
def test_one_bad_item_costs_one_item(poison, completion, status):
    """What hangs, blows up or kills its worker gets its own verdict, and its neighbours theirs."""
    pairs = pairs_of(60)
    pairs[7] = (pairs[7][0], completion)
    with Runner(poison.Poison(), timeout=1.0 if completion == "hang" else 30.0, memory_mb=256) as runner:
        verdicts = runner.verify(pairs)
    assert verdicts[7].status is status
    assert as_expected(verdicts[:7])
    assert as_expected(verdicts[8:], 8)


def test_timeout_tells_how_long_it_took(poison):
    """The deadline counts from the item's dispatch, not from the batch's start."""
    with Runner(poison.Poison(), workers=1, timeout=0.5) as runner:
        runner.verify(pairs_of(1))
        verdicts = runner.verify([(Problem(str(i), "", ""), "hang") for i in range(3)])
    assert [verdict.status for verdict in verdicts] == [Status.TIMEOUT] * 3
    seconds = [verdict.seconds for verdict in verdicts]
    assert min(seconds) >= 0.5
    # Counted from the batch's start each would have the seconds of those before it too.
    assert min(b - a for a, b in pairwise(seconds)) < 0.4
    assert verdicts[0].reason == "no verdict within 0.5 s"


def test_slow_items_that_queue_do_not_time_out(poison):
    """Ten items of 0.2 s in one worker take longer than the deadline of each, and all finish."""
    with Runner(poison.Poison(), workers=1, timeout=1.0) as runner:
        verdicts = runner.verify([(Problem(str(i), "", ""), "sleep") for i in range(10)])
    assert all(verdict.correct for verdict in verdicts)


def test_death_by_accident_is_tried_again(poison, tmp_path):
    """A worker that is killed once costs nothing; the item is judged by another."""
    with Runner(poison.Poison()) as runner:
        [verdict] = runner.verify([(Problem("1", "", "", {"log": str(tmp_path / "log")}), "kill once")])
    assert verdict.correct


def test_identical_pairs_are_judged_once(poison, tmp_path):
    """A group that says the same eight times is one check; equal problems count as the same."""
    log = tmp_path / "log"
    pairs = [(Problem("1", "", "", {"log": str(log)}), "record") for _ in range(8)]
    with Runner(poison.Poison()) as runner:
        assert all(verdict.correct for verdict in runner.verify(pairs))
        assert log.read_text() == "judged\n"
        assert runner.counts[Status.CORRECT] == 8
        runner.verify([*pairs, (Problem("1", "", "other", {"log": str(log)}), "record")])
    assert log.read_text() == "judged\n" * 3


def test_workers_outlive_the_thread_that_first_called(poison):
    """The kernel's parent-death signal goes by threads; the pool's own thread is the parent."""
    with Runner(poison.Poison()) as runner:
        found: list[Verdict] = []
        thread = threading.Thread(target=lambda: found.extend(runner.verify([(Problem("1", "", ""), "pid")])))
        thread.start()
        thread.join()
        [again] = runner.verify([(Problem("2", "", ""), "pid")])
    assert found[0].extracted == again.extracted


def test_the_event_loop_goes_on(poison):
    """While a completion hangs, other tasks run."""

    async def main() -> tuple[list[Verdict], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        with Runner(poison.Poison(), timeout=0.5) as runner:
            verdicts = await runner.averify([(Problem("1", "", ""), "hang"), *pairs_of(10)])
        ticking.cancel()
        return verdicts, ticks

    verdicts, ticks = asyncio.run(main())
    assert verdicts[0].status is Status.TIMEOUT
    assert as_expected(verdicts[1:])
    assert ticks >= 10


def test_quick_decides_in_the_callers_process(poison):
    """What `fast_path` leaves open goes to the pool; an exception in it is an error like any other."""
    pairs = [(Problem("1", "", "x"), c) for c in ("easy", "pid", "broken quick")]
    with Runner(poison.Quick()) as runner:
        easy, pid, broken = runner.verify(pairs)
    assert easy.extracted == "quick"
    assert pid.extracted is not None
    assert int(pid.extracted) != os.getpid()
    assert broken.status is Status.ERROR
    assert broken.reason.endswith(": ValueError: quick failed")


RETURNED = [(True, Status.CORRECT), (0.0, Status.INCORRECT), (0.25, Status.PARTIAL), ("yes", Status.ERROR)]
RETURNED += [(None, Status.ERROR), (float("nan"), Status.ERROR)]


def test_verdicts_may_be_bools_and_numbers():
    """Of a verifier, its `fast_path` and its `merge`. None of `fast_path` leaves the pair to the pool."""
    returned = dict(enumerate(RETURNED))

    class Fast:
        def __call__(self, problem: Problem, completion: str) -> bool:
            return False

        def fast_path(self, problem: Problem, completion: str) -> object:
            return returned[int(completion)][0]

    class Merging:
        components = {"number": lambda problem, completion: correct(completion)}  # noqa: RUF012

        def __call__(self, problem: Problem, completion: str) -> bool:
            raise AssertionError

        def problem_for(self, name: str, problem: Problem) -> Problem:
            return problem

        def merge(self, row: dict[str, Verdict]) -> object:
            return returned[int(row["number"].extracted)][0]

    pairs = [(Problem("1", "", ""), str(number)) for number in returned]
    for verifier in (lambda problem, completion: returned[int(completion)][0], Merging(), Fast()):
        with Runner(verifier) as runner:
            found = runner.verify(pairs)
        expected = [status for _, status in RETURNED]
        if isinstance(verifier, Fast):
            expected[4] = Status.INCORRECT
        assert [verdict.status for verdict in found] == expected
    assert found[2].score == 0.25
    assert found[3].reason.endswith(": TypeError: the verifier returned a str; expected bool, float or Verdict")


class OwnBatch:
    """Brings its own concurrency."""

    def __init__(self, lost: int = 0) -> None:
        self.calls: list[int] = []
        self.lost = lost

    def __call__(self, problem: Problem, completion: str) -> Verdict:
        raise AssertionError("verify_batch is to be used")

    def verify_batch(self, pairs: list[tuple[Problem, str]]) -> list[Verdict]:
        self.calls.append(len(pairs))
        return [correct(completion) for _, completion in pairs][: len(pairs) - self.lost]


def test_verify_batch_gets_all_distinct_pairs_at_once():
    """A verifier with its own concurrency is called once."""
    verifier = OwnBatch()
    with Runner(verifier) as runner:
        assert [v.extracted for v in runner.verify([*pairs_of(5), *pairs_of(3)])] == list("01234012")
    assert verifier.calls == [5]


def test_verify_batch_that_loses_a_verdict_is_an_error():
    """Verdicts cannot be matched to completions then: none counts."""
    with Runner(OwnBatch(lost=1)) as runner:
        verdicts = runner.verify(pairs_of(3))
    assert [v.status for v in verdicts] == [Status.ERROR] * 3
    assert "2 verdicts for 3 pairs" in verdicts[0].reason


def fail(problem: Problem, completion: str) -> bool:
    raise ZeroDivisionError(completion)


def test_an_exception_is_logged_once_per_kind(caplog):
    """The first with its traceback; the rest are verdicts."""
    verdicts = [verify_one(fail, Problem("1", "", ""), str(i)) for i in range(3)]
    assert [v.reason.partition(": ")[2] for v in verdicts] == [f"ZeroDivisionError: {i}" for i in range(3)]
    assert all(v.score is None and v.seconds > 0 for v in verdicts)
    assert len(caplog.records) == 1
    assert "Traceback" in caplog.text
    assert "test_runner.fail" in caplog.text


def test_a_result_that_is_no_verdict_is_logged_without_a_traceback(caplog):
    """The user's function has returned; lines of rlvr do not help to mend it."""
    verdict = verify_one(lambda problem, completion: None, Problem("1", "", ""), "")
    assert "test_runner.py, line" in verdict.reason
    assert [verdict.reason in caplog.text, "Traceback" in caplog.text] == [True, False]


def test_budget_stops_a_run_whose_verdicts_are_errors():
    """2 % of 100 are two errors; the third is one too many."""
    budget = ErrorBudget(0.02)
    for bad in (0, 1, 1):
        budget.add([incorrect()] * (33 - bad) + [verify_one(fail, Problem("1", "", ""), "")] * bad)
        budget.check()
    budget.add([verify_one(fail, Problem("1", "", ""), "late")])
    with pytest.raises(VerifierErrors, match=r"3 of 100 verdicts have no score .*, above the budget of 2\.0%"):
        budget.check()


def test_budget_waits_for_a_fair_sample():
    """One error among the first ten says little; all ten of them say enough."""
    budget = ErrorBudget(0.02)
    budget.add([correct()] * 9 + [verify_one(fail, Problem("1", "", ""), "")])
    budget.check()
    with Runner(fail, error_budget=0.02) as runner, pytest.raises(VerifierErrors, match="10 of 10"):
        runner.verify(pairs_of(10))


@pytest.mark.parametrize("wrong", [{"workers": -1}, {"timeout": 0}, {"memory_mb": -1}, {"error_budget": 1.5}])
def test_settings_are_checked(wrong):
    """In one line that names what is expected."""
    with pytest.raises(ValueError, match="expected"):
        Runner(fail, **wrong)


def test_check_references_names_the_problem():
    """Bad data is found when it is loaded, not in the middle of a run."""

    class Even:
        def __call__(self, problem: Problem, completion: str) -> bool:
            return True

        def check_reference(self, reference: int) -> None:
            if reference % 2:
                raise ValueError(f"{reference} is odd")

    check_references(Even(), [Problem("a", "", 2)])
    with pytest.raises(ValueError, match="problem 'b': 3 is odd"):
        check_references(Even(), [Problem("a", "", 2), Problem("b", "", 3)])
    check_references(fail, [Problem("a", "", None)])
    with pytest.raises(RunError, match=r"problem 'c': check_reference of the verifier .*Even failed with TypeErr"):
        check_references(Even(), [Problem("c", "", None)])


def test_check_reference_that_returns_false_is_an_error():
    """It must raise: an answer of False that nobody reads would accept every reference."""

    class Lax:
        def __call__(self, problem: Problem, completion: str) -> bool:
            return True

        def check_reference(self, reference: object) -> bool:
            return False

    with pytest.raises(RunError, match="it returned False; expected ValueError"):
        check_references(Lax(), [Problem("a", "", 2)])
