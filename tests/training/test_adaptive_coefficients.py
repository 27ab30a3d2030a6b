"""Adaptive KL and entropy coefficients, and resets of the reference policy."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest
import torch

from rlvr.launch import launch
from rlvr.train import train
from rlvr.training.step.learner import adapt_coefficient, adapt_coefficients, reset_reference
from tests.helpers.files import lines
from tests.helpers.models import shake
from tests.helpers.resuming import small
from tests.helpers.runs import batch_of, gradient_of, make_run, rollouts_of

FOLLOWING = {
    "kl_coef": 0.1,
    "kl_target": 1e-4,
    "kl_horizon": 200,
    "entropy_target": 50.0,
    "entropy_coef_delta": 0.01,
    "reference_every": 2,
    "reference_mix": 0.75,
}


def run_with_target(out_dir, steps, **more):
    config = small(out_dir, steps=steps, save_every=1)
    return dataclasses.replace(config, algo=dataclasses.replace(config.algo, **FOLLOWING, **more))


def test_the_coefficient_is_that_of_the_formula(tmp_path):
    """Each step's, from the KL estimate of the step before and its completions with a score."""
    launch(run_with_target(tmp_path, 3))
    found = lines(tmp_path / "metrics.jsonl")
    assert found[0]["kl_coef"] == 0.1
    for before, after in pairwise(found):
        assert after["kl_coef"] == adapt_coefficient(before["kl_coef"], before["kl"], 1e-4, 200, 16)
    assert [row["entropy_coef"] for row in found] == pytest.approx([0.0, 0.01, 0.02])
    assert found[1]["kl_coef"] < 0.1  # the first step begins at the reference
    assert found[2]["kl_coef"] > found[1]["kl_coef"]


@pytest.mark.parametrize("mix", [1.0, 0.25])
def test_a_reset_mixes_the_policy_in(tmp_path, mix):
    """ref = mix x policy + (1 - mix) x ref; with 1 the KL divergence is 0 afterwards."""
    run = make_run(tmp_path, reference=True, algo={"kl_coef": 0.1, "reference_every": 1, "reference_mix": mix})
    before = {name: w.clone() for name, w in run.learner.reference.model.named_parameters()}
    shake(run.learner.policy, 0.1, 1)
    reset_reference(run.learner, mix)
    present = dict(run.learner.policy.model.named_parameters())
    for name, weight in run.learner.reference.model.named_parameters():
        torch.testing.assert_close(weight, mix * present[name].detach() + (1 - mix) * before[name], atol=1e-6, rtol=0)
        assert not weight.requires_grad
    batch = batch_of(run)
    apart = (batch.ref_logprobs - batch.sampler_logprobs)[batch.mask].abs().max()
    assert (apart < 1e-4) == (mix == 1.0)


def test_the_reference_is_reset_after_the_steps_that_are_due(tmp_path):
    """Every second one, from the weights after it."""
    run = make_run(tmp_path, reference=True, run={"steps": 3}, algo={"kl_coef": 0.1, "reference_every": 2})
    kept = []

    def weights(policy):
        return torch.cat([w.detach().flatten() for w in policy.model.parameters()])

    for step in (1, 2, 3):
        shake(run.learner.policy, 0.01, step)
        adapt_coefficients(run.learner, step, {"kl": 0.1}, [])
        kept.append(torch.equal(weights(run.learner.reference), weights(run.learner.policy)))
    assert kept == [False, True, False]


def test_the_entropy_bonus_raises_the_entropy(tmp_path):
    """Rewards that are all equal: with a bonus the policy flattens, without one it stays."""
    ends = {}
    for coef in (0.0, 1.0):
        run = make_run(
            tmp_path / str(coef),
            run={"steps": 8},
            algo={"name": "reinforce", "entropy_coef": coef},
            rollout={"group_size": 2},
        )
        shake(run.learner.policy, 0.15, 3)
        train(run)
        metrics = run.reporter.log.read("metrics")
        ends[coef] = metrics[-1]["entropy"] - metrics[0]["entropy"]
    assert ends[1.0] > ends[0.0] + 0.05


def test_the_gradient_of_the_bonus_is_that_of_the_mean_entropy(tmp_path):
    """Against torch's own autograd through a plain forward, over microbatches too."""
    run = make_run(tmp_path, algo={"entropy_coef": 0.7})
    shake(run.learner.policy, 0.1, 3)
    batch = batch_of(run)
    with_bonus = gradient_of(run, batch)
    run.config = dataclasses.replace(run.config, optim=dataclasses.replace(run.config.optim, tokens_per_microbatch=40))
    torch.testing.assert_close(gradient_of(run, batch), with_bonus, atol=1e-6, rtol=1e-4)
    run.config = dataclasses.replace(run.config, algo=dataclasses.replace(run.config.algo, entropy_coef=0.0))
    without = gradient_of(run, batch)
    parameters = run.learner.policy.parameters()
    logits = run.learner.policy.causal(input_ids=batch.tokens).logits[:, :-1].log_softmax(-1)
    entropy = -(logits.exp() * logits).sum(-1)[batch.mask[:, 1:]].mean()
    own = torch.cat([g.reshape(-1) for g in torch.autograd.grad(entropy, parameters)])
    assert own.norm() > 1e-3
    torch.testing.assert_close(without - with_bonus, 0.7 * own, atol=1e-5, rtol=1e-3)


def test_the_bonus_is_given_where_the_entropy_is_low(tmp_path):
    """It grows at or below the target; above it nothing is given, and the weight shrinks, to 0 at least."""
    run = make_run(tmp_path, algo={"entropy_target": 1.0, "entropy_coef_delta": 0.4, "entropy_coef_max": 0.7})
    given, weights = [], []
    for entropy in (0.5, 1.0, 0.9, 1.1, 2.0, 0.2):
        adapt_coefficients(run.learner, 1, {"entropy": entropy}, [])
        given.append(run.learner.algo.entropy_coef)
        weights.append(run.learner.adapted["entropy_bonus"])
    assert weights == pytest.approx([0.4, 0.7, 0.7, 0.3, 0.0, 0.4])
    assert given == pytest.approx([0.4, 0.7, 0.7, 0.0, 0.0, 0.4])


def test_a_step_without_tokens_changes_no_coefficient(tmp_path):
    run = make_run(tmp_path, reference=True, algo={"kl_coef": 0.1, "kl_target": 0.01, "entropy_target": 1.0})
    assert adapt_coefficients(run.learner, 1, {}, rollouts_of(run)[0]) == {"kl_coef": 0.1, "entropy_coef": 0.0}
    assert run.learner.algo == run.config.algo


@pytest.mark.parametrize(("completions", "factor"), [(20, 0.8), (50, 0.5), (100, 0.0), (1000, 0.0)])
def test_a_coefficient_never_falls_below_zero(completions, factor):
    """A KL of 0 lowers it by a fifth for as many completions as kl_horizon says; by hand, down to 0."""
    assert adapt_coefficient(0.3, 0.0, 1e-3, 20, completions) == pytest.approx(0.3 * factor)
