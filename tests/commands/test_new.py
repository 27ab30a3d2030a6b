"""`rlvr new`: what it writes runs at once, and nothing of a user's is written over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.commands.new import KINDS
from tests.helpers.files import ROOT


def run(folder: Path, *command: str) -> str:
    """What a command prints in a folder; it must succeed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_its_test_and_is_accepted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "my_own"]) == 0
    assert "my_own.py and test_my_own.py written" in capsys.readouterr().out
    passed = run(tmp_path, "pytest", "-q", "-p", "no:cacheprovider", "test_my_own.py")
    assert " passed" in passed
    (tmp_path / "answers.jsonl").write_text('{"completion": "PARIS", "reference": "Paris", "expected": true}\n')
    (tmp_path / "numbers.jsonl").write_text("".join(f'{{"prompt": "{n}", "reference": "5"}}\n' for n in range(60)))
    small = ["--run.dry-run", "--run.out-dir", "run"]
    command = {
        "verifier": ["grade", "answers.jsonl", "--verifier", "my_own:my_own"],
        "pack": ["audit", "my_own:my_own"],
        "environment": [
            "train", "tiny_hops", "--run.environment", "my_own:my_own", "--run.task", "jsonl",
            "--run.data", "numbers.jsonl", "--sft.steps", "0", *small,
        ],
        "recipe": ["train", "my_own.py", *small],
    }  # fmt: skip
    said = run(tmp_path, "rlvr", *command[kind])
    expected = {"verifier": "1 correct", "pack": "200 train, 50 test", "environment": "dry run", "recipe": "dry run"}
    assert expected[kind] in said


def test_a_recipe_that_is_named_without_py_is_found_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name alone is that of a recipe that comes with rlvr."""
    monkeypatch.chdir(tmp_path)
    main(["new", "recipe", "my_own"])
    assert main(["train", "my_own"]) == 2
    assert "no recipe 'my_own'; name the file, my_own.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["verifier", "my-check"], "expected a Python name in lower case"),
        (["verifier", "class"], "expected a Python name in lower case"),
        (["verifier", "taken"], "taken.py exists"),
        (["pak", "x"], "pack"),
        (["pack"], "NAME must be given"),
    ],
)
def test_bad_names_are_one_line_and_nothing_is_written(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken.py").write_text("mine = 1\n")
    assert main(["new", *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"taken.py": "mine = 1\n"}
