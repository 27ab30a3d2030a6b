"""Items without a verdict in time: whether the completion, the problem or the verifier is to blame."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rlvr.commands.cli import main
from rlvr.core.types import Problem, Status, Verdict
from rlvr.verifiers import Runner, VerifierErrors

TIMEOUT = 0.5


def pairs(*completions: str, reference: Any = "x") -> list[tuple[Problem, str]]:
    return [(Problem(str(i), "", reference), completion) for i, completion in enumerate(completions)]


def verdicts(
    verifier: Callable[[Problem, str], bool], asked: Sequence[tuple[Problem, str]], workers: int = 2
) -> list[Verdict]:
    with Runner(verifier, workers=workers, timeout=TIMEOUT) as runner:
        return runner.verify(asked)


def hang() -> bool:
    while True:
        time.sleep(0.01)


def hangs(problem: Problem, completion: str) -> bool:
    return hang()


@pytest.mark.parametrize(("reference", "workers"), [("x", 1), (3, 2), (None, 4), (["x"], 2)])
def test_a_verifier_that_always_hangs_is_an_error(reference, workers):
    """No verdict has a score, and the budget stops the run; it is not a batch of wrong answers."""
    with Runner(hangs, workers=workers, timeout=TIMEOUT, error_budget=0.02) as runner:
        with pytest.raises(VerifierErrors, match=r"^no verdict within 0.5 s.*4 of 4 verdicts "):
            runner.verify(pairs(*"abcd", reference=reference))
        assert runner.counts == {Status.ERROR: 4}


def test_a_batch_of_one_is_enough():
    """The verdict says what else was tried."""
    [of_text] = verdicts(hangs, pairs("a"))
    [of_none] = verdicts(hangs, pairs("a", reference=None))
    assert of_text.reason == "no verdict within 0.5 s, nor within 1 s on the reference's own answer"
    assert of_none.reason == "no verdict within 0.5 s, nor within 1 s on an empty completion"
    assert (of_text.status, of_text.score) == (of_none.status, of_none.score) == (Status.ERROR, None)


@pytest.mark.parametrize("problems", [1, 50])
def test_a_large_batch_costs_no_more_than_a_small_one(problems):
    """Once the verifier is known to hang on two problems, or on the only one, the items that wait are not run."""
    asked = [(Problem(str(i % problems), "", "x"), f"completion {i}") for i in range(200)]
    start = time.monotonic()
    found = verdicts(hangs, asked)
    assert {verdict.status for verdict in found} == {Status.ERROR}
    assert time.monotonic() - start < 200 * TIMEOUT / 2 / 3


def loops(problem: Problem, completion: str) -> bool:
    return hang() if "loop" in completion else completion == problem.reference


@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_completion_that_hangs_scores_zero(place, workers):
    """Wherever it comes in the batch, the first item of a fresh pool included, the others get their verdicts."""
    completions = ["x"] * 5
    completions[place] = "loop"
    found = verdicts(loops, pairs(*completions), workers)
    assert [verdict.status for verdict in found] == [
        Status.TIMEOUT if completion == "loop" else Status.CORRECT for completion in completions
    ]
    assert found[place].score == 0.0
    assert found[place].reason == "no verdict within 0.5 s"


@pytest.mark.parametrize("reference", ["x", None, ["x"]])
def test_a_completion_that_hangs_without_company_scores_zero(reference):
    """Nothing else tells than the reference's own answer or the empty completion, which gets a verdict."""
    with Runner(loops, timeout=TIMEOUT) as runner:
        [verdict] = runner.verify(pairs("loop", reference=reference))
        assert (verdict.status, verdict.score) == (Status.TIMEOUT, 0.0)


def test_most_of_a_group_may_hang():
    """Where the verifier works, it is not to blame however many completions hang, in a row or not."""
    found = verdicts(loops, pairs("x", *["loop"] * 6, "x", *["loop"] * 3))
    assert [verdict.status for verdict in found].count(Status.TIMEOUT) == 9


@pytest.mark.parametrize("reference", ["x", None])
def test_hanging_on_one_completion_after_another_is_an_error(reference):
    """The empty completion, or the right answer, may take a way of its own: what counts is that none has a verdict."""

    def slow_way(problem: Problem, completion: str) -> bool:
        return bool(completion) and (completion == problem.reference or hang())

    found = verdicts(slow_way, pairs(*"abcde", reference=reference))
    assert {verdict.status for verdict in found} == {Status.ERROR}
    assert found[0].reason == "no verdict within 0.5 s, on one completion after another"
    # With a verdict among them, even a late one, it is the completions.
    if reference is not None:
        late = verdicts(slow_way, pairs(*"abcde", "x"))
        assert [verdict.status for verdict in late] == [Status.TIMEOUT] * 5 + [Status.CORRECT]


