"""The unit_tests verifier: its references, what passes, what does not, and what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from rlvr.core.types import Problem, Status, Verdict
from rlvr.sandbox import Job, Result, RunStatus, TestJob
from rlvr.verifiers import unit_tests as code_extract
from rlvr.verifiers.code import equality
from rlvr.verifiers.code.plans import make_plan
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.files import DataSets
from tests.helpers.programs import ADD, asserts, make_files, runs_programs

CHECK = f"def check(candidate):\n    {ADD.strip().replace('add', 'candidate').replace(chr(10), chr(10) + '    ')}\n"


@pytest.fixture(scope="module")
def verifier() -> Iterator[UnitTests]:
    made = UnitTests(timeout=2, slots=1)
    yield made
    made.close()


def verdict(verifier: UnitTests, reference: Any, completion: str, **info: str) -> Verdict:
    return verifier(Problem("p", "", reference, info), completion)


GOOD = "def add(a, b): return a + b"
REFERENCES = {
    "assert": asserts(ADD),
    "check": {"type": "check", "entry": "add", "code": CHECK},
    "calls": {"type": "calls", "entry": "add", "cases": [{"args": (2, n), "expected": 2 + n} for n in (3, 0, -2)]},
    "whole": asserts("for n in range(5):\n    assert add(n, 1) == n + 1\n"),
}


@runs_programs
@pytest.mark.parametrize("kind", REFERENCES)
def test_right_programs_pass_and_wrong_ones_do_not(verifier: UnitTests, kind: str):
    """Each type of reference, and the tests that run whole."""
    assert verdict(verifier, REFERENCES[kind], GOOD).correct
    for wrong in ("def add(a, b): return None", "def add(a, b): return a - b", "def sub(a, b): return a + b", "pass"):
        found = verdict(verifier, REFERENCES[kind], wrong)
        assert (found.status, found.score) == (Status.INCORRECT, 0.0)


@runs_programs
def test_outputs_are_compared_whole(verifier: UnitTests):
    """stdin and stdout: every line counts, blanks at the ends of lines do not, and every case is run."""
    cases = [{"input": "2 3\n", "output": "5\nend\n"}, {"input": "10 20\n", "output": "30\nend\n"}]
    reference = {"type": "stdio", "cases": cases}
    program = "print(sum(map(int, input().split())))\nprint('end')"
    assert verdict(verifier, reference, program).correct
    assert verdict(verifier, reference, program.replace("'end'", "'end  \\n'")).correct
    for wrong in ("print(5)\nprint('end')", program + "\nprint()\nprint(1)", program + "\nexit(1)", ""):
        assert not verdict(verifier, reference, wrong).correct
    assert verdict(verifier, reference, "print(5)\nprint('end')").reason == "failed: test 2 of 2: wrong answer"


@runs_programs
@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("def add(a, b):\n    while True: pass", Status.TIMEOUT),
        ("def add(a, b): return bytearray(8 << 30)", Status.INCORRECT),
        ("x = bytearray(8 << 30)", Status.LIMIT),
        ("while True: print('x' * 999)", Status.LIMIT),
        ("def add(a, b) return a", Status.UNPARSEABLE),
        ("import os; os._exit(0)", Status.INCORRECT),
        ("raise SystemExit(0)", Status.INCORRECT),
    ],
)
def test_the_end_of_a_run_decides_the_status(verifier: UnitTests, program: str, status: Status):
    """Scores are 0 whatever the end; none of these is our error."""
    found = verdict(verifier, asserts(ADD), program)
    assert (found.status, found.score) == (status, 0.0)


@runs_programs
def test_the_share_passed_is_the_score_if_asked_for():
    """partial: a third for one of three tests, also when the second hangs; correct stays all or nothing."""
    verifier = UnitTests(timeout=0.5, slots=1, partial=True)
    try:
        found = verdict(verifier, asserts(ADD), "def add(a, b): return 5")
        assert (found.status, found.score) == (Status.PARTIAL, pytest.approx(1 / 3))
        hangs = "def add(a, b):\n    while a == -1: pass\n    return a + b"
        assert verdict(verifier, asserts(ADD), hangs).score == pytest.approx(1 / 3)
        assert verdict(verifier, asserts(ADD), "def add(a, b): return 7").status is Status.INCORRECT
        assert verdict(verifier, asserts(ADD), GOOD).status is Status.CORRECT
    finally:
        verifier.close()


@runs_programs
@pytest.mark.parametrize(
    ("tests", "program"),
    [
        ("for n in range(100):\n    assert f(n) == n * n", "if n > 8: raise ValueError\n    return n * n"),
        ("for n in range(100):\n    assert f(n) == n * n", "if n > 8: raise SystemExit\n    return n * n"),
        ("for x in f(3):\n    assert x > 0\nassert f(3) == [1, 2, 3]\nassert f(2) == [1, 2]", "return [1] * 10 ** 4"),
        (
            "def all_hold():\n    for n in range(9):\n        assert f(n) == n\nall_hold()",
            "return n if n < 8 else 1 / 0",
        ),
    ],
)
def test_a_program_does_not_decide_how_many_asserts_hold(tests: str, program: str):
    """partial: an assert that is written once counts once, and holds if it held each time, to the end of its loop."""
    verifier = UnitTests(timeout=2, slots=1, partial=True)
    try:
        assert verdict(verifier, asserts(tests), f"def f(n):\n    {program}").score <= 1 / 3
    finally:
        verifier.close()


@runs_programs
def test_the_same_checks_are_executed_with_containers_as_they_were(verifier: UnitTests):
    """A program that empties a list of the tests decides which of their checks are executed."""
    tests = "xs = [3, 8]\nfor n in xs:\n    assert double(xs, n) == 2 * n"
    honest = "def double(xs, n): return 2 * n"
    assert verdict(verifier, asserts(tests), honest).correct
    forged = "def double(xs, n):\n    xs.clear()\n    return 2 * n"
    assert verdict(verifier, asserts(tests), forged).reason.endswith("changes which checks are executed")


@runs_programs
@pytest.mark.parametrize("weak", ["", "import itertools\n"])
def test_loops_may_be_nested_as_deeply_as_python_has_them(verifier: UnitTests, weak: str):
    """Python allows 20 blocks in one another; what the judge adds takes two at most."""
    loops = "\n".join(f"{' ' * n}for x{n} in (1,):" for n in range(17))
    tests = f"{weak}{loops}\n{' ' * 17}assert f(x3) == 7\nassert f(2) == 14\nassert f(3) == 21"
    assert verdict(verifier, asserts(tests), "def f(n): return 7 * n").correct


@runs_programs
def test_tests_draw_the_same_numbers_when_they_run_again(verifier: UnitTests):
    """Also how many they draw, and so how many checks are executed."""
    tests = "import random\nfor _ in range(random.randint(5, 50)):\n    xs = random.sample(range(99), 5)"
    honest = "def largest(xs):\n    xs.sort()\n    return xs[-1]"
    assert verdict(verifier, asserts(f"{tests}\n    assert largest(xs) == max(xs)"), honest).correct


@runs_programs
def test_the_reason_names_the_test_and_not_the_answer(verifier: UnitTests):
    """What the model may be told must not hold the expected value."""
    reason = verdict(verifier, asserts("assert f(2) == 4711\n"), "def f(x): return x").reason
    assert reason == "failed: test 1 of 1: wrong answer of f(2)"
    reason = verdict(verifier, asserts("assert f(2) == 4711\n"), "def f(x): return 1 / 0").reason
    assert reason == "failed: test 1 of 1: f(2) raised ZeroDivisionError"


NONE = "def add(a, b): return None"
LIARS = {
    "always equal": """
