"""Tests that a constant or an echo of an argument passes, whatever expression hides it, are weak; others are strong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rlvr.core.types import Problem
from rlvr.sandbox import level
from rlvr.verifiers.code.plans import integrity
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.programs import asserts

runs_programs = pytest.mark.skipif(
    sys.platform != "linux" or level().number < 2, reason="programs cannot be isolated here"
)


def over(body: str, values: str = "(2, 3, 4)", name: str = "n") -> str:
    """Return a loop over arguments around asserts."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"import copy, math\nimport numpy as np\nfrom collections import Counter\nfor {name} in {values}:\n{lines}"


def over_texts(body: str) -> str:
    return over(body, "('ab', 'bcd', 'xYz')", "s")


# Each loop, or text of asserts, is passed by the program.
WEAK = {
    "an echo, sorted": (over_texts("assert sorted(f(s)) == sorted(s)"), "def f(s): return s"),
    "an echo, counted": (over_texts("assert Counter(f(s)) == Counter(s)"), "def f(s): return s"),
    "an echo, without case": (over_texts("assert f(s).lower() == s.lower()"), "def f(s): return s"),
    "an echo, joined": (over_texts("r = f(s)\nassert ''.join(r) == s"), "def f(s): return s"),
    "an echo, copied": (over_texts("r = f(s)\nassert copy.copy(r) == s"), "def f(s): return s"),
    "an echo, item by item": (
        over_texts("r = f(s)\nassert [ord(x) for x in r] == [ord(x) for x in s]"),
        "def f(s): return s",
    ),
    "an echo, twice": (over_texts("assert f(f(s)) == s"), "def f(s): return s"),
    "a round trip": (over_texts("r = f(s)\nassert g(r) == s"), "def f(s): return s\ng = f"),
    "an echo that starts": (over_texts("assert f(s).startswith(s[0])"), "def f(s): return s"),
    "the second argument": ("assert f(1, 7) == 7\nassert f(2, 8) == 8", "def f(a, b): return b"),
    "a keyword": ("assert f(x=[1, 2]) == [1, 2]\nassert f(x=[3]) == [3]", "def f(x): return x"),
    "the second argument in a loop": (over("assert f(1, n) == n"), "def f(a, b): return b"),
    "sorted by itself": (over("r = f(n)\nassert r == sorted(r)"), "def f(n): return []"),
    "reversed by itself": (over("r = f(n)\nassert r == r[::-1]"), "def f(n): return ''"),
    "its items by themselves": (over("r = f(n)\nassert r == [x for x in r if x % n == 0]"), "def f(n): return []"),
    "its length by itself": (over("r = f(n)\nassert sum(r) == n * len(r)"), "def f(n): return []"),
    "its quotient by itself": (over("x = f(n)\nassert x // n * n == x"), "def f(n): return 0"),
    "a difference of sets": (over("x = f(n)\nassert set(x) - {n} == set()"), "def f(n): return []"),
    "nothing at the start": (over("assert str(n).startswith(f(n))"), "def f(n): return ''"),
    "nothing inside": (over("assert f(n) in str(n)"), "def f(n): return ''"),
    "nothing added": (over("x = f(n)\nassert n + x == n"), "def f(n): return 0"),
    "one factor": (over("x = f(n)\nassert n * x == n"), "def f(n): return 1"),
    "no items added": (over("x = f(n)\nassert [n] + x == [n]"), "def f(n): return []"),
    "no items unpacked": (over("x = f(n)\nassert [*x, n][-1] == n"), "def f(n): return []"),
    "no keys unpacked": (over("x = f(n)\nassert {**x, n: 1} == {n: 1}"), "def f(n): return {}"),
    "no text formatted": (over("x = f(n)\nassert f'{x}{n}' == str(n)"), "def f(n): return ''"),
    "a distance to itself": (over("x = f(n)\nassert abs(x - round(x)) < 1e-9"), "def f(n): return 0"),
    "a norm": (
        over("r = f(n)\nassert np.linalg.norm(r - np.array([n, n])) < 1e-6"),
        "import numpy as np\ndef f(n): return np.empty((0, 2))",
    ),
    "an exception but once": (
        over("try:\n    r = f(n)\nexcept Exception as e:\n    print(e)\nelse:\n    assert r == n * n + 1"),
        "def f(n):\n    if n > 2: raise ValueError\n    return 5",
    ),
    "a failure that is dropped": (
        "def t(n):\n    try:\n        assert f(n) == n * n + 1\n    finally:\n        return True\n"
        "for n in (2, 3):\n    assert t(n)",
        "def f(n): return 5",
    ),
    "failures that are gathered": (
        "import asyncio\nasync def w(n):\n    assert await f(n) == n * n + 1\nasync def m():\n"
        "    await asyncio.gather(*[w(n) for n in (2, 3)], return_exceptions=True)\nasyncio.run(m())",
        "async def f(n): return 5",
    ),
    "one value twice": ("assert f(1) == 5\nassert f(2) == 5", "def f(n): return 5"),
    "one value in a loop": (over("assert f(n) == 5"), "def f(n): return 5"),
    "one value of a TestCase": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        x = 3\n"
        "        self.assertEqual(f(x), 5)\n        self.assertEqual(f(x + 1), 5)",
        "def f(n): return 5",
    ),
}
STRONG = {
    "a helper with the same argument": "def total(x): return sum(y for y in x)\n" + over("assert f([n]) == total([n])"),
    "other values": over("assert f(n) == n * n"),
    "one value and another": "x = 2\nassert f(x) == 5\nassert f(x + 1) == 6",
    "one value and a type": "x = 2\nassert isinstance(f(x), int)\nassert f(x) == 5",
    "close to another": over("assert np.allclose(f(n), [n, n * n])"),
}
# No null answer passes these, which is not proved: they run in one process with the program, too.
UNPROVED = {
    "reversed": over_texts("assert f(s)[::-1] == s"),
    "more than the argument": over_texts("assert f(s).startswith(s + s)"),
    "read back": "import json\n" + over("d = {'a': n}\nassert json.loads(f(d)) == d"),
    "a sum": over("assert f(n) + n == 2 * n + 1"),
    "a member of a display": over("assert f(n) in (n + 1, n + 2)"),
    "inside a context": "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n"
    "        for n in (2, 3):\n            with self.subTest(n=n):\n"
    "                want = n * n\n                self.assertEqual(f(n), want)",
}
LENGTH = "def f(xs): return sum(xs)"
EMPTIED = "def f(xs):\n    xs.clear()\n    return 0"
ZEROS = "def f(n): return []"
FORGED = {
    "a method of the tests reads the argument": (
        "import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.d = [1, 5]\n"
        "    def expected(self): return sum(self.d)\n    def test_a(self):\n        r = f(self.d)\n"
        "        self.assertEqual(r, self.expected())",
        EMPTIED,
        LENGTH,
    ),
    "a closure reads the argument": (
        "def test_f():\n    data = [1]\n    def total(): return sum(data)\n    for i in range(3):\n"
        "        data.append(i)\n        r = f(data)\n        assert r == total()",
        EMPTIED,
        LENGTH,
    ),
    "a function reads a global": (
        "data = [1, 4]\ndef total(): return sum(data)\ndef want(): return total() + 1\nr = f(data)\n"
        "assert r + 1 == want()",
        EMPTIED,
        LENGTH,
    ),
    "close to a number": (
        over("np.testing.assert_allclose(f(n), float(n * n))"),
        ZEROS,
        "def f(n): return n * n",
    ),
    "equal to a number": (
        over("from numpy.testing import assert_array_equal\nassert_array_equal(f(n), n * n)"),
        "import numpy\ndef f(n): return numpy.empty(0)",
        "def f(n): return n * n",
    ),
    "close to an array": (
        over("assert np.allclose(f(n), np.array([n, n * n]))"),
        "import numpy\ndef f(n): return numpy.empty((0, 1))",
        "import numpy\ndef f(n): return numpy.array([n, n * n])",
    ),
    "close items": (
        over("assert np.isclose(f(n), [n, n * n]).all() and f(n)[0] == n"),
        "import numpy\nclass A(numpy.ndarray): pass\ndef f(n): return numpy.empty((0, 1))",
        "def f(n): return [n, n * n]",
    ),
}


