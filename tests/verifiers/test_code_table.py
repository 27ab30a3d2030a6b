"""Tests of many styles, with programs that forge and programs that are right: golden/test_code.jsonl.

Each row holds `id`, `class`, `reference`, and `wrong` or `right` or both: programs that must not be
called right by strong tests, and programs that must be called right; `integrity` is what the reference is called.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from rlvr.core.types import Problem
from rlvr.verifiers.unit_tests import UnitTests, integrity
from tests.helpers.files import GOLDEN
from tests.helpers.programs import runs_programs

ROWS = [json.loads(line) for line in (GOLDEN / "test_code.jsonl").read_text().splitlines()]
CLASSES = sorted({row["class"] for row in ROWS})


def strength(reference: dict[str, Any]) -> str:
    """The integrity of a reference, or that it cannot be used."""
    try:
        return integrity(reference)
    except ValueError:
        return "refused"


@runs_programs
@pytest.mark.parametrize("kind", CLASSES)
def test_right_programs_pass_and_forged_ones_do_not(verifier: UnitTests, kind: str):
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


def test_the_integrity_of_tests_of_many_styles():
    """What is looked at by the tests alone."""
    assert {row["id"]: strength(row["reference"]) for row in ROWS} == {row["id"]: row["integrity"] for row in ROWS}
