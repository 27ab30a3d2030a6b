"""`rlvr verify-resume`: a killed and resumed run against an unbroken one, and what is said where they differ."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlvr.commands.cli import main as rlvr
from rlvr.commands.verify_resume import compare_runs
from tests.helpers.files import ROOT

QUICK = (
    "--run.task-option num_train=64 num_test=8 num_demonstrations=64 --sft.steps 2 --run.steps 3 --kill-after 2 "
    "--rollout.problems-per-step 2 --rollout.group-size 4 --rollout.max-new-tokens 8 --eval.every -1"
).split()


@pytest.mark.slow
def test_a_recipe_is_resumed_byte_for_byte(tmp_path, capfd):
    """Killed after its second step; a changed copy of the resumed run is told from the whole one."""
    base = tmp_path / "both"
    assert rlvr(["verify-resume", "tiny_math", *QUICK, "--run.out-dir", str(base)]) == 0
    shown = capfd.readouterr().out
    assert "the resumed run is the same, byte for byte" in shown
    for name in ("model.safetensors", "optimizer.safetensors", "rollouts.jsonl", "metrics.jsonl"):
        assert f"{name} " in shown
    assert "resuming from step" in (base / "resumed.log").read_text()
    assert "training 3/3" not in (base / "killed.log").read_text()
    with pytest.raises(AssertionError):
        check_same(base / "whole", spoil(base / "resumed"))


def check_same(one: Path, other: Path) -> None:
    assert not any(difference for _, difference in compare_runs(one, other, 3))


def spoil(run: Path) -> Path:
    path = run / "checkpoints" / "step-000003" / "model.safetensors"
    weights = load_file(path)
    next(iter(weights.values())).view(-1)[0] += 1e-3
    save_file(weights, path)
    return run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two equal runs of two steps."""
    one, other = tmp_path / "one", tmp_path / "other"
    folder = one / "checkpoints" / "step-000002"
    folder.mkdir(parents=True)
    save_file({"a": torch.zeros(3), "b": torch.ones(2, 2)}, folder / "model.safetensors")
    save_file({"a.exp_avg": torch.zeros(3)}, folder / "optimizer.safetensors")
    rows = [{"step": step, "reward": 0.5, "seconds/train": 1.0, "tokens_per_second": 7.0} for step in (1, 2)]
    (one / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (one / "rollouts.jsonl").write_text('{"step": 1, "completion": "x"}\n{"step": 2, "completion": "y"}\n')
    shutil.copytree(one, other)
    return one, other


def differences(runs: tuple[Path, Path]) -> dict[str, str]:
    return {name: difference for name, difference in compare_runs(*runs, 2) if difference}


def test_equal_runs(runs):
    """Nothing differs, and everything that there is was compared; durations are not."""
    text = (runs[1] / "metrics.jsonl").read_text()
    (runs[1] / "metrics.jsonl").write_text(text.replace("1.0", "2.5").replace("7.0", "9.0"))
    names = [name for name, _ in compare_runs(*runs, 2)]
    assert differences(runs) == {}
    assert names[:2] == ["model.safetensors", "optimizer.safetensors"]


@pytest.mark.parametrize("change", ["value", "shape", "name", "gone", "type"])
def test_other_weights_are_told(runs, change):
    """Which tensor, and by how much."""
    path = runs[1] / "checkpoints" / "step-000002" / "model.safetensors"
    weights = load_file(path)
    expected = {
        "value": "1 of 2 tensors differ, b by up to 0.25",
        "shape": "b has another shape",
        "name": "other tensors: c",
        "gone": f"{path} is missing",
        "type": "equal tensors in other bytes",
    }
    if change == "value":
        weights["b"][1, 0] += 0.25
    elif change == "shape":
        weights["b"] = torch.ones(4)
    elif change == "name":
        weights["c"] = torch.ones(1)
    path.unlink()
    if change != "gone":
        save_file(weights, path, metadata={"x": "y"} if change == "type" else None)
    assert differences(runs) == {"model.safetensors": expected[change]}


@pytest.mark.parametrize(
    "file, old, new, expected",
    [
        ("rollouts.jsonl", '"y"', '"z"', "line 2: completion is 'y', resumed 'z'"),
        ("rollouts.jsonl", '{"step": 2, "completion": "y"}\n', "", "line 2 is only in the whole run"),
        (
            "metrics.jsonl",
            '{"step": 1, "reward": 0.5',
            '{"step": 1, "reward": 0.25',
            "line 1: reward is 0.5, resumed 0.25",
        ),
    ],
)
def test_other_lines_are_told(runs, file, old, new, expected):
    """The first line that differs, and in what."""
    path = runs[1] / file
    path.write_text(path.read_text().replace(old, new))
    assert differences(runs) == {file: expected}


def test_a_run_that_fails_is_named(tmp_path, capsys):
    """With its last line, which is in a file; exit code 2."""
    recipe = tmp_path / "broken.py"
    recipe.write_text(
        "from rlvr.recipes.tiny_math import CONFIG\n\ndef main(config=CONFIG):\n    raise ValueError('no such luck')\n"
    )
    assert rlvr(["verify-resume", str(recipe), "--run.out-dir", str(tmp_path / "both")]) == 2
    assert "the run ended with code 2: error: no such luck" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_under_way(tmp_path, number):
    """It is in a session of its own, which the signal does not reach."""
    program = tmp_path / "train"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 120\n")
    program.chmod(0o755)
    call = "import sys; from rlvr.commands.verify_resume import main; sys.executable = sys.argv[1]; main(sys.argv[2:])"
    command = [sys.executable, "-c", call, str(program), "tiny_math", "--run.out-dir", str(tmp_path / "out")]
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # a shell's background job ignores SIGINT
    )
    try:
        pid = int(eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))
        process.send_signal(number)
        assert process.wait(60) != 0
        eventually(lambda: not Path(f"/proc/{pid}").exists())
    finally:
        process.kill()


def eventually(find: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What a function returns as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found
