"""Which tests are split into calls, which classes they have, and how well a problem's tests can be secured."""

from __future__ import annotations

import ast
import itertools

import pytest

from rlvr.verifiers.code import eval as code_eval
from rlvr.verifiers.code import split as code_split
from rlvr.verifiers.code.classes import program_classes
from rlvr.verifiers.code.integrity import integrity
from rlvr.verifiers.code.plans import MixedPlan, SplitPlan, WholePlan, make_plan
from tests.helpers.programs import ADD, asserts


def test_which_tests_can_be_split():
    """Asserts over calls are; loops, state and helpers of the tests' own are not."""
    assert isinstance(make_plan(asserts(ADD)), SplitPlan)
    for code in ("for n in range(3):\n    assert f(n)", "x = f(1)\nassert x", "def g(x): return f(x)\nassert g(1)"):
        assert isinstance(make_plan(asserts(code)), WholePlan)
    mixed = make_plan(
        asserts("import math\nassert f(1) == math.pi\nassert all(f(n) for n in (1, 2))\nassert 5 in f(3)")
    )
    assert isinstance(mixed, MixedPlan)
    assert (mixed.split.split.calls, mixed.whole.test.split("\n")[1:]) == (
        ("f(1)", "f(3)"),
        ["import math", "assert all((f(n) for n in (1, 2)))"],
    )
    plan = make_plan(asserts("assert size((1, 2)) == sys.getsizeof((1, 2))"))
    assert isinstance(plan, SplitPlan)
    assert plan.split.calls == ("size((1, 2))",)
    split = code_split.split("import math\nassert math.floor(f(2.5)) == 2 and g(1) > f(0)")
    assert split is not None
    assert (split.calls, split.setup) == (("f(2.5)", "g(1)", "f(0)"), "import math")
    assert code_split.program_names("s = Stack()\nassert len(s) == 0\nassert f(s) is None") == ("Stack", "f")


@pytest.mark.parametrize(
    ("code", "strength"),
    [
        (ADD, "strong"),
        ("x = f(1)\nassert x is None and isinstance(x, int)", "strong"),
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1", "strong"),
        ("for w in 'ab':\n    assert f(w).startswith(w + w)", "strong"),
        ("for w in 'ab':\n    assert f(w).tolist() == [w]", "weak"),
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
        ("for w in 'ab':\n    xs = f(w)\n    xs.sort(key=lambda x: -x)\n    assert xs == [w]", "strong"),
        ("s = Trie()\ns.insert('a')\nassert s.startswith('a')", "weak"),
        ("s = Trie()\nassert not s.startswith('a')\ns.insert('a')\nassert s.startswith('a')", "strong"),
        ("import mod\nmod.f = 1\nsetattr(mod, 'g', 2)\nassert f()", "weak"),
    ],
)
def test_what_cannot_be_secured_is_marked(code: str, strength: str):
    """Packs leave weak tests out of training."""
    assert integrity(asserts(code)) == strength


@pytest.mark.parametrize(
    ("code", "classes"),
    [
        ("s = Stack()\ns.push(1)\nassert s.pop() == 1 and f(s)", ("Stack",)),
        ("for w in 'ab':\n    assert w in Extract(w)", ()),
        ("for w in 'ab':\n    assert Extract(w).startswith(w) or Find_Max(w)", ()),
        ("for n in (1, 2):\n    assert sorted(Diff(n)) == [n]", ()),
        ("xs = Diff(3)\nxs.sort()\nassert xs == [3]", ()),
        ("x = f()\nassert x.pop() == 1", ()),
        ("def g(): return g()\nassert g() == F(1)", ()),
        ("s = S()\nassert s.pop() == 1", ("S",)),
        ("m = [[1]]\nSolution().rotate(m)\nassert m == [[1]]", ("Solution",)),
        ("c = Bag(3)\nc.update(2)\nassert c.get(2) == 1", ("Bag",)),
        ("o = S(2)\nfor op, a in [('get', [3])]:\n    r = getattr(o, op)(*a)\nassert r == 3", ("S",)),
        ("def run(ops):\n    o = S(2)\n    return [getattr(o, op)(*a) for op, a in ops]\nassert run([])", ("S",)),
        ("def run(cls, ops):\n    o = cls(2)\n    return [getattr(o, x)() for x in ops]\nassert run(S, [])", ("S",)),
        ("def make():\n    s = S()\n    return s\ns = make()\nassert s.pop() == 2", ("S",)),
        ("for q in [Queue(), Queue()]:\n    q.append(1)\n    assert q.pop() == 1", ("Queue",)),
        ("C = Bag\nc = C(2)\nc.add(2)\nassert c.count(2) == 1", ("Bag",)),
        ("class T:\n    def setUp(self): self.s = S()\n    def test(self): assert self.s.pop() == 1", ("S",)),
    ],
)
def test_what_is_a_class_is_decided_by_the_tests(code: str, classes: tuple[str, ...]):
    """A capital letter does not make one where the tests take what a call returns for a value."""
    assert program_classes(code) == classes


@pytest.mark.parametrize(
    "source",
    [
        "'a' * a", "[0] * a * a", "10 ** a", "1 << a", "'%0999999999d' % a", "set(b)", "list(range(a))", "frozenset(b)",
        "{1}.issubset(b)", "dict(zip(b, b))", "frozenset(c)", "2.5 in range(a)", "sum([b, b], [])", "round(1, -a)",
    ],
)  # fmt: skip
def test_expressions_stay_small(source: str):
    """Values of a program cannot make a test expression large or slow."""
    node = ast.parse(source, mode="eval").body
    values = {"a": 10**9, "b": [n * (2**61 - 1) for n in range(5000)]}
    # hash(-1) == hash(-2): all these tuples share one hash.
    values["c"] = list(itertools.product((-1, -2), repeat=8))
    assert code_eval.supported(node, frozenset(values), {})
    with pytest.raises(code_eval.VALUE_ERRORS):
        code_eval.evaluate(node, values, {})


@pytest.mark.parametrize(
    "source",
    [
        "__import__('os')", "open('x')", "(lambda: 1)()", "a.__class__", "a.format(b)", "[x for x in a]", "f'{a}'",
        "getattr(a, 'x')", "eval('1')", "math.factorial(a)", "unknown", "(a := 1)", "bytes(a)",
    ],
)  # fmt: skip
def test_other_expressions_are_not_evaluated(source: str):
    """What is not in the tables runs in a sandbox, or not at all."""
    node = ast.parse(source, mode="eval").body
    assert not code_eval.supported(node, frozenset(("a", "b")), {"math": "math"})