class R:
    def __eq__(s, o): return True
def add(a, b): return R()""",
    "an int that is always equal": """
class R(int):
    def __eq__(s, o): return True
    __hash__ = int.__hash__
def add(a, b): return R()""",
    "a lie about its class": """
class R:
    __class__ = int
    def __eq__(s, o): return True
def add(a, b): return R()""",
    "frames": """
def add(a, b):
    f = sys._getframe()
    while f:
        for v in [*f.f_locals.values(), *f.f_code.co_consts]:
            if type(v) is int and v == a + b and v not in (a, b): return v
        f = f.f_back""",
    "memory": """
import gc
def add(a, b):
    for o in gc.get_objects():
        if isinstance(o, dict) and 'expected' in o: return o['expected']""",
    "patched builtins": f"""
import builtins
builtins.all = builtins.any = builtins.eval = builtins.compile = lambda *a: True
builtins.AssertionError = ValueError
{NONE}""",
    "printing": f"print('1 passed', '{{\"passed\": true}}')\n{NONE}",
    "its own check": f"def check(candidate): pass\n{NONE}",
    "a forged verdict": f"""
import os
for n in range(3, 64):
    try: os.write(n, b'{{"passed": true}}\\n')
    except OSError: pass
{NONE}""",
    "threads": """
