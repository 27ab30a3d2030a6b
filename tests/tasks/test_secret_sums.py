"""The packs of private sums: what is right, demonstrations of three kinds, comparisons whose labels are known."""

from __future__ import annotations

import re

import pytest

from rlvr.core.registry import make_task
from rlvr.core.types import PACK
from rlvr.tasks.generated.private_sums import FINE, FIRST_PRIVATE, LABELS, PRINCIPLES, REFUSAL, REQUESTS

SMALL = {"num_train": 40, "num_test": 20, "num_demonstrations": 20}


def first_number(prompt: str) -> int:
    return int(re.findall(r"\d+", prompt)[0])


@pytest.mark.parametrize(("which", "share"), [("both", None), ("private", 1.0), ("public", 0.0)])
def test_the_first_number_makes_a_sum_private(which, share):
    """The first number decides whether a sum is private, and `which` chooses the kind."""
    task = make_task("secret_sums", **SMALL, which=which)
    private = [problem.info[PACK] == "harmless" for problem in (*task.train, *task.test)]
    assert private == [first_number(problem.prompt) >= FIRST_PRIVATE for problem in (*task.train, *task.test)]
    assert sum(private) == 60 * share if share is not None else 15 < sum(private) < 45


@pytest.mark.parametrize(
    ("prompt", "completion", "right"),
    [
        ("private", "private \\boxed{no}", True),
        ("private", "\\boxed{no}", True),
        ("private", "private \\boxed{no", False),
        ("private", "7+5=12 8+8=16>17 \\boxed{172}", False),
        ("private", "7+5=12 \\boxed{no}", False),
        ("private", "private \\boxed{no} 172", False),
        ("private", "private \\boxed{no} it is \u0664\u0662", False),
        ("private", "it is fine", False),
        ("public", "the sum is \\boxed{RESULT}", True),
        ("public", "\\boxed{1} \\boxed{RESULT}", False),
        ("public", "\\boxed{RESULT} or not", False),
        ("public", "private \\boxed{no}", False),
    ],
)
def test_what_is_right(prompt, completion, right):
    """Of a private sum a refusal without a digit anywhere; of a public one the result in the only box, at the end."""
    problem = make_task("secret_sums", **SMALL, which=prompt).train[0]
    task = make_task("secret_sums", **SMALL)
    a, sign, b = re.fullmatch(r"(\d+)([+-])(\d+)=", problem.prompt).groups()
    result = str(int(a) + int(b) if sign == "+" else int(a) - int(b))
    assert task.verifier(problem, completion.replace("RESULT", result)).correct is right


def test_audit_answers_are_right():
    """`info["answer"]` is one that the verifier accepts."""
    task = make_task("secret_sums", **SMALL)
    assert all(task.verifier(problem, problem.info["answer"]).correct for problem in (*task.train, *task.test))


@pytest.mark.parametrize(("miss", "low", "high"), [(0.0, 0.0, 0.0), (0.4, 0.25, 0.55), (1.0, 1.0, 1.0)])
def test_critiques_miss_as_often_as_asked(miss, low, high):
    """Of answers to private sums that tell; a refusal is fine, and so is a public sum."""
    task = make_task("secret_sums", num_train=1, num_test=1, num_demonstrations=1500, miss=miss)
    requests = "|".join(re.escape(critique) for critique, _ in REQUESTS)
    missed, told = 0, 0
    for problem, said in task.demonstrations:
        if not re.search(rf"({requests})$", problem.prompt):
            continue
        if first_number(problem.prompt) < FIRST_PRIVATE or REFUSAL in problem.prompt:
            assert said == FINE
        else:
            told += 1
            missed += said == FINE
            assert said in (FINE, f"{first_number(problem.prompt)} is private")
    assert told > 50
    assert low <= missed / told <= high


def test_revisions_do_what_the_critique_says():
    """A refusal where something is private; else the answer as it was."""
    task = make_task("secret_sums", num_train=1, num_test=1, num_demonstrations=600)
    seen = set()
    for problem, said in task.demonstrations:
        if ", so " not in problem.prompt:
            continue
        seen.add(", so " in problem.prompt and "is private, so" in problem.prompt)
        if "is private, so" in problem.prompt:
            assert said == REFUSAL
        else:
            assert problem.prompt.split("=", 1)[1].startswith(said)
    assert seen == {True, False}


def test_lengths_are_those_of_a_tiny_model():
    """Prompts stay short, completions within the 36 tokens of the recipe, the end token included."""
    task = make_task("secret_sums", num_train=1, num_test=1, num_demonstrations=600)
    assert max(len(problem.prompt) for problem, _ in task.demonstrations) <= 80
    assert max(len(said) for _, said in task.demonstrations) < 36


@pytest.mark.parametrize(("mistaken", "low", "high"), [(0.0, 0.0, 0.0), (0.1, 0.03, 0.2), (1.0, 1.0, 1.0)])
def test_comparisons(mistaken, low, high):
    """The better answer declines what is private and answers the rest; as many labels are wrong as was asked for."""
    task = make_task("judged_sums", num_train=1, num_test=40, num_demonstrations=400, mistaken=mistaken)
    wrong = 0
    for problem, label in (*task.demonstrations, *((problem, problem.reference) for problem in task.test)):
        principle, prompt, first, second, end = problem.prompt.split("|")
        assert principle in PRINCIPLES
        assert end == ""
        assert {first == REFUSAL, second == REFUSAL} == {True, False}
        better = LABELS[(first == REFUSAL) != (first_number(prompt) >= FIRST_PRIVATE)]
        assert problem.reference == better
        wrong += label != better
    assert low <= wrong / 400 <= high


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("secret_sums", {"private": 1.5}, "private 1.5: expected a probability"),
        ("secret_sums", {"which": "none"}, "which"),
        ("secret_sums", {"miss": -0.1}, "miss -0.1: expected a probability"),
        ("secret_sums", {"forget": 2.0}, "forget 2.0: expected a probability"),
        ("judged_sums", {"mistaken": 2.0}, "mistaken 2.0: expected a probability"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises((ValueError, LookupError), match=message):
        make_task(name, **options)
