"""The notebooks in recipes/: stripped of outputs, formatted, and run from top to bottom."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.files import ROOT, lines

NOTEBOOKS = sorted((ROOT / "recipes").glob("*.ipynb"))
SECONDS = 120  # of processor time


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


def code(path: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def run_cells(path: Path) -> dict[str, Any]:
    """Run the code cells in order, as a kernel does, in one namespace; return it."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for number, text in enumerate(code(path)):
        exec(compile(text, f"{path.name}, code cell {number}", "exec"), names)
    return names


def test_there_is_a_notebook() -> None:
    assert "first_run.ipynb" in [path.name for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_outputs_are_stripped(path: Path) -> None:
    """No output, no number of an execution, nothing of an editor; ids are there and differ, as nbformat 4.5 asks."""
    book = read(path)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert set(book["metadata"]) == {"kernelspec", "language_info"}
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    for cell in book["cells"]:
        assert cell["metadata"] == {}
        if cell["cell_type"] == "code":
            assert (cell["execution_count"], cell["outputs"]) == (None, [])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_cells_are_checked_as_modules_are(path: Path) -> None:
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run([sys.executable, "-m", "ruff", *command, path], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stdout


def test_the_first_run_runs(tmp_path, monkeypatch, capsys):
    """Verifier, training, report and pass@k, in under two minutes of processor time."""
    monkeypatch.chdir(tmp_path)
    before = time.process_time()
    names = run_cells(ROOT / "recipes" / "first_run.ipynb")
    assert time.process_time() - before < SECONDS
    folder = tmp_path / "runs" / "notebook"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert [row["step"] for row in names["evaluations"]] == [0, 10]
    assert len(lines(folder / "metrics.jsonl")) == 10
    printed = capsys.readouterr().out
    assert "no_answer" in printed
    assert "8 of 8 samples right: [1.0, 1.0, 1.0, 1.0]" in printed
    assert printed.count("pass@8") >= 2
