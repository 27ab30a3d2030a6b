"""What a program says of itself cannot move a reader's cursor, or pretend to be another line of the log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rlvr.core.types import Problem
from rlvr.sandbox import Call, Job, Pool
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.programs import asserts

HIDDEN = "\x1b[2J\x1b]0;title\x07\r\n\x85\u2028\u202eforged: 3 tests passed\x9b1A"
# RAW stands for the text above, TEXT for the literal of it.
SPOKEN = {
    "a syntax error": "RAW = (",
    "a syntax error in quotes": "x = 'RAW",
    "a name": "\u202ex = 1",
    "a raised class": "def f(x): raise type(TEXT, (Exception,), {})()",
    "a renamed class": "class E(Exception): pass\nE.__name__ = TEXT\ndef f(x): raise E",
    "a message": "def f(x): raise ValueError(TEXT)",
    "an error while loading": "raise Exception(TEXT)",
    "an exit": "import sys; sys.exit(TEXT)",
    "standard error": "import os; os.write(2, TEXT.encode('utf-8', 'replace')); os.abort()",
    "a returned text": "def f(x): return TEXT",
    "a returned object": "C = type(TEXT, (), {})\ndef f(x): return C()",
}
REFERENCES = [
    asserts("assert f(1) == 2"),
    asserts("for n in [1, 2]:\n    assert f(n) == n + 1"),
    {"type": "stdio", "cases": [{"input": "", "output": "1\n"}]},
    {"type": "calls", "entry": "f", "cases": [{"args": [1], "expected": 2}]},
    {"type": "check", "entry": "f", "code": "def check(candidate):\n    x = candidate(1)\n    assert x == 2"},
]


@pytest.fixture(scope="module")
def verifier() -> Iterator[UnitTests]:
    made = UnitTests(timeout=2.0, slots=1)
    yield made
    made.close()


@pytest.mark.parametrize("kind", SPOKEN)
def test_reasons_are_one_printable_line(verifier: UnitTests, kind: str):
    """For every type of reference, whatever the program writes, raises or returns."""
    program = SPOKEN[kind].replace("TEXT", repr(HIDDEN)).replace("RAW", HIDDEN)
    for reference in REFERENCES:
        verdict = verifier(Problem("p", "", reference), program)
        assert verdict.reason.isprintable(), verdict.reason
        assert len(verdict.reason) < 600
        assert not verdict.correct


def test_details_and_names_of_results_are_printable():
    """Also for those who use the sandbox without a verifier."""
    jobs = [Job("\x1b[31m = (\x0b"), Job(f"def f(): raise type({HIDDEN!r}, (Exception,), {{}})", calls=(Call("f"),))]
    with Pool(1) as pool:
        compiled, called = pool.run_many(jobs)
    assert compiled.detail
    assert compiled.detail.isprintable()
    assert called.returned[0].raised.isprintable()
    assert "\\x1b" in called.returned[0].raised
