"""What is logged of the difference between the trainer's logprobs and the sampler's."""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlvr.config import AlgoConfig, Config, ModelConfig, RolloutConfig, RunConfig, TorchSamplerConfig, VLLMConfig
from rlvr.model.load.policy import load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.train import train
from rlvr.training.callbacks import TrainerCallback
from rlvr.training.step.update import measure_mismatch, warn_of_mismatch
from rlvr.verifiers.runner import Runner
from tests.helpers.runs import CHARACTERS, build_run
from tests.helpers.verifiers import PROBLEMS, odd_length


def test_equal_engines_have_no_mismatch():
    """No difference: every ratio is 1, and every sample counts in full."""
    stats = measure_mismatch(torch.zeros(7))
    assert stats["mismatch/mean"] == stats["mismatch/max"] == 0
    assert stats["mismatch/ratio_p01"] == stats["mismatch/ratio_p99"] == stats["mismatch/effective_samples"] == 1


def test_mismatch_by_hand():
    """Ratios 1, 1, 1, 3: mean |log| is log(3)/4, the effective sample size 6^2 / (4 * 12) = 0.75."""
    stats = measure_mismatch(torch.tensor([0.0, 0.0, 0.0, math.log(3)]))
    assert stats["mismatch/mean"] == pytest.approx(math.log(3) / 4, abs=1e-6)
    assert stats["mismatch/max"] == pytest.approx(math.log(3), abs=1e-6)
    assert stats["mismatch/effective_samples"] == pytest.approx(0.75, abs=1e-6)
    assert stats["mismatch/ratio_p50"] == pytest.approx(1.0)
    # linear between the third ratio and the fourth: 1 + 2 * 0.97
    assert stats["mismatch/ratio_p99"] == pytest.approx(2.94, abs=1e-5)


def test_alarm_is_raised_past_the_bound_only():
    """A mean difference at the bound is silent; beyond it the step is named."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mismatch(measure_mismatch(torch.full((3,), 0.1)), 4, bound=0.11)
    with pytest.warns(RuntimeWarning, match="step 5"):
        warn_of_mismatch(measure_mismatch(torch.full((3,), -0.2)), 5, bound=0.11)


def test_intended_age_raises_the_bound():
    """A batch that was to be two steps old may differ three times as much; beyond that it is reported all the same."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_mismatch(measure_mismatch(torch.full((3,), 0.29)), 4, bound=0.1, staleness=2)
    with pytest.warns(RuntimeWarning, match=r"bound 0\.3"):
        warn_of_mismatch(measure_mismatch(torch.full((3,), 0.31)), 4, bound=0.1, staleness=2)


class Warnings(TrainerCallback):
    """Collects what a person should look at."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_warning(self, text: str) -> None:
        self.texts.append(text)


def step_of(
    tmp_path: Path,
    model: ModelConfig,
    sampler: TorchSamplerConfig | None = None,
    callbacks: Sequence[TrainerCallback] = (),
    **settings: Any,
) -> dict[str, float]:
    """What is logged of one step of the torch sampler's run, groups of mixed rewards."""
    rollout = RolloutConfig(problems_per_step=4, group_size=4, max_new_tokens=24, **settings)
    algo = AlgoConfig(importance="none" if settings else "auto")
    run_config = RunConfig(out_dir=tmp_path, steps=1)
    config = Config(run=run_config, model=model, rollout=rollout, algo=algo, sampler=sampler or TorchSamplerConfig())
    config.check()
    policy = load_policy(model, corpus=[CHARACTERS], seed=1)
    run = build_run(config, Runner(odd_length), policy=policy, problems=PROBLEMS[:4])
    run.reporter.callbacks += callbacks
    with run.worker.verifier:
        train(run)
    return run.reporter.log.read("metrics")[0]


def test_torch_sampler_in_float32_is_the_trainer(tmp_path: Path) -> None:
    """Its mismatch is logged, is rounding alone, and nothing is corrected."""
    metrics = step_of(tmp_path, ModelConfig(device="cpu", dtype="float32"))
    assert metrics["mismatch/mean"] < 1e-5
    assert metrics["mismatch/max"] < 1e-4
    assert metrics["importance"] == 1.0


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """A model with sums of 512 numbers: the tiny one's are short, and round alike in whatever order they are taken."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer([CHARACTERS])
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=512,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        initializer_range=0.1,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "wide")
    tokenizer.save_pretrained(tmp_path / "wide")
    return str(tmp_path / "wide")


def test_torch_sampler_in_bfloat16_is_corrected(tmp_path: Path, wide: str) -> None:
    """One token at a time rounds otherwise than a whole row: it is logged, and weighed per token."""
    metrics = step_of(tmp_path, ModelConfig(name=wide, device="cpu", dtype="bfloat16"))
    assert 1e-4 < metrics["mismatch/mean"] < 0.05
    assert metrics["importance"] != 1.0
    assert metrics["importance"] == pytest.approx(1.0, abs=0.05)


def test_callbacks_are_warned_of_a_mismatch(tmp_path: Path, wide: str) -> None:
    """The warning goes to the callbacks that take warnings, and not to Python's, which would be an error here."""
    callback = Warnings()
    sampler = TorchSamplerConfig(mismatch_alarm=1e-5)
    step_of(tmp_path, ModelConfig(name=wide, device="cpu", dtype="bfloat16"), sampler, [callback])
    [text] = callback.texts
    assert text.startswith("step 1: logprobs of sampler and trainer differ by")


def test_truncated_sampling_is_refused_or_said(tmp_path: Path) -> None:
    """top-p and top-k train off policy with any sampler; with importance none the log says how far."""
    for sampler in (TorchSamplerConfig(), VLLMConfig()):
        for settings in ({"top_p": 0.9}, {"top_k": 5}):
            config = Config(rollout=RolloutConfig(**settings), sampler=sampler)
            with pytest.raises(ValueError, match=r"set --algo\.importance none to train off policy"):
                config.check()
            dataclasses.replace(config, algo=AlgoConfig(importance="none")).check()
    metrics = step_of(tmp_path, ModelConfig(device="cpu", dtype="float32"), top_k=5)
    assert metrics["mismatch/mean"] > 0.1
    assert metrics["mismatch/ratio_p99"] <= 1.0  # kept tokens are likelier in the sampler
    assert metrics["importance"] == 1.0
