"""The losses: numbers by hand, TRL's and verl's own; KL estimators, importance weights, independence of microbatches.

tests/reference/make_loss_reference.py made loss_reference.json by the functions of TRL 1.16 and verl 0.9.1.
"""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache
from typing import Any

import pytest
import torch
from torch.nn.functional import pad

from rlvr.algo.advantages import labels
from rlvr.algo.gae import generalized_advantages, token_rewards, whiten_tokens
from rlvr.algo.losses import (
    cispo,
    clipped_surrogate,
    importance_weights,
    k1,
    k2,
    k3,
    loss_denominator,
    sapo,
    token_weights,
    vespo,
)
from rlvr.config import AlgoConfig
from rlvr.training.step.learner import adapt_coefficient
from tests.helpers.batches import loss_of, make_batch
from tests.helpers.files import GOLDEN

T = torch.tensor
ONES = torch.ones(3)


def batch_of(t: dict[str, Any], **more: Any) -> Any:
    return make_batch(t["mask"].bool(), t["advantages"], **more)


def loss_and_gradient(algo, batch, logprobs, *, pieces=1, importance="none"):
    """The loss, its gradient to the logprobs, and its sums for the log, computed in `pieces` microbatches."""
    logprobs = logprobs.clone().requires_grad_()
    total = loss_denominator(batch, algo.normalizer, 10)
    value, width = 0.0, batch.mask.shape[1]
    for index in torch.arange(len(batch)).chunk(pieces):
        micro = batch.rows(index)
        wide = {"mask", "sampler_logprobs", "old_logprobs", "ref_logprobs"}
        tensors = {name: getattr(micro, name) for name in wide if getattr(micro, name) is not None}
        padded = {name: pad(tensor, (0, width - micro.mask.shape[1])) for name, tensor in tensors.items()}
        loss, stats = loss_of(logprobs[index], dataclasses.replace(micro, **padded), algo, total, importance)
        loss.backward()
        value += float(loss.detach())
    return value, logprobs.grad, stats


def check_reference(algo, batch, logprobs, expected, **options):
    """Loss and gradient are those of a reference, to 1e-5."""
    loss, gradient, stats = loss_and_gradient(algo, batch, logprobs, **options)
    assert loss == pytest.approx(expected["loss"], abs=1e-5)
    wanted = T(expected.get("grad_logps") or expected["grad_logprobs"])
    torch.testing.assert_close(gradient, wanted, atol=1e-5, rtol=0)
    return stats


# By hand


def settings_of(loss, **changed):
    """The settings that a loss's function reads: the defaults, but for some."""
    return AlgoConfig(loss=loss, **changed).loss_arguments()["settings"]


def surrogate(ratio, advantage, **options):
    return float(clipped_surrogate(T([[ratio]]), T([[advantage]]), T([[0.0]]), **settings_of("clip", **options)))


def test_clipped_surrogate_by_hand():
    """Ratio 1.3 pays 1.2 at most, 1.28 with clip-higher; a bad action at ratio 4 costs 4, with dual clip 3."""
    assert surrogate(1.3, 1.0) == pytest.approx(-1.2)
    assert surrogate(1.3, 1.0, clip_high=0.28) == pytest.approx(-1.28)
    assert surrogate(4.0, -1.0) == pytest.approx(4.0)
    assert surrogate(4.0, -1.0, dual_clip=3.0) == pytest.approx(3.0)
    assert surrogate(0.5, -1.0) == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected"),
    [
        *((1.0, ratio, loss) for ratio, loss in {0.5: -1.510163, 1.0: -2.0, 1.3: -2.297770, 4.0: -3.810297}.items()),
        *((-1.0, ratio, loss) for ratio, loss in {1.0: 1.904762, 4.0: 3.652986}.items()),
    ],
)
def test_sapo_by_hand(advantage, ratio, expected):
    """-(4 / tau) sigmoid(tau (ratio - 1)) A, tau 1 and 1.05."""
    assert float(sapo(T([[ratio]]), T([[advantage]]), T([[0.0]]), **settings_of("sapo"))) == pytest.approx(
        expected, abs=1e-5
    )


