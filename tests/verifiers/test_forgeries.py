"""Programs that are called right only where the tests, or what the caller does with them, let them."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.programs import asserts, runs_programs, verdict

pytestmark = runs_programs


def check(code: str, **more: str) -> dict[str, Any]:
    """Return a reference of HumanEval's kind for the function f."""
    lines = "".join(f"    {line}\n" for line in code.splitlines())
    return {"type": "check", "entry": "f", "code": f"def check(candidate):\n{lines}", **more}


ENCODE = "def encode(s): return s[::-1] + '!'\n"
DECODE = "def decode(s): return s[:-1][::-1]"
SAME_DECODE = "def encode(s): return s\ndef decode(s): return s"
SQUARES = "def squares(n): return [i * i for i in range(n)]\n"
PARSE = "import ast\ndef f(s): return ast.literal_eval(s)"
SORTED = "def f(xs): return sorted(xs)"
CONSTANT = "def f(*args, **kwargs): return None"

# Name: tests, a program that forges, one that is right.
HELPERS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a round trip in one call": (asserts("assert decode(encode('ab')) == 'ab'", prelude=ENCODE), SAME_DECODE, DECODE),
    "a helper as a keyword argument": (
        asserts("assert decode(s=encode('abc')) == 'abc'\nassert decode(s=encode('')) == ''", prelude=ENCODE),
        SAME_DECODE,
        DECODE,
    ),
    "a helper in a list": (
        asserts("assert f([encode('ab'), 'cd']) == ['ab', 'cd']", prelude=ENCODE),
        "def encode(s): return s\ndef f(x): return x",
        "def f(x): return [x[0][:-1][::-1], x[1]]",
    ),
    "a helper of check": (
        check("assert candidate(encode('ab')) == 'ab'", prelude=ENCODE),
        "def encode(s): return s\ndef f(s): return s",
        "def f(s): return s[:-1][::-1]",
    ),
    "a constant of the prelude": (
        asserts("assert f(KEY) == 'ab'", prelude="KEY = 'ab'[::-1]\n"),
        "KEY = 'ab'\ndef f(s): return s",
        "def f(s): return s[::-1]",
    ),
    "a builtin": (
        asserts("assert f(repr({'a': 1})) == {'a': 1}\nassert f(repr([2])) == [2]"),
        "def repr(x): return x\ndef f(x): return x",
        PARSE,
    ),
    "a patched builtin": (
        asserts("assert f(str([1, 2])) == [1, 2]"),
        "import builtins\nbuiltins.str = lambda x: x\ndef f(x): return x",
        PARSE,
    ),
    "a method": (
        asserts("assert f(','.join(['a', 'b'])) == ['a', 'b']\nassert f('-'.join(['c'])) == ['c']"),
        "def f(x): return ['c']",
        "def f(x): return x.split(',')",
    ),
    "a patched module": (
        asserts("import json\nassert f(json.dumps({'a': [1]})) == {'a': [1]}"),
        "import json\njson.dumps = lambda x: x\ndef f(x): return x",
        "import json\ndef f(x): return json.loads(x)",
    ),
    "a comprehension": (
        asserts("assert f([encode(s) for s in ('a', 'b')]) == ['a', 'b']", prelude=ENCODE),
        "def encode(s): return s\ndef f(x): return x",
        "def f(x): return [s[:-1][::-1] for s in x]",
    ),
    "a helper of the setup": (
        asserts("assert same(f([2, 1]), [1, 2])", setup="def same(a, b): return sorted(a) == sorted(b)\n"),
        "class L(list):\n def __lt__(s, o): return False\nimport builtins\nbuiltins.sorted = len\n"
        "def f(xs): return [0, 0]",
        SORTED,
    ),
    "a predicate of the setup": (
        asserts("assert ok(f(3)) and not ok(f(4))", setup="def ok(x): return x == 9\n"),
        "class A:\n def __init__(s, n): s.n = n\n def __eq__(s, o): return s.n == 3\ndef f(n): return A(n)",
        "def f(n): return n * n",
    ),
    "an operator of a class of the setup": (
        asserts("assert f(2) == V(4).x", setup="class V:\n    def __init__(self, x): self.x = x\n"),
        "import builtins\nclass E:\n def __eq__(s, o): return True\ndef f(n): return E()",
        "def f(n): return n * n",
    ),
    "a helper under another name": (
        asserts("e = encode\nassert decode(e('ab')) == 'ab'", prelude=ENCODE),
        SAME_DECODE,
        DECODE,
    ),
}


