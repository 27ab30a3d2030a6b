"""Reward models that several processes train, with whole weights and in shards."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor

from rlvr.config import OptimConfig
from rlvr.config.reward_model import BaseModelConfig, RewardTrainConfig
from rlvr.model.optim.sharding import make_mesh
from rlvr.reward_model.preferences import PreferencePair, write_pairs
from rlvr.reward_model.training import load_trainer, measure, train_reward_model
from tests.helpers import warm
from tests.helpers.models import tiny_policy
from tests.helpers.processes import run_processes
from tests.helpers.sharded import ALONE, CPU, largest_difference

pytestmark = pytest.mark.usefixtures("one_thread")

PAIRS = [PreferencePair(f"{i}+{i}=", f"{2 * i}", f"{3 * i} 1234" * (1 + i % 3), 0.0) for i in range(12)]


def train(policy: Path, shard: int, accelerator, **options) -> tuple[dict[str, Tensor], list[dict], dict]:
    """Train for five steps of 5 pairs, of which no number of microbatches divides evenly."""
    config = BaseModelConfig(device="cpu", **options)
    trainer = load_trainer(config, str(policy), seed=0, mesh=make_mesh(shard, CPU))
    steps: list[dict] = []
    train_reward_model(
        trainer,
        PAIRS,
        RewardTrainConfig(epochs=2, batch_size=5),
        OptimConfig(lr=1e-3, tokens_per_microbatch=60),
        accelerator=accelerator,
        seed=0,
        on_step=steps.append,
    )
    whole = trainer.whole()
    return {name: weight.detach() for name, weight in whole.model.named_parameters()}, steps, measure(whole, PAIRS)


@pytest.mark.parametrize("options", [{}, {"lora_rank": 2}], ids=["all weights", "adapters"])
def test_two_processes_train_the_reward_model_of_one(tmp_path: Path, options: dict) -> None:
    """Replicas and shards: weights within a tenth of the learning rate, the same metrics of steps and of pairs."""
    tiny_policy().save(tmp_path)
    weights, steps, measured = train(tmp_path, 1, ALONE, **options)
    for shard in (1, 2):
        for found in run_processes(
            2, lambda rank, shard=shard: train(tmp_path, shard, Accelerator(cpu=True), **options)
        ):
            assert largest_difference(found[0], weights) < 1e-4
            for here, there in zip(found[1], steps, strict=True):
                assert here == pytest.approx(there, rel=1e-4, abs=1e-5)
            assert found[2]["accuracy"] == measured["accuracy"]
            assert found[2]["mean"] == pytest.approx(measured["mean"], abs=1e-4)


def test_several_processes_need_a_policy_by_name(tmp_path: Path) -> None:
    """In one line, before anything is trained or written."""
    for done in warm.run_together(2, ["rm", "rm_pairs", "--run.out-dir", str(tmp_path / "rm")]):
        assert done.returncode == 2
        assert "--pairs.policy" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_the_command_trains_a_reward_model_in_shards(tmp_path: Path) -> None:
    """From a file of pairs: one model, whole, and one line of metrics a step."""
    tiny_policy().save(tmp_path / "policy")
    write_pairs(tmp_path / "pairs.jsonl", PAIRS)
    flags = (
        f"--pairs.file {tmp_path}/pairs.jsonl --model.name {tmp_path}/policy --pairs.held-out 0.3 --model.device cpu"
    )
    command = ["rm", "rm_pairs", *flags.split(), "--run.out-dir", str(tmp_path / "rm"), "--model.shard", "2"]
    for done in warm.run_together(2, command):
        assert done.returncode == 0, done.stderr[-3000:]
    tensors = load_file(tmp_path / "rm" / "model-0" / "model.safetensors")
    assert tensors["score.weight"].shape == (1, 128)
    assert all(bool(torch.isfinite(value).all()) for value in tensors.values())
    lines = (tmp_path / "rm" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(set(lines)) > 0
