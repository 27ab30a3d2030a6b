"""Gradients, weights and probabilities that are not finite: told in a line, and the end of the run that they ruin."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file

from rlvr.commands.cli import main
from rlvr.config import Config, ModelConfig, OptimConfig, RolloutConfig, RunConfig, SFTConfig, VLLMConfig
from rlvr.core.types import Problem, RunError, Sampling
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.load.tiny import tiny_model, tiny_tokenizer
from rlvr.model.logprobs.critic import Critic
from rlvr.model.optim.health import GradientWatch, NotFinite, check_weights, streak_of
from rlvr.sampling.torch_sampler import TorchSampler, check_finite, draw
from rlvr.train import train
from rlvr.training.rollout.rollout import collect
from rlvr.training.run import Run
from rlvr.training.sft.sft import sft
from rlvr.training.step.rewards import group_advantages, group_rewards
from rlvr.training.step.update import update
from rlvr.verifiers.runner import Runner
from tests.helpers.models import OwnWeights
from tests.helpers.runs import Warned, build_run, with_settings
from tests.helpers.verifiers import PROBLEMS, odd_digits


class BrokenAt(OwnWeights):
    """An engine whose logprobs are NaN in some of its calls, so that the gradients of these steps are NaN."""

    def __init__(self, policy, calls) -> None:
        super().__init__(policy)
        self.calls, self.count = calls, 0

    def stream(self, prompts, sampling, seeds, on_group):
        self.count += 1
        if self.count not in self.calls:
            return super().stream(prompts, sampling, seeds, on_group)
        return super().stream(
            prompts, sampling, seeds, lambda p, group: on_group(p, [without_logprobs(c) for c in group])
        )


class NothingInTheThird:
    """`odd_digits`, but that nothing is right in the third call of the engine."""

    isolate = False  # it looks at the engine

    def __init__(self, sampler: BrokenAt) -> None:
        self.sampler = sampler

    def __call__(self, problem: Problem, text: str) -> bool:
        return self.sampler.count != 3 and odd_digits(problem, text)


def without_logprobs(completion):
    return dataclasses.replace(completion, logprobs=(float("nan"),) * len(completion.logprobs))


def make_run(out_dir: Path, *, broken=(), steps: int = 6, save_every: int = 1, **groups) -> Run:
    """A run of a random tiny model in float32 on the CPU; the gradients of the steps in `broken` are NaN."""
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=steps, save_every=save_every, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(problems_per_step=6, group_size=4, max_new_tokens=12),
        optim=OptimConfig(lr=1e-3, max_update_kl=0.0),
        sampler=VLLMConfig(mismatch_alarm=10.0),
    )
    run = build_run(
        with_settings(config, **groups), Runner(odd_digits), sampler=lambda policy: BrokenAt(policy, broken)
    )
    run.reporter.callbacks.append(Warned())
    return run


def checkpoints(out_dir: Path) -> list[str]:
    return sorted(path.name for path in (out_dir / "checkpoints").iterdir())


def test_one_broken_batch_is_told_and_does_not_end_the_run(tmp_path):
    """A line names the step; the update is dropped and counted; the steps after it go on."""
    run = make_run(tmp_path, broken=(2,), steps=4)
    train(run)
    assert run.reporter.callbacks[0].told == [
        "step 2: the gradient is NaN or infinite in 1 of its updates, which are dropped; the run stops after 3 such "
        "steps in a row"
    ]
    assert [row["skipped_updates"] for row in run.reporter.log.read("metrics")] == [0, 1, 0, 0]
    assert all(bool(weight.isfinite().all()) for weight in run.learner.policy.parameters())


def test_a_few_in_a_row_end_the_run(tmp_path):
    """After three: one line that names the steps and what to look at; the step is logged, good checkpoints stay."""
    run = make_run(tmp_path, broken=(1, 2, 4, 5, 6, 7, 8), steps=20)
    with pytest.raises(
        RunError, match=r"stopped at step 6: .* in 3 steps in a row, .* step 4; .*--optim\.lr"
    ) as stopped:
        train(run)
    text = str(stopped.value)
    assert "\n" not in text
    assert "--model.dtype" in text
    assert "rollouts.jsonl" in text
    assert [row["skipped_updates"] for row in run.reporter.log.read("metrics")] == [1, 1, 0, 1, 1, 1]
    # two are kept, and none is deleted while gradients are broken: step 3's is the last whose gradient was good
    assert checkpoints(tmp_path) == ["step-000002", "step-000003", "step-000004", "step-000005"]


def test_a_resumed_run_counts_on(tmp_path):
    """Two broken steps before an interruption and one after it are three in a row."""
    train(make_run(tmp_path, broken=(2, 3), steps=3))
    with pytest.raises(NotFinite, match=r"stopped at step 4: .* the first of them step 2"):
        train(make_run(tmp_path, broken=(1,), steps=6), start=3)


@pytest.mark.parametrize("advantage", ["raft", "grpo"])
def test_a_step_that_trains_on_nothing_ends_no_streak(tmp_path, advantage):
    """Between broken steps nothing was chosen, or no group had signal: the third broken one ends the run."""
    run = make_run(tmp_path, broken=(1, 2, 4), algo={"name": advantage, "importance": "token"})
    run.worker.verifier = Runner(NothingInTheThird(run.worker.sampler))
    with pytest.raises(NotFinite, match=r"stopped at step 4: .* in 3 steps in a row"):
        train(run)
    rows = run.reporter.log.read("metrics")
    assert [row.get("skipped_updates") for row in rows] == [1, 1, None, 1]
    assert rows[2]["trained_tokens"] == 0


def test_streaks_by_hand():
    """A good step begins it anew, one without updates does not; a critic's dropped update counts."""
    rows = [{"skipped_updates": n} for n in (1.0, 0.0, 2.0)] + [{"skipped_updates": 0.0, "critic/skipped_updates": 1.0}]
    assert streak_of(rows) == 2
    assert streak_of(rows[:2]) == 0
    assert streak_of([*rows, {"grad_norm": 0.0}]) == 2
    told: list[str] = []
    watch = GradientWatch(told.append, "the data", streak=2)
    watch.observe(5, 0.0)
    watch.observe(6, 1.0)
    watch.observe(7, None)
    watch.observe(7, 1.0)
    assert len(told) == 2
    with pytest.raises(NotFinite, match="first of them step 6"):
        watch.observe(8, 4.0)


