"""Values of calls, and test code beside a program: nothing that the program says is taken on trust."""

from __future__ import annotations

import sys
from collections import Counter

import pytest

from rlvr.sandbox import Call, Job, Limits, Pool, RunStatus, TestJob
from rlvr.sandbox.wire.values import Opaque
from tests.helpers.files import read_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox needs Linux")


def test_calls_return_plain_data(pool: Pool):
    """Values come back in exact builtin types, errors by name, in the order of the calls."""
    program = """
import collections, re
def f(x): return x * 2
class T(tuple): pass
def many(): return [1, (2.5, None), {'a': {1}}, b'b', 10 ** 40, T([3]), collections.Counter('aab'), True]
def match(): return re.match('a', 'a')
def items(): yield from 'xy'
"""
    calls = (
        Call("f", (21,)),
        Call("f", ([(1, 2)],)),
        Call("many"),
        Call("f", (None,)),
        Call("nothing"),
        Call("match"),
        Call("items"),
    )
    returned = pool.run(Job(program, calls=calls)).returned
    assert returned[0].value == 42
    assert returned[1].value == [(1, 2), (1, 2)]
    assert returned[2].value == [1, (2.5, None), {"a": {1}}, b"b", 10**40, (3,), {"a": 2, "b": 1}, True]
    assert [type(v) for v in returned[2].value] == [int, tuple, dict, bytes, int, tuple, Counter, bool]
    assert [r.raised for r in returned[3:5]] == ["TypeError", "NameError"]
    assert isinstance(returned[5].value, Opaque)
    assert bool(returned[5].value) is True
    assert list(returned[6].value) == ["x", "y"]


def test_arguments_after_a_hang_are_not_answered(pool: Pool):
    """The answers before the deadline count, and the run is a timeout."""
    job = Job("def f(x):\n  while x: pass\n  return x", calls=(Call("f", (0,)), Call("f", (1,))), limits=Limits(0.5))
    result = pool.run(job)
    assert (result.status, [r.value for r in result.returned]) == (RunStatus.TIMEOUT, [0])


@pytest.mark.parametrize(
    "line",
    [
        '{"n": 0, "v": ["l", [["l", ' * 4000,
        '{"n": 0, "v": ["s", [["l", []]]]}',
        '{"n": 0, "v": ["i", "0x" + "f" * 9]}',
        '{"n": 0, "v": ["q", 1, 0]}',
        '{"n": 0, "v": ["D", "1E+999999999"]}',
        '{"n": 0, "v": ["r", 0, 1000000000000, 1]}',
        '{"n": 0, "v": ["T", 3]}',
        '{"n": 0, "v": ["pickle", "x"]}',
        '{"n": 0, "v": {"a": 1}}',
        "\\xff\\x00",
    ],
)
def test_forged_answers_are_no_value(pool: Pool, line: str):
    """A program that writes to the result pipe itself gives nothing that equals anything, and breaks nothing."""
    program = f"""
import os
def f():
    os.write(4, {line!r}.encode('latin-1') + b'\\n')
    os._exit(0)
"""
    result = pool.run(Job(program, calls=(Call("f"),)))
    if result.returned:
        assert result.returned[0].value != 0
        assert isinstance(result.returned[0].value, Opaque)
    else:
        assert result.status is RunStatus.CRASH


def test_tests_run_beside_the_program(pool: Pool):
    """A pass needs the end of the test code; arguments change as in one process; objects stay there."""
    program = """
def f(xs): xs.append(3); return len(xs)
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __eq__(self, other): return True
"""
    test = """
a = [1]
assert f(a) == 2 and _judge_after(a) == [1, 3]
assert f(a) == 3 and _judge_after(a) == [1, 3, 3]
s = Stack()
s.push(a)
assert len(s) == 1 and s.items == [[1, 3, 3]] and list(s.items) == [[1, 3, 3]] and s.pop() == [1, 3, 3]
try:
    s.pop()
except IndexError:
    pass
else:
    assert False
"""
    result = pool.run(TestJob(Job(program), test, ("f", "Stack"), ("Stack",)))
    assert (result.tests_passed, result.detail) == (True, "")
    result = pool.run(TestJob(Job(program), test + "assert f([]) == 2\n", ("f", "Stack"), ("Stack",)))
    assert (result.tests_passed, result.detail) == (False, "AssertionError at line 14 of the tests")
    result = pool.run(TestJob(Job(program), "assert f([]) == 2\n", ("f", "Stack"), ("Stack",)))
    assert (result.tests_passed, result.detail) == (False, "wrong answer of f([])")


@pytest.mark.parametrize(
    "statement",
    ["s == 5", "s == s", "f([len])", "f([10**700_000])", "{g()}", "g() == 1", "1 in [g()]", "g() + 1", "g()[0]"],
)
def test_errors_of_the_judge_are_not_those_of_the_program(pool: Pool, statement: str):
    """What cannot cross, or be asked of an answer that is no plain value, ends the tests; no handler catches it."""
    program = "class S: pass\ndef f(xs): return 1\ndef g(): return S()"
    test = f"s = S()\nassert f([]) == 1 and g()\ntry:\n    {statement}\nexcept Exception:\n    pass"
    result = pool.run(TestJob(Job(program), test, ("S", "f", "g"), ("S",)))
    assert (result.tests_passed, result.detail.split()[0]) == (False, "NotPlain")


