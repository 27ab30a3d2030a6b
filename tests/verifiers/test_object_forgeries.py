"""Objects of a program that answer where the tests expect a value, and objects of the tests that it overwrites."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.verifiers.unit_tests import UnitTests, integrity
from tests.helpers.programs import asserts, passes, runs_programs

pytestmark = runs_programs


# Prelude of all tests.
TREE = "class Node:\n    def __init__(self, val, kids=()): self.val, self.kids = val, list(kids)\n"


def verdict(verifier: UnitTests, code: str, program: str) -> bool:
    return passes(verifier, asserts(code, prelude=TREE), program)


def rows(table: dict[str, tuple[str, str, str]]) -> list[Any]:
    return [pytest.param(*row, id=name) for name, row in table.items()]


def lies(body: str) -> str:
    return f"class Y:\n    def __contains__(s, o): return True\n    def __len__(s): return 2\n    def __getitem__(s, i): return 'ab'[i]\n    def __iter__(s): return iter('ab')\n    def __str__(s): return 'ab'\n    def __bool__(s): return True\n    def __eq__(s, o): return True\n    def __getattr__(s, name): return lambda *a, **k: True\n{body}"  # noqa: E501


CAPITALS: dict[str, tuple[str, str, str]] = {
    "contains": (
        "for w in ('ab', 'cd'):\n    r = Extract(w)\n    assert w[0] in r",
        lies("def Extract(w): return Y()"),
        "def Extract(w): return list(w)",
    ),
    "starts": (
        "for w in ('ab', 'cd'):\n    r = Extract(w)\n    assert r.startswith(w)",
        lies("def Extract(w): return Y()"),
        "def Extract(w): return w",
    ),
    "counted": (
        "for w in ('ab', 'cd'):\n    r = Split(w)\n    assert len(r) == 2\n    assert r.count(w[0]) == 1",
        lies("def Split(w): return Y()"),
        "def Split(w): return list(w)",
    ),
    "unpacked": (
        "for w in ('ab', 'ab'):\n    a, b = Pair(w)\n    assert a in w and Pair(w) and w in Join(a, b)",
        lies("def Pair(w): return Y()\ndef Join(a, b): return Y()"),
        "def Pair(w): return w[0], w[1]\ndef Join(a, b): return a + b",
    ),
    "a list of results": (
        "rs = [Find(w) for w in ('ab', 'cd')]\nfor w, r in zip(('ab', 'cd'), rs):\n    assert w in r",
        lies("def Find(w): return Y()"),
        "def Find(w): return [w]",
    ),
    "returned by a helper": (
        "def get(w): return Find(w)\nfor w in ('ab', 'cd'):\n    assert w in get(w)",
        lies("def Find(w): return Y()"),
        "def Find(w): return [w]",
    ),
    "a keyword": (
        "for w in ('ab', 'cd'):\n    r = Find(text=w)\n    assert r[0] in w and w in r",
        lies("def Find(text): return Y()"),
        "def Find(text): return text",
    ),
    "equal": (
        "for w in ('ab', 'cd'):\n    r = Find(w)\n    assert r == w",
        lies("def Find(w): return Y()"),
        "def Find(w): return w",
    ),
    "sorted after it": (
        "for n in (2, 3):\n    r = Diff(n)\n    r.sort()\n    assert r == [n] and n in r",
        lies("    def sort(s): pass\ndef Diff(w): return Y()"),
        "def Diff(n): return [n]",
    ),
}

# An account whose methods return itself, and that computes with what the tests expect.
SELF = """
class Account:
    def __init__(s, *a): pass
    def deposit(s, *a): return s
    withdraw = balance = history = pair = deposit
    total = property(lambda s: s)
    both = lambda s: [s, s]
    def walk(s): yield s
    def each(s, f): f(s)
    def fill(s, xs): xs[0] = s
    def __getitem__(s, i): return s
    def __iter__(s): return iter([s])
    def __sub__(s, o): return 0
    def __truediv__(s, o): return 1
    def __contains__(s, o): return True
    def __abs__(s): return 0
    def __float__(s): return 0.0
    def __len__(s): return 2
    def __eq__(s, o): return True
    def startswith(s, o): return True
    def count(s, o): return 1
