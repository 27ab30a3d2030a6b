"""Several processes compute the gradients of one, and so its weights."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.helpers import warm
from tests.helpers.files import lines as read_lines

FLAGS = (
    "--sft.steps 6 --rollout.problems-per-step 5 --rollout.group-size 4 --eval.every -1 --run.sample-every 0 "
    "--run.steps 3 --run.save-every 1 --run.keep-checkpoints 3 --optim.lr 1e-4 --optim.warmup-steps 0 "
    "--optim.tokens-per-microbatch 300 "
    "--optim.max-grad-norm 1e6 --model.device cpu "
    "--run.task-option num_train=64 num_test=16 num_demonstrations=256"
).split()
VERIFIER = "--run.verifier regex --run.verifier-option pattern=7.*7 match=search".split()
# Sums are taken in another order, as with other microbatches: float32 rounding. A share of a tensor's largest gradient.
GRADIENT_TOLERANCE = 1e-4
# AdamW divides by the root of the second moment, which enlarges the rounding of tiny gradients: so of all weights
# together, as a share of the way that they have moved.
WEIGHT_TOLERANCE = 2e-3
OPTIMIZERS = ("optimizer", "critic_optimizer")


def train(out_dir: Path, processes: int, *flags: str) -> str:
    """Train for three steps on so many processes. Returns what was printed."""
    verifier = () if "--run.verifier-option" in flags else VERIFIER
    arguments = ["train", "tiny_math", *FLAGS, *verifier, *flags, "--run.out-dir", str(out_dir)]
    printed = ""
    for done in warm.run_together(processes, arguments, timeout=280):
        assert done.returncode == 0, done.stderr[-3000:]
        printed += done.stdout
    return printed


def checkpoint(out_dir: Path, step: int, name: str) -> dict[str, Tensor]:
    """A file of tensors of the checkpoint after a step; nothing where there is none (no critic)."""
    path = out_dir / "checkpoints" / f"step-{step:06d}" / f"{name}.safetensors"
    return load_file(path) if path.exists() else {}


def first_moments(out_dir: Path, name: str) -> dict[str, Tensor]:
    """AdamW's first moments after one step: with one minibatch, a tenth of the (unclipped) gradients."""
    return {key: value for key, value in checkpoint(out_dir, 1, name).items() if key.endswith("exp_avg")}


def lines(out_dir: Path, stream: str) -> list[dict]:
    return read_lines(out_dir / f"{stream}.jsonl")


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def assert_the_same_run(one: Path, many: Path) -> None:
    """Check gradients, weights, rollouts and logged figures of two runs; and that the first moved at all."""
    gradients = {f"{name}.{k}": v for name in OPTIMIZERS for k, v in first_moments(one, name).items()}
    others = {f"{name}.{k}": v for name in OPTIMIZERS for k, v in first_moments(many, name).items()}
    assert gradients.keys() == others.keys()
    assert all(bool(value.any()) for value in gradients.values())
    for name, value in gradients.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(others[name], value, atol=GRADIENT_TOLERANCE * scale, rtol=0, msg=name)
    starts = {"model": load_file(one / "start" / "model.safetensors"), "critic": checkpoint(one, 1, "critic")}
    for name, start in starts.items():
        if start:
            weights, others = checkpoint(one, 3, name), checkpoint(many, 3, name)
            moved = (flat(weights) - flat(start)).norm()
            assert moved > 0
            assert (flat(others) - flat(weights)).norm() < WEIGHT_TOLERANCE * moved
    texts = [[line["completion"] for line in lines(folder, "rollouts")] for folder in (one, many)]
    assert texts[0]
    assert texts[0] == texts[1]
    for mine, other in zip(lines(one, "metrics"), lines(many, "metrics"), strict=True):
        for name in mine.keys() & {"reward", "loss", "grad_norm", "entropy", "trained_tokens", "critic/value_loss"}:
            assert other[name] == pytest.approx(mine[name], rel=1e-3, abs=1e-6), name


EASY = "--run.verifier regex --run.verifier-option pattern=7 match=search"
WHITENED = "--run.verifier combine --run.verifier-option parts=length options=length.min=30,length.graded=true,"
WATCHED = "whiten=length --algo reinforce --monitor regex --monitor.verifier-option pattern=7.*7 match=search"


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes,flags",
    [
        (2, ("--algo.minibatches", "2")),
        (3, ("--algo.normalize", "sequence")),
        (
            3,
            f"--rollout.problems-per-step 2 --algo.kl-coef .1 {EASY}".split(),
        ),
        (2, ("--algo.kl-coef", "0.1", "--algo.kl-in", "reward", "--algo", "reinforce")),
        (2, ("--algo", "ppo", "--algo.minibatches", "2", "--critic.lr", "1e-4")),
        (2, ("--algo", "ppo", "--critic.kind", "head", "--critic.warmup", "1")),
        (2, ("--algo", "dpo")),
        (3, ("--curriculum.draw", "signal", "--curriculum.half-life", "1", "--rollout.resample-rounds", "1")),
        (2, tuple(f"{WHITENED}length.unit=characters {WATCHED}".split())),
    ],
    ids=[
        "two minibatches",
        "three processes",
        "three processes, fewer problems",
        "kl in the reward",
        "critic",
        "value head",
        "pairs",
        "curriculum with dynamic sampling",
        "whitened reward with a monitor",
    ],
)
def test_several_processes_give_the_weights_of_one(tmp_path, processes, flags):
    """Problems in uneven shares, also none for one process: the gradients and weights of a single process."""
    train(tmp_path / "one", 1, *flags)
    printed = train(tmp_path / "many", processes, *flags)
    assert f"{processes} processes" in printed
    assert_the_same_run(tmp_path / "one", tmp_path / "many")


COLLECTIVES = """
import json, sys, torch
from pathlib import Path
from accelerate import Accelerator
from rlvr import distributed
from rlvr.distributed import gather, share, sum_gradients, sum_stats, sum_tensor

distributed.BUCKET_ELEMENTS = 5  # several buckets
accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
KINDS = ((3, torch.float32), (4, torch.float32), (2, torch.float64))
weights = [torch.nn.Parameter(torch.zeros(n, dtype=t)) for n, t in KINDS]
weights[0].grad = torch.full((3,), 10.0**rank)
weights[2].grad = torch.full((2,), rank + 1.0, dtype=torch.float64)  # the second has none
sum_gradients(weights, accelerator)
result = {
    "world": accelerator.num_processes,
    "share": list(share(list("abcde"), accelerator)),
    "gathered": gather([rank] * rank, accelerator),
    "sum": sum_tensor(torch.tensor([rank + 1.0]), accelerator).tolist(),
    "gradients": [w.grad.tolist() for w in weights],
    "stats": sum_stats({"b": 1.0, "a": float(rank)}, accelerator, "cpu"),
}
Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(result))
accelerator.wait_for_everyone()  # one that has left would abort the others
accelerator.end_training()
"""


def test_collective_calls_of_three_processes(tmp_path):
    """Shares are parts in order, gathering keeps the order, gradients (also missing ones) and sums add up."""
    (tmp_path / "calls.py").write_text(COLLECTIVES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", "calls.py", "."]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    assert [result.pop("share") for result in results] == [["a"], ["b", "c"], ["d", "e"]]
    for result in results:
        assert result == {
            "world": 3,
            "gathered": [1, 2, 2],
            "sum": [6.0],
            "gradients": [[111.0] * 3, [0.0] * 4, [6.0] * 2],
            "stats": {"a": 3.0, "b": 3.0},
        }