def test_a_problem_that_hangs_is_not_the_completions_doing():
    """Other problems are verified; of this one no completion can be."""

    def stuck(problem: Problem, completion: str) -> bool:
        return hang() if problem.id == "1" else True

    asked = [(Problem(str(i), "", "x"), completion) for i in range(4) for completion in "abcdef"]
    for workers in (1, 3):
        found = verdicts(stuck, asked, workers)
        expected = [Status.ERROR if problem.id == "1" else Status.CORRECT for problem, _ in asked]
        assert [verdict.status for verdict in found] == expected


def test_a_verifier_that_starts_to_hang_later_is_an_error(tmp_path):
    """As one that asks a service that is gone: verdicts of earlier batches do not excuse it."""
    gone = tmp_path / "gone"

    def asks(problem: Problem, completion: str) -> bool:
        return hang() if gone.exists() else True

    with Runner(asks, timeout=TIMEOUT) as runner:
        assert all(verdict.correct for verdict in runner.verify(pairs(*"abcdef")))
        gone.touch()
        assert {verdict.status for verdict in runner.verify(pairs(*"ghij"))} == {Status.ERROR}
        gone.unlink()
        assert all(verdict.correct for verdict in runner.verify(pairs(*"ghij")))


def test_a_control_that_ends_its_worker_is_no_excuse():
    def breaks(problem: Problem, completion: str) -> bool:
        return hang() if completion != problem.reference else os._exit(1)  # type: ignore[func-returns-value]

    [verdict] = verdicts(breaks, pairs("a"))
    assert verdict.status is Status.ERROR


@functools.cache
def load(seconds: float) -> bool:
    """Stand for an import within the first call of each process."""
    time.sleep(seconds)
    return True


@pytest.mark.parametrize("workers", [1, 2])
def test_a_verifier_that_is_slow_at_its_start_gets_its_time(workers):
    """Its first call in a process takes longer than the deadline; each completion gets its verdict all the same."""

    def imports(problem: Problem, completion: str) -> bool:
        return load(1.2) and loops(problem, completion)

    completions = ["x", "y", "x", "loop", "x", "y"]
    with Runner(imports, workers=workers, timeout=1.0) as runner:
        found = runner.verify(pairs(*completions))
    right = {"x": Status.CORRECT, "y": Status.INCORRECT, "loop": Status.TIMEOUT}
    assert [verdict.status for verdict in found] == [right[completion] for completion in completions]


def test_several_callers_each_get_their_verdicts():
    """Hangs in one caller's pairs leave another's alone."""
    from concurrent.futures import ThreadPoolExecutor

    def stuck(problem: Problem, completion: str) -> bool:
        return hang() if problem.reference is None else loops(problem, completion)

    with Runner(stuck, workers=2, timeout=TIMEOUT) as runner, ThreadPoolExecutor(2) as pool:
        bad = pool.submit(runner.verify, pairs("a", "b", reference=None))
        time.sleep(TIMEOUT / 5)  # both workers have a pair that hangs, and the verifier has given no verdict yet
        good = pool.submit(runner.verify, pairs(*["x"] * 40))
        assert {verdict.status for verdict in bad.result()} == {Status.ERROR}
        assert all(verdict.correct for verdict in good.result())


def write_module(tmp_path, monkeypatch, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("def check(problem, completion):\n    while True:\n        pass\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_grade_says_that_the_verifier_hangs(tmp_path, monkeypatch, capsys):
    """Exit code 2 and one line, as for a verifier that crashes."""
    write_module(tmp_path, monkeypatch, "hangs_on_all")
    rows = [{"reference": str(i), "completion": f"The answer is {i}."} for i in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["grade", "--verifier", "hangs_on_all:check", "--timeout", "0.5", str(file)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == (
        "error: no verdict within 0.5 s, nor within 1 s on the reference's own answer; the verifier failed on 4 of "
        f"4 lines of {file}, and no line could be scored"
    )


@pytest.mark.timeout(120)
def test_training_ends_at_its_first_step(tmp_path, monkeypatch, capsys):
    """A run whose verifier hangs on everything does not go on with rewards of 0."""
    write_module(tmp_path, monkeypatch, "hangs_in_training")
    run = ["--run.verifier", "hangs_in_training:check", "--run.steps", "3", "--run.out-dir", str(tmp_path / "run")]
    small = ["--sft.steps", "0", "--rollout.problems-per-step", "2", "--rollout.group-size", "2", "--eval.every", "-1"]
    assert main(["train", "tiny_math", *run, *small, "--rollout.timeout", "0.5", "--model.device", "cpu"]) != 0
    assert "4 of 4 verdicts have no score" in capsys.readouterr().err
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
