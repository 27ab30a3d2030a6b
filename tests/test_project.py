"""What surrounds the code: the version, the workflow, the hooks, the issue forms."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import rlvr
from rlvr.commands.cli import main

ROOT = Path(__file__).resolve().parent.parent
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


def test_hooks_are_the_checks_of_make() -> None:
    """Each program of `make check` is a hook that runs before a commit."""
    hooks = [hook["entry"] for repo in load(".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    programs = ("ruff check", "ruff format", "mypy")
    assert [entry.split(" --")[0] for entry in hooks] == [f".venv/bin/{program}" for program in programs]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"$(BIN)/{program}" in makefile for program in ("ruff check .", "ruff format --check .", "mypy"))


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem)
def test_issue_forms_have_what_a_form_needs(path: Path) -> None:
    """Name, description, and fields with an id and a label, the required ones among them."""
    form = yaml.safe_load(path.read_text())
    assert form["name"]
    assert form["description"]
    assert all(field["id"] and field["attributes"]["label"] for field in form["body"])
    assert any(field.get("validations", {}).get("required") for field in form["body"])
