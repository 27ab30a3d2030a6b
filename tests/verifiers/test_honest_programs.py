"""Programs that only an honest author would write are called right, at every level.

golden/honest_programs.jsonl holds `id`, `reference` and `completion` of each, as `rlvr grade` reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.types import Problem
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.files import GOLDEN
from tests.helpers.programs import LEVELS, available


def wrong(rows: list[dict[str, Any]], level: int) -> dict[str, str]:
    """The reasons why programs are not called right, by their ids."""
    verifier = UnitTests(level=level, slots=2)
    try:
        pairs = [(Problem(row["id"], "", row["reference"]), row["completion"]) for row in rows]
        verdicts = verifier.verify_batch(pairs)
    finally:
        verifier.close()
    return {row["id"]: verdict.reason for row, verdict in zip(rows, verdicts) if not verdict.correct}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("level", LEVELS)
def test_honest_programs_are_called_right(level: int) -> None:
    """Each row, at each level that the machine offers."""
    available(level)
    assert wrong(rows_of(GOLDEN / "honest_programs.jsonl"), level) == {}
