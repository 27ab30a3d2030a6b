"""The pack `reasoning_gym`: problems and verdicts of every data set, made in the sandbox."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import time

import pytest

from rlvr.core.registry import TASKS, make_task, make_verifier
from rlvr.core.types import Problem, Status
from rlvr.verifiers.reasoning_gym import REFUSED, answer_of, get_grader
from tests.helpers.files import cases
from tests.helpers.machine import processor_time

INSTALLED = importlib.util.find_spec("reasoning_gym") is not None
needs_package = pytest.mark.skipif(not INSTALLED, reason="reasoning-gym is not installed")

# Of every kind: its scorer evaluates Python, parses formulas, reads JSON, plays a game, compares text, is soft.
TEN = (
    "n_queens", "string_insertion", "countdown", "polynomial_multiplication", "graph_color", "rubiks_cube",
    "game_of_life_halting", "complex_arithmetic", "arc_1d", "chain_sum",
)  # fmt: skip
# With another hash seed the package itself gives other problems.
BY_HASH = ("isomorphic_strings", "knight_swap", "polynomial_multiplication", "ransom_note", "word_ladder")

PROGRAM = "__import__('os')._exit(0)"
HOSTILE = (
    PROGRAM,
    "[c for c in ().__class__.__base__.__subclasses__()]",
    "(lambda f: f(f))(lambda f: f(f))",
    "exec(\"import sys; sys.modules['reasoning_gym'].x = 1\")",
    "open('/etc/passwd').read()",
    "'a' * 10 ** 11",
    "nan",
    "inf+infj",
    "(" * 3000,
    "[" * 3000 + "]" * 3000,
    "x" * 19_000,
    "\x00\x1b[31m\ud800",
    "9" * 5000,
    '{"a": {"a": 1}}',
    "__import__('sys')._getframe(1).f_globals",
)


def completions(answer):
    return f"Let me think.\n<answer>{answer}</answer>", f"So it is \\boxed{{{answer}}}."


def names():
    return sorted(set(get_grader().ask("describe")["names"]) - set(REFUSED)) if INSTALLED else []


def check(name):
    """The own answers of a data set are correct, nothing and hostile answers score 0, and no run fails."""
    task = make_task(f"reasoning_gym:{name}", num_train=4, num_test=2)
    problems = [*task.train, *task.test]
    assert task.train
    assert task.test
    gold = [(problem, completions(problem.info["answer"])[0]) for problem in problems]
    assert {v.status for v in task.verifier.verify_batch(gold)} == {Status.CORRECT}, name
    bad = [(problem, text) for problem in problems[:2] for answer in ("", *HOSTILE) for text in completions(answer)]
    verdicts = task.verifier.verify_batch([*bad, *((problem, "junk") for problem in problems)])
    wrong = [(text[:60], verdict) for (_, text), verdict in zip(bad, verdicts) if verdict.score != 0]
    assert not wrong, (name, wrong)
    assert {verdict.score for verdict in verdicts[len(bad) :]} == {0.0}


@needs_package
@pytest.mark.parametrize("name", TEN)
def test_ten_data_sets(name):
    """Own answers are correct, hostile ones score 0; nothing of the package is imported here."""
    check(name)
    assert "reasoning_gym" not in sys.modules


@needs_package
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_data_sets():
    """At least 95 of them, each with the same behaviour as the ten."""
    found = names()
    assert len(found) >= 95
    assert {*TEN} <= {*found}
    failures = {}
    for name in sorted({*found} - {*TEN}):
        try:
            check(name)
        except (AssertionError, ValueError) as error:
            failures[name] = str(error)[:600]
    assert not failures, "\n".join(f"{name}: {text}" for name, text in failures.items())
    assert "reasoning_gym" not in sys.modules


@needs_package
@pytest.mark.parametrize("name", BY_HASH)
def test_problems_do_not_depend_on_the_hash_seed(name):
    """Of another process with another seed of hashes they are the same."""
    code = (
        "from rlvr.core.registry import make_task\n"
        f"print(make_task('reasoning_gym:{name}', num_train=4, num_test=2).fingerprint)"
    )
    made = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert made[0] == made[1] != ""


@needs_package
def test_parts_share_no_problem():
    """Where there are few problems at all, those of the test part are left out of training."""
    task = make_task("reasoning_gym:coin_flip", num_train=40, num_test=10, config='{"max_trials": 4}')
    assert not {p.reference["entry"] for p in task.train} & {p.reference["entry"] for p in task.test}


@needs_package
def test_settings_reach_the_data_set():
    """A setting changes the problems; an unknown one, and one that the data set refuses, are errors."""
    task = make_task("reasoning_gym:chain_sum", num_train=3, num_test=1, config='{"min_terms": 2, "max_terms": 2}')
    assert all(p.prompt[1]["content"].count("+") + p.prompt[1]["content"].count(" - ") == 1 for p in task.train)
    with pytest.raises(ValueError, match="no setting 'min_term'; did you mean min_terms"):
        make_task("reasoning_gym:chain_sum", config='{"min_term": 2}')
    with pytest.raises(ValueError, match="max_terms must be >= min_terms"):
        make_task("reasoning_gym:chain_sum", config='{"min_terms": 9}')
    with pytest.raises(ValueError, match="expected JSON"):
        make_task("reasoning_gym:chain_sum", config="min_terms=2")


@needs_package
def test_prompts_as_published():
    """The package's system prompt is a message, or stands before the question, or is left out."""
    (message, question), joined, bare = (
        make_task("reasoning_gym:gcd", num_train=1, num_test=1, **options).train[0].prompt
        for options in ({}, {"messages": False, "system": "simple"}, {"system": "none"})
    )
    assert message["role"] == "system"
    assert "<answer>answer here</answer>" in message["content"]
    assert joined.startswith("You are a helpful assistant")
    assert question["content"] == bare
    assert joined.endswith(bare)


