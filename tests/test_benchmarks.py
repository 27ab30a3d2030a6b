"""The scripts of tests/bench: each answers --help without what it compares with."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "tests" / "bench").rglob("*.py"))
NAMES = [path.relative_to(ROOT).as_posix() for path in SCRIPTS]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_help_needs_no_peer(name: str) -> None:
    """From any folder, with an empty environment."""
    done = subprocess.run(
        [sys.executable, str(ROOT / name), "--help"],
        capture_output=True,
        text=True,
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stdout.startswith("usage:")) == (0, True), done.stderr