@pytest.mark.parametrize(("advantage", "k", "decay"), [(1.0, 2.0, 3.0), (0.0, 2.0, 3.0), (-1.0, 3.0, 2.0)])
@pytest.mark.parametrize("ratio", [1e-12, 0.3, 1.0, 2.0, 50.0])
def test_vespo_by_hand(advantage, k, decay, ratio):
    """-w^k exp(lambda (1 - w)) A logp: no gradient through the weight."""
    logprobs = T([[-0.7]]).requires_grad_()
    loss = vespo((logprobs + 0.7).exp() * ratio, T([[advantage]]), logprobs, **settings_of("vespo"))
    loss.sum().backward()
    w = max(ratio, 1e-8)
    phi = w**k * math.exp(decay * (1 - w))
    assert float(loss.detach()) == pytest.approx(0.7 * phi * advantage, rel=1e-4, abs=1e-12)
    assert float(logprobs.grad) == pytest.approx(-phi * advantage, rel=1e-4, abs=1e-12)


def test_cispo_passes_no_gradient_through_the_weight():
    """-A * weight is the whole gradient to the logprob."""
    logprobs = T([[-1.0]]).requires_grad_()
    loss = cispo((logprobs + 1.0).exp() * 4, T([[1.0]]), logprobs, clip_low=1.0, clip_high=4.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(4.0)
    assert float(logprobs.grad) == pytest.approx(-4.0)


def test_luspo_is_gspo_times_the_length():
    """One row of 3 tokens and one of 1, ratios of whole completions 1.1 and .9: (3 * -1.1 + 1 * .9) / 2."""
    mask = T([[True, True, True], [True, False, False]])
    logprobs = T([[0.0953101798] * 3, [-0.105360516, 0.0, 0.0]])
    batch = make_batch(mask, T([1.0, -1.0]), old=torch.zeros(2, 3))
    assert loss_and_gradient(AlgoConfig(loss="luspo"), batch, logprobs)[0] == pytest.approx((-3.3 + 0.9) / 2, abs=1e-6)


def test_kto_by_hand():
    """A good row with gain .4 and a bad one with gain .2, z .1, beta 1: (1 - s(.3)) and 2 (1 - s(-.1)), halved."""
    mask = torch.ones(2, 2, dtype=torch.bool)
    batch = make_batch(mask, T([1.0, -1.0]), ref=T([[-1.0, -1.0], [-1.0, -1.0]]), kl=T([0.1, 0.1]))
    algo = AlgoConfig("kto", beta=1.0, undesirable_weight=2.0)
    loss, _, stats = loss_and_gradient(algo, batch, T([[-0.8, -0.8], [-0.9, -0.9]]))
    assert loss == pytest.approx((1 - 1 / (1 + math.exp(-0.3)) + 2 * (1 - 1 / (1 + math.exp(0.1)))) / 2, abs=1e-6)
    assert float(stats["kto/desirable"]) == pytest.approx(0.4, abs=1e-6)
    assert float(stats["kto/undesirable"]) == pytest.approx(0.2, abs=1e-6)
    assert labels([1.0, 0.0, None, 0.5, 0.49]) == [1.0, -1.0, 0.0, 1.0, -1.0]


def test_kl_estimators_by_hand():
    """lp -1, ref -1.2; lp -2, ref -.5."""
    lp, ref = T([-1.0, -2.0, -0.1]), T([-1.2, -0.5, -3.0])
    assert k1(lp, ref, ONES).tolist() == pytest.approx([0.2, -1.5, 2.9], abs=1e-6)
    assert k2(lp, ref, ONES).tolist() == pytest.approx([0.02, 1.125, 4.205], abs=1e-6)
    assert k3(lp, ref, ONES).tolist() == pytest.approx([0.018731, 1.981689, 1.955023], abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "cap", "expected"),
    [
        ("token", 1.1, [1.1, 0.367879, 1.0]),
        ("token_mask", 2.0, [1.221403, 0.0, 1.0]),
        ("sequence", 2.0, [0.449329] * 3),
        ("none", 2.0, [1.0] * 3),
    ],
)
def test_importance_weights_by_hand(kind, cap, expected):
    """old (-1,-2,-.5) against sampler (-1.2,-1,-.5): weights 1.2214, .3679, 1; product .4493."""
    old, sampled, mask = T([[-1.0, -2.0, -0.5]]), T([[-1.2, -1.0, -0.5]]), torch.ones(1, 3, dtype=torch.bool)
    assert importance_weights(old, sampled, mask, kind, cap)[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_importance_by_version_by_hand():
    """Weights 1.2214, .3679, 1.2214, the first token of version 4, the others of 5: 1.2214, and the product of all."""
    old, sampled, mask = T([[-1.0, -2.0, -0.5]]), T([[-1.2, -1.0, -0.7]]), torch.ones(1, 3, dtype=torch.bool)
    versions = torch.tensor([[4, 5, 5]])
    found = importance_weights(old, sampled, mask, "version", 2.0, versions)
    assert found[0].tolist() == pytest.approx([1.221403, 0.548812, 0.548812], abs=1e-5)
    whole = importance_weights(old, sampled, mask, "version", 2.0)
    assert whole.tolist() == importance_weights(old, sampled, mask, "sequence", 2.0).tolist()


MASK, TOKEN_LOSSES = T([[1, 1, 0, 0], [1, 1, 1, 1]]).bool(), T([[1.0, 3.0, 0, 0], [2.0, 2.0, 2.0, 6.0]])


@pytest.mark.parametrize(
    ("normalize", "expected"), [("sequence", 2.5), ("token", 16 / 6), ("constant", 16 / 16), ("sum", 8)], ids=str
)
def test_normalization_by_hand(normalize, expected):
    """Token losses [1, 3] and [2, 2, 2, 6]: mean of means 2.5, over tokens 2.667, over 2 x 8 slots 1.0, mean of sums 8.

    The last is verl's seq-mean-token-sum.
    """
    batch = make_batch(MASK, torch.ones(2), old=None)
    algo = AlgoConfig(loss="cispo", normalize=normalize)
    total = loss_denominator(batch, normalize, 8)
    assert float(loss_of(-TOKEN_LOSSES, batch, algo, total)[0]) == pytest.approx(expected)  # ratio 1: -A * logprob
    assert float((TOKEN_LOSSES * token_weights(MASK, algo.normalizer, total)).sum()) == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["clip", "sapo", "vespo"])
