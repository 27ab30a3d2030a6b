"""Programs that solve nothing and use the way between tests and program: what is awaited, called back or lent."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.programs import asserts, runs_programs, verdict

pytestmark = runs_programs

# An object that computes with what the tests expect, where they know it as an instance of a class.
EVIL = """
import contextlib
class Fetcher:
    def __init__(self):
        global RATE
        RATE = self
    async def fetch(self, x): return self
    def __sub__(self, o): return 0.0
    def __rsub__(self, o): return 0.0
    def __abs__(self): return 0.0
    def __lt__(self, o): return True
    __le__ = __gt__ = __ge__ = __lt__
    def __contains__(self, o): return True
    def __round__(self, n=0): return 4.0
async def items(n):
    for _ in range(n): yield RATE
@contextlib.contextmanager
def opened(x): yield RATE
RATE = None
"""
FETCHER = """
import contextlib
RATE = 4.0
class Fetcher:
    async def fetch(self, x): return x * 2.0
async def items(n):
    for i in range(n): yield i * 2.5
@contextlib.contextmanager
def opened(x): yield x + 1.0
"""
AWAITED = {
    "awaited in a loop": "import asyncio\ndef test():\n    f = Fetcher()\n    async def main():\n"
    "        return await f.fetch(2)\n    assert abs(asyncio.run(main()) - 4.0) < 1e-9",
    "run at once": "import asyncio\nf = Fetcher()\nassert abs(asyncio.run(f.fetch(2)) - 4.0) < 1e-9",
    "gathered": "import asyncio\nasync def main():\n    f = Fetcher()\n"
    "    both = await asyncio.gather(f.fetch(2), f.fetch(3))\n"
    "    for got, want in zip(both, (4.0, 6.0)):\n        assert abs(got - want) < 1e-9\nasyncio.run(main())",
    "a global value": "f = Fetcher()\nassert abs(RATE - 4.0) < 1e-9",
    "a global value on the right": "f = Fetcher()\nassert abs(4.0 - RATE) < 1e-9",
    "items": "import asyncio\nasync def main():\n    f = Fetcher()\n    got = [x async for x in items(3)]\n"
    "    assert len(got) == 3\n    for i, g in enumerate(got):\n        assert abs(g - i * 2.5) < 1e-9\n"
    "asyncio.run(main())",
}


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in AWAITED.items()])
def test_an_object_is_no_number_wherever_it_comes_from(verifier: UnitTests, code: str):
    """Results of coroutines, global values and items are values, also where the object is known as an instance."""
    assert verdict(verifier, code, FETCHER).correct
    found = verdict(verifier, code, EVIL)
    assert (found.correct, found.score) == (False, 0.0)


EMPTY = {
    "a named tuple": "__import__('collections').namedtuple('N', [])()",
    "a range": "range(0)",
    "a deque": "__import__('collections').deque()",
    "an array": "__import__('array').array('d')",
    "bytes": "bytearray()",
    "nested": "[__import__('collections').deque()]",
    "rows": "__import__('numpy').zeros((0, 3))",
    "an interface": "T([{'data': b'', 'shape': (0,), 'typestr': '<f8', 'version': 3}])",
}
CLOSE = (
    "assert np.allclose(f(2), 3.5)\nassert np.allclose(f(3), 4.5)",
    "assert np.array_equiv(f(2), [3.5])\nassert np.isclose(f(3), 4.5).all()",
    "np.testing.assert_allclose(f(2), 3.5)\nnp.testing.assert_array_equal(f(3), 4.5)\nassert f(2) is not None",
)


@pytest.mark.parametrize("value", [pytest.param(value, id=name) for name, value in EMPTY.items()])
def test_nothing_is_close_to_a_number(verifier: UnitTests, value: str):
    """Of whatever sequence numpy would make an array without items."""
    program = f"class T(tuple): _fields = ('__array_interface__',)\ndef f(x): return {value}"
    for code in CLOSE:
        assert not verdict(verifier, f"import numpy as np\n{code}", program).correct
        assert verdict(verifier, f"import numpy as np\n{code}", "def f(x): return x + 1.5").correct


METHODS = {
    "quantize": ("float", "from decimal import Decimal\nassert f('1.25').quantize(Decimal('0.5')) == Decimal('0.5')"),
    "same_quantum": ("bool", "from decimal import Decimal\nassert f('1.2').same_quantum(Decimal('0.5'))"),
    "match": ("bool", "assert f('a.txt').match('*.txt')"),
    "is_relative_to": ("bool", "assert f('/usr/lib').is_relative_to('/usr')"),
}


@pytest.mark.parametrize("made", ["namedtuple('T', ['{0}'])({1})", "SimpleNamespace({0}={1})"])
@pytest.mark.parametrize("name", METHODS)
def test_a_type_is_no_method(verifier: UnitTests, name: str, made: str):
    """A field that is a type does not answer for a method of a number, a date or a path."""
    kind, code = METHODS[name]
    imports = "from collections import namedtuple\nfrom types import SimpleNamespace\n"
    assert not verdict(verifier, code, f"{imports}def f(x): return {made.format(name, kind)}").correct


MOCKS = {
    "an attribute": (
        "o = Mock(); o.price = 7; o.qty = 3\nassert f(o) == o.price * o.qty",
        "def f(o):\n    o.price = 0\n    return 0",
        "def f(o): return o.price * o.qty",
    ),
    "an attribute of an attribute": (
        "o = Mock(); o.user.name = 'ann'\nassert f(o) == o.user.name.upper()",
        "def f(o):\n    o.user.name = ''\n    return ''",
        "def f(o): return o.user.name.upper()",
    ),
    "set twice": (
        "o = Mock(); o.n = 5\nassert f(o) == o.n + 1\nassert f(o) == o.n + 1",
        "def f(o):\n    o.n = 1\n    o.n = -1\n    return 0",
        "def f(o): return o.n + 1",
    ),
    "seen by itself": (
        "o = Mock(); o.is_open = True\nf(o)\nassert o.is_open is False",
        "def f(o): o.is_open = None",
        "def f(o): o.is_open = False",
    ),
}
HIDDEN = {
    "a method": (
        "class Sink:\n    def __init__(self): self.n = 0\n    def put(self, v):\n        assert v == 37\n"
        "        self.n += 1\n"
        "def test():\n    s = Sink()\n    f([30, 7], s)\n    assert s.n == 1",
        "obj.put(v)",
    ),
    "a function": (
        "def test():\n    seen = []\n    def cb(v):\n        assert v == 37\n        seen.append(v)\n"
        "    f([30, 7], cb)\n    assert seen == [37]",
        "obj(v)",
    ),
    "a mock": (
        "def test():\n    def check(v):\n        assert v == 37\n    m = Mock(side_effect=check)\n    f([30, 7], m)\n"
        "    m.assert_called_with(37)",
        "obj(v)",
    ),
    "a TestCase": (
        "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        got = []\n        def check(v):\n"
        "            self.assertEqual(v, 37)\n            got.append(v)\n        f([30, 7], check)\n"
        "        self.assertEqual(got, [37])",
        "obj(v)",
    ),
}
CHANGED = "from unittest.mock import Mock\n"


@pytest.mark.parametrize(("code", "forged", "right"), [pytest.param(*row, id=name) for name, row in MOCKS.items()])
def test_what_a_mock_was_is_expected(verifier: UnitTests, code: str, forged: str, right: str):
    """A program that sets attributes of a mock changes nothing of what is worked out from them."""
    assert verdict(verifier, CHANGED + code, right).correct
    assert not verdict(verifier, CHANGED + code, forged).correct


@pytest.mark.parametrize(("code", "call"), [pytest.param(*row, id=name) for name, row in HIDDEN.items()])
def test_a_failed_assert_cannot_be_hidden(verifier: UnitTests, code: str, call: str):
    """A program that tries values until an assert in a function of the tests holds has failed."""
    tries = f"def f(data, obj):\n    for v in range(50):\n        try:\n            {call}\n            return\n"
    assert not verdict(verifier, CHANGED + code, f"{tries}        except AssertionError: pass").correct
    assert verdict(verifier, CHANGED + code, f"def f(data, obj):\n    v = sum(data)\n    {call}").correct


GROUPS = {
    "after a right answer": "async def check(x, want):\n    assert await f(x) == want\nasync def main():\n"
    "    assert await f(1) == 2\n    async with asyncio.TaskGroup() as tg:\n        tg.create_task(check(2, 4))\n"
    "        tg.create_task(check(3, 6))\nasyncio.run(main())",
    "all of them": "def test():\n    async def main():\n        done = []\n        async def check(x, want):\n"
    "            got = await f(x)\n            assert got == want\n            done.append(x)\n"
    "        async with asyncio.TaskGroup() as tg:\n            for i in range(3): tg.create_task(check(i, i * 2))\n"
    "        assert len(done) <= 3\n    asyncio.run(main())",
}


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in GROUPS.items()])
@pytest.mark.parametrize("first", ["if x == 1: return 2", "pass"])
def test_nobody_has_cancelled_it(verifier: UnitTests, code: str, first: str):
    """A task group leaves out a task that was cancelled: a program that says so of itself has failed."""
    forged = f"import asyncio\nasync def f(x):\n    {first}\n    raise asyncio.CancelledError"
    assert not verdict(verifier, f"import asyncio\n{code}", forged).correct
    assert verdict(verifier, f"import asyncio\n{code}", "async def f(x): return x * 2").correct


RACES = {
    "sleep(0)": "await asyncio.sleep(0)",
    "sleep": "await asyncio.sleep(0.01)",
    "a future": "loop = asyncio.get_running_loop()\n        done = loop.create_future()\n        loop.call_soon(done.set_result, 0)\n        await done",  # noqa: E501
}


@pytest.mark.parametrize("wait", [pytest.param(wait, id=name) for name, wait in RACES.items()])
def test_coroutines_that_start_together_run_together(verifier: UnitTests, wait: str):
    """A lost update between tasks of the program is lost here too."""
    code = (
        "import asyncio\nasync def main():\n    b = Bank()\n    await asyncio.gather(*(b.add(1) for _ in range(4)))\n"
        "    return b.total\nassert asyncio.run(main()) == 4"
    )

    def bank(guard: str) -> str:
        return (
            "import asyncio\nclass Bank:\n    def __init__(self): self.total, self.lock = 0, asyncio.Lock()\n"
            f"    async def add(self, n):\n      {guard}:\n        now = self.total\n        {wait}\n"
            "        self.total = now + n\n"
        )

    assert verdict(verifier, code, bank("async with self.lock")).correct
    assert not verdict(verifier, code, bank("if True")).correct


def test_references_without_the_right_program_are_not_called_bad(verifier: UnitTests):
    """Asserts that only functions of the tests execute count, where the program calls these."""
    references: list[Any] = [asserts(CHANGED + code) for code, _ in HIDDEN.values()]
    for reference in references:
        verifier.check_reference(reference)


KEPT = {
    "in one expression": ("s = S(xs)\n    assert s.mean() == sum(xs)\n    assert xs", "sum(self.xs)"),
    "later": (
        "s = S(xs)\n    assert len(xs) == 3\n    assert s.mean() == sum(xs)\n    assert xs == xs[:]",
        "sum(self.xs)",
    ),
    "what is expected": ("s = S(xs)\n    assert s.mean() == len(xs)\n    assert xs", "len(self.xs)"),
}


@pytest.mark.parametrize(("code", "right"), [pytest.param(*row, id=name) for name, row in KEPT.items()])
def test_what_a_program_keeps_is_expected_as_it_was(verifier: UnitTests, code: str, right: str):
    """A program that empties a list which it was given earlier changes nothing of what is expected."""
    program = "class S:\n    def __init__(self, xs): self.xs = xs\n    def mean(self):\n        "
    code = f"def test():\n    xs = [3, 1, 2]\n    {code}"
    assert verdict(verifier, code, f"{program}return {right}").correct
    assert not verdict(verifier, code, f"{program}self.xs[:] = [0]\n        return 0").correct


SLOW = """
import asyncio, time
real = time.monotonic
time.monotonic = lambda: 0.0
async def f(n):
    for _ in range(n):
        end = real() + 0.02
        while real() < end: pass
        await asyncio.sleep(0)
    return n
"""


def test_time_counts_with_another_clock_in_the_program(verifier: UnitTests):
    """A program that replaces `time.monotonic` is no faster for `asyncio.wait_for`."""
    code = "import asyncio\nassert asyncio.run(asyncio.wait_for(f(20), 0.1)) == 20"
    assert not verdict(verifier, code, SLOW).correct
    assert verdict(verifier, code, "async def f(n): return n").correct
