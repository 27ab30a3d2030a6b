"""Types, namespaces and named tuples that answer for methods; arguments of library types that programs overwrite."""

from __future__ import annotations

import pytest

from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.programs import passes, runs_programs

pytestmark = runs_programs


NAMESPACE = "from types import SimpleNamespace as S\n"
RECORD = "from collections import namedtuple\n"
# Tests, a program that lies, one that is right.
METHODS = {
    "a namespace": ("r = f(3)\nassert r.endswith('b')", NAMESPACE + "def f(x): return S(endswith=str)", "'ab'"),
    "a function in one": (
        "r = f(3)\nassert r.count(3) == 1",
        NAMESPACE + "def f(x): return S(count=lambda x: 1)",
        "[3]",
    ),
    "a named tuple": (
        "assert f('x').startswith('a')",
        RECORD + "def f(x): return namedtuple('R', 'startswith')(str)",
        "'ab'",
    ),
    "a class": ("assert f(3).bit_count() == 0", "class R: bit_count = int\ndef f(x): return R()", "0"),
    "of arrays": ("assert f('x').all()", NAMESPACE + "def f(x): return S(all=object)", "__import__('numpy').ones(2)"),
    "of frames": ("r = f('x')\nassert r.equals([3])", "class R: equals = list\ndef f(x): return R()", ""),
}
EMPTIED = "def f(c):\n    c.clear()\n    return 0"
ARGUMENTS = {
    "a counter": (
        "from collections import Counter\nc = Counter('abc')\nr = f(c)\nassert r == sum(c.values())",
        EMPTIED,
    ),
    "by keyword": (
        "from collections import Counter\nc = Counter('abc')\nr = f(c=c)\nassert r == sum(c.values())",
        EMPTIED,
    ),
    "in order": ("from collections import OrderedDict\nc = OrderedDict(a=1)\nassert f(c) == sum(c.values())", EMPTIED),
    "with a default": (
        "from collections import defaultdict\nc = defaultdict(int, a=1)\nr = f(c)\nassert r == len(c)",
        EMPTIED,
    ),
    "text": (
        "import io\nc = io.StringIO('abc')\nr = f(c)\nassert r == len(c.getvalue())",
        "def f(c):\n    c.truncate(0)\n    return 0",
    ),
    "text at its start": (
        "import io\nc = io.StringIO('abc')\nr = f(c)\nc.seek(0)\nassert r == len(c.read())",
        "def f(c):\n    c.truncate(0)\n    return 0",
    ),
    "the position": (
        "import io\nc = io.StringIO('abc')\nr = f(c)\nassert r == len(c.read())",
        "def f(c):\n    c.read()\n    return 0",
    ),
    "bytes": (
        "import io\nc = io.BytesIO(b'abc')\nr = f(c)\nassert r == len(c.getvalue())",
        "def f(c):\n    c.truncate(0)\n    return 0",
    ),
}
POINT = "class P:\n    def __init__(self, x): self.x, self.me = x, self\np = P(3)\n"
ARGUMENTS |= {
    "a circle": (POINT + "r = f(p)\nassert r == p.me.x", "def f(p):\n    p.x = 0\n    return 0"),
    "an argument of before": (
        POINT + "f(p)\nr = f(0)\nassert r[1] == p.x",
        "K = []\ndef f(p):\n    if p:\n        K.append(p)\n        return 1\n    K[0].x = 0\n    return [K[0], 0]",
    ),
}
LENGTH = """
def f(c):
    if c == 0:
        return [0, 3]
    if hasattr(c, 'x'):
        return c.x
    if hasattr(c, 'getvalue'):
        return len(c.getvalue())
    return sum(c.values())
"""


@pytest.mark.parametrize(("code", "lie", "value"), METHODS.values(), ids=METHODS)
def test_what_a_type_answers_is_no_answer_of_a_method(verifier: UnitTests, code: str, lie: str, value: str) -> None:
    assert not passes(verifier, code, lie)
    if value:
        assert passes(verifier, code, f"def f(x): return {value}")


@pytest.mark.parametrize(("code", "lie"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_library_types_are_compared_as_they_were(verifier: UnitTests, code: str, lie: str) -> None:
    assert not passes(verifier, code, lie)
    assert passes(verifier, code, LENGTH)
