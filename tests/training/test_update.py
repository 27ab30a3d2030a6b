"""The size of updates, the mismatch of sampler and trainer, the pretraining mix, KTO and REINFORCE++."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rlvr.commands.cli import main
from rlvr.config import (
    AlgoConfig,
    Config,
    EvalConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    TorchSamplerConfig,
    VLLMConfig,
)
from rlvr.core.types import Problem
from rlvr.launch import launch
from rlvr.model.load.policy import load_policy
from rlvr.model.load.tiny import tiny_tokenizer
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.recipes.tiny_math import CONFIG
from rlvr.train import train
from rlvr.training.callbacks import TrainerCallback
from rlvr.training.rollout.rollout import collect
from rlvr.training.sft.sft import accumulate_mix, add_gradient, demonstration_batch
from rlvr.training.step.update import (
    SHARE,
    UpdateSize,
    measure_mismatch,
    mismatch_stats,
    to_batch,
    update,
    warn_of_mismatch,
)
from rlvr.verifiers.runner import Runner
from tests.helpers.models import shake
from tests.helpers.runs import CHARACTERS, Warned, batch_of, build_run, gradient_of, groups_of, make_run
from tests.helpers.verifiers import PROBLEMS, HasSeven, odd_length


def exact_kl(before, after, batch, temperature) -> float:
    """The mean over tokens of KL(before || after), summed over the vocabulary."""
    logprobs = []
    for policy in (before, after):
        with torch.no_grad():
            logits = policy.model(batch.tokens).logits.float()[:, :-1] / temperature
        logprobs.append(logits.log_softmax(-1))
    kl = (logprobs[0].exp() * (logprobs[0] - logprobs[1])).sum(-1)
    return float(kl[batch.mask[:, 1:]].mean())


@pytest.mark.parametrize("lr", [1e-4, 1e-3])
def test_the_kl_of_a_single_update_is_measured(tmp_path, monkeypatch, lr) -> None:
    """On all rows the estimate is near the exact divergence; the rows that are taken by default are a few."""
    run = make_run(tmp_path, rollout={"problems_per_step": 8, "group_size": 8}, optim={"lr": lr})
    groups, advantages = groups_of(run)
    batch = to_batch(run.learner, groups, advantages)
    before = copy.deepcopy(run.learner.policy)
    monkeypatch.setattr("rlvr.training.step.update.SHARE", 1)
    stats = update(run.learner, 0, groups, advantages, lambda text: None)
    exact = exact_kl(before, run.learner.policy, batch, run.config.rollout.temperature)
    assert exact > 0
    assert stats["update_kl"] == pytest.approx(exact, rel=0.5)


def test_little_is_computed_for_it(tmp_path) -> None:
    """A sixteenth of the tokens, and one row at least."""
    run = make_run(tmp_path, rollout={"problems_per_step": 8, "group_size": 8})
    batch = to_batch(run.learner, *groups_of(run))
    size = UpdateSize(run.learner)
    logprobs, _ = token_logprobs(run.learner.policy, batch.tokens, batch.scored, temperature=1.0)
    size.keep(batch, logprobs, batch.num_completion_tokens)
    part, kept = size.sample
    assert 0 < part.num_completion_tokens <= SHARE * batch.num_completion_tokens
    assert kept.shape == part.mask.shape
    assert size.measure()["update_kl"] == pytest.approx(0, abs=1e-6)  # nothing was updated
    size = UpdateSize(run.learner)
    size.keep(batch, logprobs, 1)
    assert len(size.sample[0]) == 1


def test_updates_beyond_the_bound_are_left_out(tmp_path) -> None:
    """The first moves the policy too far; of the other three none is done, and their gradient is dropped."""
    warnings: list[str] = []
    steps = []
    for bound in (0.0, 1e-6):
        run = make_run(
            tmp_path / str(bound),
            rollout={"problems_per_step": 4, "group_size": 4},
            algo={"minibatches": 2, "epochs": 2},
            optim={"lr": 1e-3, "max_update_kl": bound},
        )
        groups, advantages = groups_of(run)
        stats = update(run.learner, 0, groups, advantages, warnings.append)
        steps.append({int(state["step"]) for state in run.learner.optimizer.state.values()})
        assert stats.get("left_out_updates", 0) == (3 if bound else 0)
        assert stats["update_kl"] > 1e-6
        assert all(weight.grad is None or not weight.grad.any() for weight in run.learner.policy.parameters())
    assert steps == [{4}, {1}]
    (line,) = warnings
    assert line.startswith("step 1: the updates moved the policy by a KL of ")
    assert "updates left out after that: 3" in line


def test_a_single_update_beyond_the_bound_is_said(tmp_path) -> None:
    """It is done already; what to do stands in the line. Within the bound, and without one, there is none."""
    for bound, count in ((1e-6, 1), (1e3, 0), (0.0, 0)):
        warnings: list[str] = []
        run = make_run(tmp_path / str(bound), optim={"lr": 1e-3, "max_update_kl": bound})
        groups, advantages = groups_of(run)
        assert "left_out_updates" not in update(run.learner, 0, groups, advantages, warnings.append)
        assert len(warnings) == count
        assert all("--optim.max-update-kl" in line and "--optim.lr" in line for line in warnings)


def test_a_step_without_signal_has_no_size(tmp_path) -> None:
    """Nothing is computed for it."""
    run = make_run(tmp_path)
    groups = collect(run.worker, 0)
    advantages = [[0.0] * len(group.completions) for group in groups]
    assert "update_kl" not in update(run.learner, 0, groups, advantages, lambda text: None)


def test_rl_from_a_low_pass_rate_does_not_unlearn(tmp_path):
    """Twenty steps of few rollouts, from a pass@1 near .1: it does not fall below the start's 95 % interval."""
    config = dataclasses.replace(
        CONFIG,
        run=dataclasses.replace(CONFIG.run, steps=20, out_dir=tmp_path / "run", sample_every=0, save_every=0),
        model=dataclasses.replace(CONFIG.model, device="cpu"),
        sft=dataclasses.replace(CONFIG.sft, steps=300),
        rollout=dataclasses.replace(CONFIG.rollout, problems_per_step=8, group_size=8),
        eval=EvalConfig(num_problems=64, samples=8, k=(1,), every=0),
    )
    first, last = launch(config)
    assert 0.05 < first["pass@1"] < 0.25
    assert last["pass@1"] >= first["pass@1_ci"][0]


