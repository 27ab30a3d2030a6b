"""Items on which a worker dies or hangs: whether the completion, the problem or the verifier is to blame."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rlvr.commands.cli import main
from rlvr.core.types import Problem, Status, Verdict
from rlvr.verifiers import Runner, VerifierErrors
from rlvr.verifiers.runner.processes import Submission

TIMEOUT = 0.5
RIGHT = {"x": Status.CORRECT, "y": Status.INCORRECT, "loop": Status.TIMEOUT, "die": Status.LIMIT}

Check = Callable[[Problem, str], bool]


def hang() -> bool:
    while True:
        time.sleep(0.01)


def die() -> bool:
    os._exit(3)


WAYS: dict[str, Callable[[], object]] = {
    "hang": hang,
    "exit": die,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: ctypes.string_at(0),
}


def pairs(*completions: str, reference: Any = "x") -> list[tuple[Problem, str]]:
    return [(Problem(str(i), "", reference), completion) for i, completion in enumerate(completions)]


def verdicts(verifier: Check, asked: Sequence[tuple[Problem, str]], workers: int = 2) -> list[Verdict]:
    with Runner(verifier, workers=workers, timeout=TIMEOUT) as runner:
        return runner.verify(asked)


def statuses(verifier: Check, *completions: str, reference: Any = "x", workers: int = 2) -> list[Status]:
    return [verdict.status for verdict in verdicts(verifier, pairs(*completions, reference=reference), workers)]


def check_poisoned(problem: Problem, completion: str) -> bool:
    """Right on x. It hangs on what begins with "loop", and dies on what begins with "die"."""
    if completion.startswith("loop"):
        return hang()
    return die() if completion.startswith("die") else completion == "x"


@pytest.mark.parametrize(("reference", "workers"), [("x", 1), (3, 2), (None, 4)])
@pytest.mark.parametrize("way", WAYS)
def test_a_verifier_that_always_fails_is_an_error(way, reference, workers):
    """No verdict has a score, and the budget stops the run; it is not a batch of wrong answers."""
    fail = WAYS[way]

    def fails(problem: Problem, completion: str) -> bool:
        return bool(fail())

    with Runner(fails, workers=workers, timeout=TIMEOUT, error_budget=0.02) as runner:
        message = r"^(no verdict within 0.5 s|the worker process (was killed|ended)).* 4 of 4 verdicts "
        with pytest.raises(VerifierErrors, match=message):
            runner.verify(pairs(*"abcd", reference=reference))
        assert runner.counts == {Status.ERROR: 4}


@pytest.mark.parametrize(
    ("fail", "reference", "reason"),
    [
        (hang, "x", "no verdict within 0.5 s, nor within 1 s on the reference's own answer"),
        (hang, ["x"], "no verdict within 0.5 s, nor within 1 s on an empty completion"),
        (
            die,
            "x",
            "the worker process ended with exit code 3, twice, and the worker process ended with exit code 3 on the "
            "reference's own answer",
        ),
    ],
)
def test_a_batch_of_one_is_enough(fail, reference, reason):
    """The verdict says what else was tried."""
    [verdict] = verdicts(lambda problem, completion: fail(), pairs("a", reference=reference))
    assert (verdict.status, verdict.score, verdict.reason) == (Status.ERROR, None, reason)


@pytest.mark.parametrize("problems", [1, 50])
@pytest.mark.parametrize("way", ["hang", "exit"])
def test_a_large_batch_costs_no_more_than_a_small_one(tmp_path, way, problems):
    """Once the verifier is known to fail on two problems, or on the only one, the items that wait are not run."""
    log, fail = tmp_path / "log", WAYS[way]

    def fails(problem: Problem, completion: str) -> bool:
        with log.open("a") as file:
            file.write("called\n")
        return bool(fail())

    asked = [(Problem(str(i % problems), "", "x"), f"completion {i}") for i in range(200)]
    assert {verdict.status for verdict in verdicts(fails, asked)} == {Status.ERROR}
    assert len(log.read_text().splitlines()) <= 20


@pytest.mark.parametrize("workers", [1, 3])
def test_poisonous_completions_score_zero(workers):
    """At the start, where no verdict is known, in the middle and at the end. The others get their verdicts."""
    few = ["die", "loop"]
    completions = [*few, *"xyxyxy", "die", "die", "die", *"xy", "loop", *"xyx", *few]
    assert statuses(check_poisoned, *completions, workers=workers) == [RIGHT[completion] for completion in completions]


@pytest.mark.parametrize("reference", ["x", None, ["x"]])
def test_a_poisonous_completion_without_company_scores_zero(reference):
    """Nothing else tells than the reference's own answer or the empty completion, which gets a verdict."""
    with Runner(check_poisoned, timeout=TIMEOUT) as runner:
        [loop] = runner.verify(pairs("loop", reference=reference))
        [dead] = runner.verify(pairs("die", reference=reference))
        assert runner.verify(pairs("x"))[0].correct
    assert (loop.status, loop.score, loop.reason) == (Status.TIMEOUT, 0.0, "no verdict within 0.5 s")
    reason = "the worker process ended with exit code 3, twice"
    assert (dead.status, dead.score, dead.reason) == (Status.LIMIT, 0.0, reason)


