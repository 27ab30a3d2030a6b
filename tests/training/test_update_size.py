"""How far a step's updates move the policy is measured, bounded, and said where it is too far."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from rlvr.config import EvalConfig
from rlvr.launch import launch
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.recipes.tiny_math import CONFIG
from rlvr.training.rollout.rollout import collect
from rlvr.training.step.update import SHARE, UpdateSize, to_batch, update
from tests.helpers.runs import make_run


def groups_of(run, step=0):
    """The groups of a step with their advantages, which are alternately 1 and -1: every group has signal."""
    groups = collect(run.worker, step)
    advantages = [[(-1.0) ** i for i in range(len(group.completions))] for group in groups]
    return groups, advantages


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
    assert "3 of its updates were left out" in line


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