import threading, os, time
threading.Timer(.1, os._exit, (0,)).start()
def add(a, b): time.sleep(9)""",
    "tracing": f"import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\n{NONE}",
    "a generator": "def add(a, b):\n    while True: yield a + b",
    "not a number": "def add(a, b): return float('nan')",
    "a deep list": "def add(a, b):\n    x = []\n    for _ in range(10 ** 5): x = [x]\n    return x",
    "a list in itself": "def add(a, b):\n    x = []; x.append(x)\n    return x",
    "a huge number": "def add(a, b): return 1 << (1 << 24)",
    "equal hashes": "def add(a, b): return [n * (2 ** 61 - 1) for n in range(10 ** 5)]",
}


@runs_programs
@pytest.mark.parametrize("trick", LIARS)
@pytest.mark.parametrize("kind", REFERENCES)
def test_no_trick_passes(verifier: UnitTests, kind: str, trick: str):
    """Each lie against each way of testing: 0, and never an error that would mask it."""
    found = verdict(verifier, REFERENCES[kind], LIARS[trick])
    assert (found.correct, found.score) == (False, 0.0)


NODE = """
class Node:
    def __init__(self, v): self.left = None
def depth(n): return 0 if n is None else 1 + depth(n.left)
"""


@runs_programs
@pytest.mark.parametrize(
    ("code", "program"),
    [
        ("assert abs(f(3) - 1.5) < 1e-6", "def f(x): return x / 2"),
        ("import math\nassert math.isclose(f(2), 2 ** .5, rel_tol=0.001)", "def f(x): return x ** .5"),
        ("from math import pi\nassert f(pi) > 3 and not f(0)", "def f(x): return x"),
        ("assert set(f([1, 1])) == set((1,)) and sorted(f([2, 1])) == [1, 2]", "def f(x): return x"),
        ("assert f() == ({1: 'a'}, {2, 3}, None)", "def f(): return {1: 'a'}, {3, 2}, None"),
        ("assert f(2)\nassert not f(3)", "import re\ndef f(x): return re.match('2', str(x))"),
        ("assert f(lambda x: x + 1, 3) == 4", "def f(g, x): return g(x)"),
        ("assert sum(10, 15) == 25\nassert sum(1, 2) == 3", "def sum(a, b): return a + b"),
        ("assert list(gen(4)) == [0, 1, 4, 9]", "def gen(n):\n    for i in range(n): yield i * i"),
        ("assert f('aab') == {'a': 2, 'b': 1}", "from collections import Counter as f"),
        ("assert f(f(2)) == 8\nassert LIMIT == 3", "LIMIT = 3\ndef f(x): return 2 * x"),
        ("a = [3, 1, 2]\nassert f(a) is None\nassert a == [1, 2, 3]", "def f(a): a.sort()"),
        ("try:\n    f(0)\n    assert False\nexcept ValueError:\n    pass", "def f(x): raise ValueError('x')"),
        ("assert all(f(n) == n * n for n in range(9))", "def f(n): return n * n"),
        ("assert A().f(3) == 4", "class A:\n    def f(self, x): return x + 1"),
        ("a, b = f()\nassert a != a and b == float('inf')", "def f(): return float('nan'), float('inf')"),
        ("assert f(1).startswith('a')", "def f(x): return 'abc'"),
        ("try:\n    f(1)\n    assert False\nexcept:\n    pass\nassert not g()", "def f(x): raise KeyError\ndef g(): 0"),
        ("x = Node(1)\nx.left = Node(2)\nassert depth(x) == 2", NODE),
    ],
)  # fmt: skip
def test_what_tests_may_hold(verifier: UnitTests, code: str, program: str):
    """Tolerances, truth, containers, errors, classes, changes in place: as MBPP, HumanEval and others write them."""
    found = verdict(verifier, asserts(code), program)
    assert found.correct, found
    assert not verdict(verifier, asserts(code), "def f(*args): pass").correct


def test_expected_values_are_not_in_the_jobs():
    """What is sent into the program's sandbox holds the arguments, never the answer."""
    for reference in (
        asserts("assert f(2) == 4711\nassert abs(f(3) - 4711.5) < 1e-3\nassert f(4) in (4711, 47112)"),
        {"type": "check", "entry": "f", "code": "def check(c):\n    assert c(2) == 4711\n    assert 4711 == c(3)\n"},
        {"type": "calls", "entry": "f", "cases": [{"args": [2], "expected": 4711}]},
        {"type": "stdio", "cases": [{"input": "2", "output": "4711"}]},
    ):
        (job,) = make_plan(reference).jobs("def f(x): return x", UnitTests().limits)
        # Test code goes to a sandbox of its own.
        assert "4711" not in repr(job.job if isinstance(job, TestJob) else job)


