"""The list-function pack: language, hidden tests, demonstrations, splits."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from rlvr.core.registry import make_task, make_verifier
from rlvr.core.types import Status, Task
from rlvr.tasks.base import draw
from rlvr.tasks.generated.tiny_code import HIDDEN_TESTS, PLAIN, REDUCERS, STEPS, Spec, Step, propose
from tests.helpers.files import cases

KIND = {step.words: step for step in STEPS}
REDUCER = {reducer.words: reducer for reducer in REDUCERS}


def make(*steps: tuple[str, tuple[int, ...]], reducer: str = "") -> Spec:
    return Spec(tuple((KIND[words], given) for words, given in steps), REDUCER[reducer] if reducer else PLAIN)


def specs(count: int) -> list[Spec]:
    return [draw("tiny_code", "train", 7, index, propose)[1] for index in range(count)]


def outcome(program: str, values: list[int]) -> Any:
    """What a program that this pack wrote itself gives; the name of the error where it raises one."""
    space: dict[str, Any] = {}
    exec(program, space)
    try:
        return space["f"](list(values))
    except (IndexError, ValueError) as problem:
        return type(problem).__name__


def passes(program: str, spec: Spec, inputs: list[list[int]]) -> bool:
    return all(outcome(program, values) == spec.run(values) for values in inputs)


@pytest.mark.parametrize(("words", "given", "expected"), cases("tiny_code_steps"))
def test_each_step_does_what_its_words_say(words: str, given: list[int], expected: list[int]) -> None:
    """The eighteen steps on [3, -1, 5, 8, 3], worked by hand, by the interpreter and by the Python that is written."""
    values = [3, -1, 5, 8, 3]
    spec = Spec(((KIND[words], tuple(given)),))
    assert spec.run(values) == expected
    assert outcome(spec.program(), values) == expected
    assert values == [3, -1, 5, 8, 3]


@pytest.mark.parametrize(
    ("words", "expected"),
    [("sum", 19), ("count", 5), ("max or 0", 8), ("min or 0", -1), ("first or 0", 3), ("last or 0", 4)],
)
def test_each_reducer_does_what_its_words_say(words: str, expected: int) -> None:
    """The six reducers on [3, -1, 5, 8, 4], and 0 on the empty list."""
    spec = Spec((), REDUCER[words])
    for values, result in (([3, -1, 5, 8, 4], expected), ([], 0)):
        assert spec.run(values) == result
        assert outcome(spec.program(), values) == result


def test_prompt_and_program_have_the_documented_form() -> None:
    """Two steps and a reducer as words, and as a function of two assignments and a return."""
    spec = make(("items {0} to {1}", (2, 4)), ("sort down", ()), reducer="max or 0")
    assert spec.words == "items 2 to 4; sort down; max or 0:"
    assert spec.program() == "def f(a):\n a=a[1:4]\n a=sorted(a)[::-1]\n return max(a) if a else 0"


def test_a_hurried_writer_makes_the_documented_errors() -> None:
    """With sloppiness 1 every step and reducer that has a sloppy form takes it."""
    hurried = [
        make(("items {0} to {1}", (2, 4)), ("sort down", ()), reducer="max or 0"),
        make(("at least {0}", (5,)), ("subtract from {0}", (9,)), reducer="first or 0"),
        make(("at most {0}", (5,)), ("over {0}", (2,)), reducer="count"),
    ]
    assert [spec.program(random.Random(0), 1.0) for spec in hurried] == [
        "def f(a):\n a=a[2:4]\n a=sorted(a)\n return max(a)",
        "def f(a):\n a=[x for x in a if x>5]\n a=[x-9 for x in a]\n return a[0]",
        "def f(a):\n a=[x for x in a if x<5]\n a=[x for x in a if x>2]\n return len(a)",
    ]


def test_sloppy_forms_are_right_for_another_step() -> None:
    """No form is wrong by itself: what is sloppy for one step is what another step asks for."""

    def right_for(sloppy: Step) -> list[str]:
        return [step.words for step in STEPS if step.code == sloppy.code]

    found = {step.words: right_for(step.sloppy) for step in STEPS if step.sloppy}
    assert found == {
        "items {0} to {1}": [],  # its like are first, last, drop first, drop last, which count from zero too
        "at least {0}": ["over {0}"],
        "at most {0}": ["under {0}"],
        "subtract from {0}": ["subtract {0}"],
        "sort down": ["sort"],
    }


def test_hidden_tests_hold_the_empty_list_and_the_interpreters_outputs() -> None:
    """The expected values are the reference interpreter's; the model sees the words of the spec and nothing else."""
    for spec in specs(50):
        problem = spec.problem("x")
        assert (problem.prompt, dict(problem.info)) == (spec.words, {})
        reference = problem.reference
        inputs = [case["args"][0] for case in reference["cases"]]
        assert (reference["type"], reference["entry"], len(inputs)) == ("calls", "f", HIDDEN_TESTS)
        assert [] in inputs
        assert [case["expected"] for case in reference["cases"]] == [spec.run(values) for values in inputs]