SQUARE = "def f(n, *rest): return n * n"

UNEXECUTED: dict[str, str] = {
    "a pytest function": "def test_f():\n    assert f(2) == 4\n",
    "two pytest functions": "def test_a(): assert f(2) == 4\ndef test_b():\n    x = f(3)\n    assert x == 9\n",
    "a pytest class": "class TestF:\n    def test_f(self):\n        assert f(2) == 4\n",
    "pytest.raises beside it": (
        "import pytest\ndef test_f():\n    assert f(2) == 4\n    with pytest.raises(TypeError):\n        f(None)\n"
    ),
    "parametrized": (
        "import pytest\n@pytest.mark.parametrize('n, want', [(2, 4), (3, 9)])\n"
        "def test_f(n, want):\n    assert f(n) == want\n"
    ),
    "a main guard": "if __name__ == '__main__':\n    assert f(2) == 4\n",
    "a main function": "def main():\n    assert f(2) == 4\nif '__main__' == __name__:\n    main()\n",
    "unittest": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.assertEqual(f(2), 4)\n"
        "if __name__ == '__main__':\n    unittest.main()\n"
    ),
    "unittest with assert": (
        "from unittest import TestCase, main\nclass T(TestCase):\n    def setUp(self):\n        self.n = 2\n"
        "    def test_f(self):\n        assert f(self.n) == 4\nmain()\n"
    ),
    "unittest's subtests": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        for n in (2, 3):\n"
        "            with self.subTest(n=n):\n                self.assertEqual(n * n, f(n))\n"
    ),
    "an async test": "async def test_f():\n    assert f(2) == 4\n",
    "an async unittest": (
        "import unittest\nclass T(unittest.IsolatedAsyncioTestCase):\n    async def test_f(self):\n"
        "        self.assertEqual(f(2), 4)\n"
    ),
    "an async main": "import asyncio\nasync def main():\n    assert f(2) == 4\nasyncio.run(main())\n",
}

# None of these can fail: they are refused, or no program passes them.
NEVER_FAILING = {
    "a tuple": "assert (f(2) == 4, 'two squared')",
    "a tuple in a loop": "for n in (2, 3):\n    assert (f(n) == n * n, 'squares')",
    "a tuple beside an inert assert": "assert (f(2) == 4, 'x')\nassert True",
    "a generator": "assert (f(n) == n * n for n in (2, 3))",
    "a list": "assert [f(2) == 4]",
    "a lambda": "assert lambda: f(2) == 4",
    "or True": "assert f(2) == 4 or True",
    "a text": "assert f'{f(2) == 4} is right'",
    "a function never called": "def verify():\n    assert f(2) == 4\n",
    "nested functions": "def a():\n    def b():\n        assert f(2) == 4\na()\n",
    "if False": "if False:\n    assert f(2) == 4\n",
    "if 0 in a test": "def test_f():\n    if 0:\n        assert f(2) == 4\n",
    "while None": "while None:\n    assert f(2) == 4\n",
    "after a return": "def test_f():\n    return\n    assert f(2) == 4\n",
    "after a break": "for n in (1, 2):\n    break\n    assert f(n) == n * n\n",
    "a loop over nothing": "for n in []:\n    assert f(n) == n * n\n",
    "a range of nothing": "for n in range(0):\n    assert f(n) == n * n\n",
    "an empty variable": "cases = []\nfor n, m in cases:\n    assert f(n) == m\n",
    "skipped": "import unittest\nclass T(unittest.TestCase):\n    @unittest.skip('later')\n"
    "    def test_f(self):\n        self.assertEqual(f(2), 4)\n",
    "a coroutine never awaited": "async def verify():\n    assert f(2) == 4\nverify()\n",
    "a generator never run": "def each():\n    assert f(2) == 4\n    yield\neach()\n",
    "an assert without the program": "f\nassert 1 + 1 == 2\n",
    "only the name of the program": "assert f\nassert callable(f)\n",
    "a test that is swallowed": "try:\n    assert f(2) == 4\nexcept AssertionError:\n    pass\n",
    "suppressed": "import contextlib\nwith contextlib.suppress(AssertionError):\n    assert f(2) == 4\n",
    "an early exit": "import sys\nsys.exit(0)\nassert f(2) == 4\n",
}

