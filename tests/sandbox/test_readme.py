"""sandbox/README.md: its example runs, and the tables name every file there is."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from rlvr.sandbox import level
from tests.helpers.files import ROOT, find_blocks

README = ROOT / "sandbox" / "README.md"
INSIDE = ROOT / "sandbox" / "wire" / "README.md"


@pytest.mark.skipif(level().number < 2, reason="no sandbox of level 2 on this machine")
def test_the_example_runs(tmp_path):
    """As a script of its own; its assertions are what the README promises."""
    (script,) = find_blocks(README)
    (tmp_path / "example.py").write_text(script)
    command = [sys.executable, str(tmp_path / "example.py")]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, timeout=120)
    assert (done.returncode, done.stdout) == (0, f"level {level().number}\n"), done.stderr


def test_every_file_is_named():
    """The table of files is complete."""
    named = {name for path in (README, INSIDE) for name in re.findall(r"(\w+\.py)`", path.read_text())}
    files = {path.name for path in (ROOT / "sandbox").rglob("*.py")} - {"__init__.py"}
    assert files <= named, files - named
