"""Pairs of programs that differ in one place: the right one is called right, the wrong one is not.

golden/honest_pairs.jsonl holds `id`, `reference`, `completion` and `wrong` of each: asyncio, mocks, callbacks, threads,
generators, context managers and objects of the tests, in the styles of pytest, unittest and plain asserts.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.types import Problem, Status
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.files import GOLDEN
from tests.helpers.programs import LEVELS, available

ROWS: list[dict[str, Any]] = [json.loads(line) for line in (GOLDEN / "honest_pairs.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("level", LEVELS)
def test_a_right_program_is_told_from_one_that_is_almost_right(level: int) -> None:
    """Each pair, at each level that the machine offers."""
    available(level)
    pairs = [(Problem(row["id"], "", row["reference"]), row[kind]) for row in ROWS for kind in ("completion", "wrong")]
    verifier = UnitTests(level=level, slots=2)
    try:
        verdicts = verifier.verify_batch(pairs)
    finally:
        verifier.close()
    right = {row["id"]: verdict.reason for row, verdict in zip(ROWS, verdicts[::2]) if not verdict.correct}
    wrong = [row["id"] for row, verdict in zip(ROWS, verdicts[1::2]) if verdict.status is not Status.INCORRECT]
    assert (right, wrong) == ({}, [])


def test_pytest_says_the_same(tmp_path: Path) -> None:
    """In one process, without any sandbox, the right programs pass these tests and the others do not."""
    for number, row in enumerate(ROWS):
        for kind in ("completion", "wrong"):
            (tmp_path / f"test_{number}_{kind}.py").write_text(f"{row[kind]}\n{row['reference']['code']}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", "--tb=no", "-rA"]
    told = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path).stdout
    failed = set(re.findall(r"(?:FAILED|ERROR) \S*test_(\d+_\w+)\.py", told))
    assert failed == {f"{number}_wrong" for number in range(len(ROWS))}, told[-2000:]