@needs_package
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused_by_name(name):
    """A data set that cannot be used is refused with the reason."""
    with pytest.raises(ValueError, match=f"reasoning_gym:{name} is refused: it"):
        make_task(f"reasoning_gym:{name}")


@needs_package
def test_unknown_data_set():
    """The nearest name is offered."""
    with pytest.raises(LookupError, match="did you mean chain_sum"):
        make_task("reasoning_gym:chain_sun")


def test_missing_package(monkeypatch):
    """The extra is named, by the pack and in a verdict, which is an error and no score."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install -e '\.\[reasoning-gym\]'"):
        make_task("reasoning_gym:chain_sum")
    problem = Problem("p", "?", {"dataset": "chain_sum", "config": {}, "entry": "{}"})
    verdict = make_verifier("reasoning_gym")(problem, "<answer>1</answer>")
    assert (verdict.status, verdict.score) == (Status.ERROR, None)


@needs_package
def test_a_graded_score_is_partial():
    """Half of a soft score counts, or does not where graded is off; scores up to `least` are 0."""
    task = make_task("reasoning_gym:rectangle_count", num_train=1, num_test=1)
    problem = task.train[0]
    near = f"<answer>{int(problem.info['answer']) + 2}</answer>"
    verdict = task.verifier(problem, near)
    assert verdict.status is Status.PARTIAL
    assert 0.1 < verdict.score < 1
    assert make_verifier("reasoning_gym", graded=False)(problem, near).score == 0
    assert make_verifier("reasoning_gym", least=verdict.score)(problem, near).status is Status.INCORRECT


@needs_package
def test_endless_answers_end_at_their_limit():
    """A formula without end is a timeout of its own; the answers beside it have their verdicts."""
    task = make_task("reasoning_gym:simple_integration", num_train=1, num_test=1)
    problem = task.train[0]
    texts = [f"<answer>{text}</answer>" for text in ("9**9**9**9", problem.info["answer"], "7**7**7**7**7")]
    verdicts = make_verifier("reasoning_gym", seconds=1).verify_batch([(problem, text) for text in texts])
    assert [v.status for v in verdicts] == [Status.TIMEOUT, Status.CORRECT, Status.TIMEOUT]


@needs_package
@pytest.mark.parametrize("reference", [None, {}, {"dataset": "gcd"}, {"dataset": "boxnet", "config": {}, "entry": ""}])
def test_bad_references(reference):
    """A reference of another form, or of a refused data set, has no score."""
    verifier = make_verifier("reasoning_gym")
    assert verifier(Problem("p", "?", reference), "<answer>1</answer>").status is Status.BAD_REFERENCE
    with pytest.raises(ValueError, match=r"refused|reference is not"):
        verifier.check_reference(reference)


@needs_package
@pytest.mark.parametrize("people", [2, 3, 5])
def test_knights_and_knaves_are_one_thing(people):
    """One person as both is paid no part, nor are people left out; the package's own form is right, and one wrong role
    still has its part."""
    task = make_task("reasoning_gym:knights_knaves", num_train=3, num_test=1, config=json.dumps({"n_people": people}))
    for problem in task.train:
        said = re.findall(r"(\w+) is (an?) (\w+)", problem.info["answer"])
        roles = sorted({role for _, _, role in said} | {"knight"})[:2]
        both = [f"{said[0][0]} is a {role}" for role in roles] + [f"{name} is {a} {role}" for name, a, role in said[2:]]
        assert task.verifier(problem, f"<answer>{' and '.join(both)}</answer>").score == 0
        assert task.verifier(problem, f"<answer>{' and '.join(both[:1])}</answer>").score == 0
        other = f"{said[0][0]} is a {'knave' if said[0][2] != 'knave' else 'knight'}"
        part = ", and ".join([other, *(f"{name} is {a} {role}" for name, a, role in said[1:])])
        assert 0 < task.verifier(problem, f"<answer>{part}</answer>").score < 1
        assert task.verifier(problem, f"<answer>{problem.info['answer']}</answer>").correct


@needs_package
def test_a_broken_problem_is_a_bad_reference():
    """An entry that cannot be read blames the data."""
    problem = Problem("p", "?", {"dataset": "gcd", "config": {}, "entry": "{"})
    assert make_verifier("reasoning_gym")(problem, "<answer>1</answer>").status is Status.BAD_REFERENCE


@needs_package
@pytest.mark.parametrize("answer", ["¬x", "x ∨ y", "P ∨ ¬P", "¬(lambda)", "(P)"])
def test_logic_needs_the_problems_variables(answer):
    """What is no conclusion in the variables of the problem does not follow from contradictory premises either."""
    task = make_task("reasoning_gym:propositional_logic", num_train=12, num_test=1)
    verdicts = task.verifier.verify_batch([(problem, f"<answer>{answer}</answer>") for problem in task.train])
    assert {verdict.score for verdict in verdicts} == {0.0}


@needs_package
@pytest.mark.parametrize(("name", "wrong"), cases("reasoning_gym_wrong"))
def test_more_than_the_answer_is_wrong(name, wrong):
    """What the package's own scorers accept, or pay a part for, without an answer to the problem."""
    task = make_task(f"reasoning_gym:{name}", num_train=4, num_test=1)
    for problem in task.train:
        gold = problem.info["answer"]
        assert task.verifier(problem, f"<answer>{gold}</answer>").correct
        if wrong.format(gold) != gold:
            assert task.verifier(problem, f"<answer>{wrong.format(gold)}</answer>").score == 0


