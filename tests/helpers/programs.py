"""Programs in the sandbox: levels that this machine offers, what a run printed, and unit tests as references."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.types import Problem, Verdict
from rlvr.sandbox import Job, Limits, Pool, Result, RunStatus, level
from rlvr.verifiers.unit_tests import UnitTests
from tests.helpers.files import read_program

LEVELS = [3, 2]

runs_programs = pytest.mark.skipif(
    sys.platform != "linux" or level().number < 2, reason="programs cannot be isolated here"
)

ADD = "assert add(2, 3) == 5\nassert add(-1, 1) == 0\nassert add(10, 20) == 30\n"


def read_programs(table: str) -> dict[str, str]:
    """Return the programs of a table in tests/golden/programs by name: each below a line `### name`."""
    blocks = f"\n{read_program(table)}".removesuffix("\n").split("\n### ")[1:]
    return dict(block.split("\n", 1) for block in blocks)  # type: ignore[misc]


def make_files() -> Any:
    """Return the module that makes files of HumanEval and MBPP."""
    path = Path(__file__).parents[1] / "reference" / "make_code_files.py"
    spec = importlib.util.spec_from_file_location("make_code_files", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def available(number: int) -> None:
    """Skip the test unless this machine offers a sandbox level."""
    if level().number < number:
        pytest.skip(f"this machine gives sandbox level {level().number}: {' '.join(level().missing)}")


def outcome(pool: Pool, program: str, stdin: str = "", **limits: float) -> Result:
    """Run a program, by default for at most five seconds."""
    return pool.run(Job(program, stdin, limits=Limits(**{"seconds": 5.0, **limits})))  # type: ignore[arg-type]


def prints_only(pool: Pool, program: str, expected: str) -> None:
    """Check that a program ends well after printing `expected`."""
    result = outcome(pool, program)
    assert (result.stdout, result.status) == (expected, RunStatus.OK), result.stderr


def asserts(code: str, **more: str) -> dict[str, Any]:
    """Return a reference of assert tests."""
    return {"type": "assert", "code": code, **more}


def verdict(verifier: UnitTests, reference: Any, program: str) -> Verdict:
    """Return the verdict on a program; a text as reference is the code of assert tests."""
    reference = asserts(reference) if isinstance(reference, str) else reference
    return verifier(Problem("p", "", reference), program)


def passes(verifier: UnitTests, reference: Any, program: str) -> bool:
    """Whether a program is called right."""
    return verdict(verifier, reference, program).correct