def test_equal_engines_have_no_mismatch():
    """No difference: every ratio is 1, and every sample counts in full."""
    stats = measure_mismatch(torch.zeros(7))
    assert stats["mismatch/mean"] == stats["mismatch/max"] == 0
    assert stats["mismatch/ratio_p01"] == stats["mismatch/ratio_p99"] == stats["mismatch/effective_samples"] == 1


def test_differences_are_gathered_from_the_cpu(tmp_path, monkeypatch):
    """A tensor of another rank's GPU would open a context there."""

    class OnGPU:
        def cpu(self):
            return torch.zeros(3)

    gathered = []
    monkeypatch.setattr("rlvr.training.step.update.gather", lambda parts, processes: gathered.extend(parts) or parts)
    learner = make_run(tmp_path, verifier=HasSeven()).learner
    stats = mismatch_stats(learner, 0, [OnGPU(), OnGPU()], pytest.fail)
    assert [part.device.type for part in gathered] == ["cpu", "cpu"]
    assert stats["mismatch/mean"] == 0


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
    callback = Warned()
    sampler = TorchSamplerConfig(mismatch_alarm=1e-5)
    step_of(tmp_path, ModelConfig(name=wide, device="cpu", dtype="bfloat16"), sampler, [callback])
    [text] = callback.told
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


DEMONSTRATIONS = [(Problem(f"d{i}", f"{i}="), f"{i}+0") for i in range(10)]


def run_mixed(out_dir, **groups):
    run = make_run(out_dir, **groups)
    if run.config.algo.ptx_coef:
        run.learner.mix = partial(accumulate_mix, run.learner, DEMONSTRATIONS, None)
    return run


def nll_gradient(run, demonstrations):
    """The gradient of the mean negative log-likelihood of their tokens, and that mean."""
    policy = run.learner.policy
    for weight in policy.parameters():
        weight.grad = None
    loss = add_gradient(policy, demonstration_batch(policy, demonstrations), run.learner.accelerator, 10**6)
    return torch.cat([weight.grad.reshape(-1) for weight in policy.parameters()]), loss


