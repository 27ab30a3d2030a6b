"""Divergences from a teacher: TRL's own numbers, limits, and gradients at the edges."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from rlvr.algo.distillation import entropy, generalized_js, kl, sampled_reverse_kl, with_rest
from tests.helpers.files import GOLDEN

# Made by tests/reference/make_distillation_reference.py with trl==1.16.0.
REFERENCE = json.loads((GOLDEN / "distillation_reference.json").read_text())
TENSORS = {name: torch.tensor(value) for name, value in REFERENCE["tensors"].items()}
TEACHER = TENSORS["teacher"].log_softmax(-1)
MASK = TENSORS["mask"]
PER_TOKEN = MASK / MASK.sum()
PER_SEQUENCE = MASK / MASK.sum(-1, keepdim=True) / len(MASK)


def check(per_token, weights: Tensor, wanted: dict) -> None:
    """The weighted loss of the student's logits, and its gradient, are TRL's to 1e-5."""
    student = TENSORS["student"].clone().requires_grad_()
    loss = (per_token(student.log_softmax(-1)) * weights).sum()
    (grad,) = torch.autograd.grad(loss, student)
    assert float(loss.detach()) == pytest.approx(wanted["loss"], abs=1e-5)
    assert torch.allclose(grad, torch.tensor(wanted["grad"]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("beta", REFERENCE["gkd"])
def test_divergence_of_whole_distributions_is_trls(beta):
    """GKD's and DistillationTrainer's per token, SDPO's per sequence."""

    def per_token(own: Tensor) -> Tensor:
        return generalized_js(own, TEACHER, float(beta))

    check(per_token, PER_TOKEN, REFERENCE["gkd"][beta])
    check(per_token, PER_TOKEN, REFERENCE["distillation"][beta])
    check(per_token, PER_SEQUENCE, REFERENCE["sdpo"][beta])


@pytest.mark.parametrize("alpha", REFERENCE["sdpo_top"])
def test_divergence_of_the_teachers_top_k_and_the_rest_is_trls(alpha):
    best, ids = TEACHER.topk(REFERENCE["top"], dim=-1)

    def per_token(own: Tensor) -> Tensor:
        return generalized_js(with_rest(own.gather(-1, ids)), with_rest(best), float(alpha))

    check(per_token, PER_TOKEN, REFERENCE["sdpo_top"][alpha])


def test_sampled_form_with_its_clipped_ratio_is_trls():
    tokens = TENSORS["tokens"][..., None]

    def per_token(own: Tensor) -> Tensor:
        now, theirs = (x.gather(-1, tokens)[..., 0] for x in (own, TEACHER))
        ratio = (now - TENSORS["old_logprobs"]).exp().clamp(max=REFERENCE["clip"])
        return sampled_reverse_kl(now, theirs, ratio)

    check(per_token, PER_SEQUENCE, REFERENCE["sdpo_sampled"])


def test_kl_divergences_are_the_limits_of_the_mixture():
    """Over beta (1 - beta): with beta near 0 the forward KL, near 1 the reverse."""
    own = TENSORS["student"].double().log_softmax(-1)
    teacher = TENSORS["teacher"].double().log_softmax(-1)
    for beta, end in ((1e-6, 0.0), (1 - 1e-6, 1.0)):
        near = generalized_js(own, teacher, beta) / (beta * (1 - beta))
        assert torch.allclose(near, generalized_js(own, teacher, end), rtol=1e-3)


def test_coarser_distributions_are_nearer():
    """Taking tokens as one loses information, never gains any; with all tokens there is no rest."""
    own = TENSORS["student"].log_softmax(-1)
    before = torch.zeros(own.shape[:-1])
    for k in (1, 3, 8, 11):
        best, ids = TEACHER.topk(k, dim=-1)
        now = kl(with_rest(own.gather(-1, ids)), with_rest(best))
        assert bool((now >= before - 1e-5).all())
        before = now
    assert torch.allclose(before, kl(own, TEACHER), atol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_certain_teacher_gives_a_finite_gradient(beta):
    """Also where float32 knows no mass outside its top token."""
    logits = torch.zeros(1, 5).requires_grad_()
    sure = torch.tensor([[60.0, 0.0, 0.0, 0.0, 0.0]]).log_softmax(-1)
    own = logits.log_softmax(-1)
    for value in (generalized_js(own, sure, beta), generalized_js(with_rest(own[:, :1]), with_rest(sure[:, :1]), beta)):
        (grad,) = torch.autograd.grad(value.sum(), logits, retain_graph=True)
        assert bool(grad.isfinite().all())
        assert float(grad[0, 0]) < 0
    assert float(entropy(sure)) == pytest.approx(0, abs=1e-6)
