"""Programs that forge: no tests called strong let one pass; and programs that are right beside them.

golden/forgeries.jsonl holds `reference`, `completion` and `expected` of each: helpers redefined, arguments overwritten,
objects that equal everything, iterators that end early, values of other types, exceptions, files and environment.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlvr.core.types import Problem
from rlvr.verifiers.unit_tests import UnitTests, integrity
from tests.helpers.files import GOLDEN
from tests.helpers.programs import asserts, passes, runs_programs

ROWS: list[dict[str, Any]] = [json.loads(line) for line in (GOLDEN / "forgeries.jsonl").read_text().splitlines()]

# Tests that change or share containers, and for each a program that only copies would let pass.
ALIASES = {
    "g = grid(2, 3)\ng[0][0] = 1\nassert g[1][0] == 0": "def grid(r, c): return [[0] * c] * r",
    "g = [[1], [2]]\nh = clone(g)\nh[0].append(5)\nassert g == [[1], [2]]": "def clone(g): return list(g)",
    "a = sub(3)\na.append(7)\nassert sub(3) == [0, 1, 2]": "A = [0, 1, 2]\ndef sub(n): return A",
    "g = groups('ab')\ng['a'].append(1)\nassert g == {'a': [1], 'b': []}": "def groups(k): return dict.fromkeys(k, [])",
    "a, b = split(2)\na[0] = 1\nassert b == [0, 0]": "def split(n):\n    x = [0] * n\n    return x, x",
    "a = new()\na.append(1)\nassert new() == []": "def new(found=[]): return found",
    "b = [1, 2]\ns = Stack(b)\ns.push(3)\nassert b == [1, 2]\nassert s.size() == 3": "class Stack:\n"
    "    def __init__(self, i): self.i = i\n    def push(self, x): self.i.append(x)\n"
    "    def size(self): return len(self.i)",
    "s = Log()\na = s.all()\ns.add(1)\nassert a == []\nassert s.all() == [1]": "class Log:\n"
    "    def __init__(self): self.i = []\n    def add(self, x): self.i.append(x)\n    def all(self): return self.i",
    "a = box(1)\nb = box(2)\nassert a[0] == 1\nassert b[0] == 2": "A = [0]\ndef box(n):\n    A[0] = n\n    return A",
    "a = box(1)\nb = box(2)\nassert len(a) == 1\nassert b == [1, 2]": "A = []\n"
    "def box(n):\n    A.append(n)\n    return A",
    "assert [box(0), box(1)][0][0] == 0\nassert box(3) == [3]": "A = [0]\ndef box(n):\n    A[0] = n\n    return A",
    "assert sum([box(1), box(2)], []) == [1, 2]": "A = [0]\ndef box(n):\n    A[0] = n\n    return A",
    "assert (box(1) + box(2))[0] == 1\nassert box(4) == [4]": "A = [0]\ndef box(n):\n    A[0] = n\n    return A",
    "a = vec(1)\nb = vec(2)\nassert a == 5\nassert b == 7": "import numpy as np\nA = np.zeros(1)\n"
    "def vec(n):\n    A[0] = 2 * n + 3\n    return A",
    "a = vec(1)\nassert [a, vec(2)] == [5, 7]": "import numpy as np\nA = np.zeros(1)\n"
    "def vec(n):\n    A[0] = 2 * n + 3\n    return A",
    "a = vec(1)\nb = vec(2)\nassert a == (5, 5)\nassert b == (7, 7)": "import numpy as np\nA = np.zeros(1)\n"
    "def vec(n):\n    A[0] = 2 * n + 3\n    return A, A",
    "a = low('X')\nb = low('Y')\nassert a == b'x'\nassert b == b'y'": "A = bytearray()\n"
    "def low(s):\n    A[:] = s.lower().encode()\n    return A",
    "a = low('X')\nb = low('Y')\nassert a == b'x'\nassert b == b'y'\nassert low('Z') == b'z'": "A = bytearray(b'x')\n"
    "def low(s):\n    A[:] = s.lower().encode()\n    return memoryview(A)",
    "a = vec(1)\nb = vec(2)\nassert a == 5\nassert b == 7\nassert vec(3) == 9": "import numpy as np\n"
    "A = np.array(0.0)\ndef vec(n):\n    A[...] = 2 * n + 3\n    return A",
    "a = low('X')\nb = low('Y')\nassert a == b'x'\nassert (a, b) == (b'x', b'y')": "A = bytearray(b'x')\n"
    "def low(s):\n    A[:] = s.lower().encode()\n    return memoryview(A).toreadonly()",
    "a = row(1)\nb = row(2)\nassert a == (5, 1)\nassert b == (7, 1)": "import numpy as np\n"
    "A = np.zeros(1, dtype=[('x', float), ('y', int)])\ndef row(n):\n    A[0] = (2 * n + 3, 1)\n    return A[0]",
    "t = ((1,) or (2,)) + box(1)\nbox(2)\nassert t[1] == [1]\nassert box(3) == ([3],)": "A = [0]\n"
    "def box(n):\n    A[0] = n\n    return (A,)",
    "x = (1,) + (2,)\nt = x + box(1)\nbox(2)\nassert t[2] == [1]\nassert box(3) == ([3],)": "A = [0]\n"
    "def box(n):\n    A[0] = n\n    return (A,)",
    "xs = [3, 1]\nassert srt(xs) == [1, 3]\nassert xs == [3, 1]": "def srt(xs):\n    xs.sort()\n    return xs",
    "xs = [2, 1]\nassert least(xs) == 1\nassert first(xs) == 2": "def least(xs):\n    xs.sort()\n    return xs[0]\n"
    "def first(xs): return xs[0]",
}


@runs_programs
def test_forged_programs_pass_no_strong_tests(verifier: UnitTests) -> None:
    """What runs in one process with the tests can forge, and is weak; the programs that are right all pass."""
    verdicts = verifier.verify_batch([(Problem("p", "", row["reference"]), row["completion"]) for row in ROWS])
    wrong = [
        row["reference"]
        for row, verdict in zip(ROWS, verdicts, strict=True)
        if verdict.correct and not row["expected"] and integrity(row["reference"]) == "strong"
    ]
    missed = [
        (row["reference"], verdict.reason)
        for row, verdict in zip(ROWS, verdicts, strict=True)
        if row["expected"] and not verdict.correct
    ]
    assert (wrong, missed) == ([], [])
    strong = [row for row in ROWS if integrity(row["reference"]) == "strong"]
    assert len(strong) > 60


@runs_programs
def test_aliasing_bugs_pass_no_strong_tests(verifier: UnitTests) -> None:
    """They fail as in Python, or the tests are weak: copies hide nothing."""
    found = [
        code
        for code, program in ALIASES.items()
        if passes(verifier, code, program) and integrity(asserts(code)) == "strong"
    ]
    assert found == []


@runs_programs
@pytest.mark.parametrize(
    "program",
    [
        "def f(n): return 2 * n + 3",
        "import numpy as np\ndef f(n): return np.int64(2 * n + 3)",
        "import numpy as np\ndef f(n): return np.float32(2 * n + 3)",
        "class N(int): pass\ndef f(n): return N(2 * n + 3)",
    ],
)
def test_numbers_are_read_after_later_calls(verifier: UnitTests, program: str) -> None:
    code = "a = f(1)\nb = f(2)\nassert (a, b) == (5, 7)\nassert a == 5\nassert b == 7"
    assert integrity(asserts(code)) == "strong"
    assert passes(verifier, code, program)


@runs_programs
def test_an_argument_after_a_call_is_an_answer(verifier: UnitTests) -> None:
    """Such tests are strong: what the program has left is compared, what the tests compute is theirs."""
    code = "xs = [3, 1, 2]\nput(xs)\nassert xs == [1, 2, 3]"
    assert integrity(asserts(code)) == "strong"
    assert passes(verifier, code, "def put(xs): xs.sort()")
    assert not passes(verifier, code, "def put(xs): xs.clear()")
    code = "import random\nfor _ in range(5):\n    xs = random.sample(range(9), 4)\n    assert total(xs) == sum(xs) + 1"
    assert integrity(asserts(code)) == "strong"
    assert passes(verifier, code, "def total(xs): return sum(xs) + 1")
    assert not passes(verifier, code, "def total(xs):\n    xs.clear()\n    return 1")