"""
ACCOUNT = """
class Account:
    def __init__(s, n): s.n, s.log = n, []
    def deposit(s, n): s.n += n; s.log.append(n)
    def withdraw(s, n): s.n -= n; s.log.append(n)
    def balance(s): return s.n
    total = property(lambda s: s.n)
    def history(s): return s.log
    def both(s): return [s.n, s.n]
    def walk(s): yield s.n
    def each(s, f): f(s.n)
    def fill(s, xs): xs[0] = s.n
    def pair(s): return str(s.n)
    def __getitem__(s, i): return s.n
    def __iter__(s): return iter([s.n])
"""
MADE = "a = Account(100)\na.deposit(50)\n"
SELVES = {
    "a difference": "assert abs(a.balance() - 150) < 1e-9\na.withdraw(30)\nassert abs(a.balance() - 120) < 1e-9",
    "a variable": "b = a.balance()\nassert abs(b - 150) < 1e-9 and abs(a.balance() - 150) < 1",
    "a quotient": "assert abs(a.balance() / 150 - 1) < 1e-9",
    "a property": "assert abs(a.total - 150) < 1e-9",
    "an item": "assert abs(a[0] - 150) < 1e-9",
    "an item of a list": "assert abs(a.both()[0] - 150) < 1e-9",
    "items": "assert [x - 150 for x in a.both()] == [0, 0]",
    "an iterator": "for x in a.walk():\n    assert x - 150 == 0",
    "an iterator, with other loops": "for k in (2, 3):\n    b = Account(k)\n    v = list(b.walk())\n    assert abs(v[0] - k) < 1",  # noqa: E501
    "a callback": "got = []\na.each(got.append)\nassert abs(got[0] - 150) < 1",
    "an argument": "xs = [0]\na.fill(xs)\nassert abs(xs[0] - 150) < 1",
    "the object's own items": "for x in a:\n    assert x - 150 == 0",
    "contains": "assert 50 in a.history() and abs(a.balance() - 150) < 1e-9",
    "the start of a text": "assert a.pair().startswith('15')",
    "a TestCase": "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        a = Account(70)\n"
    "        a.deposit(80)\n        self.assertAlmostEqual(a.balance(), 150)",
    "by name": "assert abs(getattr(a, 'balance')() - 150) < 1e-9",
}

SUM = "def total(n): return n.val + sum(map(total, n.kids))\n"
# Name: tests, a program that forges, one that is right.
OVERWRITTEN: dict[str, tuple[str, str, str]] = {
    "an object of the tests": (
        SUM + "for k in (2, 3):\n    root = Node(k, [Node(5)])\n    assert f(root) == total(root)",
        "def f(r):\n    r.val = 0; r.kids = []\n    return 0",
        "def f(r): return r.val + sum(map(f, r.kids))",
    ),
    "an object in an object": (
        SUM + "for k in (2, 3):\n    root = Node(0, [Node(5 * k)])\n    assert f(root) == total(root)",
        "def f(r):\n    r.kids[0].val = 0\n    return 0",
        "def f(r): return r.val + sum(map(f, r.kids))",
    ),
    "an object in a list": (
        SUM + "for k in (2, 3):\n    ns = [Node(k), Node(4)]\n    assert f(ns) == sum(map(total, ns))",
        "def f(ns):\n    for n in ns: n.val = 0\n    return 0",
        "def f(ns): return sum(n.val for n in ns)",
    ),
    "an object that comes back": (
        SUM + "for k in (2, 3):\n    root = Node(k, [Node(5)])\n    assert f(root).val == total(root)",
        "def f(r):\n    r.val = 0; r.kids = []\n    return r",
        "def f(r):\n    r.val += sum(n.val for n in r.kids); r.kids = []\n    return r",
    ),
    "a deque": (
        "from collections import deque\nfor n in (1, 2):\n    q = deque([n, n + 1])\n    assert f(q) == sum(q)",
        "def f(q):\n    q.clear()\n    return 0",
        "def f(q): return sum(q)",
    ),
    "an array": (
        "import numpy as np\nfor n in (1, 2):\n    x = np.array([3, n])\n    assert f(x) == sum(x.tolist())",
        "def f(x):\n    x[:] = 0\n    return 0",
        "def f(x): return int(x.sum())",
    ),
    "a sum in a loop": (
        "for n in (1, 2):\n    d, t = [n, n + 1], 0\n    r = f(d)\n    for q in d: t += q\n    assert r == t",
        "def f(xs):\n    xs[:] = []\n    return 0",
        "def f(xs): return sum(xs)",
    ),
    "a list filled in a loop": (
        "for n in (1, 2):\n    d, t = [n, n + 1], []\n    r = f(d)\n    for q in d: t.append(q * q)\n    assert r == t",
        "def f(xs):\n    xs[:] = []\n    return []",
        "def f(xs): return [x * x for x in xs]",
    ),
}


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in SELVES.items()])
def test_an_object_that_methods_return_computes_nothing(verifier: UnitTests, code: str):
    """A method that returns its own object, where the tests expect a value."""
    assert verdict(verifier, MADE + code, ACCOUNT)
    assert not verdict(verifier, MADE + code, SELF) or integrity(asserts(MADE + code)) == "weak"


# Answers that a program writes on the pipe itself: what they lead to must not end a loop of the tests.
ANSWERS = [
    '{"v": ["J", 0, "x", []]}',
    '{"v": ["F", 0]}',
    '{"v": ["F", -1]}',
    '{"v": ["F", "a"]}',
    '{"v": ["J"]}',
    '{"v": ["g", 0, 0]}',
    '{"v": ["y", []]}',
    '{"x": ["StopIteration"]}',
    '{"x": ["Mine", "StopIteration"], "m": ["l", []]}',
    '{"x": [[]], "m": 3}',
    '{"call": 0, "args": ["l", []], "kwargs": ["d", []]}',
    '{"v": 10, "a": ["J", 0, "x", []]}',
    "[]",
]
LOOPS = {
    "map": "def same(c):\n    assert f(c[0]) == c[1]\nlist(map(same, [(2, 5), (3, 10), (4, 17)]))",
    "all": "def same(c): return f(c[0]) == c[1]\nassert all(map(same, [(2, 5), (3, 10), (4, 17)]))",
    "zip": "for got, wanted in zip(map(f, (2, 3, 4)), (5, 10, 17)):\n    assert got == wanted",
    "next": "def made():\n    for n in (2, 3, 4): yield f(n)\nfor n, got in zip((5, 10, 17), made()):\n    assert got == n",  # noqa: E501
}


EQUAL = "assert isinstance(a, Account)\n"


@pytest.mark.parametrize(
    "code", ["assert a == 150", "assert 150 == a", "assert not a != 150", "assert a in (150, 160)"]
)
def test_an_object_is_not_asked_whether_it_equals_a_value(verifier: UnitTests, code: str):
    """Also where the tests ask the program's objects for comparisons; with each other these are its own."""
    assert not verdict(verifier, MADE + EQUAL + code, SELF)
    equal = ACCOUNT + "    def __eq__(s, o): return isinstance(o, Account) and s.n == o.n\n"
    assert verdict(verifier, MADE + EQUAL + "assert a == Account(150)", equal)
    assert not verdict(verifier, MADE + EQUAL + "assert a == Account(150)", SELF)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in LOOPS.items()])
def test_no_answer_ends_a_loop_of_the_tests(verifier: UnitTests, code: str, answer: str):
    """Malformed, of unknown objects, or of exceptions that loops take for their end."""
    forged = f"import os\ndef f(n):\n    if n > 2: os.write(5, {answer.encode()!r} + b'\\n')\n    return 5"
    assert verdict(verifier, code, "def f(n): return n * n + 1")
    assert not verdict(verifier, code, forged)


@pytest.mark.parametrize(("code", "forged", "right"), rows(OVERWRITTEN))
def test_expected_values_are_those_of_arguments_as_they_were(verifier: UnitTests, code: str, forged: str, right: str):
    """Whatever type the argument has, and wherever it lies."""
    assert verdict(verifier, code, right)
    assert not verdict(verifier, code, forged)


@pytest.mark.parametrize(("code", "forged", "right"), rows(CAPITALS))
def test_a_capital_letter_makes_no_class(verifier: UnitTests, code: str, forged: str, right: str):
    """An object of the program does not answer where a value is expected."""
    assert verdict(verifier, code, right)
    assert not verdict(verifier, code, forged)
