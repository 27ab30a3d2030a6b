"""`rlvr train` of tasks with turns, in two processes as torchrun starts them: as one, and after SIGKILL."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers import warm
from tests.helpers.files import lines

pytestmark = pytest.mark.slow

FLAGS = (
    "--sft.steps 12 --rollout.problems-per-step 5 --rollout.group-size 4 --eval.every -1 --run.sample-every 0 "
    "--run.save-every 2 --run.keep-checkpoints 9 --optim.lr 1e-4 --optim.tokens-per-microbatch 200 "
    "--optim.max-grad-norm 1e6 --model.device cpu --model.dtype float32 --algo.credit turn"
).split()
SIZES = ["--run.task-option", "num_train=64", "num_test=16", "num_demonstrations=256"]
# With a reward that random text earns now and then.
EASY = ["--run.verifier", "regex", "--run.verifier-option", "match=search"]
PACKS = {"tiny_hops": [*SIZES, *EASY, "pattern=[a-h]"], "tiny_product": [*SIZES, *EASY, "pattern=[1-4]"]}


def arguments(recipe: str, out_dir: Path, steps: int, *flags: str) -> list[str]:
    return ["train", recipe, *FLAGS, *PACKS[recipe], "--run.steps", str(steps), "--run.out-dir", str(out_dir), *flags]


def train(processes: int, *command) -> str:
    """Train in so many processes. Return what was printed."""
    printed = ""
    for done in warm.run_together(processes, arguments(*command), timeout=280):
        assert done.returncode == 0, done.stderr[-3000:]
        printed += done.stdout
    return printed


def turns(out_dir: Path) -> list:
    return [row["turns"] for row in lines(out_dir / "rollouts.jsonl")]


def model(out_dir: Path, step: int) -> torch.Tensor:
    """All weights of a checkpoint as one vector; step 0: of the start."""
    folder = out_dir / "start" if step == 0 else out_dir / "checkpoints" / f"step-{step:06d}"
    held = load_file(folder / "model.safetensors")
    return torch.cat([held[name].flatten() for name in sorted(held)])


@pytest.mark.parametrize("recipe", PACKS)
@pytest.mark.parametrize("shard", [1, 2])
def test_two_processes_train_as_one(tmp_path: Path, recipe: str, shard: int) -> None:
    """The same turns in each of three steps, and weights within .2 % of the way that they have moved."""
    train(1, recipe, tmp_path / "one", 3)
    printed = train(2, recipe, tmp_path / "two", 3, "--model.shard", str(shard))
    assert "2 processes" in printed
    found = turns(tmp_path / "two")
    assert found == turns(tmp_path / "one")
    assert len(found) == 3 * 5 * 4
    assert any(turn["role"] != "assistant" for row in found for turn in row)
    way = model(tmp_path / "one", 3) - model(tmp_path / "one", 0)
    apart = model(tmp_path / "one", 3) - model(tmp_path / "two", 3)
    assert apart.norm() < 2e-3 * way.norm()
    assert len({row["reward"] for row in lines(tmp_path / "two" / "rollouts.jsonl")}) > 1


def test_two_processes_that_were_killed_go_on_byte_for_byte(tmp_path: Path) -> None:
    """SIGKILL of both, at some time after the first checkpoint of six steps; then the same command once more."""
    train(2, "tiny_hops", tmp_path / "whole", 6)
    command = arguments("tiny_hops", tmp_path / "parts", 6)
    started = warm.start_together(2, command)
    first = tmp_path / "parts" / "checkpoints" / "step-000002" / "state.json"
    deadline = time.monotonic() + 200
    while not first.exists() and time.monotonic() < deadline:
        assert all(process.poll() is None for process in started)
        time.sleep(0.02)
    for process in started:
        process.send_signal(signal.SIGKILL)
    for process in started:
        process.communicate(timeout=60)
    assert [process.returncode for process in started] == [-signal.SIGKILL] * 2
    assert not (tmp_path / "parts" / "checkpoints" / "step-000006").exists()
    train(2, "tiny_hops", tmp_path / "parts", 6)
    assert (tmp_path / "parts" / "rollouts.jsonl").read_bytes() == (tmp_path / "whole" / "rollouts.jsonl").read_bytes()
    for name in ("model.safetensors", "optimizer.safetensors"):
        path = Path("checkpoints") / "step-000006" / name
        assert (tmp_path / "parts" / path).read_bytes() == (tmp_path / "whole" / path).read_bytes()
