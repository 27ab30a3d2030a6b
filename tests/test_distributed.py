"""Two processes give the weights of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

FLAGS = (
    "--sft.steps 6 --rollout.problems-per-step 5 --rollout.group-size 4 --eval.every -1 --run.sample-every 0 "
    "--run.steps 3 --optim.lr 1e-4 --optim.tokens-per-microbatch 300 --model.device cpu "
    "--run.task-options num_train=64 num_test=16 num_demonstrations=256 "
    "--run.verifier regex --run.verifier-options pattern=7.*7 match=search"
).split()


def train(out_dir: Path, processes: int, *flags: str) -> dict[str, torch.Tensor]:
    launcher = [sys.executable, "-m"]
    if processes > 1:
        launcher += ["accelerate.commands.launch", "--cpu", "--num_processes", str(processes), "--num_machines", "1"]
        launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0", "-m"]
    command = [*launcher, "rlvr", "train", "tiny_math", *FLAGS, *flags, "--run.out-dir", str(out_dir)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    folder = out_dir / "checkpoints" / "step-000003"
    critic = folder / "critic.safetensors"
    return {**load_file(folder / "model.safetensors"), **(load_file(critic) if critic.exists() else {})}


def start(out_dir: Path) -> dict[str, torch.Tensor]:
    """The weights before the first step."""
    return load_file(out_dir / "start" / "model.safetensors")


WHITENED = "--run.verifier combine --run.verifier-options parts=length options=length.min=30,length.graded=true,"
WATCHED = "whiten=length --algo.advantage reinforce --shadow.verifier regex --shadow.options pattern=7.*7 match=search"


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--algo.minibatches", "2"),
        ("--algo.kl-coef", "0.1", "--algo.kl-in", "reward", "--algo.advantage", "reinforce"),
        ("--algo.advantage", "gae", "--algo.minibatches", "2", "--critic.lr", "1e-4"),
        ("--algo.advantage", "gae", "--critic.kind", "head", "--critic.warmup", "1"),
        ("--algo.advantage", "dpo"),
        tuple(f"{WHITENED}length.unit=characters {WATCHED}".split()),
    ],
    ids=["minibatches", "kl in the reward", "critic", "value head", "pairs", "whitened reward with a shadow"],
)
def test_two_processes_give_the_weights_of_one(tmp_path, flags):
    """Five problems on two processes, uneven shares: the same weights to 1e-6, a critic's too."""
    one = train(tmp_path / "one", 1, *flags)
    two = train(tmp_path / "two", 2, *flags)
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, atol=1e-6, rtol=0, msg=name)
    assert any((two[name] - weight).abs().max() > 0 for name, weight in start(tmp_path / "one").items())
    rollouts = [(tmp_path / name / "rollouts.jsonl").read_text() for name in ("one", "two")]
    assert rollouts[0].count("\n") == rollouts[1].count("\n") == 3 * 5 * 4