@pytest.mark.parametrize("fail", [hang, die])
def test_failing_on_one_completion_after_another_is_an_error(fail):
    """The empty completion, or the right answer, may take a way of its own: what counts is that none has a verdict."""

    def own_way(problem: Problem, completion: str) -> bool:
        return bool(completion) and (completion == problem.reference or fail())

    for reference in ("x", None):
        found = verdicts(own_way, pairs(*"abcde", reference=reference))
        assert {verdict.status for verdict in found} == {Status.ERROR}
        assert found[0].reason.endswith(", on one completion after another")
    with Runner(own_way, workers=1, timeout=TIMEOUT) as runner:  # also if each is alone in its batch
        alone = [runner.verify([pair])[0] for pair in pairs(*"abcde", reference=None)]
    assert [verdict.score for verdict in alone] == [0.0] * 3 + [None] * 2
    # With a verdict among them, even a late one, it is the completions.
    found = verdicts(own_way, pairs(*"abcde", "x"))
    assert [verdict.score for verdict in found] == [0.0] * 5 + [1.0]


@pytest.mark.parametrize("fail", [hang, die])
def test_a_problem_that_fails_is_not_the_completions_doing(fail):
    """Other problems are verified; of this one no completion can be."""

    def stuck(problem: Problem, completion: str) -> bool:
        return fail() if problem.id == "1" else True

    asked = [(Problem(str(i), "", "x"), completion) for i in range(4) for completion in "abcdef"]
    for workers in (1, 3):
        found = verdicts(stuck, asked, workers)
        expected = [Status.ERROR if problem.id == "1" else Status.CORRECT for problem, _ in asked]
        assert [verdict.status for verdict in found] == expected


@pytest.mark.parametrize("fail", [hang, die])
def test_a_verifier_that_starts_to_fail_later_is_an_error(tmp_path, fail):
    """As one that asks a service that is gone: verdicts of earlier batches do not excuse it."""
    gone = tmp_path / "gone"

    def asks(problem: Problem, completion: str) -> bool:
        return fail() if gone.exists() else True

    with Runner(asks, timeout=TIMEOUT) as runner:
        assert all(verdict.correct for verdict in runner.verify(pairs(*"abcdef")))
        gone.touch()
        assert {verdict.status for verdict in runner.verify(pairs(*"ghij"))} == {Status.ERROR}
        gone.unlink()
        assert all(verdict.correct for verdict in runner.verify(pairs(*"ghij")))


