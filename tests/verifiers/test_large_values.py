"""Values of many items, and what is said of those that are too large."""

from __future__ import annotations

from typing import Any

import pytest

from rlvr.core.types import Status
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.programs import asserts, passes, runs_programs, verdict

pytestmark = runs_programs


def calls(args: Any, expected: Any) -> dict[str, Any]:
    return {"type": "calls", "entry": "f", "cases": [{"args": args, "expected": expected}]}


GRID = [[0, 1] * 250] * 500
LARGE: dict[str, tuple[Any, str]] = {
    "a list": (asserts("assert f(200000) == list(range(200000))"), "def f(n): return list(range(n))"),
    "a long text": (asserts("s = 'ab' * (10 << 20)\nassert f(s) == 20 << 20"), "def f(s): return len(s)"),
    "a list in a variable": (asserts("r = f(250000)\nassert r == [0] * 250000"), "def f(n): return [0] * n"),
    "a set": (asserts("assert f(300000) == set(range(300000))"), "def f(n): return set(range(n))"),
    "pairs": (asserts("assert len(f(150000)) == 150000"), "def f(n): return [(i, str(i)) for i in range(n)]"),
    "a list of an iterator": (asserts("assert list(f(30000)) == list(range(30000))"), "def f(n): yield from range(n)"),
    "the first of an endless iterator": (
        asserts(
            "assert [a for _, a in zip(range(4), f())] == [1, 1, 2, 3]\nassert list(zip(range(2), f()))[1] == (1, 1)"
        ),
        "def f():\n    a = b = 1\n    while True:\n        yield a\n        a, b = b, a + b",
    ),
    "an argument": (calls([GRID], 125_000), "def f(m): return sum(map(sum, m))"),
    "an argument in a variable": (
        asserts("m = [[1] * 600 for _ in range(600)]\nassert f(m) == 360000"),
        "def f(m): return sum(map(sum, m))",
    ),
    "expected values": (calls([700_000], list(range(700_000))), "def f(n): return list(range(n))"),
    "an output": (
        {"type": "stdio", "cases": [{"input": "200000", "output": " ".join(map(str, range(200_000)))}]},
        "print(*range(int(input())))",
    ),
}
TOO_LARGE: dict[str, tuple[Any, str]] = {
    "a long number": (asserts("assert f(3) == 5"), "def f(n): return 1 << 3_000_000"),
    "a deep list": (
        asserts("assert f(3) == 5"),
        "def f(n):\n    r = []\n    for _ in range(300): r = [r]\n    return r",
    ),
    "a deep list in a variable": (
        asserts("r = f(3)\nassert r == 5"),
        "def f(n):\n    r = []\n    for _ in range(300): r = [r]\n    return r",
    ),
    "an iterator": (calls([3], [0]), "def f(n):\n    while True: yield 0"),
    "many bytes": (asserts("assert f(3) == 5"), "def f(n): return 'a' * (20 << 20)"),
    "many bytes in a variable": (asserts("r = f(3)\nassert r == 5"), "def f(n): return ['a' * (1 << 20)] * 20"),
    "many keys": (asserts("r = f(3)\nassert r == 5"), "def f(n): return {(i, i): 0 for i in range(50000)}"),
}


@pytest.mark.parametrize(("reference", "program"), LARGE.values(), ids=LARGE)
def test_large_values_pass(verifier: UnitTests, reference: Any, program: str):
    """What is right is right, whatever its size; and a program that returns something else is wrong."""
    assert passes(verifier, reference, program)
    wrong = verdict(verifier, reference, "def f(*a): return [1]\nprint(1)")
    assert wrong.status is Status.INCORRECT


@pytest.mark.parametrize(("reference", "program"), TOO_LARGE.values(), ids=TOO_LARGE)
def test_beyond_the_bounds_is_a_limit(verifier: UnitTests, reference: Any, program: str):
    """It is not known whether such a value is right."""
    assert verdict(verifier, reference, program).status is Status.LIMIT


@pytest.mark.parametrize(
    "reference",
    [
        calls([[0] * 5_000_000], 3),
        calls(["a" * (9 << 20)], 3),
        calls([3], "a" * (9 << 20)),
        {"type": "stdio", "cases": [{"input": "", "output": "a" * (9 << 20)}]},
    ],
    ids=["items", "an argument", "an expected value", "an output"],
)
def test_what_nobody_can_pass_is_refused_at_once(verifier: UnitTests, reference: Any):
    """Before any program is run."""
    with pytest.raises(ValueError, match=r"at most|larger than|cannot be passed"):
        verifier.check_reference(reference)
