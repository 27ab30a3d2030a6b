"""Which tests are strong: golden/strength.jsonl.

A row holds `id`, `reference` and `integrity`; some also `why` the tests are weak, in words, or a program that solves
nothing and passes (`null`). Rows whose id begins with "not proved" are weak although no such program passes them.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlvr.core.types import Problem
from rlvr.verifiers.code.plans import (
    CallsPlan,
    WholePlan,
    find_program_names,
    integrity,
    make_plan,
    why_weak,
    write_null_programs,
)
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.files import GOLDEN, lines
from tests.helpers.programs import ADD, asserts, runs_programs

ROWS = lines(GOLDEN / "strength.jsonl")


@runs_programs
def test_strong_tests_are_those_that_are_proved() -> None:
    """Tests that a constant, an echo or an exception passes are weak; so are those that could be forged."""
    assert len(ROWS) > 190
    assert [row["id"] for row in ROWS if integrity(row["reference"]) != row["integrity"]] == []


@runs_programs
def test_weak_tests_say_why() -> None:
    """The first thing that is not proved, in words."""
    found = {row["id"]: why_weak(row["reference"]) for row in ROWS if "why" in row}
    assert found == {row["id"]: row["why"] for row in ROWS if "why" in row}


@runs_programs
def test_null_answers_pass_weak_tests(verifier: UnitTests) -> None:
    """Weak is no guess: the program that solves nothing is called right."""
    rows = [row for row in ROWS if "null" in row]
    assert len(rows) > 25
    verdicts = verifier.verify_batch([(Problem(row["id"], "", row["reference"]), row["null"]) for row in rows])
    assert [(row["id"], v.reason) for row, v in zip(rows, verdicts, strict=True) if not v.correct] == []


@runs_programs
@pytest.mark.parametrize(
    "reference",
    [
        asserts(ADD),
        asserts("for n in range(1, 4):\n    assert add(n, 1) == n + 1"),
        asserts("s = Stack()\ns.push(5)\nassert s.pop() == 5 and s.size() == 0"),
        {"type": "check", "entry": "f", "code": "def check(candidate):\n    assert candidate(2) == 4\n"},
        {"type": "calls", "entry": "f", "cases": [{"args": [n], "expected": 2 * n} for n in (1, 2)]},
        {"type": "stdio", "cases": [{"input": f"{n}\n", "output": f"{2 * n}\n"} for n in (1, 2)]},
    ],
)
def test_null_programs_pass_no_strong_tests(verifier: UnitTests, reference: dict[str, Any]) -> None:
    """Empty, constant, echo, raise: none is called right, none is an error."""
    assert integrity(reference) == "strong"
    programs = write_null_programs(make_plan(reference).entry_names)
    verdicts = verifier.verify_batch([(Problem("p", "", reference), text) for text in programs.values()])
    assert {what: found.score for what, found in zip(programs, verdicts, strict=True)} == dict.fromkeys(programs, 0.0)
    assert len(programs) > 8


def test_names_of_the_program() -> None:
    """What the tests use and do not define."""
    assert find_program_names("s = Stack()\nassert len(s) == 0\nassert f(s) is None") == ("Stack", "f")


EVALPLUS = """
import numpy as np
def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False
def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        np.testing.assert_allclose(out, exp, atol=atol)
    else:
        assert exact_match
def check(candidate):
    inputs = [[(1, 'a(\\''), None], [(2,), {'k': True}]]
    results = [0.5, [1, 2]]
    for i, (inp, exp) in enumerate(zip(inputs, results)):
        assertion(candidate(*inp), exp, 0)
"""


def test_evalplus_is_data() -> None:
    """Its literals and its comparison become calls; a form that differs is test code."""
    reference = {"type": "check", "entry": "f", "code": EVALPLUS}
    plan = make_plan(reference)
    assert isinstance(plan, CallsPlan)
    assert [call.args for call in plan.calls] == [((1, "a('"), None), ((2,), {"k": True})]
    assert (plan.expected, integrity(reference)) == ((0.5, [1, 2]), "strong")
    assert [plan.same(value, 0.5, 0.0) for value in (0.5, 0.5 + 1e-7, 0.51, None)] == [True, True, False, False]
    assert [plan.same(value, [1, 2], 0.0) for value in ([1, 2], (1, 2), [1, 2.0])] == [True, False, True]
    changes = [
        ("candidate(*inp)", "candidate(inp)"),
        ("exact_match = out == exp", "exact_match = sorted(out) == exp"),
        ("        return True\n", "        return False\n"),
        ("    exact_match = out", "    assert type(out) is type(exp)\n    exact_match = out"),
    ]
    for before, after in changes:
        assert isinstance(make_plan({**reference, "code": EVALPLUS.replace(before, after)}), WholePlan)


def test_nested_loops_over_containers_are_given_up_early() -> None:
    """Each round binds copies of all that the program may have got: the number of those is bounded, too."""
    loops = "".join(f"{' ' * depth}for a{depth}, b{depth} in rows:\n" for depth in range(6))
    code = f"rows = [[[1], [2]], [[3], [4]]]\n{loops}{' ' * 6}assert f(a0) == 1\nassert f([5]) == 2\n"
    start = time.process_time()
    assert why_weak({"type": "assert", "code": code}) == "the tests are too long"
    assert time.process_time() - start < 3
