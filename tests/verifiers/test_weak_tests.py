"""Tests that a program passes which solves nothing are marked weak, whatever their form."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.core.types import Problem
from rlvr.verifiers.code.plans import integrity, make_plan, null_programs
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.programs import ADD, asserts, runs_programs


def calls(*cases: tuple[list[Any], Any]) -> dict[str, Any]:
    return {"type": "calls", "entry": "f", "cases": [{"args": args, "expected": value} for args, value in cases]}


def prints(*cases: tuple[str, str]) -> dict[str, Any]:
    return {"type": "stdio", "cases": [{"input": given, "output": output} for given, output in cases]}


WEAK = {
    "a bound on a computed size": "assert abs(max(f(1), 0)) < 10\nassert abs(max(f(2), 0)) < 10",
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
    "a quotient and a rest": "for n in (2, 3):\n    q, r = f(n)\n    assert q * n + r == 5",
    "parts that make up the argument": "for n in (15, 21):\n    a, b = f(n)\n    assert a * b == n",
    "items that make up the argument": "for n in (15, 21):\n    p = f(n)\n    assert p[0] * p[1] == n",
    "three parts": "for n in (15, 21):\n    a, b, c = f(n)\n    assert a + b + c == n",
    "parts of literals": "q, r = f(7, 2)\nassert q * 2 + r == 7\nq, r = f(9, 4)\nassert q * 4 + r == 9",
    "there and back": "assert dec(enc('abc')) == 'abc'\nassert dec(enc('xy')) == 'xy'",
    "there and back, in a variable": "e = enc('abc')\nassert dec(e) == 'abc'\ne = enc('xy')\nassert dec(e) == 'xy'",
    "there and back, by methods": "c = Codec()\nassert c.decode(c.encode('ab')) == 'ab'\n"
    "assert c.decode(c.encode('x')) == 'x'",
    "twice": "assert f(f([1, 2])) == [1, 2]\nassert f(f([3])) == [3]",
    "sorted in place, whatever it holds": "a = [3, 1]\nf(a)\nassert a == sorted(a)",
    "a property after a change": "def ok(xs): return all(x <= y for x, y in zip(xs, xs[1:]))\na = [3, 1]\n"
    "f(a)\nassert ok(a)",
    "items after a change": "a = [3, 1]\nf(a)\nassert all(x % 2 == 0 for x in a)",
    "a small mean": "import numpy as np\nr = f(1000)\nassert abs(np.mean(r)) < 0.2",
    "only for some results": "for n in (2, 3):\n    r = f(n)\n    if r is not None:\n        assert r == n * n",
    "suppressed": "import contextlib\nwith contextlib.suppress(Exception):\n    assert f(2) == 4\nassert f(9) != 1",
    "an iterator over what is changed": "xs = [3, 1]\nit = iter(xs)\nr = f(xs)\nassert len(xs) == 2\n"
    "assert r == sum(it)",
    "a view of what is changed": "import numpy as np\nx = np.array([3, 1])\nv = x[1:]\nr = f(x)\n"
    "assert x[0] == 3\nassert r == v.sum()",
    "files that are read again": "open('a', 'w').write('3')\nassert f('a') == int(open('a').read()) ** 2",
    "assertTrue": "from unittest import TestCase\nclass T(TestCase):\n    def test(self): self.assertTrue(f(1))",
    "assertIsInstance": "from unittest import TestCase\nclass T(TestCase):\n    def test(self):\n"
    "        self.assertIsInstance(f(1), int)",
    "letters joined again": "assert ''.join(f('abc'))=='abc'\nassert ''.join(f('xy'))=='xy'",
    "parts joined in a variable": "for s in ['ab','cde']:\n    parts = f(s, 2)\n    assert ''.join(parts) == s",
    "the sum of parts": "for xs in [[1,2,3],[4,5]]:\n    assert sum(f(xs,2),[]) == xs",
    "a chain of parts": "from itertools import chain\nfor xs in [[1,2,3],[4,5]]:\n"
    "    assert list(chain(*f(xs,2))) == xs",
    "the items of parts": "for xs in [[1,2,3],[4,5]]:\n    assert [x for c in f(xs,2) for x in c] == xs",
    "the shape of an array": "import numpy as np\nfor n in (2,3):\n    assert f(np.ones((n,4))).shape == (n,4)",
    "shapes": "import numpy as np\nassert f(2,3).shape == (2,3)\nassert f(4,5).shape == (4,5)",
    "shape, type and dimensions": "import numpy as np\nr=f(np.ones((2,4)))\nassert r.shape == (2,4)\n"
    "assert r.dtype==np.float64\nassert r.ndim==2",
    "a shape turned over": "import numpy as np\nfor n in (2,3):\n    x=np.ones((n,4))\n    r=f(x)\n"
    "    assert r.shape == x.T.shape\n    assert r.shape == (4, n)",
    "sizes of arrays": "import numpy as np\nfor n in (2,3):\n    assert f(n).size == n\n"
    "    assert np.shape(f(n)) == (n,)",
    "shapes in a TestCase": "import unittest, numpy as np\nclass T(unittest.TestCase):\n"
    "    def test_a(self):\n        self.assertEqual(f(np.ones((2,4))).shape, (2,4))\n"
    "        self.assertEqual(f(np.ones((3,4))).shape, (3,4))",
    "a prefix of each": "for ws in [['flow','flower'],['ab','ac']]:\n    p=f(ws)\n    for w in ws:\n"
    "        assert w.startswith(p)",
    "a prefix of the argument": "for w in ['ab','cd']:\n    assert w.startswith(f(w))",
    "a prefix of all": "ws=['flow','flower']\nassert all(w.startswith(f(ws)) for w in ws)",
    "a subset": "for s in [{1,2},{3}]:\n    assert s.issuperset(f(s))\n    assert s >= f(s)",
    "a constant for each method": "s=Stack()\nassert s.is_empty()\nassert s.size()==0\nt=Stack()\n"
    "assert t.is_empty()\nassert t.size()==0",
    "a constant for each method, of new objects": "assert Sol().f([1,2])==True\n"
    "assert Sol().f([3,4])==True\nassert Sol().g([3,4])==7\nassert Sol().g([5])==7",
    "a constant for each function": "assert f([1,2])==True\nassert f([3])==True\nassert g([3,4])==7\nassert g([5])==7",
    "a constant for each function, in variables": "x=[1,2]\nassert f(x)==True\nassert f([3])==True\n"
    "assert g(x)==7\nassert g([5])==7",
}
STRONG = {
    "values": ADD,
    "a distance": "assert abs(f(2) - 4) < 1e-6\nassert abs(f(3) - 9) < 1e-6",
    "distances in a loop": "for n in (2, 3):\n    assert abs(f(n) - n * n) < 1e-6",
    "all over inputs": "assert all(f(n) == n * n for n in range(9))",
    "a result and its items": "r = f(3)\nassert r == [0, 1, 4]\nassert all(x >= 0 for x in r)",
    "both answers": "assert Solution().isPalindrome(121)\nassert not Solution().isPalindrome(12)",
    "both answers in loops": "for n in (1, 3):\n    assert f(n)\nfor n in (2, 4):\n    assert not f(n)",
    "a value and an exception": "def test_f():\n    assert f(2) == 4\n    try:\n        f(0)\n"
    "        assert False\n    except ValueError:\n        pass",
    "parts by themselves": "q, r = f(7, 2)\nassert q == 3 and r == 1",
    "a code, and back": "assert dec(enc('abc')) == 'abc'\nassert enc('ab') == 'bc'",
    "a change": "a = [3, 1]\nf(a)\nassert a == [1, 3]",
    "methods that answer differently": "s=Stack()\nassert s.is_empty()\ns.push(1)\nassert not s.is_empty()\n"
    "assert s.pop()==1",
    "an area": "assert Rect(2,3).area()==6\nassert Rect(4,5).area()==20",
    "a shape and what is in it": "import numpy as np\nfor n in (2,3):\n    r=f(n)\n"
    "    assert r.shape==(n,n)\n    assert np.allclose(r, np.eye(n))",
    "one constant of two functions": "assert f([1,2])==True\nassert f([3])==False\nassert g([3,4])==7\n"
    "assert g([5])==7",
    "a counter": "c=Counter2()\nfor i in range(3):\n    c.inc()\nassert c.value()==3\nc.reset()\nassert c.value()==0",
}
# No null answer passes these, which is not proved: they run in one process with the program, too.
UNPROVED = {
    "a TestCase": "from unittest import TestCase\nclass T(TestCase):\n    def test(self): self.assertEqual(f(2), 4)",
    "a quotient and a smaller rest": "for a, b in ((7, 2), (9, 4)):\n    q, r = f(a, b)\n"
    "    assert q * b + r == a and 0 <= r < b",
    "factors between": "for n in (15, 21):\n    a, b = f(n)\n    assert a * b == n\n    assert 1 < a < n",
    "a change, with a copy": "for a in ([3, 1], [5, 2]):\n    b = sorted(a)\n    f(a)\n    assert a == b",
    "a set of values": "for n in (2, 3):\n    assert f(n) in (n + 1, n + 2)",
    "letters in another order, joined": "for s in ['ab','cde']:\n    assert ''.join(f(s)) == s[::-1]",
    "capitals, joined": "for s in ['ab','cde']:\n    assert ''.join(f(s)) == s.upper()",
}


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in WEAK.items()])
def test_tests_that_demand_little_are_weak(code: str):
    """A constant, the argument or an exception is enough; or nothing, for items that are not there."""
    assert integrity(asserts(code)) == "weak"


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in STRONG.items()])
def test_tests_that_demand_values_are_strong(code: str):
    """One assert that no constant meets is enough."""
    assert integrity(asserts(code)) == "strong"


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in UNPROVED.items()])
def test_what_is_not_proved_is_weak(code: str):
    """Strong is what is proved to be."""
    assert integrity(asserts(code)) == "weak"


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
        programs = null_programs(make_plan(reference).defined)
        verdicts = verifier.verify_batch([(Problem("p", "", reference), text) for text in programs.values()])
    finally:
        verifier.close()
    assert {what: found.score for what, found in zip(programs, verdicts, strict=True)} == dict.fromkeys(programs, 0.0)
    assert len(programs) > 8
