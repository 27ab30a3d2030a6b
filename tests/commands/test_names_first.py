"""Names are resolved before torch is imported, which takes seconds: a wrong one is told at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rlvr.commands.cli import COMMANDS
from tests.bad_files import lay_out, read_golden
from tests.helpers.files import ROOT

HEAVY = ("torch", "transformers", "datasets", "accelerate")
WRONG = dict(read_golden("wrong_names.txt"))
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
def test_a_wrong_name_is_told_before_torch_is_imported(command, answers):
    """Exit code 2, one line that says what is wrong, and nothing that takes seconds was imported for it."""
    code, line = answers[command]
    assert code == "2", line
    assert line.startswith("error: ")
    assert WRONG[command] in line


def test_every_command_is_asked():
    """A new command gets a line in the table."""
    without_names = {"doctor", "completion"}
    assert set(COMMANDS) - {command.split()[0] for command in WRONG} - without_names == set()