def test_a_call_right_after_a_failed_one_is_judged_anew(tmp_path, monkeypatch):
    """Also where it comes before the pool's thread goes on: here that thread sleeps behind each verdict."""
    gone, settle = tmp_path / "gone", Submission.settle

    def settle_and_sleep(submission, *given):
        settle(submission, *given)
        time.sleep(0.3)

    monkeypatch.setattr(Submission, "settle", settle_and_sleep)
    gone.touch()
    with Runner(lambda problem, completion: die() if gone.exists() else True, timeout=TIMEOUT) as runner:
        assert [verdict.status for verdict in runner.verify(pairs("a"))] == [Status.ERROR]
        gone.unlink()
        assert [verdict.status for verdict in runner.verify(pairs("a"))] == [Status.CORRECT]


@pytest.mark.parametrize(("first", "then"), [(hang, die), (die, hang)])
def test_a_control_that_fails_in_another_way_is_no_excuse(first, then):
    assert statuses(lambda problem, completion: then() if completion == "x" else first(), "a") == [Status.ERROR]


def test_a_verifier_that_dies_in_the_first_call_of_each_process_is_an_error():
    """Every worker is fresh after a death, so that no item gets through."""
    calls: list[str] = []

    def crashes(problem: Problem, completion: str) -> bool:
        calls.append(completion)
        return len(calls) > 1 or die()

    assert statuses(crashes, *"abc") == [Status.ERROR] * 3


@functools.cache
def load(seconds: float) -> bool:
    """Stand for an import within the first call of each process."""
    time.sleep(seconds)
    return True


@pytest.mark.parametrize("workers", [1, 2])
def test_a_verifier_that_is_slow_at_its_start_gets_its_time(workers):
    """Its first call in a process takes longer than the deadline; each completion gets its verdict all the same."""

    def imports(problem: Problem, completion: str) -> bool:
        return load(1.2) and check_poisoned(problem, completion)

    completions = ["x", "y", "x", "loop", "x", "y"]
    with Runner(imports, workers=workers, timeout=1.0) as runner:
        found = runner.verify(pairs(*completions))
    assert [verdict.status for verdict in found] == [RIGHT[completion] for completion in completions]


def test_completions_too_large_to_read_score_zero():
    """The worker runs out of memory before the verifier is called, on each of them: that is their size."""
    big = "x" * 40_000_000
    with Runner(check_poisoned, workers=1, memory_mb=24) as runner:
        found = runner.verify(pairs(big + "a", big + "b", big + "c"))
    assert [verdict.status for verdict in found] == [Status.LIMIT] * 3
    assert found[0].reason == "the worker process ran out of memory, twice"


def test_several_callers_each_get_their_verdicts():
    """What fails in one caller's pairs leaves another's alone, also before the verifier has given a verdict."""
    begun = threading.Event()

    def stuck(problem: Problem, completion: str) -> bool:
        return hang() if problem.reference is None else check_poisoned(problem, completion)

    with Runner(stuck, timeout=TIMEOUT) as runner, ThreadPoolExecutor(3) as threads:
        bad = threads.submit(runner.verify, pairs("a", "b", reference=None))
        begun.wait(TIMEOUT / 5)  # both workers have a pair that hangs
        good = threads.submit(runner.verify, pairs(*["x"] * 40))
        mixed = threads.submit(runner.verify, pairs(*["x"] * 7, "die", *["x"] * 32))
        assert {verdict.status for verdict in bad.result()} == {Status.ERROR}
        assert all(verdict.correct for verdict in good.result())
        assert [i for i, verdict in enumerate(mixed.result()) if verdict.status is Status.LIMIT] == [7]


def test_grade_says_that_the_verifier_hangs(tmp_path, monkeypatch, capsys):
    """Exit code 2 and one line, as for a verifier that crashes."""
    (tmp_path / "hangs_on_all.py").write_text("def check(problem, completion):\n    while True:\n        pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    rows = [{"reference": str(i), "completion": f"The answer is {i}."} for i in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["grade", "--verifier", "hangs_on_all:check", "--timeout", "0.5", str(file)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "error: no verdict within 0.5 s, nor within 1 s on the reference's own answer; the verifier failed on 4 of "
        f"4 lines of {file}, and no line could be scored"
    )
