"""Adding an algorithm or a policy loss touches its function and its rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from accelerate import Accelerator
from torch import Tensor

from rlvr.algo.advantages import Rewards, drop_missing
from rlvr.algo.algorithms import ALGORITHMS, Algorithm, per_group
from rlvr.algo.losses import LOSSES, Loss
from rlvr.config import AlgoConfig, Config, ModelConfig, OptimConfig, RolloutConfig, RunConfig
from rlvr.config.settings import settings_of
from rlvr.core.printable import describe_type
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Problem, Verdict, correct, incorrect
from rlvr.model.load.policy import load_policy
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.runs.log import RunLog
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.run import Run, assemble


def best_only(rewards: Rewards) -> list[float]:
    """The reward of the best completions, 0 for the others: the example of rlvr/algo/algorithms.py."""
    best = max(drop_missing(rewards), default=0.0)
    return [r if r == best else 0.0 for r in rewards]


class OddLength(BatchVerifier):
    """Right where the completion has an odd number of characters: about half of random text."""

    def verify(self, pairs: list[tuple[Problem, str]]) -> list[Verdict]:
        return [correct() if len(text) % 2 else incorrect() for _, text in pairs]


def make_run(out_dir: Path, algorithm: str, loss: str = "auto") -> Run:
    """Two steps of a random tiny model by the names of an algorithm and a loss."""
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=2, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(problems_per_step=4, group_size=4, max_new_tokens=8),
        algo=AlgoConfig(algorithm, loss=loss),
        optim=OptimConfig(lr=1e-3),
    )
    config.check()
    policy = load_policy(config.model, corpus=["0123456789+= "], seed=0)
    problems = [Problem(str(i), f"{i}+{i}=") for i in range(8)]
    return assemble(
        config,
        policy,
        make_optimizer(policy.parameters(), config.optim),
        TorchSampler(policy),
        problems,
        OddLength(),
        RunLog(out_dir),
        Accelerator(cpu=True),
    )


@pytest.mark.parametrize("trains_on", ["signal", "all", "chosen"])
def test_a_row_that_is_added_trains(tmp_path, monkeypatch, trains_on):
    """Two steps by the new rule: its advantages are logged, and what is trained on is what the row says."""
    row = Algorithm("best_only", "none", per_group(best_only), trains_on=trains_on)
    monkeypatch.setitem(ALGORITHMS, "best_only", row)
    run = make_run(tmp_path, "best_only")
    train(run)
    metrics, rollouts = run.reporter.log.read("metrics"), run.reporter.log.read("rollouts")
    assert len(metrics) == 2
    assert [r["advantage"] for r in rollouts] == [float(r["status"] == "correct") for r in rollouts]
    for line in metrics:
        here = [r for r in rollouts if r["step"] == line["step"]]
        signal = {r["problem"] for r in here if r["advantage"]}
        trained = {
            "signal": [r for r in here if r["problem"] in signal],
            "all": here,
            "chosen": [r for r in here if r["advantage"]],
        }[trains_on]
        assert line["trained_tokens"] == sum(r["tokens"] for r in trained)
        assert line["grad_norm"] > 0


def test_a_loss_that_is_added_trains(tmp_path, monkeypatch):
    """Its row is enough: algo.loss offers it, its arguments are settings, and its function makes the gradient."""
    calls = []

    def mine(ratio: Tensor, advantages: Tensor, logprobs: Tensor, *, clip_high: float) -> Tensor:
        calls.append(clip_high)
        return -advantages * ratio

    offered = "auto, clip, gspo, luspo, sequence, cispo, sapo, vespo, nll"
    with pytest.raises(ValueError, match=rf"algo\.loss 'mine': expected one of {offered}$"):
        AlgoConfig(loss="mine").check("algo.")
    monkeypatch.setitem(LOSSES, "mine", Loss("mine", "none", mine))
    settings = {setting.name: setting for setting in settings_of(AlgoConfig)}
    assert describe_type(settings["loss"].hint) == f"one of {offered}, mine"
    run = make_run(tmp_path, "grpo", "mine")
    assert settings["clip_high"].find_unmet(run.config) is None
    assert settings["clip_low"].find_unmet(run.config) is not None
    train(run)
    assert calls
    assert set(calls) == {run.config.algo.clip_high}
    assert all(line["grad_norm"] > 0 for line in run.reporter.log.read("metrics"))