@pytest.mark.parametrize(
    ("reference", "found"),
    [
        (None, "a mapping with a type"),
        ({"type": "unit"}, "a mapping with a type"),
        (asserts("assert f(2) =="), "does not parse"),
        (asserts("print(f(2))"), "no assert"),
        (asserts("assert 1 == 1"), "nothing of the program"),
        ({"type": "check", "entry": "f", "code": "def check(c):\n    assert True"}, "nothing of the program"),
        (asserts(""), "no 'code'"),
        ({"type": "check", "code": CHECK}, "no 'entry'"),
        ({"type": "check", "entry": "add", "code": ADD}, "no check"),
        ({"type": "stdio", "cases": []}, "no cases"),
        ({"type": "stdio", "cases": [{"input": "1"}]}, "input and output"),
        ({"type": "calls", "entry": "f", "cases": [{"args": [1]}]}, "args and expected"),
    ],
)
def test_references_that_cannot_be_used(reference: Any, found: str):
    """They are refused when data is loaded, and a verdict on them is our error, not the model's."""
    verifier = UnitTests()
    with pytest.raises(ValueError, match=found):
        verifier.check_reference(reference)
    assert verdict(verifier, reference, GOOD).status is Status.BAD_REFERENCE


class _Recorded:
    """An executor in place of the pool: answers from a list, and remembers what it was asked."""

    def __init__(self, status: RunStatus) -> None:
        self.status = status
        self.asked: list[int] = []

    def run_many(self, jobs: Sequence[Job | TestJob]) -> list[Result]:
        self.asked.append(len(jobs))
        return [Result(self.status, stdout="1\n") for _ in jobs]


def test_a_sandbox_error_is_masked():
    """It is neither a 0 nor a 1."""
    verifier = UnitTests()
    verifier.executor = _Recorded(RunStatus.SANDBOX_ERROR)
    found = verdict(verifier, asserts(ADD), GOOD)
    assert (found.status, found.score) == (Status.ERROR, None)


