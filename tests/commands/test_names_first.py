"""Names are resolved before torch is imported, which takes seconds: a wrong one is told at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlvr.commands.cli import COMMANDS
from tests.bad_files import lay_out
from tests.helpers.files import ROOT

HEAVY = ("torch", "transformers", "datasets", "accelerate")
# What is wrong in a command line, and words of the line that says so.
WRONG = {
    "train tiny_math --run.task nosuch": "no task 'nosuch'",
    "train tiny_math --run.task mine:nosuch": "has no 'nosuch'",
    "train tiny_math --run.task jsonl": "needs data",
    "train tiny_math --run.task jsonl --run.data nowhere.jsonl": "no such file",
    "train tiny_math --run.task-option num_trian=3": "did you mean num_train?",
    "train tiny_math --run.task-option num_train=few": "whole number",
    "train tiny_math --run.verifier nosuch": "no verifier 'nosuch'",
    "train tiny_math --run.verifier math --run.verifier-option extrakt=strict": "did you mean extract?",
    "train tiny_math --run.environment nosuch": "no environment 'nosuch'",
    "train tiny_math --monitor nosuch": "no verifier 'nosuch'",
    "train tiny_math --monitor math --monitor.verifier-option extrakt=strict": "did you mean extract?",
    "train tiny_math --run.trackers nosuch": "run.trackers 'nosuch'",
    "train tiny_math --run.start-from nosuch": "no such folder",
    "train tiny_math --sft.data nosuch.jsonl": "nosuch.jsonl",
    "train tiny_math --curriculum.profile nosuch.jsonl": "nosuch.jsonl",
    "train tiny_math --model.name": "expected a value",
    "train tiny_math --model.name ./nosuch": "no such folder",
    "train tiny_math --model.name nosuch/nosuch": "cannot be reached",
    "train tiny_math --model.device cuda": "no CUDA GPU here",
    "train tiny_math --model.device mps": "Apple",
    "train tiny_math --algo nosuch": "'nosuch'",
    "train tiny_math --sampler nosuch": "'nosuch'",
    "train nosuch": "no recipe 'nosuch'",
    "train": "name a recipe first",
    "sft": "name a recipe first",
    "sft tiny_math --run.task nosuch": "no task 'nosuch'",
    "rm": "name a recipe first",
    "rm rm_pairs --pairs.task nosuch": "no task 'nosuch'",
    "rm rm_pairs --pairs.verifier nosuch": "no verifier 'nosuch'",
    "rm rm_pairs --pairs.policy ./nosuch": "no such folder",
    "rm rm_pairs --pairs.file nosuch.jsonl --model.name tiny": "nosuch.jsonl",
    "rm rm_pairs --model.device cuda:1": "no CUDA GPU here",
    "pipeline": "name a recipe first",
    "pipeline instructgpt --set nosuch.run.seed=1": "no stage 'nosuch'",
    "pipeline instructgpt --set ppo.run.verifier=nosuch": "no verifier 'nosuch'",
    "pipeline instructgpt --set ppo.monitor=nosuch": "no verifier 'nosuch'",
    "pipeline instructgpt --set sft.run.task=nosuch": "no task 'nosuch'",
    "pipeline instructgpt --model ./nosuch": "no such folder",
    "verify-resume tiny_math --run.task nosuch": "no task 'nosuch'",
    "verify-resume tiny_math --model.device cuda": "no CUDA GPU here",
    "verify-resume tiny_math --monitor nosuch": "no verifier 'nosuch'",
    "show-prompt tiny_math --run.task nosuch": "no task 'nosuch'",
    "show-prompt tiny_math --model.name ./nosuch": "no such folder",
    "doctor --plan nosuch": "no recipe 'nosuch'",
    "doctor --plan tiny_math --run.task nosuch": "no task 'nosuch'",
    "eval --model tiny --task nosuch": "no task 'nosuch'",
    "eval --model tiny --task arithmetic --verifier nosuch": "no verifier 'nosuch'",
    "eval --model tiny --task arithmetic --samples 2 --k 2 --selector nosuch": "no verifier 'nosuch'",
    "eval --model tiny --task arithmetic --environment nosuch": "no environment 'nosuch'",
    "eval --model tiny --task arithmetic --device cuda": "no CUDA GPU here",
    "eval --model ./nosuch --task arithmetic": "no such folder",
    "eval --model nosuch/nosuch --task arithmetic": "cannot be reached",
    "eval --model tiny": "--task must be given",
    "profile nosuch --model tiny": "no task 'nosuch'",
    "sample --task nosuch --model tiny": "no task 'nosuch'",
    "audit nosuch": "no task 'nosuch'",
    "grade nowhere.jsonl --verifier nosuch": "no verifier 'nosuch'",
    "regrade nosuch": "nosuch",
    "export nosuch out": "nosuch",
    "push nosuch me/model": "nosuch",
    "merge nosuch out": "nosuch",
    "serve": "MODEL must be given",
    "serve ./nosuch": "no such folder",
    "serve ./nosuch --device cuda": "no CUDA GPU here",
    "list nosuch": "nosuch",
    "report nosuch": "nosuch",
    "compare nosuch": "nosuch",
    "watch nosuch": "nosuch",
    "completion nosuch": "nosuch",
}
PROGRAM = """
import shlex, sys
from pathlib import Path
from rlvr.commands import machine
from rlvr.commands.cli import main
machine.CUDA_DRIVER, machine.ROCM = "nosuch.so", Path("nosuch")  # as on a machine without a GPU
for command in sys.stdin.read().splitlines():
    before = set(sys.modules)
    code = main(shlex.split(command))
    print(code, *sorted(set({heavy!r}) & set(sys.modules) - before), flush=True)
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """For each command its exit code with what was imported by then, and the line on stderr; all in one process."""
    folder = tmp_path_factory.mktemp("names")
    lay_out(folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(folder)}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(heavy=HEAVY)],
        input="\n".join(WRONG),
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=280,
    )
    codes, lines = done.stdout.splitlines(), done.stderr.splitlines()
    assert len(codes) == len(lines) == len(WRONG), done.stdout + done.stderr
    return dict(zip(WRONG, zip(codes, lines, strict=True), strict=True))


@pytest.mark.parametrize("command", WRONG)
def test_a_wrong_name_is_told_before_torch_is_imported(command: str, answers: dict[str, tuple[str, str]]) -> None:
    """Exit code 2, one line that says what is wrong, and nothing that takes seconds was imported for it."""
    code, line = answers[command]
    assert code == "2", line
    assert line.startswith("error: ")
    assert WRONG[command] in line


def test_every_command_is_asked() -> None:
    """A new command gets a line in the table."""
    without_names = {"doctor", "completion"}
    assert set(COMMANDS) - {command.split()[0] for command in WRONG} - without_names == set()
