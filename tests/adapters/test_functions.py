"""Adapters that import nothing of another program: reward functions of TRL, verl and OpenRLHF."""

from __future__ import annotations

import math
import pickle

import pytest

from rlvr.adapters import Judge, Unscored, judge
from rlvr.adapters import openrlhf as openrlhf_adapter
from rlvr.adapters import trl as trl_adapter
from rlvr.adapters import verl as verl_adapter
from rlvr.core.types import Problem, Status

GOOD, BAD, NONE = "so \\boxed{4}", "so \\boxed{5}", "no idea"


@pytest.fixture(scope="module")
def math_judge():
    """A judge without a pack."""
    with judge("math") as made:
        yield made


@pytest.fixture(scope="module")
def sums():
    """A judge of a pack."""
    with judge(task="arithmetic", num_train=6, num_test=4) as made:
        yield made


def answered(problem):
    return f"\\boxed{{{problem.reference}}}"


def test_trl_scores_in_order(math_judge):
    """References come from a column; texts and messages are completions; no score is None."""
    reward = trl_adapter.reward(math_judge, reference="answer")
    spoken = [{"role": "assistant", "content": GOOD}]
    found = reward(
        prompts=["2+2?"] * 4,
        completions=[GOOD, spoken, BAD, GOOD],
        completion_ids=[[1]] * 4,
        answer=["4", "4", "4", None],
    )
    assert found == [1.0, 1.0, 0.0, None]
    assert reward.__name__ == "rlvr"


def test_trl_rows_hold_no_references(sums):
    """A row names its problem; the reward finds the reference by it."""
    rows = trl_adapter.rows(sums, "test")
    assert {frozenset(row) for row in rows} == {frozenset(("prompt", "problem"))}
    keys = [row["problem"] for row in rows]
    reward = trl_adapter.reward(sums)
    texts = [answered(sums.problem(key)) for key in keys]
    assert reward([row["prompt"] for row in rows], texts, problem=keys) == [1.0] * 4
    assert reward([row["prompt"] for row in rows], [*texts[1:], "?"], problem=keys)[-1] == 0.0


def test_trl_needs_a_column(math_judge):
    """A data set with neither a problem nor a reference is refused; so is an unknown problem."""
    with pytest.raises(LookupError, match="no column 'problem' and no column 'reference'"):
        trl_adapter.reward(math_judge)(["?"], [GOOD])
    with pytest.raises(LookupError, match="no problem 'x' in this pack"):
        trl_adapter.reward(math_judge)(["?"], [GOOD], problem=["x"])


def test_verl_scores(math_judge, sums):
    """By reference, and by the problem of a row; the parts of the reply are a verdict's."""
    score = verl_adapter.compute_score(math_judge)
    found = score("math", GOOD, "4")
    assert found.pop("reason")
    assert found == {"score": 1.0, "acc": 1.0, "status": "correct"}
    assert score(data_source="math", solution_str=NONE, ground_truth="4", extra_info={"index": 3})["score"] == 0.0
    row = verl_adapter.rows(sums, "sums", "test")[1]
    assert row["prompt"][-1]["role"] == "user"
    truth = row["reward_model"]["ground_truth"]
    by_row = verl_adapter.compute_score(sums)
    text = answered(sums.problem(truth))
    assert by_row("sums", text, truth, row["extra_info"], reward_router_address=None)["score"] == 1.0
    assert by_row("sums", "?", truth, row["extra_info"])["acc"] == 0.0


def test_verl_raises_where_there_is_no_score(math_judge):
    """A reference that cannot be read is no 0."""
    with pytest.raises(Unscored, match="math: bad_reference"):
        verl_adapter.compute_score(math_judge)("math", GOOD, None)


def test_openrlhf_scores(math_judge):
    """The response is what follows the prompt; no score ends the run."""
    reward = openrlhf_adapter.reward_func(math_judge)
    found = reward(["2+2? " + GOOD, "2+2? " + BAD], ["2+2? "] * 2, ["4", "4"])
    assert found["rewards"].tolist() == found["scores"].tolist() == [1.0, 0.0]
    assert found["extra_logs"]["correct"].tolist() == [1.0, 0.0]
    with pytest.raises(Unscored, match="bad_reference"):
        reward(["2+2? " + GOOD], ["2+2? "], [None])
    with pytest.raises(ValueError, match="does not hold its prompt"):
        reward([GOOD], ["2+2?"], ["4"])


def test_openrlhf_queries_end_with_special_tokens():
    """They are cut off where they are named; an exact answer is then exact."""
    with judge("exact") as made:
        query = ["<s>2+2? 4</s><|end|>"]
        assert openrlhf_adapter.reward_func(made)(query, ["2+2? "], ["4"])["rewards"].tolist() == [0.0]
        cut = openrlhf_adapter.reward_func(made, ends=["</s>", "<|end|>"])
        assert cut(query, ["2+2? "], ["4"])["rewards"].tolist() == [1.0]


def test_openrlhf_labels_are_problems(sums):
    """Of a judge with a pack."""
    problem = sums.part("train")[0]
    reward = openrlhf_adapter.reward_func(sums)
    query = f"{problem.prompt}{answered(problem)}"
    assert reward([query], [problem.prompt], [problem.id])["rewards"].tolist() == [1.0]


def broken(problem, completion):
    raise OSError("no service")


def test_a_verifier_that_fails_gives_no_score():
    """None, or Unscored with the reason; never 0."""
    with Judge(broken) as made:
        problem = Problem("p", "?", "4")
        assert made.scores([(problem, GOOD)]) == [None]
        with pytest.raises(Unscored, match="no service"):
            made.score(problem, GOOD)


def test_a_judge_travels(sums):
    """A copy in another process has workers of its own; a closed one starts others."""
    problem = sums.part("train")[0]
    sums.score(problem, "?")
    with pickle.loads(pickle.dumps(sums)) as copied:
        assert copied.verdict(problem, answered(problem)).status is Status.CORRECT
    sums.close()
    assert math.isclose(sums.score(problem, answered(problem)), 1.0)


def test_judge_takes_one_name():
    """A verifier or a task."""
    for given in ({}, {"verifier": "math", "task": "arithmetic"}):
        with pytest.raises(ValueError, match="expected one of them"):
            judge(**given)
    with pytest.raises(ValueError, match="no problems in the part 'test'"):
        judge("math").part("test")
