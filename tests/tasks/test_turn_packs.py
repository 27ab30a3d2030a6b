"""The packs whose problems are solved in turns: environments, demonstrations, and what is kept apart."""

from __future__ import annotations

from random import Random

import pytest

from rlvr.core.registry import make_task
from rlvr.core.types import Problem, Reply, Task, Verdict
from rlvr.tasks.base import build_task
from rlvr.tasks.generated.hops import LETTERS, permutation, walk

PACKS = ("hops", "product")


def small(name: str, **options) -> Task:
    return make_task(name, num_train=60, num_test=20, num_demonstrations=200, **options)


def converse(task: Task, problem: Problem, *said: str) -> tuple[list[Reply], bool, Verdict | None]:
    """Return the replies to some turns, whether the environment has ended, and its verdict."""
    world, replies = task.environment(problem, Random(0)), []
    assert next(world) is None
    try:
        for turn in said:
            replies.append(world.send(turn))
    except StopIteration as stop:
        return replies, True, stop.value
    return replies, False, None


@pytest.mark.parametrize(("name", "wrong"), [("hops", 0.5), ("product", 0.6)])
def test_demonstrations_are_turns_that_the_environment_plays(name, wrong):
    """Their last turn ends the rollout, and the share of wrong ones is the one that the pack names."""
    task, mistaken = small(name), 0
    for problem, turns in task.demonstrations:
        replies, ended, verdict = converse(task, problem, *turns)
        assert (ended, verdict, len(replies)) == (True, None, len(turns) - 1)
        mistaken += not task.verifier(problem, turns[-1]).correct
    assert mistaken / len(task.demonstrations) == pytest.approx(wrong, abs=0.12)


@pytest.mark.parametrize("name", PACKS)
def test_parts_share_no_prompt(name):
    """build_task checks it too; here by hand."""
    task = small(name)
    train, test, shown = (
        {p.prompt for p in part} for part in (task.train, task.test, [p for p, _ in task.demonstrations])
    )
    assert not train & test
    assert not (train | test) & shown


@pytest.mark.parametrize("name", PACKS)
def test_fingerprint_has_options_and_environment(name):
    """The same for the same options; another seed, another environment or none has another."""
    assert small(name).fingerprint == small(name).fingerprint != small(name, seed=1).fingerprint
    task = small(name)
    same = {"train": task.train, "test": task.test, "verifier": "exact"}
    marks = {build_task("x", **same, environment=made).fingerprint for made in (None, task.environment, other_world)}
    assert len(marks) == 3


def other_world(problem, rng):
    yield None


def test_each_number_has_a_circle_of_its_own():
    """All letters, one after the other, so that no walk of five hops comes back."""
    following = permutation(0, 7)
    letter, seen = "a", []
    for _ in LETTERS:
        seen.append(letter)
        letter = following[letter]
    assert letter == "a"
    assert sorted(seen) == list(LETTERS)
    assert len({tuple(permutation(0, number).values()) for number in range(50)}) == 50


@pytest.mark.parametrize("said", ["=q", "?", "?Q", "?ab", "c", "", "?a =b"])
def test_any_turn_but_a_question_ends_the_hops(said):
    """The verifier judges it then."""
    task = small("hops")
    assert converse(task, task.train[0], said) == ([], True, None)


def test_hops_end_after_so_many_questions():
    """A model that never answers does not ask for ever."""
    task = small("hops")
    replies, ended, _ = converse(task, task.train[0], *["?a"] * 13)
    assert (len(replies), ended) == (12, True)


def test_the_verifier_sees_only_the_answer():
    """The letter that the walk reaches, with its sign; what the environment said is no answer."""
    problem = small("hops").train[0]
    letter = walk(0, (problem.info["number"], problem.prompt[3], int(problem.prompt[4])), int(problem.prompt[4]))[-1]
    task = small("hops")
    assert task.verifier(problem, f"={letter}").correct
    for text in (letter, f"?{letter}", f"={letter}{letter}", "="):
        assert not task.verifier(problem, text).correct


@pytest.mark.parametrize(
    ("said", "text", "void"),
    [
        ("print(47*386)", "18142", False),
        ("47*386", "?", True),
        ("print(1/0)", "?", True),
        ("print('x'*99)", "x" * 24, False),
        ("import os; print(os.getenv('HOME'))", None, None),
    ],
)
def test_a_program_runs_in_the_sandbox(said, text, void):
    """What it prints is the reply, cut; without any it is void. The turn after it is the last."""
    task = small("product")
    replies, ended, _ = converse(task, task.train[0], said)
    assert (len(replies), ended) == (1, False)
    if text is not None:
        assert (replies[0].text, replies[0].void) == (text, void)
    assert converse(task, task.train[0], said, "=1")[1]


@pytest.mark.parametrize(("name", "option"), [("hops", "miscount"), ("product", "direct")])
@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_shares_are_probabilities(name, option, value):
    """Anything else is refused in one line."""
    with pytest.raises(ValueError, match=f"task '{name}', {option}"):
        make_task(name, **{option: value})


@pytest.mark.parametrize(
    ("guesses", "replies", "status"),
    [
        (["\\boxed{0}", "right"], ["higher"], "correct"),
        (["I say \\boxed{999999}", "right"], ["lower"], "correct"),
        (["no idea", "right"], ["Say a number"], "correct"),
        (["right"], [], "correct"),
        (["\\boxed{0}"] * 7, ["higher"] * 6, "incorrect"),
    ],
)
def test_guesses_are_answered_and_cost_a_little(guesses, replies, status):
    """All but the one that ends the game; a turn without a number is void."""
    task = make_task("higher_lower", num_train=10, num_test=5)
    problem = task.train[0]
    said = [f"\\boxed{{{problem.reference}}}" if guess == "right" else guess for guess in guesses]
    heard, ended, verdict = converse(task, problem, *said)
    assert (ended, verdict.status) == (True, status)
    assert [reply.text.startswith(text) for reply, text in zip(heard, replies, strict=True)] == [True] * len(replies)
    assert all(reply.reward == -0.05 for reply in heard)
    assert [reply.void for reply in heard] == ["boxed" not in text for text in said[: len(heard)]]