@needs_package
def test_an_integral_is_no_answer_to_an_integral():
    """The integral itself, not worked out, would have the right derivative."""
    task = make_task("reasoning_gym:simple_integration", num_train=2, num_test=1)
    for problem in task.train:
        assert task.verifier(problem, f"<answer>{problem.info['answer']}</answer>").correct
        assert not task.verifier(problem, "<answer>Integral(x, x)</answer>").score


@needs_package
def test_a_verdict_takes_milliseconds():
    """Of a batch, once the processes are there."""
    task = make_task("reasoning_gym:chain_sum", num_train=4, num_test=1)
    pairs = [(task.train[i % 4], f"<answer>{i}</answer>") for i in range(64)]
    task.verifier.verify_batch(pairs)
    start = time.perf_counter()
    with processor_time() as taken:
        task.verifier.verify_batch(pairs)
    assert taken.seconds < 1
    assert time.perf_counter() - start < 64 * 0.5  # a process for each would take more


@pytest.mark.parametrize(("completion", "answer"), cases("reasoning_gym_read"))
def test_answers_are_read_as_they_are_written(completion, answer):
    """Of the last tags, else the last box; nothing within them is changed."""
    assert answer_of(completion) == answer


def test_a_data_set_by_name_has_the_options_of_the_pack():
    """reasoning_gym:NAME has the options of the pack, but for the one that the name gives."""
    assert set(TASKS.options("reasoning_gym")) - set(TASKS.options("reasoning_gym:gcd")) == {"dataset"}
    with pytest.raises(LookupError, match="no option 'dataset'"):
        TASKS.check_options("reasoning_gym:gcd", {"dataset": "x"})


# Those whose scorers evaluate the answer as Python, four of them, or parse it with sympy, which evaluates too.
EVALUATING = (
    "n_queens", "string_insertion", "spiral_matrix", "binary_matrix", "simple_integration", "intermediate_integration",
    "polynomial_multiplication", "puzzle24", "countdown",
)  # fmt: skip


@needs_package
@pytest.mark.parametrize("name", EVALUATING)
def test_no_answer_runs_as_a_program(name):
    """One that would end its process, were it evaluated, is only wrong."""
    task = make_task(f"reasoning_gym:{name}", num_train=3, num_test=1)
    answers = (PROGRAM, f"[{PROGRAM}]", f"1 + ({PROGRAM} or 0)", f"(lambda: {PROGRAM})()")
    pairs = [(problem, f"<answer>{answer}</answer>") for problem in task.train for answer in answers]
    verdicts = task.verifier.verify_batch(pairs)
    assert {verdict.score for verdict in verdicts} == {0.0}
    assert Status.LIMIT not in {verdict.status for verdict in verdicts}
