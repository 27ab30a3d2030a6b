"""Tests that a program passes which solves nothing are marked weak, whatever their form."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from rlvr.sandbox import level
from rlvr.types import Problem
from rlvr.verifiers.code.integrity import integrity
from rlvr.verifiers.code.null import null_programs
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.programs import ADD, asserts

runs_programs = pytest.mark.skipif(
    sys.platform != "linux" or level().number < 2, reason="programs cannot be isolated here"
)


def calls(*cases: tuple[list[Any], Any]) -> dict[str, Any]:
    return {"type": "calls", "entry": "f", "cases": [{"args": args, "expected": value} for args, value in cases]}


def prints(*cases: tuple[str, str]) -> dict[str, Any]:
    return {"type": "stdio", "cases": [{"input": given, "output": output} for given, output in cases]}


WEAK = {
    "the largest error, without NaN": "got = f([1, 2])\nassert max(abs(a - b) for a, b in zip([1, 2], got)) < 1e-6",
    "the largest error of a list": "assert max([abs(f(x) - x * x) for x in (1, 2)]) < 1e-6",
    "no error is large": "assert not abs(f(2) - 4) > 1e-6",
    "no error is large, of many": "assert not any(abs(f(x) - x * x) > 1e-6 for x in (1, 2))",
    "zip over a result": "assert all(a == b for a, b in zip(f([1, 2]), [2, 4]))",
    "zip in a loop": "for a, b in zip(f([1, 2]), [2, 4]):\n    assert a == b",
    "all over a result": "assert all(x > 0 for x in f(3))",
    "all over a variable": "r = f(3)\nassert all(x % 2 == 0 for x in r)",
    "a loop over a result": "for x in f(3):\n    assert 3 % x == 0",
    "map and all": "assert all(map(f, [1, 2]))",
    "map and next": "it = map(f, [1, 2])\nassert next(it)",
    "next of a generator": "assert next(f(n) for n in (1, 2))",
    "not isinstance": "assert not isinstance(f(1), str)\nassert not isinstance(f(2), list)",
    "isinstance": "for n in (1, 2):\n    assert isinstance(f(n), int)",
    "another type": "for n in (1, 2):\n    assert type(f(n)) is not str",
    "not equal": "for n in (1, 2):\n    assert f(n) != n + 1",
    "not in": "for n in (1, 2):\n    assert n not in f(n)",
    "truth": "for n in (1, 2):\n    assert f(n)",
    "falsehood": "for n in (1, 2):\n    assert not f(n)",
    "None": "for n in (1, 2):\n    assert f(n) is None",
    "always the same": "for n in (1, 2):\n    assert f(n) == 0",
    "an empty list": "assert f([]) == []\nassert f(()) == []",
    "itself": "for n in (1, 2):\n    assert f(n) == f(n)",
    "its argument": "for n in (1, 2):\n    assert f(n) == n",
    "its argument, literally": "assert f(1) == 1\nassert f('ab') == 'ab'",
    "its argument, in a variable": "for n in (1, 2):\n    r = f(n)\n    assert r == n",
    "the start of its argument": "for w in ('ab', 'c'):\n    assert f(w).startswith(w)",
    "a bound": "for n in (1, 2):\n    assert f(n) >= n",
    "a length": "for n in (1, 2):\n    assert len(f(n)) >= 0",
    "True": "assert f(1) == True\nassert f(2) is True",
    "only exceptions": "try:\n    f(0)\n    assert False\nexcept ValueError:\n    pass",
    "pytest.raises": "import pytest\ndef test_f():\n    with pytest.raises(ValueError):\n        f(0)",
    "assertTrue": "from unittest import TestCase\nclass T(TestCase):\n    def test(self): self.assertTrue(f(1))",
    "assertIsInstance": "from unittest import TestCase\nclass T(TestCase):\n    def test(self):\n        self.assertIsInstance(f(1), int)",  # noqa: E501
}
STRONG = {
    "values": ADD,
    "a distance": "assert abs(f(2) - 4) < 1e-6\nassert abs(f(3) - 9) < 1e-6",
    "distances in a loop": "for n in (2, 3):\n    assert abs(f(n) - n * n) < 1e-6",
    "all over inputs": "assert all(f(n) == n * n for n in range(9))",
    "a result and its items": "r = f(3)\nassert r == [0, 1, 4]\nassert all(x >= 0 for x in r)",
    "both answers": "assert Solution().isPalindrome(121)\nassert not Solution().isPalindrome(12)",
    "both answers in loops": "for n in (1, 3):\n    assert f(n)\nfor n in (2, 4):\n    assert not f(n)",
    "a TestCase": "from unittest import TestCase\nclass T(TestCase):\n    def test(self): self.assertEqual(f(2), 4)",
    "a value and an exception": "def test_f():\n    assert f(2) == 4\n    try:\n        f(0)\n        assert False\n    except ValueError:\n        pass",  # noqa: E501
    "a set of values": "for n in (2, 3):\n    assert f(n) in (n + 1, n + 2)",
}


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in WEAK.items()])
def test_tests_that_demand_little_are_weak(code: str):
    """A constant, the argument or an exception is enough; or nothing, for items that are not there."""
    assert integrity(asserts(code)) == "weak"


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in STRONG.items()])
def test_tests_that_demand_values_are_strong(code: str):
    """One assert that no constant meets is enough."""
    assert integrity(asserts(code)) == "strong"


@pytest.mark.parametrize(
    ("reference", "strength"),
    [
        (calls(([1], True), ([2], True)), "weak"),
        (calls(([1], 1), ([2], 2)), "weak"),
        (calls(([[]], [])), "weak"),
        (calls(([1], 2), ([2], 4)), "strong"),
        (calls(([1], True), ([2], False)), "strong"),
        (prints(("1\n", "YES\n"), ("2\n", "YES\n")), "weak"),
        (prints(("1\n", ""), ("2\n", "\n")), "weak"),
        (prints(("1\n", "1\n"), ("2\n", "2\n")), "weak"),
        (prints(("1\n", "YES\n"), ("2\n", "NO\n")), "strong"),
    ],
)
def test_cases_that_one_answer_fits_are_weak(reference: dict[str, Any], strength: str):
    """Calls and outputs too."""
    assert integrity(reference) == strength


@runs_programs
@pytest.mark.parametrize(
    "reference",
    [
        asserts(ADD),
        asserts("for n in range(1, 4):\n    assert add(n, 1) == n + 1"),
        asserts("s = Stack()\ns.push(1)\nassert s.pop() == 1 and s.size() == 0"),
        {"type": "check", "entry": "f", "code": "def check(candidate):\n    assert candidate(2) == 4\n"},
        calls(([1], 2), ([2], 4)),
        prints(("1\n", "2\n"), ("2\n", "4\n")),
    ],
)
def test_null_programs_pass_no_strong_tests(reference: dict[str, Any]):
    """Empty, constant, echo, raise, exit, an object that answers everything: none is called right, none is an error."""
    assert integrity(reference) == "strong"
    verifier = UnitTests(timeout=3, slots=1)
    try:
        programs = null_programs(reference)
        verdicts = verifier.verify_batch([(Problem("p", "", reference), text) for text in programs.values()])
    finally:
        verifier.close()
    assert {what: found.score for what, found in zip(programs, verdicts, strict=True)} == dict.fromkeys(programs, 0.0)
    assert len(programs) > 8