LARGEST = "def f(xs): return max(xs)"
ZERO = "def f(xs):\n    xs[:] = [0]\n    return 0"
OVERWRITTEN: dict[str, tuple[dict[str, Any], str, str]] = {
    "beside the call": (asserts("xs = [3, 1]\nassert f(xs) == max(xs)"), ZERO, LARGEST),
    "in check": (check("xs = [3, 1]\nassert candidate(xs) == max(xs)"), ZERO, LARGEST),
    "a result kept": (asserts("xs = [3, 1]\nr = f(xs)\nassert r == max(xs)"), ZERO, LARGEST),
    "an expected value worked out afterwards": (
        asserts("xs = [3, 1]\nr = f(xs)\nwant = max(xs)\nassert r == want"),
        ZERO,
        LARGEST,
    ),
    "a loop": (asserts("for xs in ([3, 1], [5]):\n    assert f(xs) == max(xs)"), ZERO, LARGEST),
    "nested lists": (
        asserts("rows = [[3, 1], [5]]\nfor i in range(2):\n    assert f(rows[i]) == max(rows[i])"),
        ZERO,
        LARGEST,
    ),
    "an attribute": (
        asserts("class C: pass\nc = C()\nc.xs = [3, 1]\nassert f(c.xs) == max(c.xs)"),
        ZERO,
        LARGEST,
    ),
    "a helper of the tests": (
        asserts("def same(r, xs): return r == max(xs)\nxs = [3, 1]\nassert same(f(xs), xs)"),
        ZERO,
        LARGEST,
    ),
    "a helper that calls": (
        asserts("def verify(xs):\n    assert f(xs) == max(xs)\nverify([3, 1])\nverify([2])"),
        ZERO,
        LARGEST,
    ),
    "a dictionary": (
        asserts("d = {'a': 1, 'b': 2}\nassert f(d) == sum(d.values())"),
        "def f(d):\n    d.clear()\n    return 0",
        "def f(d): return sum(d.values())",
    ),
    "a set": (
        asserts("s = {1, 2}\nassert all(x in f(s) for x in s) and len(f(s)) == len(s)"),
        "def f(s):\n    s.clear()\n    return []",
        "def f(s): return list(s)",
    ),
    "a method of the argument": (
        asserts("xs = [3, 3, 1]\nassert f(xs) == xs.count(3)"),
        "def f(xs):\n    xs[:] = []\n    return 0",
        "def f(xs): return xs.count(3)",
    ),
    "zip": (
        asserts("xs = [3, 1]\nassert all(a == b + 1 for a, b in zip(f(xs), xs))\nassert len(f(xs)) == len(xs)"),
        "def f(xs):\n    xs[:] = []\n    return []",
        "def f(xs): return [x + 1 for x in xs]",
    ),
    "a test function": (asserts("def test_f():\n    xs = [3, 1]\n    assert f(xs) == max(xs)"), ZERO, LARGEST),
    "unittest": (
        asserts(
            "import unittest\nclass T(unittest.TestCase):\n    def test_f(self):\n        self.xs = [3, 1]\n"
            "        self.assertEqual(f(self.xs), max(self.xs))"
        ),
        ZERO,
        LARGEST,
    ),
    "another name for the list": (asserts("xs = [3, 1]\nys = xs\nassert f(xs) == max(ys)"), ZERO, LARGEST),
    "nested in the argument": (
        asserts("rows = [[3, 1], [5]]\nassert f(rows) == max(rows[0])"),
        "def f(rows):\n    rows[0][:] = [0]\n    return 0",
        "def f(rows): return max(rows[0])",
    ),
    "an index": (
        asserts("xs = [3, 1, 2]\ni = f(xs, 2)\nassert xs[i] == 2"),
        "def f(xs, x):\n    xs[:] = [x]\n    return 0",
        "def f(xs, x): return xs.index(x)",
    ),
    "an index in place": (
        asserts("xs = [1, 3, 2]\nassert xs[f(xs)] == max(xs)"),
        "def f(xs):\n    xs[:] = [0]\n    return 0",
        "def f(xs): return xs.index(max(xs))",
    ),
    "by keyword": (asserts("xs = [3, 1]\nassert f(xs=xs) == max(xs)"), ZERO, LARGEST),
    "two calls": (
        asserts("xs = [3, 1]\nassert f(xs) == max(xs)\nassert g(xs) == min(xs)"),
        f"{ZERO}\ng = f",
        f"{LARGEST}\ndef g(xs): return min(xs)",
    ),
    "what a class changes": (
        asserts("xs = [3, 1]\ns = Stack()\ns.fill(xs)\nassert s.top() == max(xs)"),
        "class Stack:\n    def fill(s, xs): xs[:] = [0]\n    def top(s): return 0",
        "class Stack:\n    def fill(s, xs): s.xs = xs\n    def top(s): return max(s.xs)",
    ),
}

