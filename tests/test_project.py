"""What surrounds the code: the version, the workflow, `make setup`, benchmarks, the lists and helpers of the tests."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

import rlvr
from rlvr.commands.cli import main
from tests.helpers.files import ROOT, begin_with_long_tests, slow_tests

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def load(name: str) -> Any:
    return yaml.safe_load((ROOT / name).read_text())


def test_version_is_written_once(capsys: pytest.CaptureFixture[str]) -> None:
    """`rlvr --version` prints rlvr.__version__, which the package metadata is built from."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{rlvr.__version__}\n"
    assert "version" not in PYPROJECT["project"]
    assert PYPROJECT["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "rlvr.__version__"}


def test_workflow_runs_what_a_submission_must_pass() -> None:
    """The workflow runs .ci/run on the oldest version of Python, and the newer versions of the classifiers."""
    jobs = load(".github/workflows/ci.yml")["jobs"]
    assert {"run": ".ci/run"} in jobs["all"]["steps"]
    [oldest] = [step["with"]["python-version"] for step in jobs["all"]["steps"] if "with" in step]
    assert PYPROJECT["project"]["requires-python"] == f">={oldest}"
    named = {c.rpartition(" ")[2] for c in PYPROJECT["project"]["classifiers"] if "Python :: 3." in c}
    assert named == {oldest, *jobs["versions"]["strategy"]["matrix"]["python-version"]}


def test_no_conflict_of_a_merge_is_left() -> None:
    """Ruff sees those in Python files alone."""
    files = [path for path in ROOT.rglob("*.md") if not {".venv", "node_modules"} & set(path.relative_to(ROOT).parts)]
    assert ROOT / "sandbox" / "README.md" in files
    assert [path for path in files if re.search(r"^(<{7}|={7}|>{7})( |$)", path.read_text(), re.MULTILINE)] == []


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


HELP = """
import runpy, sys
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        assert not ended.code, path
"""


@pytest.mark.slow
def test_help_of_benchmarks_needs_no_peer() -> None:
    """From any folder, with an empty environment."""
    scripts = sorted(map(str, (ROOT / "benchmarks").rglob("*.py")))
    command = [sys.executable, "-c", HELP, *scripts]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd="/", env={"PATH": os.environ["PATH"]}, check=False
    )
    assert (done.returncode, done.stdout.count("usage:")) == (0, len(scripts)), done.stderr


def functions(file: str) -> set[str]:
    """Names of the test functions of a file below tests/."""
    tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@dataclass(frozen=True)
class Item:
    """A test of a name; those with a capital are long."""

    name: str

    def get_closest_marker(self, marker: str) -> bool:
        return marker == "early" and self.name.isupper()


def test_long_tests_begin_each_part():
    """In parts of equal size; the others stay in their order."""
    for names, processes, expected in (
        ("abcdeFGHi", 3, "FabGcdHei"),
        ("abFGHIc", 3, "FIGaHbc"),
        ("abc", 2, "abc"),
        ("", 3, ""),
    ):
        found = begin_with_long_tests([Item(name) for name in names], processes)
        assert "".join(item.name for item in found) == expected


def test_each_line_is_a_test_and_each_file_keeps_one():
    """A renamed test drops out of the list loudly; `make test` runs a part of every file with several tests."""
    whole: dict[str, set[str]] = {}
    for line, parts in slow_tests().items():
        file, name = line.split("::")
        assert name in functions(file), line
        if any(not first and marker != "early" for first, marker in parts):
            whole.setdefault(file, set()).add(name)
    assert [file for file, names in whole.items() if functions(file) <= names and len(names) > 1] == []
