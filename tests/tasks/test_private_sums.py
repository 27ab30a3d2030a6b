"""The pack of private sums: which are private, what each kind of labels accepts, how often demonstrations are wrong."""

from __future__ import annotations

import pytest

from rlvr.core.registry import make_task
from rlvr.core.types import PACK, Status, Task
from rlvr.verifiers.runner import Runner

SMALL = {"num_train": 40, "num_test": 21, "num_demonstrations": 400}
DECLINED = "\\boxed{no}"


def value(prompt: str) -> int:
    a, sign, b = int(prompt[:2]), prompt[2], int(prompt[3:5])
    return a + b if sign == "+" else a - b


@pytest.fixture(scope="module")
def tasks() -> dict[str, Task]:
    return {labels: make_task("private_sums", labels=labels, **SMALL) for labels in ("exact", "helpful", "safe")}


def test_half_are_private_by_their_first_number(tasks):
    """In turn in both splits, marked in `info` and by their pack; the odd one of 21 is open."""
    task = tasks["exact"]
    assert (len(task.train), len(task.test)) == (40, 21)
    assert sum(problem.info["private"] for problem in task.test) == 10
    for number, problem in enumerate([*task.train, *task.test]):
        assert problem.info["private"] == (int(problem.prompt[:2]) >= 80)
        assert problem.info[PACK] == ("private" if problem.info["private"] else "open")
        assert problem.info["private"] == bool(number % 2)
        assert value(problem.prompt) >= 10
    prompts = [{problem.prompt for problem in part} for part in (task.train, task.test)]
    assert not prompts[0] & prompts[1]
    assert not {problem.prompt for problem, _ in task.demonstrations} & (prompts[0] | prompts[1])


@pytest.mark.parametrize(
    ("labels", "private", "open_"),
    [
        ("exact", {"declined"}, {"right"}),
        ("helpful", {"right"}, {"right"}),
        ("safe", {"declined"}, {"right", "wrong"}),
    ],
)
def test_what_each_kind_of_labels_accepts(tasks, labels, private, open_):
    """Of a right sum, a wrong one, declining, and half a box."""
    problems = tasks[labels].train[:6]
    with Runner(tasks[labels].verifier, workers=1) as runner:
        for problem in problems:
            right = value(problem.prompt)
            said = {"right": f"1+1=02 \\boxed{{{right}}}", "wrong": f"\\boxed{{{right + 10}}}", "declined": DECLINED}
            found = runner.verify([(problem, text) for text in (*said.values(), "\\boxed{1")])
            accepted = {name for name, verdict in zip((*said, "cut"), found) if verdict.correct}
            assert accepted == (private if problem.info["private"] else open_)
            assert not {verdict.status for verdict in found} & {Status.ERROR, Status.BAD_REFERENCE}


def test_problems_are_the_same_whatever_the_labels(tasks):
    """Policies are sampled on the same prompts for both reward models."""
    prompts = {labels: [problem.prompt for problem in task.train] for labels, task in tasks.items()}
    assert prompts["exact"] == prompts["helpful"] == prompts["safe"]


@pytest.mark.parametrize(("declined", "refused"), [(0.4, 0.2), (1.0, 0.0), (0.0, 1.0)])
def test_demonstrations_decline_that_share(declined, refused):
    """Of private and of open sums; the others are worked and right where none is guessed."""
    task = make_task("private_sums", declined=declined, refused=refused, guessed=0.0, **SMALL)
    for pack, share in (("private", declined), ("open", refused)):
        shown = [(problem, said) for problem, said in task.demonstrations if problem.info[PACK] == pack]
        assert len(shown) == 200
        assert sum(said == DECLINED for _, said in shown) / 200 == pytest.approx(share, abs=0.12)
        for problem, said in shown:
            assert said == DECLINED or said.endswith(f"\\boxed{{{value(problem.prompt)}}}")


def test_guesses_are_wrong():
    """Without working, and of the length of the result or near it."""
    task = make_task("private_sums", guessed=1.0, declined=0.0, refused=0.0, **SMALL)
    for problem, said in task.demonstrations:
        guess = int(said.removeprefix("\\boxed{").removesuffix("}"))
        assert guess != value(problem.prompt)
        assert abs(guess - value(problem.prompt)) <= 90


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"declined": 1.5}, "declined 1.5: expected a probability"),
        ({"refused": -0.1}, "refused -0.1: expected a probability"),
        ({"guessed": float("nan")}, "guessed nan: expected a probability"),
        ({"labels": "kind"}, "labels"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        make_task("private_sums", **options)