def test_a_critics_gradient_that_is_not_finite_is_counted(tmp_path, monkeypatch):
    """A broken value head: its update is dropped and counted, as the policy's is, whose advantages it makes."""
    run = make_run(tmp_path, algo={"name": "ppo"}, sampler={"name": "torch"})
    run.learner.critic = Critic(run.learner.policy, run.config.critic, run.config.optim)
    torch.nn.init.constant_(run.learner.critic.head.bias, float("nan"))
    before = run.learner.critic.head.weight.clone()
    groups = collect(run.worker, 0)
    advantages = group_advantages(groups, group_rewards(groups, run.config.rollout), run.config.algo)
    with monkeypatch.context() as patched:  # which would raise for the head's bias, as it does at the end
        patched.setattr("rlvr.training.step.update.check_trained", lambda learner, step: None)
        stats = update(run.learner, 0, groups, advantages)
    assert stats["critic/skipped_updates"] == 1
    assert torch.equal(run.learner.critic.head.weight, before)
    with pytest.raises(NotFinite, match=r"stopped at step 1, whose updates broke the critic \(look at --critic\.lr"):
        train(run)


def test_weights_that_break_end_the_run_at_once(tmp_path):
    """A learning rate that sends them to infinity: the step and the rate are named, no such checkpoint is written."""
    run = make_run(tmp_path, steps=1)
    train(run)
    run.config = dataclasses.replace(
        run.config, run=dataclasses.replace(run.config.run, steps=3), optim=OptimConfig(lr=1e39)
    )
    named = r"stopped at step 2, whose updates broke the policy \(look at --optim\.lr \(1e\+39\)"
    with pytest.raises(NotFinite, match=named):
        train(run, start=1)
    assert checkpoints(tmp_path) == ["step-000001"]
    saved = load_file(tmp_path / "checkpoints" / "step-000001" / "model.safetensors")
    assert all(bool(weight.isfinite().all()) for weight in saved.values())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_is_named(value):
    """Which, how many of its numbers, and how many weights are broken."""
    weights = {"fine": torch.ones(3), "broken": torch.tensor([1.0, value, value]), "ids": torch.tensor([1])}
    with pytest.raises(NotFinite, match=r"here: 1 of 2 weights .* the first of them broken \(2 of 3 numbers\)"):
        check_weights(weights.items(), "here")
    check_weights([("large", torch.full((9,), 3e38)), ("half", torch.full((9,), 6e4, dtype=torch.float16))], "here")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_never_sampled_from(temperature, value):
    """One broken row of two is an error; a token that cannot be drawn (minus infinity) is none."""
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, value, 2.0]])
    sampling = Sampling(temperature=temperature)
    with pytest.raises(NotFinite, match="NaN or infinite in 1 of 2 rows"):
        check_finite(draw(logits, torch.tensor([0.5, 0.5]), sampling)[1].isfinite().tolist())
    tokens, logprobs = draw(torch.tensor([[0.0, float("-inf")]]), torch.tensor([0.9]), sampling)
    check_finite(logprobs.isfinite().tolist())
    assert tokens.tolist() == [0]


