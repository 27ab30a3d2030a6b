"""Distillation: expected gradients by enumeration, what teachers read, what a run logs, and its exact resume.

The policy is a real model of a few thousand weights with five tokens, and a completion has three of them at most: all
85 can be listed with their probabilities, so that an expectation is a sum.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlvr.algo.batch import Batch, collate
from rlvr.config import AlgoConfig, TeacherConfig
from rlvr.core.types import Group
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.training.run import Run
from rlvr.training.step.distillation.beside import compare_rows, consult_teacher, distillation_loss
from rlvr.training.step.distillation.teacher import Teacher
from rlvr.training.step.prepare import prepare_batch
from tests.helpers.enumeration import cosine, gradient, probabilities, whole_group
from tests.helpers.models import shake
from tests.helpers.runs import make_short_run


def run_with_teacher(folder: Path, **teacher) -> Run:
    """A short run whose teacher is its policy with other weights."""
    run = make_short_run(folder, away=0.2, kl_coef=0.0, normalize="constant")
    settings = TeacherConfig(ratio_cap=1e6, **teacher)
    algo = AlgoConfig("opd", normalize="constant", importance_cap=1e6)
    run.learner.config = dataclasses.replace(run.learner.config, algo=algo, teacher=settings)
    own = run.learner.policy.frozen_copy()
    shake_frozen(own, 0.2, 7)
    run.learner.teacher = Teacher(settings, own)
    return run


def shake_frozen(policy: Policy, size: float, seed: int) -> None:
    policy.model.requires_grad_(True)
    shake(policy, size, seed)
    policy.model.requires_grad_(False)


def distributions(run: Run, batch: Batch) -> tuple[Tensor, Tensor]:
    """Log-probabilities (B, T - 1, V) of policy and teacher."""
    policies = (run.learner.policy, run.learner.teacher.policy)
    one, other = (policy.model(batch.tokens).logits[:, :-1].log_softmax(-1) for policy in policies)
    return one, other.detach()


def divergence(one: Tensor, other: Tensor, beta: float) -> Tensor:
    """The formulas once more, by probabilities: (B, T - 1)."""
    p, t = one.exp(), other.exp()
    if beta in (0, 1):
        a, b = (t, p) if beta == 0 else (p, t)
        return (a * (a / b).log()).sum(-1)
    m = beta * t + (1 - beta) * p
    return beta * (t * (t / m).log()).sum(-1) + (1 - beta) * (p * (p / m).log()).sum(-1)


def coarse(logprobs: Tensor, ids: Tensor) -> Tensor:
    """The probabilities of some tokens and of all others as one, as logarithms."""
    chosen = logprobs.exp().gather(-1, ids)
    return torch.cat([chosen, 1 - chosen.sum(-1, keepdim=True)], -1).log()


def expected(run: Run, batch: Batch, sampled: Tensor, importance: str = "none") -> Tensor:
    """The mean over completions, by their probabilities, of the loss of each alone."""
    total = torch.zeros(())
    for i, share in enumerate(sampled):
        row = batch.rows(torch.tensor([i]))
        total = total + share * distillation_loss(run.learner, compare_rows(run.learner, row), row, 1.0, importance)[0]
    return total


def batch_of(run: Run, group: Group) -> Batch:
    """All completions as a batch that the teacher was consulted about."""
    batch = collate([group], [[0.0] * len(group.completions)], pad_id=0)
    return consult_teacher(run.learner, 1, [group], batch)[0]


def wanted_gradient(run: Run, batch: Batch, sampled: Tensor, beta: float, top_k: int = 0) -> Tensor:
    one, other = distributions(run, batch)
    if top_k:
        ids = other.topk(top_k, dim=-1).indices
        one, other = coarse(one, ids), coarse(other, ids)
    return gradient(run, sampled @ (divergence(one, other, beta) * batch.mask[:, 1:]).sum(-1))


FORMS = [("sampled", 1.0, 0), *(("js", beta, 0) for beta in (0.0, 0.1, 0.5, 0.9, 1.0)), ("js", 0.5, 2), ("js", 1.0, 2)]


@pytest.mark.parametrize(("loss", "beta", "top_k"), FORMS)
def test_expected_gradient_is_that_of_the_named_divergence(tmp_path, loss, beta, top_k):
    """Far from the teacher, for the sampled form and the divergences of whole and of coarser distributions."""
    run = run_with_teacher(tmp_path, loss=loss, beta=beta, top_k=top_k)
    batch = batch_of(run, whole_group(run))
    sampled = probabilities(run, batch)
    found = gradient(run, expected(run, batch, sampled))
    wanted = wanted_gradient(run, batch, sampled, beta, top_k)
    assert cosine(found, wanted) > 0.9999
    assert float(found.norm()) == pytest.approx(float(wanted.norm()), rel=1e-3)


@pytest.mark.parametrize(("loss", "beta"), [("sampled", 1.0), ("js", 0.5)])
def test_the_second_update_of_the_same_rollouts_follows_the_divergence_too(tmp_path, loss, beta):
    """The policy has moved since it sampled: the sampled form is corrected by its ratio, the full one needs none."""
    run = run_with_teacher(tmp_path, loss=loss, beta=beta)
    algo = dataclasses.replace(run.learner.config.algo, minibatches=2)
    run.learner.config = dataclasses.replace(run.learner.config, algo=algo)
    batch = prepare_batch(run.learner, batch_of(run, whole_group(run)))
    sampled = probabilities(run, batch)
    shake(run.learner.policy, 0.05, 2)
    assert (probabilities(run, batch) - sampled).abs().sum() > 0.05
    found = gradient(run, expected(run, batch, sampled))
    assert cosine(found, wanted_gradient(run, batch, sampled, beta)) > 0.9999


def test_importance_weights_correct_the_sampled_form_for_another_engine(tmp_path):
    """Rollouts of other weights: without importance weights the gradient is another, with them it is exact."""
    run = run_with_teacher(tmp_path)
    batch = batch_of(run, whole_group(run))
    sampled = probabilities(run, batch)
    with torch.no_grad():
        engine = token_logprobs(run.learner.policy, batch.tokens, batch.mask)[0]
    shake(run.learner.policy, 0.05, 2)
    batch = dataclasses.replace(batch, sampler_logprobs=engine)
    wanted = wanted_gradient(run, batch, sampled, 1.0)
    assert cosine(gradient(run, expected(run, batch, sampled, "token")), wanted) > 0.9999
    assert cosine(gradient(run, expected(run, batch, sampled, "none")), wanted) < 0.9999
