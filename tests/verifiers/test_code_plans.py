"""Which tests are split into calls, which classes they have, and how well a problem's tests can be secured."""

from __future__ import annotations

import pytest

from rlvr.verifiers.code import plans as testcode
from rlvr.verifiers.code.plans import CallsPlan, WholePlan, integrity, make_plan, why_weak
from tests.helpers.programs import ADD, asserts


def test_names_of_the_program():
    """What the tests use and do not define."""
    assert testcode.program_names("s = Stack()\nassert len(s) == 0\nassert f(s) is None") == ("Stack", "f")


@pytest.mark.parametrize(
    ("code", "strength"),
    [
        (ADD, "strong"),
        ("x = f(1)\nassert x is None and isinstance(x, int)", "weak"),
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1", "strong"),
        ("for w in 'ab':\n    assert f(w).startswith(w + w)", "weak"),
        ("for w in 'ab':\n    assert f(w).tolist() == [w]", "strong"),
        ("assert isinstance(f(1), A)", "weak"),
        ("assert f(1) == 2\nassert isinstance(f(1), A)", "weak"),
        ("a = A()\nassert isinstance(a, A)", "weak"),
        ("a = f(1)\nassert f(1) is a", "weak"),
        ("x = 1\nassert f(lambda y: y + x) == 2", "weak"),
        ("def g(y): return y + 1\nassert f(g) == 2", "weak"),
        ("def g(y): return y + 1\nassert f(1, key=g) == 2", "weak"),
        ("def g(y): return y + 1\nfor h in [g, abs]:\n    assert f(h) == 2", "weak"),
        ("def g(y): return y + 1\ndef run(h): return f(h)\nassert run(g) == 2", "weak"),
        ("def g(y): return y + 1\nassert list(map(f, [g])) == [2]", "weak"),
        ("class T:\n    def g(self, y): return y\n    def test(self): assert f(self.g) == 2", "weak"),
        ("s = Stack()\ns.push(lambda: 1)\nassert s.pop() == 1", "weak"),
        ("def g(y): return y + 1\nassert f(g(1)) == 2", "strong"),
        ("for w in 'ab':\n    xs = f(w)\n    xs.sort(key=lambda x: -x)\n    assert xs == [w]", "weak"),
        ("for w in 'ab':\n    xs = sorted(f(w), key=lambda x: -x)\n    assert xs == [w]", "strong"),
        ("s = Trie()\ns.insert('a')\nassert s.startswith('a')", "weak"),
        ("s = Trie()\nassert not s.startswith('a')\ns.insert('a')\nassert s.startswith('a')", "strong"),
        ("import mod\nmod.f = 1\nsetattr(mod, 'g', 2)\nassert f()", "weak"),
    ],
)
def test_what_cannot_be_secured_is_marked(code: str, strength: str):
    """Packs leave weak tests out of training."""
    assert integrity(asserts(code)) == strength


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os\nassert f(1) == int(os.environ['A'])", "the tests import os"),
        ("x = open('a').read()\nassert f(1) == x", "open is called, which is not known"),
        ("x = [2, 1]\nr = f(x)\nx.sort()\nassert r == x[0]", "an argument is changed after it was passed"),
        ("r = f(1)\nr.append(2)\nassert f(1) == [1]", "an answer is changed"),
        ("a = f(1)\nb = f(2)\nassert a == g(b)", "an answer is read after another call"),
        ("a = f(1)\nb = f(2)\nassert a == sorted([3, 1])", "an answer is read after another call"),
        ("xs = [2, 1]\nassert f(xs) == 3\nassert xs == sorted(xs)", "xs == sorted(xs) looks at an argument"),
        ("p = P(1)\nassert p == P(2)\nassert p.x == 3", "an object of the program is compared, or used as a value"),
        ("p = P(1)\nassert p.add(1).x == 3", "the attribute x"),
        ("from unittest.mock import Mock\nm = Mock()\nassert f(m) == 3", "the tests import unittest.mock.Mock"),
        ("assert f(1) == g(2)\nx = 1", "an answer is read after another call"),
        ("while f(1):\n    assert f(2) == 3", "a statement of the kind While"),
        ("for n in (1, 2):\n    r = f(n)\n    if r is None:\n        continue\n    assert r == n * 2",
         "an answer decides whether the tests go on"),
        ("import random\nrandom.seed(1)\na = f()\nrandom.seed(1)\nassert a == random.random()",
         "seeds that the program may draw from, too"),
        ("assert list(map(f, [1, 2])) == [2, 4]", "the program's f is used, and not called"),
        ("for n in (1, 2):\n    assert f(n) == n", "a program that solves nothing may pass"),
    ],
)  # fmt: skip
def test_why_tests_are_weak(code: str, reason: str):
    """The first thing that is not proved, in words."""
    assert why_weak(asserts(code)) == reason


def test_evalplus_is_data():
    """Its literals and its comparison become calls; a form that differs is test code."""
    code = """
def is_floats(x): return isinstance(x, float)
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
    reference = {"type": "check", "entry": "f", "code": code}
    plan = make_plan(reference)
    assert isinstance(plan, CallsPlan)
    assert [call.args for call in plan.calls] == [((1, "a('"), None), ((2,), {"k": True})]
    assert (plan.expected, integrity(reference)) == ((0.5, [1, 2]), "strong")
    assert [plan.same(value, 0.5, 0.0) for value in (0.5, 0.5 + 1e-7, 0.51, None)] == [True, True, False, False]
    assert [plan.same(value, [1, 2], 0.0) for value in ([1, 2], (1, 2), [1, 2.0])] == [True, False, True]
    assert isinstance(make_plan({**reference, "code": code.replace("candidate(*inp)", "candidate(inp)")}), WholePlan)
