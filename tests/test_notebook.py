"""The notebooks in recipes/: stripped of outputs, formatted, and run from top to bottom."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.registry import VERIFIERS
from tests.helpers.files import ROOT, lines
from tests.helpers.notebooks import read, run_cells

NOTEBOOKS = sorted((ROOT / "recipes").glob("*.ipynb"))
SECONDS = 300  # of processor time


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


def check_that_it_learned(evaluations: Sequence[Mapping[str, Any]]) -> None:
    """Held-out pass@1 ends above the 95 % interval of the start's."""
    first, last = evaluations[0], evaluations[-1]
    assert last["pass@1"] > first["pass@1_ci"][1], f"pass@1 {first['pass@1']:.3f} -> {last['pass@1']:.3f}"


@pytest.mark.parametrize("last", [0.0, 0.13, 0.2])
def test_a_run_that_does_not_learn_fails(last):
    """One that unlearns, one that stays where it was, and one that moves within the interval."""
    start = {"pass@1": 0.13, "pass@1_ci": [0.08, 0.22]}
    with pytest.raises(AssertionError):
        check_that_it_learned([start, {"pass@1": last, "pass@1_ci": [last, last]}])


@pytest.mark.timeout(1200)
def test_the_first_run_learns(tmp_path, monkeypatch, capsys):
    """Verifier, training after which held-out pass@1 is higher, report and pass@k, in minutes of processor time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(VERIFIERS, "_entries", dict(VERIFIERS._entries))  # what it registers is gone afterwards
    before = time.process_time()
    names = run_cells(ROOT / "recipes" / "first_run.ipynb")
    assert time.process_time() - before < SECONDS
    folder = tmp_path / "runs" / "notebook"
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    assert [row["step"] for row in names["evaluations"]] == [0, 20]
    check_that_it_learned(names["evaluations"])
    assert len(lines(folder / "metrics.jsonl")) == 20
    printed = capsys.readouterr().out
    assert "no_answer" in printed
    assert "8 of 8 samples right: [1.0, 1.0, 1.0, 1.0]" in printed
    assert printed.count("pass@8") >= 2