def test_all_pairs_go_out_together_and_failures_early():
    """One batch with the first case of every pair, one with the next three of those that passed it, and so on."""
    verifier = UnitTests()
    recorded = _Recorded(RunStatus.OK)
    verifier.executor = recorded
    right, wrong = ([{"input": "", "output": out}] + [{"input": "", "output": "1"}] * 5 for out in ("1", "2"))
    problems = [Problem("p", "", {"type": "stdio", "cases": cases}) for cases in (right, wrong)]
    found = verifier.verify_batch([(problem, "print(1)") for problem in problems for _ in range(4)])
    assert [v.correct for v in found] == [True] * 4 + [False] * 4
    assert recorded.asked == [8, 12, 8]


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("x = 1", "x = 1"),
        ("Here:\n```python\nx = 1\n```\nDone.", "x = 1\n"),
        ("```python\na\n```\nthen\n```py\nb\n```\n```text\nc\n```", "b\n"),
        ("```\nx = 1\n```", "x = 1\n"),
        ("````python\nx = '''\n```\n'''\n````", "x = '''\n```\n'''\n"),
        ("```python\nx = 1", "x = 1"),
        ("<think>```python\nold\n```</think>```python\nnew\n```", "new\n"),
        ("<think>```python\nold\n```</think>y = 2", "y = 2"),
    ],
)
def test_the_program_of_a_completion(completion: str, program: str):
    """The last python fence after the thoughts, else all of it."""
    assert code_extract.program_of(completion) == program


@runs_programs
def test_a_completion_may_go_on_from_the_prompt(verifier: UnitTests):
    """info["prefix"] is put before a completion that does not define the function itself."""
    reference = {"type": "check", "entry": "add", "code": CHECK}
    prefix = "def add(a, b):\n    '''Sum.'''\n"
    assert verdict(verifier, reference, "    return a + b\n", prefix=prefix).correct
    assert verdict(verifier, reference, GOOD, prefix=prefix).correct
    assert not verdict(verifier, reference, "    return a + b\n").correct


@runs_programs
def test_helpers_of_the_prompt_are_the_tests_own(verifier: UnitTests):
    """A program that redefines a helper which the tests use (HumanEval/32) changes nothing for them."""
    prelude = "def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n"
    code = "def check(candidate):\n    assert abs(poly([1, 2], candidate([1, 2]))) < 1e-4\n"
    reference = {"type": "check", "entry": "find_zero", "prelude": prelude, "code": code}
    assert verdict(verifier, reference, "def find_zero(xs): return -.5").correct
    assert not verdict(verifier, reference, "def poly(xs, x): return 0\ndef find_zero(xs): return 0.0").correct


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (1, 1, True), (True, 1, False), (1, True, False), (1.0, 1, True), (0.1 + 0.2, 0.3, True),
        (float("nan"), float("nan"), True), ((1, [2]), [1, (2,)], True), ([1], [1, 2], False),
        ({"a": (1,)}, {"a": [1]}, True), ({"a": 1}, {"b": 1}, False), ("1", 1, False), (None, None, True),
        (0, 6.6e-34, False), (0.0, 6.6e-34, False), (6.6e-34, 0, False), (1e-12, 0.0, True), (1e-300, 2e-300, False),
        (1e22, 10**22, False), (2.0**53, 2**53 + 1, False), (10**22 + 1, 1e22, False), (10**22, 1e22, True),
        (float(2**53 - 1), 2**53 - 1, True), (3, 3.0000000001, True), (3.0000000001, 3, False),
        (float("inf"), 10**309, False),
        (10**309, float("inf"), False), ({True: 1}, {1: 1}, False), ({1.0}, {1}, False), ({(True, 2)}, {(1, 2)}, False),
        ([1.0], [True], False), (1e308 * 10, float("inf"), True), (0.1 + 0.2j, 0.1, False), ([0], [-0.0], True),
        (None, 0, False), (10**400, 1.0, False), ({1}, {1}, True), (b"a", "a", False),
    ],
)  # fmt: skip
def test_values_from_json_are_compared_by_meaning(value: Any, expected: Any, same: bool):
    """Lists and tuples alike, integers exactly, floats nearly, True never as 1."""
    assert equality.is_same_value(value, expected) is same


