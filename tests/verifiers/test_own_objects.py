"""Objects of a program's own classes in its tests: compared, shown, copied, returned by methods."""

from __future__ import annotations

import pytest

from rlvr.verifiers.unit_tests import UnitTests, integrity
from tests.helpers.programs import asserts, passes, runs_programs

pytestmark = runs_programs

RECORD = "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Pt:\n    x: int\n    y: int = 0\n"
BASKET = (
    "class Fruit:\n    def __init__(s, kind, n=1): s.kind, s.n = kind, n\n"
    "    def __eq__(s, o): return isinstance(o, Fruit) and (s.kind.lower(), s.n) == (o.kind.lower(), o.n)\n"
    "    def __hash__(s): return hash((s.kind.lower(), s.n))\n"
    "    def __add__(s, o): return Fruit(s.kind, s.n + o.n)\n"
    "    def add(s, o): return Fruit(s.kind, s.n + o.n)\n"
    "    def count(s): return s.n\n    def weight(s): return s.n * 2\n"
    "    def __str__(s): return f'{s.n} x {s.kind}'\n    def __repr__(s): return f'Fruit({s.kind!r}, {s.n})'\n"
    "def fruit(t): return Fruit(t, len(t))\ndef fruits(ts): return [fruit(t) for t in ts]\n"
)
# Tests, and a program that passes them under plain exec.
HONEST: dict[str, tuple[str, str]] = {
    "equal in a list": ("assert fruits(['fig', 'kiwi']) == [Fruit('fig', 3), Fruit('Kiwi', 4)]", BASKET),
    "equal in a dict of a tuple": ("assert {'a': (fruit('fig'), 1)} == {'a': (Fruit('FIG', 3), 1)}", BASKET),
    "equal alone": ("assert fruit('fig') == Fruit('fig', 3)\nassert fruit('fig') != Fruit('fig', 4)", BASKET),
    "in a set": ("assert set(fruits(['fig', 'FIG'])) == {Fruit('fig', 3)}", BASKET),
    "a record": (
        "def test():\n    assert at(2) == Pt(2)\n    assert [at(1)] == [Pt(1, 0)]",
        RECORD + "def at(n): return Pt(n)",
    ),
    "added": ("assert Fruit('a', 1).add(Fruit('a', 2)).weight() == 6", BASKET),
    "added through variables": ("a = fruit('ab')\nb = a.add(fruit('c'))\nassert b.weight() == 6", BASKET),
    "a sum": ("assert sum([Fruit('a', 1), Fruit('a', 2)], Fruit('a', 0)).n == 3", BASKET),
    "text alone": ("assert str(Fruit('fig', 2)) == '2 x fig'", BASKET),
    "text of a variable": ("p = Fruit('fig', 2)\nassert repr(p) == \"Fruit('fig', 2)\"", BASKET),
    "text in a text": ("assert '%s!' % Fruit('fig', 2) == '2 x fig!'\nassert f'{Fruit(1)}' == '1 x 1'", BASKET),
    "text of what a function returns": ("assert repr(fruit('fig')) == \"Fruit('fig', 3)\"", BASKET),
    "items": (
        "m = Seq([3, 4])\nassert m[0] == 3\nassert m[-1] == 4",
        "class Seq:\n    def __init__(s, a): s.a = a\n    def __getitem__(s, i): return s.a[i]",
    ),
    "what is in it": (
        "assert 3 in Seq([3])\nassert 4 not in Seq([3])",
        "class Seq:\n    def __init__(s, a): s.a = a\n    def __contains__(s, i): return i in s.a",
    ),
    "a copy": ("import copy\na = Fruit('a')\nb = copy.deepcopy(a)\nb.n = 5\nassert (a.n, b.n) == (1, 5)", BASKET),
    "a list changed in a copy": (
        "import copy\na = Box([1])\nb = copy.deepcopy(a)\nc = copy.copy(a)\nb.xs.append(2)\nc.xs.append(3)\n"
        "assert (a.xs, b.xs, c.xs) == ([1, 3], [1, 2], [1, 3])\nassert a.total() == 4",
        "class Box:\n    def __init__(s, xs): s.xs = xs\n    def total(s): return sum(s.xs)",
    ),
    "an item changed": (
        "m = Grid([[1, 2]])\nm[0][1] = 9\nassert m.rows() == [[1, 9]]",
        "class Grid:\n    def __init__(s, r): s.r = r\n    def __getitem__(s, i): return s.r[i]\n"
        "    def rows(s): return s.r",
    ),
    "functions of dataclasses": (
        "from dataclasses import asdict, astuple, is_dataclass, replace\nassert asdict(Pt(1, 2)) == {'x': 1, 'y': 2}\n"
        "assert astuple(replace(Pt(1, 2), y=5)) == (1, 5) and is_dataclass(Pt(1))",
        RECORD,
    ),
    "an exception of a class": (
        "import pytest\nwith pytest.raises(Stack.Empty, match='none'):\n    Stack().pop()",
        "class Stack:\n    class Empty(Exception): pass\n    def pop(s): raise Stack.Empty('none')",
    ),
    "a chained exception": (
        "try:\n    f()\nexcept Bad as e:\n    assert isinstance(e.__cause__, KeyError)\nelse:\n    assert False",
        "class Bad(Exception): pass\ndef f():\n    try: {}[1]\n    except KeyError as e: raise Bad('b') from e",
    ),
    "paths": (
        "from pathlib import Path\nassert f('/a') == Path('/a/b')\nr = f(Path('c'))\nassert r.parts == ('c', 'b')",
        "from pathlib import Path\ndef f(p): return Path(p) / 'b'",
    ),
}
ALWAYS = "    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    def __hash__(s): return 1\n"
UNEQUAL = "    def __eq__(s, o): return False\n    def __ne__(s, o): return True\n    def __hash__(s): return 1\n"
# Tests that programs do not pass whose objects equal everything, or nothing.
COMPARED = {
    "alone": "assert f(2) == P(4)",
    "the other way round": "assert P(4) == f(2)",
    "in a list": "assert [f(2), f(3)] == [P(4), P(9)]",
    "in a set": "assert {f(2)} == {P(4)}",
    "a member": "assert f(2) in [P(6), P(4)]",
    "in a dict": "assert {1: f(2)} == {1: P(4)}",
    "a test case": "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(3), P(9))",
}
FORGED = {
    "with fields": "class P:\n    def __init__(s, n): s.n = n\n" + ALWAYS + "def f(n): return P(0)",
    "without fields": "class P:\n    def __init__(s, n): pass\n" + ALWAYS + "def f(n): return P(0)",
    "with slots": "class P:\n    __slots__ = ('n',)\n    def __init__(s, n): s.n = n\n"
    + ALWAYS
    + "def f(n): return P(0)",
    "of another class": "class P:\n    def __init__(s, n): s.n = n\n"
    + ALWAYS
    + "class Q(P): pass\ndef f(n): return Q(0)",
}
# Tests that read an object in one place, and ask it about what is expected in another.
READ = {
    "its length": "for w in ('ab', 'cd'):\n    assert len(Cut(w)) == 2\n    assert Cut(w).count(w[0]) == 1",
    "its text": "for w in ('ab', 'ab'):\n    assert str(Cut(w)) == w\n    assert w + 'x' in Cut(w)",
    "a formatted text": "for w in ('ab', 'ab'):\n    assert f'{Cut(w)}' == w\n    assert Cut(w).startswith(w)",
    "a difference": "for w in ('ab', 'ab'):\n    assert repr(Cut(w)) == 'Y(ab)'\n    assert Cut(w) - 3 == 0",
    "a variable": "for w in ('ab', 'ab'):\n    r = Cut(w)\n    assert len(r) == 2\n    assert r.endswith(w)",
}
ANSWERS = (
    "class Y:\n    def __len__(s): return 2\n    def __str__(s): return 'ab'\n    def __repr__(s): return 'Y(ab)'\n"
    "    def __contains__(s, o): return True\n    def __sub__(s, o): return 0\n"
    "    def __getattr__(s, name): return lambda *a: True\ndef Cut(w): return Y()"
)