def test_a_policy_that_breaks_between_steps_names_the_step(tmp_path):
    """Logits that overflow while a step is sampled: one line with the step."""
    run = make_run(tmp_path, sampler={"name": "torch"})
    run.worker.sampler = TorchSampler(run.learner.policy)
    with torch.no_grad():
        next(iter(run.learner.policy.parameters())).fill_(float("nan"))
    with pytest.raises(NotFinite, match=r"step 1: the model's logits are NaN or infinite in \d+ of \d+ rows"):
        train(run)


def broken_model(folder: Path) -> Path:
    """A model folder, one of whose weights holds a NaN."""
    tokenizer = tiny_tokenizer(["0123456789+-=> \\boxed{}"], ".")
    model = tiny_model(tokenizer, 0)
    with torch.no_grad():
        list(model.parameters())[3].view(-1)[0] = float("nan")
    Policy(model, tokenizer).save(folder)
    return folder


def test_a_model_with_nan_is_refused_in_one_line(tmp_path, capsys):
    """Training, before anything is written; evaluation, at the first token."""
    model = broken_model(tmp_path / "model")
    out_dir = tmp_path / "run"
    flags = ["--model.name", str(model), "--model.device", "cpu", "--run.out-dir", str(out_dir)]
    assert main(["train", "tiny_math", *flags]) == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert printed.splitlines()[-1].startswith(f"error: model '{model}' cannot be trained: 1 of ")
    assert "the first of them model.layers.0" in printed.splitlines()[-1]
    assert not out_dir.exists()
    flags = ["--model", str(model), "--task", "arithmetic", "--device", "cpu", "--max-problems", "4"]
    flags += ["--out-dir", str(out_dir)]
    assert main(["eval", *flags]) == 2
    assert "the model's logits are NaN or infinite" in capsys.readouterr().err.splitlines()[-1]


def test_a_fine_tuning_that_breaks_ends():
    """A learning rate far too high: one line that names it; warnings before, by Python's or where they are sent."""
    said: list[str] = []
    for options in ({}, {"warn": said.append}):
        policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "], seed=0)
        settings = SFTConfig(steps=8, lr=1e39, warmup_steps=0, batch_size=4)
        demonstrations = [(problem, "7") for problem in PROBLEMS]
        told = (
            nullcontext() if options else pytest.warns(RuntimeWarning, match="the gradient of the fine-tuning is NaN")
        )
        with told, pytest.raises(NotFinite, match=r"stopped at step 4: .* --sft\.lr \(1e\+39\)"):
            sft(policy, demonstrations, settings, Accelerator(cpu=True), seed=0, tokens_per_microbatch=1000, **options)
    assert [text.partition(":")[0] for text in said] == ["step 2", "step 3"]


@pytest.mark.slow
def test_all_processes_stop_together(tmp_path):
    """Two processes, weights that grow until nothing is finite: both end with the same line, nothing hangs."""
    flags = (
        "--sft.steps 0 --rollout.problems-per-step 5 --rollout.group-size 4 --eval.every -1 --run.steps 9 "
        "--optim.lr 1 --optim.weight-decay 1e9 --optim.warmup-steps 0 --optim.schedule constant --model.device cpu "
        "--run.task-option num_train=64 num_test=16 num_demonstrations=256 "
        "--run.verifier regex --run.verifier-option pattern=7 match=search"
    ).split()
    # torchrun looks after its processes every few seconds, so that it ends none that is about to end by itself
    launcher = "torch.distributed.run --standalone --nproc-per-node 2 --monitor-interval 5 -m rlvr".split()
    command = [sys.executable, "-m", *launcher]
    command += ["train", "tiny_math", *flags, "--run.out-dir", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode != 0
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 2
    for line in errors:  # each then counts the rows of its own
        assert line.startswith("error: step ")
        assert "the model's logits are NaN or infinite in" in line
    assert errors[0].split(":")[1] == errors[1].split(":")[1]  # the step
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert json.loads((tmp_path / "run" / "config.json").read_text())