@pytest.mark.parametrize(
    ("value", "expected", "same"),
    [
        (1 / 3, 0.33333, True), ([1 / 3, 2], [0.33333, 2], True), ({"a": 0.5}, {"a": 0.500009}, True),
        (2.000004, 2, True), (100000.5, 100000.0, True), (0.3333, 0.33333, False), (3, 2, False),
        (10**20, 10**20 + 1, False), (True, 1.0, False), (float("nan"), 0.0, False),
        (float("inf"), 1e308, False), ("0.33333", 0.33333, False), (10**400, 1.0, False),
    ],
)  # fmt: skip
def test_calls_with_a_tolerance(value: Any, expected: Any, same: bool):
    """Absolute or relative, of floats only; and only where a reference names one, from 0 to below 1."""
    assert equality.is_same_value(value, expected, 1e-5) is same
    reference = {"type": "calls", "entry": "f", "cases": [{"args": [1], "expected": 0.5}]}
    assert [make_plan({**reference, **more}).tolerance for more in ({}, {"tolerance": 1e-5})] == [0.0, 1e-5]
    for bad in (True, "1", -1e-5, 1):
        with pytest.raises(ValueError, match="reference tolerance"):
            make_plan({**reference, "tolerance": bad})


@runs_programs
@pytest.mark.slow
def test_humaneval_and_mbpp(rlvr_data: DataSets):
    """All reference solutions pass (MBPP's own time limit aside), and no wrong program does."""
    data = rlvr_data("mbpp/mbpp.jsonl").parent.parent
    rlvr_data("humaneval/HumanEval.jsonl")
    files = make_files()
    sets = files.humaneval_files(data)
    sets |= files.mbpp_files(data, "mbpp", sanitized=False) | files.mbpp_files(data, "sanitized", sanitized=True)
    verifier = UnitTests(timeout=20)
    try:
        for name, rows in sets.items():
            pairs = [(Problem(row["id"], "", row["reference"]), row["completion"]) for row in rows]
            found = verifier.verify_batch(pairs)
            wrong = [(row["id"], v.reason) for row, v in zip(rows, found) if v.correct is not row["expected"]]
            assert not wrong, (name, json.dumps(wrong))
    finally:
        verifier.close()


NOT_TEXT = {
    "input": {"type": "stdio", "cases": [{"input": "\ud800", "output": "1"}]},
    "a later input": {"type": "stdio", "cases": [{"input": "1", "output": "1"}, {"input": "\ud800", "output": "1"}]},
    "output": {"type": "stdio", "cases": [{"input": "", "output": "\ud800"}]},
    "output of a byte": {"type": "stdio", "cases": [{"input": "", "output": "\udc80"}]},
    "setup": {"type": "stdio", "cases": [{"input": "", "output": "1"}], "setup": "x = '\ud800'"},
    "prelude": {"type": "calls", "entry": "f", "cases": [{"args": [], "expected": 1}], "prelude": "x = '\ud800'"},
    "entry": {"type": "calls", "entry": "f\ud800", "cases": [{"args": [], "expected": 1}]},
    "code": {"type": "assert", "code": "assert f('\ud800') == 1"},
    "check": {"type": "check", "entry": "f", "code": "def check(g):\n    assert g('\ud800') == 1"},
}


@pytest.mark.parametrize("reference", NOT_TEXT.values(), ids=NOT_TEXT)
def test_a_reference_that_is_no_text_costs_itself(verifier, reference):
    """A lone surrogate makes a reference that no program can pass: bad_reference, of this item only, and refused when a
    pack is checked."""
    good = Problem("good", "", {"type": "stdio", "cases": [{"input": "2", "output": "4"}]})
    pairs = [(Problem("bad", "", reference), "print(1)"), (good, "print(2 * int(input()))")]
    bad, other = verifier.verify_batch(pairs)
    assert (bad.status, other.status) == (Status.BAD_REFERENCE, Status.CORRECT)
    assert "surrogate" in bad.reason
    with pytest.raises(ValueError, match="surrogate"):
        verifier.check_reference(reference)


def test_an_input_of_bytes_that_are_no_text_is_read(verifier):
    """Surrogates that stand for bytes, as Python reads them from a file, stay what they are."""
    reference = {"type": "stdio", "cases": [{"input": "\udc80\0", "output": r"b'\x80\x00'"}]}
    assert verifier(Problem("p", "", reference), "import sys; print(sys.stdin.buffer.read())").correct
