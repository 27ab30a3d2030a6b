"""Two training processes, each with vLLM of its own: with the real engine on a CPU, weights in shards.

Needs an environment of its own; `.ci/vllm` makes it and runs these tests.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.files import lines
from tests.helpers.served import torchrun

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]
pytest.importorskip("vllm", exc_type=ImportError)

PACK = ("--run.task-option num_train=256 num_test=64 num_demonstrations=512 --model.device cpu --sft.steps 300").split()
FLAGS = (
    "--sampler vllm --sampler.sync-check-every 1 --rollout.problems-per-step 8 --rollout.group-size 8 "
    "--run.save-every 2 --run.sample-every 0 --eval.every 4 --eval.num-problems 64 --eval.samples 4 --eval.k 1"
).split()


def rlvr(processes: int, *arguments: str) -> None:
    command = ["-m", "rlvr", *arguments]
    launched = [sys.executable, *command] if processes == 1 else torchrun(processes, *command)
    done = subprocess.run(launched, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory) -> Path:
    """The folder of a run that has been fine-tuned and no more."""
    folder = tmp_path_factory.mktemp("tuned") / "run"
    rlvr(1, "sft", "tiny_math", *PACK, "--run.out-dir", str(folder))
    return folder


def train(start: Path, folder: Path, processes: int, *flags: str) -> Path:
    """Train on from `start` unless the folder is there already."""
    if not folder.exists():
        shutil.copytree(start, folder)
    rlvr(processes, "train", "tiny_math", *PACK, *FLAGS, *flags, "--run.out-dir", str(folder))
    return folder


@pytest.fixture(scope="module")
def two_trainers(fine_tuned, tmp_path_factory) -> Path:
    """Four steps of two processes, which hold the weights in two shards."""
    return train(fine_tuned, tmp_path_factory.mktemp("two") / "run", 2, "--model.shard", "2", "--run.steps", "4")


def test_engines_of_two_trainers_sample_what_one_does(fine_tuned, two_trainers, tmp_path):
    """The same completions but for a few, whose draws fall beside a border, and pass@1 within .03 after four steps."""
    one = train(fine_tuned, tmp_path / "run", 1, "--run.steps", "4")
    expected, found = (
        {(row["step"], row["problem"], row["sample"]): row["completion"] for row in lines(folder / "rollouts.jsonl")}
        for folder in (one, two_trainers)
    )
    assert expected.keys() == found.keys()
    assert sum(expected[key] == found[key] for key in expected) > 0.9 * len(expected)
    assert len({row["reward"] for row in lines(two_trainers / "rollouts.jsonl")}) == 2
    ends = [[row["pass@1"] for row in lines(folder / "eval.jsonl")] for folder in (one, two_trainers)]
    assert ends[0][0] == pytest.approx(ends[1][0], abs=0.01)
    assert ends[0][-1] == pytest.approx(ends[1][-1], abs=0.03)


def test_two_trainers_resume_byte_for_byte(fine_tuned, two_trainers, tmp_path):
    """Two steps, and the rest from their checkpoint."""
    parts = train(fine_tuned, tmp_path / "run", 2, "--model.shard", "2", "--run.steps", "2")
    train(fine_tuned, parts, 2, "--model.shard", "2", "--run.steps", "4")
    name = Path("checkpoints", "step-000004", "model.safetensors")
    assert (parts / name).read_bytes() == (two_trainers / name).read_bytes()
    assert (parts / "rollouts.jsonl").read_bytes() == (two_trainers / "rollouts.jsonl").read_bytes()
