"""Settings that cannot work are refused in one line that says what to do, before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.config import AlgoConfig, Config, ModelConfig, SFTConfig
from tests.helpers.runs import with_settings

FLAGS = [
    ("--monitor.on-alarm stop", "exists with --monitor NAME"),
    ("--eval.verifier monitor", "with --monitor NAME"),
    ("--monitor maths", "did you mean math"),
    ("--monitor math --monitor.verifier-option extract", "expected key=value"),
    ("--monitor math --monitor.patience 0", "monitor.patience 0"),
    ("--monitor math --monitor.margin 0", "monitor.margin 0"),
    ("--sampler vllm --sampler.max-staleness -1", "max_staleness -1: expected a number from 0"),
    ("--sampler.max-staleness 1", "--sampler.max-staleness exists with --sampler vllm or vllm-server"),
    ("--sampler vllm --sampler.max-staleness 1 --algo.importance none", "nothing would correct"),
    ("--sampler vllm --sampler.max-staleness 1 --sampler.sleep 1", "an engine that samples meanwhile cannot sleep"),
    ("--sampler vllm-server --sampler.sleep 1", "--sampler.sleep exists with --sampler vllm"),
    ("--model.weights bfloat16 --model.dtype float32", "dtype float32 with weights stored in bfloat16"),
    ("--model.weights bfloat16 --model.lora-rank 4", "--model.lora-rank 0"),
    ("--optim.offload --model.device cpu", "the model is on cpu; leave it out"),
]
GROUPS: list[tuple[dict, str]] = [
    ({"algo": {"name": "ppo", "gamma": 0.0}}, "algo.gamma"),
    ({"algo": {"name": "ppo", "gae_lambda": 1.5}}, "algo.gae_lambda"),
    ({"algo": {"name": "ppo", "advantage_scale": "batch_std"}}, "none or whiten"),
    ({"algo": {"name": "ppo", "loss": "dpo"}}, "expected one of auto, clip"),
    ({"algo": {"name": "ppo"}, "critic": {"lr": -1.0}}, "critic.lr"),
    ({"algo": {"name": "ppo"}, "critic": {"warmup": -1}}, "critic.warmup"),
    ({"algo": {"name": "ppo"}, "critic": {"value_clip": 0.0}}, "critic.value_clip"),
    ({"algo": {"name": "ppo"}, "critic": {"value_coef": 0.0}}, "critic.value_coef"),
    ({"algo": {"reference_every": 5}}, "algo.reference_every with algo.kl_coef 0, which has no reference"),
    ({"algo": {"kl_target": 0.1}}, "algo.kl_target with algo.kl_coef 0, which has no reference"),
    (
        {"algo": {"kl_coef": 0.1, "reference_every": 5}, "model": {"name": "tiny", "lora_rank": 4}},
        "the model without its adapter, which training does not change",
    ),
    ({"algo": {"name": "grpo", "credit": "turn"}}, "set --algo dr_grpo or rloo or reinforce or ppo"),
    ({"algo": {"name": "maxrl", "credit": "step"}}, "only subtract a mean"),
    ({"algo": {"name": "reinforce_pp", "credit": "turn"}}, "only subtract a mean"),
    ({"algo": {"name": "rloo", "credit": "turn", "advantage_scale": "whiten"}}, "scales whole rollouts"),
    ({"algo": {"name": "rloo", "credit": "turn", "advantage_scale": "batch_std"}}, "scales whole rollouts"),
    ({"algo": {"name": "rloo", "credit": "turn", "loss": "gspo"}}, "ratio is that of a whole completion"),
]


@pytest.mark.parametrize(("flags", "message"), FLAGS)
def test_flags_that_cannot_work_are_refused(flags: str, message: str, tmp_path: Path, capsys) -> None:
    """One line, exit code 2, nothing written."""
    assert main(["train", "tiny_math", "--run.out-dir", str(tmp_path / "run"), *flags.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("groups", "message"), GROUPS)
def test_settings_that_cannot_work_are_refused(groups: dict, message: str) -> None:
    """The line names the setting; without what is refused the same settings pass."""
    config = Config(model=ModelConfig(name="tiny"), sft=SFTConfig(steps=0))
    with pytest.raises(ValueError, match=message):
        with_settings(config, **groups).check()
    if "credit" in (algo := groups["algo"]):
        with_settings(config, algo={key: value for key, value in algo.items() if key != "credit"}).check()


@pytest.mark.parametrize("algo", ["gdpo", "raft", "dpo"])
def test_algorithms_of_other_rewards_have_no_credit(algo: str) -> None:
    """They choose completions, or read parts of the reward."""
    with pytest.raises(ValueError, match=r"algo\.credit turn is read only with"):
        Config(algo=AlgoConfig(algo, credit="turn")).check()
