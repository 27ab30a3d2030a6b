"""What a run says of itself at its end: that it is below its start, or learned nothing, and why."""

from __future__ import annotations

import pytest

from rlvr.launch import launch
from rlvr.runs.conclusions import conclusions, ended_below, learned_nothing
from rlvr.runs.log import read_events
from tests.helpers.resuming import run_that_unlearns
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums

START = {"step": 0, "pass@1": 0.13, "pass@1_ci": [0.09, 0.18]}


def evaluation_of(value: float) -> dict:
    return {"step": 10, "pass@1": value, "pass@1_ci": [value - 0.01, value + 0.01]}


def step(**row: float) -> dict:
    """A step of 16 rollouts of 5 tokens."""
    return {"reward": 0.0, "correct": 0.0, "no_signal": 1.0, "rollout_tokens": 80.0, "completion_tokens": 5.0, **row}


def test_a_run_below_its_start_says_so():
    """With both figures; and that it may be noise, where the last one is within the start's interval. So does one that
    fell below the interval of its best.
    """
    assert ended_below([START, evaluation_of(0.02)]) == (
        "The run ended below its start: held-out pass@1 0.020 [0.010, 0.030] at step 10, and 0.130 [0.090, 0.180] at "
        "step 0."
    )
    assert ended_below([START, evaluation_of(0.12)]).endswith("at step 0, which may be noise.")
    assert not ended_below([START, evaluation_of(0.02), evaluation_of(0.13)])
    assert ended_below([START, evaluation_of(0.9), {**START, "step": 20}]) == (
        "The run ended below its best: held-out pass@1 0.130 [0.090, 0.180] at step 20, and 0.900 [0.890, 0.910] at "
        "step 10."
    )
    assert not ended_below([{**START, "pass@1": 0.1}, START, {**evaluation_of(0.12), "step": 20}])
    assert not ended_below([START])
    assert not ended_below([])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (
            [step(**{"status/no_answer": 0.75, "status/incorrect": 0.25})] * 2,
            "no correct sample in 32 rollouts (no_answer",
        ),
        ([step(reward=1.0, correct=1.0)], "all 16 rollouts were correct"),
        ([step(unscored=1.0)], "none of 16 rollouts has a score"),
        ([step(reward=0.5)], "all rollouts of a problem scored the same"),
        ([step(no_signal=0.0)], "no correct sample in 16 rollouts"),  # a critic learns from all
    ],
)
def test_a_run_without_a_signal_says_why(rows, why):
    (said,) = conclusions(rows, [START, evaluation_of(0.13)])
    assert said.startswith("Nothing was learned: no step had a signal, since ")
    assert why in said


def test_one_step_with_a_signal_is_enough():
    assert not learned_nothing([step(), step(reward=0.1, correct=0.1, no_signal=0.5)])
    assert not learned_nothing([])


def test_a_run_whose_signal_ran_out_says_so():
    """After steps with a signal; not where nearly all rollouts are correct, with a teacher, or after few steps."""
    early, late = [step(correct=0.3, no_signal=0.2)] * 30, step(correct=0.4, no_signal=0.98, reward=0.4)
    (said,) = conclusions([*early, *[late] * 10], [])
    assert said.startswith("Little was left to learn from: in the last 8 steps 98% of the groups had no signal")
    assert "40% of the rollouts were correct" in said
    for last in ({"correct": 0.95}, {"no_signal": 0.9}, {"teacher/loss": 1.0}):
        assert not conclusions([*early, *[late | last] * 10], [])
    assert not conclusions([*early[:4], late], [])
    (said,) = conclusions([*[step(correct=0.97)] * 30, *[late] * 10], [])
    assert said.startswith("Problems fail as a whole: in the last 8 steps 98% of the groups had no signal")
    assert said.endswith("after 97% in earlier ones. `rlvr view` shows what changed.")


def never_right(problem: object, completion: str) -> bool:
    return False


def test_the_last_line_of_a_run_that_learned_nothing_says_so(tmp_path, capsys):
    """Its report and its last event too; it ends as any other run does."""
    launch(tiny(tmp_path, run={"steps": 2}), task=sums(), verifier=never_right)
    said = (
        "Nothing was learned: no step had a signal, since there is no correct sample in 32 rollouts (incorrect 100%)."
    )
    assert capsys.readouterr().out.splitlines()[-1] == f"WARNING {said}"
    assert said in (tmp_path / "report.html").read_text()
    last = read_events(tmp_path)[-1]
    assert last["kind"] == "end"
    assert said in last["message"]


def test_the_last_line_of_a_run_that_unlearned_says_so(tmp_path, capsys):
    """And its report, with the events that led there."""
    launch(run_that_unlearns(tmp_path, "warn", steps=2))
    said = "The run ended below its start: held-out pass@1 0.141 "
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"WARNING {said}")
    report = (tmp_path / "report.html").read_text()
    assert said in report
    assert '"kind": "regression"' in report
