"""The scripts of tests/bench: each says how long it takes, and answers --help without what it compares with."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted((ROOT / "tests" / "bench").rglob("*.py"))
NAMES = [path.relative_to(ROOT).as_posix() for path in SCRIPTS]


@pytest.mark.parametrize("name", NAMES)
def test_it_says_how_long_it_takes(name: str) -> None:
    """In a sentence of the docstring, for two cores, and it is in the table of the README."""
    text = ast.get_docstring(ast.parse((ROOT / name).read_text(encoding="utf-8"))) or ""
    assert re.search(r"Takes (about |up to )?[\w ]*(seconds?|minutes?|hours?|an hour)\b", text), name
    readme = (ROOT / "tests" / "bench" / "README.md").read_text(encoding="utf-8")
    assert f"`{name.removeprefix('tests/bench/')}`" in readme


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
