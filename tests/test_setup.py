"""`make setup`: which Python it takes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.helpers.files import ROOT


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_setup_checks_the_version_of_python_first(tmp_path):
    """Python 3.10 is refused in one line, before an environment is made; so is one that is not there."""
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    code = 'import sys; sys.version_info = (3, 10, 4, "final", 0); exec(sys.argv[1])'
    fake.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} -c \'{code}\' "$2"\necho made an environment\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    for more, found in (((), "python3 is Python 3.10;"), (("PYTHON=python3.99",), "no python3.99 found;")):
        command = ["make", "--no-print-directory", "setup", f"VENV={tmp_path / 'venv'}", *more]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=60)
        assert done.returncode != 0
        errors = [text for text in done.stderr.splitlines() if text.startswith("error: ")]
        assert len(errors) == 1
        for words in (found, "rlvr needs", "3.11 or newer", "make setup PYTHON=python3.12"):
            assert words in errors[0]
        assert "made an environment" not in done.stdout
    assert not (tmp_path / "venv").exists()
