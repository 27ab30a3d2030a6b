"""tests/README.md: its example is a test file that passes."""

from __future__ import annotations

import subprocess
import sys

from tests.helpers.files import ROOT, fenced


def test_the_example_passes(tmp_path):
    """Put into a file and run by pytest with this repository's settings."""
    (example,) = fenced(ROOT / "tests" / "README.md")
    (tmp_path / "test_example.py").write_text(example)
    options = ["-q", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path / "test_example.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_every_folder_is_named():
    """The table of folders is complete."""
    text = (ROOT / "tests" / "README.md").read_text()
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert [name for name in sorted(folders) if f"`{name}`" not in text and f"`{name}/`" not in text] == []
