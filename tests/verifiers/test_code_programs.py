"""Programs that forge and programs that are right, from tables in tests/golden. Each row holds a `reference`, and:

test_code.jsonl       `class`, `integrity`; `wrong` must not pass strong tests, `right` must pass
forgeries.jsonl       `completion`; `expected`: whether it is right
honest_pairs.jsonl    `completion` is right, `wrong` differs in one place and is not
honest_programs.jsonl `completion` is right
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.types import Problem, Status
from rlvr.verifiers.unit_tests import UnitTests, integrity
from tests.helpers.files import GOLDEN, lines
from tests.helpers.programs import LEVELS, asserts, available, passes, runs_programs

ROWS = lines(GOLDEN / "test_code.jsonl")
FORGERIES = lines(GOLDEN / "forgeries.jsonl")
PAIRS = lines(GOLDEN / "honest_pairs.jsonl")
HONEST = lines(GOLDEN / "honest_programs.jsonl")


def strength(reference: dict[str, Any]) -> str:
    """The integrity of a reference, or that it cannot be used."""
    try:
        return integrity(reference)
    except ValueError:
        return "refused"


@runs_programs
@pytest.mark.parametrize("kind", sorted({row["class"] for row in ROWS}))
def test_right_programs_pass_and_forged_ones_do_not(verifier: UnitTests, kind: str) -> None:
    """Arguments overwritten or changed on purpose, runners of tests, objects and exceptions, what is shared."""
    pairs = [(row, which) for row in ROWS if row["class"] == kind for which in ("wrong", "right") if which in row]
    verdicts = verifier.verify_batch([(Problem(row["id"], "", row["reference"]), row[which]) for row, which in pairs])
    found = {
        f"{row['id']} ({which})": verdict.reason
        for (row, which), verdict in zip(pairs, verdicts, strict=True)
        if verdict.correct is not (which == "right") and (which == "right" or strength(row["reference"]) == "strong")
    }
    assert found == {}
    assert len(pairs) > 20


@runs_programs
def test_the_integrity_of_tests_of_many_styles() -> None:
    """What is looked at by the tests alone."""
    assert {row["id"]: strength(row["reference"]) for row in ROWS} == {row["id"]: row["integrity"] for row in ROWS}


@runs_programs
def test_forgeries_pass_no_strong_tests(verifier: UnitTests) -> None:
    """What runs in one process with the tests can forge, and is weak; the programs that are right all pass."""
    strong = [row for row in FORGERIES if integrity(row["reference"]) == "strong"]
    rows = [row for row in FORGERIES if row["expected"] or row in strong]
    verdicts = verifier.verify_batch([(Problem("p", "", row["reference"]), row["completion"]) for row in rows])
    wrong = [(row["reference"], v.reason) for row, v in zip(rows, verdicts) if v.correct != row["expected"]]
    assert wrong == []
    assert sum(not row["expected"] for row in strong) > 160


@pytest.mark.parametrize("level", LEVELS)
def test_a_right_program_is_told_from_one_that_is_almost_right(level: int) -> None:
    """Each pair, and each program that only an honest author would write, at each level that the machine offers."""
    available(level)
    rows = [(row, row["completion"]) for row in (*PAIRS, *HONEST)] + [(row, row["wrong"]) for row in PAIRS]
    verifier = UnitTests(level=level, slots=2)
    try:
        verdicts = verifier.verify_batch([(Problem(row["id"], "", row["reference"]), text) for row, text in rows])
    finally:
        verifier.close()
    count = len(PAIRS) + len(HONEST)
    assert {row["id"]: v.reason for (row, _), v in zip(rows[:count], verdicts) if not v.correct} == {}
    assert [row["id"] for (row, _), v in zip(rows[count:], verdicts[count:]) if v.status is not Status.INCORRECT] == []


def test_pytest_says_the_same(tmp_path: Path) -> None:
    """In one process, without any sandbox, the right programs pass these tests and the others do not."""
    for number, row in enumerate(PAIRS):
        for kind in ("completion", "wrong"):
            (tmp_path / f"test_{number}_{kind}.py").write_text(f"{row[kind]}\n{row['reference']['code']}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--tb=no", "-rA"]
    output = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path).stdout
    failed = set(re.findall(r"(?:FAILED|ERROR) \S*test_(\d+_\w+)\.py", output))
    assert failed == {f"{number}_wrong" for number in range(len(PAIRS))}, output[-2000:]


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
    code = "import random\nfor _ in range(5):\n    xs = random.sample(range(9), 4)\n"
    for rest in ("    assert total(xs) == sum(xs) + 1", "    want = sum(xs) + 1\n    assert total(xs) == want"):
        assert integrity(asserts(code + rest)) == "strong"
        assert passes(verifier, code + rest, "def total(xs): return sum(xs) + 1")
        assert passes(verifier, code + rest, "def total(xs): return xs.sort() or sum(xs) + 1")
        assert not passes(verifier, code + rest, "def total(xs):\n    xs.clear()\n    return 1")


# Two tests, of which a constant 4 passes one only.
ALL_RUN = {
    "a method of the same name": "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n"
    "        self.assertEqual(f(2), 4)\ndef test_a():\n    assert f(3) == 9",
    "an inner function of the same name": "def test_a():\n    def test_b():\n        assert f(2) == 4\n    test_b()\n"
    "def test_b():\n    assert f(3) == 9",
    "parameters, called by hand": "import pytest\n@pytest.mark.parametrize('n', [2, 3])\ndef test_a(n):\n"
    "    assert f(n) == n * n\ntest_a(2)",
    "a default, called by hand": "def test_a(n=3):\n    assert f(n) == n * n\ntest_a(2)",
    "an inner class": "class TestF:\n    class TestInner:\n        def test_a(self):\n            assert f(3) == 9\n"
    "    def test_b(self):\n        assert f(2) == 4",
}


@runs_programs
@pytest.mark.parametrize("code", ALL_RUN.values(), ids=ALL_RUN)
def test_every_test_is_run(verifier: UnitTests, code: str) -> None:
    """Whatever another one of its name, or the code itself, has run."""
    assert passes(verifier, code, "def f(n): return n * n")
    assert not passes(verifier, code, "def f(n): return 4")