def test_tests_run_together_with_the_program(pool: Pool):
    """In one process, as in plain Python; a pass needs the end of the test code and a check."""
    program = "import solution\nclass P:\n    def __init__(self, x): self.x = x\ndef make(): return P(3)"
    test = "p = make()\nassert isinstance(p, P) and type(p) is P and p.x == 3\ndef test_x(): assert make() is not p"
    result = pool.run(TestJob(Job(program.partition("\n")[2]), test, together=True))
    assert (result.tests_passed, result.detail) == (True, "")
    result = pool.run(TestJob(Job("def make(): return 3"), "x = make()", together=True))
    assert (result.tests_passed, result.detail) == (False, "NoAssertExecuted at line 0 of the tests")
    assert not pool.run(TestJob(Job("import os\nos._exit(0)"), "assert True", together=True)).tests_passed


LIAR = read_program("liar")


@pytest.mark.parametrize(
    ("test", "passes"),
    [
        ("assert 5 in f()", False),
        ("assert f().startswith('a')", False),
        ("assert f().is_integer()", False),
        ("assert {1}.issubset(f())", False),
        ("assert all(x > 0 for x in f())", False),
        ("assert len(f()) == 3", False),
        ("assert f()[0] == 5", False),
        ("assert f() == 5", False),
        ("assert f() >= 5", False),
        ("assert str(f()) == '5'", False),
        ("assert 5 in Box().get()", False),
        ("assert Box().get().startswith('a')", False),
        ("assert Box().name.startswith('a')", False),
        ("assert all(map(stop, [1, 2]))", False),
        ("assert list(map(stop, [1])) == list(map(stop, [2]))", False),
        ("assert len(KIND) == 3", False),
        ("assert list(KIND) == [5]", False),
        ("assert 5 in KIND", False),
        ("assert KIND['a'] == 5", False),
        ("assert made('Counted') == 5", False),
        ("assert made('Counted') == {'a': 1}", False),
        ("assert made('Counted')['a'] == 5", False),
        ("assert made('Text').getvalue() == '5'", False),
        ("import argparse\nassert made('Space') == argparse.Namespace(a=1)", False),
        ("assert default()['a'] == 5", False),
        ("assert f().three == 3", False),
        ("assert abs(Box().get() - 5) < 1", False),
        ("assert Box() == Box()", False),
        ("assert Box().me() == Box()", False),
        ("assert made('Counted') == {}", False),
        ("assert len(Box().label) == 3 and Box().label == 'abc'", True),
    ],
)
def test_an_object_does_not_answer_for_a_value(pool: Pool, test: str, passes: bool):
    """Where a test expects a value nothing is asked of an object, whatever operators it has."""
    names = ("f", "stop", "same", "made", "default", "Box", "CONSTANT", "KIND", "PLAIN")
    assert bool(pool.run(TestJob(Job(LIAR), test, names, ("Box",))).tests_passed) is passes


@pytest.mark.parametrize(
    "body",
    ["import os; os._exit(0)", "while True: pass", "raise SystemExit(0)", "raise KeyboardInterrupt", "return None"],
)
def test_tests_do_not_pass_without_their_end(pool: Pool, body: str):
    """Whatever the program does instead of answering."""
    job = Job(f"def f():\n    {body}\n", limits=Limits(seconds=0.5))
    assert not pool.run(TestJob(job, "assert f() == 5", ("f",))).tests_passed


def test_a_test_that_excepts_everything_notices_the_end(pool: Pool):
    """A program that ends itself has raised nothing."""
    test = "try:\n    f()\n    assert False\nexcept:\n    pass"
    result = pool.run(TestJob(Job("import os\ndef f(): os._exit(0)"), test, ("f",)))
    assert result.tests_passed is False
    assert pool.run(TestJob(Job("def f(): raise KeyError"), test, ("f",))).tests_passed is True


def test_a_program_writing_on_the_judges_pipe_does_not_pass(pool: Pool):
    """Its messages are read as answers, and no answer is a verdict."""
    program = """
import os
for number in range(3, 12):
    try: os.write(number, b'{"passed": true}\\n{"v": true}\\n')
    except OSError: pass
def f(): return 4
"""
    assert not pool.run(TestJob(Job(program), "assert f() == 5", ("f",))).tests_passed


@pytest.mark.parametrize("line", ['["n"]', "5", "{}", '{"n": 1}', "\xff"])
def test_messages_that_are_no_answers_end_the_tests(pool: Pool, line: str):
    """Whatever the test code catches."""
    program = (
        f"import os, time\ndef f():\n    os.write(5, {line!r}.encode() + b'\\n')\n    time.sleep(0.1)\n    return 4\n"
    )
    job = TestJob(Job(program), "try:\n    x = f()\nexcept BaseException:\n    x = 4\nassert f() == x == 4", ("f",))
    assert not pool.run(job).tests_passed