def test_on_policy_every_loss_is_the_plain_policy_gradient(loss):
    """One update per batch has no old logprobs: the ratio and the gates are 1, and nothing is clipped."""
    batch = make_batch(torch.ones(2, 3, dtype=torch.bool), T([1.0, -2.0]), old=None)
    algo = AlgoConfig(loss=loss, normalize="token")
    _, gradient, stats = loss_and_gradient(algo, batch, -torch.rand(2, 3))
    torch.testing.assert_close(gradient, T([[-1 / 6] * 3, [2 / 6] * 3]))
    assert int(stats["clip_low"]) == int(stats["clip_high"]) == 0


# Against TRL and verl


def algo_like(config):
    """Our settings for a configuration of TRL's GRPO loss, or None where we do not offer it."""
    kind = config["loss_type"]
    # Those of golden/loss_reference.json are below. bnpo with accumulation divides by each microbatch's own tokens.
    elsewhere = kind in ("sapo", "luspo", "vespo") or "entropy_coef" in config or "top_entropy_quantile" in config
    if elsewhere or (kind == "bnpo" and config.get("gradient_accumulation_steps", 1) > 1):
        return None
    low, high = config.get("epsilon", 0.2), config.get("epsilon_high", config.get("epsilon", 0.2))
    loss = "gspo" if config.get("importance_sampling_level") == "sequence" else "clip"
    if kind == "cispo":
        loss, low, high = "cispo", 1.0, high - 1.0
    return AlgoConfig(
        loss=loss,
        normalize={"grpo": "sequence", "dr_grpo": "constant"}.get(kind, "token"),
        clip_low=low,
        clip_high=high,
        dual_clip=config.get("delta"),
        kl_coef=config.get("beta", 0.0),
        kl_estimator="k3_is" if config.get("use_bias_correction_kl", True) else "k3",
    )


def check_against_trl(case, algo, tensors, advantages):
    ref = T(tensors["ref_logps"]) if algo.kl_coef else None
    batch = make_batch(T(tensors["mask"]).bool(), T(advantages), T(tensors["old_logps"]), ref)
    check_reference(algo, batch, T(tensors["logps"]), case)


def test_grpo_losses_and_gradients_agree_with_trl(rlvr_data):
    """Every variant of TRL 1.16 that is offered, to 1e-5."""
    reference = json.loads(rlvr_data("trl_reference.json").read_text())
    offered = [(case, algo) for case in reference["grpo_loss"] if (algo := algo_like(case["config"])) is not None]
    for case, algo in offered:
        check_against_trl(case, algo, reference["tensors"], reference["tensors"]["adv_for_losses"])
    assert len(offered) == (21 if rlvr_data.is_complete("trl_reference.json") else 10)


def test_rloo_losses_and_gradients_agree_with_trl(rlvr_data):
    """The clipped ratio of whole sequences, averaged over sequences."""
    reference = json.loads(rlvr_data("trl_reference.json").read_text())
    for case in reference["rloo_loss"]:
        low = case["config"].get("epsilon", 0.2)
        high = case["config"].get("epsilon_high", low)
        algo = AlgoConfig(loss="sequence", normalize="sequence", clip_low=low, clip_high=high)
        check_against_trl(case, algo, reference["tensors"], case["advantages"])