# Two tests, of which a constant 4 passes one only.
ALL_RUN = {
    "a method of the same name": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    "        self.assertEqual(f(2), 4)\ndef test_a():\n    assert f(3) == 9",
    "an inner function of the same name": "def test_a():\n    def test_b():\n        assert f(2) == 4\n    test_b()\n"
    "def test_b():\n    assert f(3) == 9",
    "parameters, called by hand": "import pytest\n@pytest.mark.parametrize('n', [2, 3])\ndef test_a(n):\n"
    "    assert f(n) == n * n\ntest_a(2)",
    "a default, called by hand": "def test_a(n=3):\n    assert f(n) == n * n\ntest_a(2)",
    "an inner class": "class TestF:\n    class TestInner:\n        def test_a(self):\n            assert f(3) == 9\n"
    "    def test_b(self):\n        assert f(2) == 4",
}


@pytest.fixture(scope="module")
def verifier() -> Iterator[UnitTests]:
    made = UnitTests(timeout=5, slots=1)
    yield made
    made.close()


def is_right(verifier: UnitTests, code: str, program: str) -> bool:
    return verifier(Problem("p", "", asserts(code)), program).correct


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, (code, _) in WEAK.items()])
def test_what_a_null_answer_passes_is_weak(code: str):
    """Neutral constants, results compared with themselves, echoes under functions."""
    assert integrity(asserts(code)) == "weak"