def test_what_passes_the_hidden_tests_passes_fresh_ones() -> None:
    """Right programs pass 100 fresh tests; no sloppy program of 400 passes the hidden tests and fails a fresh one."""
    slipped = []
    for number, spec in enumerate(specs(400)):
        hidden = [case["args"][0] for case in spec.problem("x").reference["cases"]]
        fresh = list(itertools.islice(spec.inputs("fresh"), 100))
        assert passes(spec.program(), spec, [*hidden, *fresh])
        hurried = spec.program(random.Random(number), 0.7)
        if passes(hurried, spec, hidden) and not passes(hurried, spec, fresh):
            slipped.append((spec.words, hurried))
    assert slipped == []


def test_a_quarter_of_the_values_lie_at_a_threshold() -> None:
    """At `subtract 4; at least 5` the function's input meets the threshold at 9: a quarter of the lists stand there."""
    spec = make(("subtract {0}", (4,)), ("at least {0}", (5,)))
    lists = list(itertools.islice(spec.inputs("fresh"), 1, 2001))
    near = sum(set(values) <= {8, 9} or set(values) <= {9, 10} for values in lists) / len(lists)
    assert 0.25 < near < 0.32  # and the few short lists that lie there by chance


def test_nearly_constant_functions_are_dropped() -> None:
    """`first 1; drop first 2` is always empty."""
    assert not make(("first {0}", (1,)), ("drop first {0}", (2,))).varies()
    assert make(("sort down", ()), ("add {0}", (2,))).varies()


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task("tiny_code", num_train=200, num_test=100, num_demonstrations=600)


def test_about_half_of_the_demonstrations_pass(task: Task) -> None:
    """The share of demonstrations that pass their tests lies near a half."""
    passed = 0
    for index, (problem, program) in enumerate(task.demonstrations):
        _, spec = draw("tiny_code", "demonstrations", 0, index, propose)
        assert (spec.words, None) == (problem.prompt, problem.reference)
        cases = spec.problem(problem.id).reference["cases"]
        assert len(cases) == HIDDEN_TESTS
        passed += all(outcome(program, case["args"][0]) == case["expected"] for case in cases)
    assert 0.42 < passed / len(task.demonstrations) < 0.58


def test_parts_share_no_spec_and_an_item_depends_on_seed_and_index_alone(task: Task) -> None:
    """Held-out specs stay held out under any seed, and item i is the same in a pack of another size."""
    other = make_task("tiny_code", seed=1, num_train=300, num_test=10, num_demonstrations=0)
    small = make_task("tiny_code", num_train=20, num_test=10, num_demonstrations=5)
    held_out = {problem.prompt for problem in task.test}
    assert not held_out & {problem.prompt for problem in [*task.train, *other.train]}
    assert not held_out & {problem.prompt for problem, _ in task.demonstrations}
    assert list(small.train) == list(task.train)[:20]
    assert list(small.demonstrations) == list(task.demonstrations)[:5]
    assert small.fingerprint != task.fingerprint


def test_sloppiness_is_a_probability() -> None:
    """Outside of [0, 1] it is refused with the value."""
    with pytest.raises(ValueError, match=r"sloppiness 1\.5"):
        make_task("tiny_code", sloppiness=1.5)


def test_the_real_verifier_tells_right_from_sloppy() -> None:
    """In the sandbox a clean program is correct, and a sloppy one that differs is not."""
    spec = make(("at least {0}", (5,)), ("sort down", ()), reducer="max or 0")
    problem = spec.problem("x")
    verifier = make_verifier("unit_tests")
    assert verifier(problem, spec.program()).correct
    assert verifier(problem, spec.program(random.Random(0), 1.0)).status is Status.INCORRECT
