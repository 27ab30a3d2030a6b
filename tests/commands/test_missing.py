"""A run whose verifier misses a program ends at once, before anything is trained; the recipe of proofs runs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import pytest

from rlvr.commands.cli import main
from rlvr.commands.verifier_runners import open_runners
from tests.helpers.files import lines

SMALL = (
    "--sft.steps 2 --sft.batch-size 4 --model.tiny-layers 1 --model.tiny-width 32 --eval.num-problems 2 "
    "--eval.samples 2 --eval.k 1 --run.steps 1 --rollout.problems-per-step 2 --rollout.group-size 2 --run.save-every 1 "
    "--rollout.workers 1 --run.task-option kinds=rules slip=0.2 num_train=8 num_test=4 num_demonstrations=16"
).split()


class Needs:
    """A verifier that says what it misses."""

    isolate = False

    def __init__(self, line: str, parts: Mapping[str, Any] | None = None) -> None:
        self.line = line
        self.components = parts or {}

    def find_missing(self) -> str:
        """Return the line."""
        return self.line

    def __call__(self, problem: object, completion: str) -> bool:
        return True

    def problem_for(self, name: str, problem: Any) -> Any:
        """Every part sees it."""
        return problem

    def merge(self, verdicts: Mapping[str, Any]) -> bool:
        """Any verdict."""
        return True


@pytest.mark.parametrize(
    ("verifier", "selector"),
    [
        (Needs("no prover; install it"), None),
        (Needs("", {"a": Needs(""), "b": Needs("", {"c": Needs("no prover; install it")})}), None),
        (Needs(""), Needs("no prover; install it")),
    ],
)
def test_what_any_part_misses_ends_the_command(verifier, selector):
    with (
        pytest.raises(ValueError, match=r"^no prover; install it$"),
        open_runners(verifier, selector, workers=1, timeout=5),
    ):
        pytest.fail("the runners were opened")


def test_with_nothing_missing_runners_open():
    with open_runners(Needs("", {"a": Needs("")}), workers=1, timeout=5) as runners:
        assert list(runners) == ["verifier"]


def test_without_the_prover_nothing_is_trained(tmp_path, monkeypatch, capsys):
    """One line, exit code 2, no fine-tuning."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["train", "tiny_proof", *SMALL, "--run.out-dir", str(tmp_path / "run")]) == 2
    said = capsys.readouterr()
    assert said.err == "error: coqc is not on PATH; install Coq (apt install coq)\n"
    assert "fine-tuning" not in said.out
    assert not (tmp_path / "run" / "start").exists()


@pytest.mark.skipif(shutil.which("coqc") is None, reason="Coq is not installed (apt install coq)")
def test_the_recipe_of_proofs_trains_with_the_verdicts_of_the_prover(tmp_path):
    """At this size no script is right: the prover, or the reader of scripts, says why."""
    assert main(["train", "tiny_proof", *SMALL, "--run.out-dir", str(tmp_path)]) == 0
    rows = [row for row in lines(tmp_path / "rollouts.jsonl") if row["step"] == 1]
    assert len(rows) == 4
    assert {row["status"] for row in rows} <= {"incorrect", "unparseable", "no_answer"}