@cache
def reference() -> dict[str, Any]:
    return json.loads((GOLDEN / "loss_reference.json").read_text())


def reference_tensors() -> dict[str, torch.Tensor]:
    return {name: T(values) for name, values in reference()["tensors"].items()}


@pytest.mark.parametrize(
    ("peer", "loss", "high"),
    [("trl", "sapo", 0.28), ("trl", "luspo", 0.28), ("trl", "vespo", 0.28), ("verl", "sapo", 0.2)],
)
def test_soft_losses_agree_with_trl_and_verl(peer, loss, high):
    """With each loss's own average."""
    t = reference_tensors()
    algo = AlgoConfig(loss=loss, clip_high=high, **reference()["settings"])
    check_reference(algo, batch_of(t, old=t["old_logprobs"]), t["logprobs"], reference()[peer][loss])


def test_vespo_takes_importance_weights_into_its_ratio_as_trl():
    """w is the ratio to the sampler's policy; the loss is not weighted a second time."""
    t = reference_tensors()
    algo = AlgoConfig(loss="vespo", importance="token", importance_cap=1.5, **reference()["settings"])
    sampler = torch.where(t["mask"].bool(), t["old_logprobs"] - t["weights"].clamp(min=1e-9).log(), 0.0)
    batch = batch_of(t, old=t["old_logprobs"], sampler=sampler)
    expected = reference()["trl"]["vespo_weighted"]
    stats = check_reference(algo, batch, t["logprobs"], expected, importance="token")
    assert float(stats["importance"]) == pytest.approx(float(t["weights"].sum()), abs=1e-4)


def test_kto_agrees_with_trl():
    """TRL's mean over completions."""
    t, expected = reference_tensors(), reference()["trl"]["kto"]
    weights = {name: expected[name] for name in ("beta", "desirable_weight", "undesirable_weight")}
    count = len(t["mask"])
    kl, label = torch.full((count,), expected["kl"]), T([1.0, -1.0] * (count // 2))
    batch = make_batch(t["mask"].bool(), label, ref=t["ref_logprobs"], kl=kl)
    check_reference(AlgoConfig("kto", **weights), batch, t["logprobs"], expected)


def test_token_advantages_of_reinforce_plus_plus_agree_with_verl():
    """Returns of tokens with the KL cost of each, whitened over the tokens of the batch."""
    t, expected = reference_tensors(), reference()["verl"]["reinforce_plus_plus"]
    mask = t["mask"].bool()
    rewards = token_rewards(t["advantages"], mask, t["cost"])
    nothing = torch.zeros_like(rewards)
    advantages, _ = generalized_advantages(rewards, nothing, mask, gamma=expected["gamma"], lam=1.0)
    torch.testing.assert_close(whiten_tokens(advantages, mask), T(expected["advantages"]), atol=1e-5, rtol=0)


def test_adaptive_kl_agrees_with_verl():
    """.1, target .02: 50 % too much counts as 20 %; too little, and below zero, as -20 %."""
    expected = reference()["verl"]["adaptive_kl"]
    coef = expected["start"]
    for kl, completions, wanted in expected["coefficients"]:
        coef = adapt_coefficient(coef, kl, expected["target"], expected["horizon"], completions)
        assert coef == pytest.approx(wanted, abs=1e-9)
    assert adapt_coefficient(0.1, 0.03, 0.02, 500, 64) == pytest.approx(0.1 * (1 + 0.2 * 64 / 500))
    assert adapt_coefficient(0.1, 0.0, 0.02, 100, 1000) == 0.0


@pytest.mark.parametrize("normalize", ["token", "sequence", "constant"])
@pytest.mark.parametrize("loss", ["clip", "gspo", "sequence", "cispo"])
def test_loss_does_not_depend_on_microbatches(loss, normalize):
    """Eight rows in one piece, in two, in eight: the same loss and gradient."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 7, (8,), generator=generator)
    logprobs, old, ref = (-torch.rand(8, 6, generator=generator) for _ in range(3))
    batch = make_batch(torch.arange(6) < lengths[:, None], torch.randn(8, generator=generator), old, ref)
    algo = AlgoConfig(loss=loss, normalize=normalize, kl_coef=0.1)
    whole, gradient, _ = loss_and_gradient(algo, batch, logprobs)
    for pieces in (2, 8):
        value, other, _ = loss_and_gradient(algo, batch, logprobs, pieces=pieces)
        assert value == pytest.approx(whole, abs=1e-6)
        torch.testing.assert_close(other, gradient, atol=1e-6, rtol=0)