def test_the_gradient_is_the_sum_of_both(tmp_path):
    """Of the policy's loss, and ptx_coef times that of all demonstrations, where a batch holds each once."""
    run = run_mixed(tmp_path, algo={"ptx_coef": 0.25, "ptx_batch_size": 10})
    batch = batch_of(run)
    both = gradient_of(run, batch)
    run.config = dataclasses.replace(run.config, algo=dataclasses.replace(run.config.algo, ptx_coef=0.0))
    run.learner.mix = None
    own, (mix, _) = gradient_of(run, batch), nll_gradient(run, DEMONSTRATIONS)
    torch.testing.assert_close(both, own + 0.25 * mix, atol=1e-6, rtol=1e-4)
    assert mix.norm() > 1e-3


def test_each_update_reads_other_demonstrations(tmp_path):
    """Ten demonstrations in batches of five: two updates read each once."""
    run = run_mixed(tmp_path, algo={"ptx_coef": 1.0, "ptx_batch_size": 5})
    means = [run.learner.mix(number) for number in range(4)]
    assert means[0] != means[1]
    total = sum(len(run.learner.policy.encode(text)) + 1 for _, text in DEMONSTRATIONS)
    assert total == 10 * 4
    assert sum(means[:2]) / 2 == pytest.approx(nll_gradient(run, DEMONSTRATIONS)[1], rel=1e-5)


def test_the_mix_keeps_the_demonstrations_likely(tmp_path):
    """Eight steps towards sevens: the demonstrations' loss falls with the mix, and is logged."""
    ends = {}
    for coef in (0.0, 1.0):
        run = run_mixed(tmp_path / str(coef), run={"steps": 8}, algo={"ptx_coef": coef, "minibatches": 2})
        train(run)
        ends[coef] = nll_gradient(run, DEMONSTRATIONS)[1]
        logged = [line.get("ptx/loss") for line in run.reporter.log.read("metrics")]
        assert all(value is None for value in logged) == (coef == 0.0)
    assert ends[1.0] < ends[0.0] - 0.5
    assert logged[-1] < logged[0]


def test_a_pack_without_demonstrations_is_refused(tmp_path, capsys):
    """In one line that says where demonstrations may come from."""
    out = ["--run.out-dir", str(tmp_path / "run"), "--dry-run"]
    data = tmp_path / "p.jsonl"
    data.write_text('{"prompt": "1+1=", "reference": "2"}\n' * 4)
    task = ["--run.task", "jsonl", "--run.data", str(data), "--sft.steps", "0"]
    assert main(["train", "tiny_math", *task, "--algo.ptx-coef", "1", *out]) == 2
    assert "algo.ptx_coef is 1.0 and task 'jsonl' has no demonstrations" in capsys.readouterr().err


def test_kto_reads_the_divergence_of_its_own_rollouts(tmp_path):
    """z is the mean of log pi/ref over the step's rollouts, not below 0: 0 at the reference."""
    run = make_run(tmp_path, verifier=HasSeven(), reference=True, algo={"name": "kto"})
    assert float(batch_of(run).kl.abs().max()) < 1e-4
    shake(run.learner.policy, 0.1, 1)
    batch = batch_of(run)
    gains = ((batch.sampler_logprobs - batch.ref_logprobs) * batch.mask).sum(-1)
    assert float(gains.mean()) > 0.05
    torch.testing.assert_close(batch.kl, gains.mean().expand(24), atol=1e-3, rtol=0)
    assert set(batch.advantages.tolist()) == {1.0, -1.0}


def test_reinforce_plus_plus_whitens_tokens_with_their_kl_terms(tmp_path):
    """Advantages of tokens: mean 0 and deviation 1 over the batch; a token's includes the KL terms after it."""
    run = make_run(tmp_path, verifier=HasSeven(), reference=True, algo={"name": "reinforce_plus_plus", "kl_coef": 0.5})
    shake(run.learner.policy, 0.1, 1)
    batch = batch_of(run)
    tokens = batch.advantages[batch.mask]
    assert batch.advantages.shape == batch.mask.shape
    assert abs(float(tokens.mean())) < 1e-5
    assert abs(float(tokens.std()) - 1) < 1e-4
    row = batch.advantages[0][batch.mask[0]]
    cost = (0.5 * (batch.old_logprobs - batch.ref_logprobs))[0][batch.mask[0]]
    # Neighbouring tokens differ by the cost of the first of them, scaled with the whole batch.
    scale = (row[0] - row[1]) / -cost[0]
    torch.testing.assert_close(row[:-1] - row[1:], -cost[:-1] * scale, atol=1e-4, rtol=1e-3)
    assert float(scale) > 0