# These are about the change itself.
CHANGES = {
    "sorted in place": ("a = [3, 1, 2]\nassert f(a) is None\nassert a == [1, 2, 3]", "def f(a): a.sort()"),
    "a call for its effect": ("a = [3, 1]\nf(a)\nassert a == [1, 3] and len(a) == 2", "def f(a): a.sort()"),
    "in one assert": ("a = [1]\nassert f(a) == 2 and a == [1, 3]", "def f(a): a.append(3); return len(a)"),
    "a loop over what was changed": ("a = [1, 2]\nf(a)\nfor x in a:\n    assert x == 0", "def f(a): a[:] = [0, 0]"),
    "through a variable": ("a = [3, 1]\nf(a)\nb = a[0]\nassert b == 1", "def f(a): a.sort()"),
    "not changed": ("a = [3, 1]\nr = f(a)\nassert r == [1, 3]\nassert a == [3, 1]", SORTED),
    "the first items": (
        "a = [1, 2, 3]\nk = f(a)\nassert k == 2\nassert a[:k] == [1, 3]",
        "def f(a): del a[1]; return 2",
    ),
    "item by item": (
        "a = [3, 2, 3]\nwant = [3, 3]\nk = f(a)\nassert k == len(want)\nfor i in range(k):\n    assert a[i] == want[i]",
        "def f(a): a.remove(2); return 2",
    ),
    "twice": ("a = [3]\nf(a)\nf(a)\nassert a == [3, 1, 1]", "def f(a): a.append(1)"),
    "what the program made": (
        "a = make()\nf(a, 1)\nf(a, 2)\nassert a == [1, 2] and last(a) == a[1]",
        "def make(): return []\ndef f(a, x): a.append(x)\ndef last(a): return a[-1]",
    ),
    "a dictionary": ("d = {}\nf(d)\nassert d['a'] == 1", "def f(d): d['a'] = 1"),
    "a test function": ("def test_f():\n    a = [3, 1]\n    f(a)\n    assert a == [1, 3]", "def f(a): a.sort()"),
}

KEPT = "def f(a): return sorted(a)"


def all_of(*tables: dict[str, Any]) -> list[Any]:
    return [pytest.param(*row, id=name) for table in tables for name, row in table.items()]


@pytest.mark.parametrize(("reference", "forged", "right"), all_of(HELPERS, OVERWRITTEN))
def test_what_a_test_says_is_worked_out_by_us(verifier: UnitTests, reference: Any, forged: str, right: str):
    """Helpers of the tests and expected values are ours, whatever the program redefines or overwrites."""
    assert verdict(verifier, reference, right).correct
    found = verdict(verifier, reference, forged)
    assert (found.correct, found.score) == (False, 0.0)


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in UNEXECUTED.items()])
def test_tests_in_functions_and_classes_are_run(verifier: UnitTests, code: str):
    """pytest functions, TestCases, guards and coroutines: a right program passes, an empty one does not."""
    assert verdict(verifier, asserts(code), SQUARE).correct
    for wrong in (CONSTANT, "def f(n): return 0", "f = 4"):
        found = verdict(verifier, asserts(code), wrong)
        assert (found.correct, found.score) == (False, 0.0), wrong


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in NEVER_FAILING.items()])
def test_asserts_that_are_not_executed_or_cannot_fail_do_not_pass(verifier: UnitTests, code: str):
    """Whatever the program: such tests are refused, or no assert of them counts."""
    for wrong in (CONSTANT, "def f(n): return 0", "def f(n): raise ValueError"):
        assert not verdict(verifier, asserts(code), wrong).correct


@pytest.mark.parametrize(("code", "right"), all_of(CHANGES))
def test_changes_in_place_are_seen_where_the_test_is_about_them(verifier: UnitTests, code: str, right: str):
    """An argument that an assert compares by itself is as the program left it."""
    assert verdict(verifier, asserts(code), right).correct
    assert not verdict(verifier, asserts(code), "def f(*args): return 7").correct


def test_a_class_of_the_prelude_that_computes_is_ours(verifier: UnitTests):
    """A program that redefines it does not see what it was made with."""
    secret = "class Secret:\n    def __init__(self, text):\n        self.text = text[::-1]\n"
    reference = asserts("assert f(Secret('ab')) == 'ab'", prelude=secret)
    forged = "class Secret:\n def __init__(self, text): self.text = text\ndef f(s): return s.text"
    assert not verdict(verifier, reference, forged).correct