@runs_programs
@pytest.mark.parametrize(
    ("code", "program"), [pytest.param(*row, id=name) for name, row in WEAK.items() if name != "a norm"]
)
def test_the_null_answers_pass(verifier: UnitTests, code: str, program: str):
    """Weak is no guess: the program that solves nothing is called right."""
    assert is_right(verifier, code, program)


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in STRONG.items()])
def test_what_no_null_answer_passes_is_strong(code: str):
    """A constant fails, and so does an echo; or each passes one of two asserts."""
    assert integrity(asserts(code)) == "strong"


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in UNPROVED.items()])
def test_what_is_not_proved_is_weak(code: str):
    """Strong is what is proved to be."""
    assert integrity(asserts(code)) == "weak"


@pytest.mark.parametrize(
    ("reference", "strength"),
    [
        ({"type": "calls", "entry": "f", "cases": [{"args": [n], "expected": 5} for n in (1, 2)]}, "weak"),
        ({"type": "calls", "entry": "f", "cases": [{"args": [1, n], "expected": n} for n in (7, 8)]}, "weak"),
        ({"type": "calls", "entry": "f", "cases": [{"args": [1, n], "expected": n + 1} for n in (7, 8)]}, "strong"),
        ({"type": "stdio", "cases": [{"input": f"{n}\n", "output": "3\n"} for n in (7, 8)]}, "weak"),
        ({"type": "stdio", "cases": [{"input": f"{n}\n", "output": f"{n + 1}\n"} for n in (7, 8)]}, "strong"),
    ],
)
def test_cases_with_one_value_are_weak(reference: dict[str, Any], strength: str):
    """Whatever the value; and an echo of any argument."""
    assert integrity(reference) == strength


@runs_programs
@pytest.mark.parametrize(("code", "forged", "right"), [pytest.param(*row, id=name) for name, row in FORGED.items()])
def test_forgeries_fail(verifier: UnitTests, code: str, forged: str, right: str):
    """Functions that read an overwritten argument see the original; an empty array is close to no other."""
    assert is_right(verifier, code, right)
    assert integrity(asserts(code)) == "weak" or not is_right(verifier, code, forged)


@runs_programs
@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in ALL_RUN.items()])
def test_every_test_is_run(verifier: UnitTests, code: str):
    """Whatever another one of its name, or the code itself, has run."""
    assert is_right(verifier, code, "def f(n): return n * n")
    assert not is_right(verifier, code, "def f(n): return 4")