@pytest.mark.parametrize(("code", "program"), HONEST.values(), ids=HONEST)
def test_objects_of_honest_programs(verifier: UnitTests, code: str, program: str):
    """Each passes under plain exec, and here."""
    space: dict[str, object] = {}
    exec(program + "\n" + code, space)
    assert passes(verifier, asserts(code), program)


@pytest.mark.parametrize("code", COMPARED.values(), ids=COMPARED)
def test_objects_that_equal_everything_equal_nothing(verifier: UnitTests, code: str):
    """An answer of `==` counts only from objects that tell others apart."""
    honest = RECORD.replace("Pt", "P") + "def f(n): return P(n * n)"
    assert passes(verifier, asserts(code), honest)
    assert not passes(verifier, asserts(code), honest.replace("n * n", "n + n + 1"))
    for forged in FORGED.values():
        assert not passes(verifier, asserts(code), forged)


def test_objects_that_differ_from_everything_differ_from_nothing(verifier: UnitTests):
    """The same for `!=`."""
    code = "assert f(2) != P(5)"
    assert passes(verifier, asserts(code), RECORD.replace("Pt", "P") + "def f(n): return P(n * n)")
    assert not passes(
        verifier, asserts(code), "class P:\n    def __init__(s, n): s.n = n\n" + UNEQUAL + "def f(n): return P(5)"
    )


@pytest.mark.parametrize("code", READ.values(), ids=READ)
def test_an_object_that_is_read_is_not_asked(verifier: UnitTests, code: str):
    """Text, length and items make no class of a name of which the tests use more."""
    assert not passes(verifier, asserts(code), ANSWERS) or integrity(asserts(code)) == "weak"


@pytest.mark.parametrize(
    "code",
    [
        "class Mine(Base):\n    def area(self): return 5\nassert Mine().describe() == 'area 5'",
        "class A(metaclass=Meta): pass\nassert 'A' in Meta.names",
        "import unittest\nclass T(Helper, unittest.TestCase):\n    def test(self): assert f(1) == 2",
        "import pickle\np = Pt(1)\nassert pickle.loads(pickle.dumps(p)) == p",
    ],
)
def test_what_needs_the_class_itself_is_refused(verifier: UnitTests, code: str):
    """No program could pass, so none is called wrong."""
    with pytest.raises(ValueError, match="in its process"):
        verifier.check_reference(asserts(code))
