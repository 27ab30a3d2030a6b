"""SAPO, LUSPO, VESPO, KTO, REINFORCE++ and the adaptive KL coefficient: numbers by hand, and TRL's and verl's own.

tests/reference/make_loss_reference.py made the file, by the functions of TRL 1.16 and verl 0.9.1.
"""

from __future__ import annotations

import dataclasses
import json
import math
from functools import cache
from typing import Any

import pytest
import torch

from rlvr.algo.advantages import labels
from rlvr.algo.gae import generalized_advantages, token_rewards, whiten_tokens
from rlvr.algo.losses import loss_denominator, sapo, token_weights, vespo
from rlvr.config import AlgoConfig
from rlvr.training.step.adaptive_coefficients import adapted
from tests.helpers.batches import loss_of, make_batch
from tests.helpers.files import GOLDEN

T = torch.tensor


@cache
def reference() -> dict[str, Any]:
    return json.loads((GOLDEN / "loss_reference.json").read_text())


def tensors() -> dict[str, torch.Tensor]:
    return {name: T(values) for name, values in reference()["tensors"].items()}


def found(algo, t, *, batch, importance="none"):
    """The loss and its gradient to the logprobs."""
    logprobs = t["logprobs"].clone().requires_grad_()
    total = loss_denominator(batch, algo.normalizer, 9)
    loss, stats = loss_of(logprobs, batch, algo, total, importance)
    loss.backward()
    return float(loss.detach()), logprobs.grad, stats


@pytest.mark.parametrize(
    ("advantage", "ratio", "expected"),
    [
        (1.0, 0.5, -1.510163),
        (1.0, 1.0, -2.0),
        (1.0, 1.3, -2.297770),
        (1.0, 4.0, -3.810297),
        (-1.0, 1.0, 1.904762),
        (-1.0, 4.0, 3.652986),
    ],
)
def test_sapo_by_hand(advantage, ratio, expected):
    """-(4 / tau) sigmoid(tau (ratio - 1)) A, tau 1 and 1.05."""
    loss = sapo(T([[ratio]]), T([[advantage]]), T([[0.0]]))
    assert float(loss) == pytest.approx(expected, abs=1e-5)


def test_gates_are_one_where_the_ratio_is():
    """On policy the gradient of sapo and vespo is that of the plain policy gradient."""
    for loss in ("sapo", "vespo"):
        algo = AlgoConfig(loss=loss, normalize="token")
        mask = torch.ones(2, 3, dtype=torch.bool)
        logprobs = (-torch.rand(2, 3)).requires_grad_()
        batch = make_batch(mask, T([1.0, -2.0]), old=None)
        value, _ = loss_of(logprobs, batch, algo, loss_denominator(batch, "token", 3))
        value.backward()
        torch.testing.assert_close(logprobs.grad, T([[-1 / 6] * 3, [2 / 6] * 3]))


@pytest.mark.parametrize(("advantage", "k", "decay"), [(1.0, 2.0, 3.0), (0.0, 2.0, 3.0), (-1.0, 3.0, 2.0)])
@pytest.mark.parametrize("ratio", [1e-12, 0.3, 1.0, 2.0, 50.0])
def test_vespo_by_hand(advantage, k, decay, ratio):
    """-w^k exp(lambda (1 - w)) A logp: no gradient through the weight."""
    logprobs = T([[-0.7]]).requires_grad_()
    loss = vespo((logprobs + 0.7).exp() * ratio, T([[advantage]]), logprobs)
    loss.sum().backward()
    w = max(ratio, 1e-8)
    phi = w**k * math.exp(decay * (1 - w))
    assert float(loss.detach()) == pytest.approx(0.7 * phi * advantage, rel=1e-4, abs=1e-12)
    assert float(logprobs.grad) == pytest.approx(-phi * advantage, rel=1e-4, abs=1e-12)


@pytest.mark.parametrize("name", ["sapo", "luspo", "vespo"])
def test_policy_losses_agree_with_trl(name):
    """Loss and gradient, with each loss's own average."""
    t, expected = tensors(), reference()["trl"][name]
    algo = AlgoConfig(loss=name, clip_high=0.28, **reference()["settings"])
    batch = make_batch(t["mask"].bool(), t["advantages"], old=t["old_logprobs"])
    loss, gradient, _ = found(algo, t, batch=batch)
    assert loss == pytest.approx(expected["loss"], abs=1e-5)
    torch.testing.assert_close(gradient, T(expected["grad_logprobs"]), atol=1e-5, rtol=0)


def test_vespo_takes_importance_weights_into_its_ratio_as_trl():
    """w is the ratio to the sampler's policy; the loss is not weighted a second time."""
    t, expected = tensors(), reference()["trl"]["vespo_weighted"]
    algo = AlgoConfig(loss="vespo", importance="token", importance_cap=1.5, **reference()["settings"])
    mask = t["mask"].bool()
    sampler = torch.where(mask, t["old_logprobs"] - t["weights"].clamp(min=1e-9).log(), 0.0)
    batch = make_batch(mask, t["advantages"], old=t["old_logprobs"], sampler=sampler)
    loss, gradient, stats = found(algo, t, batch=batch, importance="token")
    assert loss == pytest.approx(expected["loss"], abs=1e-5)
    torch.testing.assert_close(gradient, T(expected["grad_logprobs"]), atol=1e-5, rtol=0)
    assert float(stats["importance"]) == pytest.approx(float(t["weights"].sum()), abs=1e-4)


def test_sapo_agrees_with_verl():
    t, expected = tensors(), reference()["verl"]["sapo"]
    batch = make_batch(t["mask"].bool(), t["advantages"], old=t["old_logprobs"])
    loss, gradient, _ = found(AlgoConfig(loss="sapo", **reference()["settings"]), t, batch=batch)
    assert loss == pytest.approx(expected["loss"], abs=1e-5)
    torch.testing.assert_close(gradient, T(expected["grad_logprobs"]), atol=1e-5, rtol=0)


def test_luspo_is_gspo_times_the_length():
    """One row of 3 tokens and one of 1, ratios of whole completions 1.1 and .9: (3 * -1.1 + 1 * .9) / 2."""
    mask = T([[True, True, True], [True, False, False]])
    old = torch.zeros(2, 3)
    logprobs = T([[0.0953101798] * 3, [-0.105360516, 0.0, 0.0]])
    algo = AlgoConfig(loss="luspo")
    batch = make_batch(mask, T([1.0, -1.0]), old=old)
    loss, _ = loss_of(logprobs, batch, algo, loss_denominator(batch, algo.normalizer, 3))
    assert float(loss) == pytest.approx((-3.3 + 0.9) / 2, abs=1e-6)


def kto_batch(t, kl):
    count = len(t["mask"])
    label = T([1.0, -1.0] * (count // 2))
    return make_batch(t["mask"].bool(), label, ref=t["ref_logprobs"], kl=torch.full((count,), kl))


def test_kto_agrees_with_trl():
    """Loss and gradient; TRL's mean over completions."""
    t, expected = tensors(), reference()["trl"]["kto"]
    weights = {name: expected[name] for name in ("beta", "desirable_weight", "undesirable_weight")}
    loss, gradient, _ = found(AlgoConfig("kto", **weights), t, batch=kto_batch(t, expected["kl"]))
    assert loss == pytest.approx(expected["loss"], abs=1e-5)
    torch.testing.assert_close(gradient, T(expected["grad_logprobs"]), atol=1e-5, rtol=0)


def test_kto_by_hand():
    """A good row with gain .4 and a bad one with gain .2, z .1, beta 1: (1 - s(.3)) and 2 (1 - s(-.1)), halved."""
    mask = torch.ones(2, 2, dtype=torch.bool)
    batch = make_batch(mask, T([1.0, -1.0]), ref=T([[-1.0, -1.0], [-1.0, -1.0]]), kl=T([0.1, 0.1]))
    logprobs = T([[-0.8, -0.8], [-0.9, -0.9]])
    algo = AlgoConfig("kto", beta=1.0, undesirable_weight=2.0)
    loss, stats = loss_of(logprobs, batch, algo, loss_denominator(batch, algo.normalizer, 2))

    def sigmoid(x):
        return 1 / (1 + math.exp(-x))

    assert float(loss) == pytest.approx(((1 - sigmoid(0.3)) + 2 * (1 - sigmoid(-0.1))) / 2, abs=1e-6)
    assert float(stats["kto/desirable"]) == pytest.approx(0.4, abs=1e-6)
    assert float(stats["kto/undesirable"]) == pytest.approx(0.2, abs=1e-6)
    assert labels([1.0, 0.0, None, 0.5, 0.49]) == [1.0, -1.0, 0.0, 1.0, -1.0]


def test_token_advantages_of_reinforce_plus_plus_agree_with_verl():
    """Returns of tokens with the KL cost of each, whitened over the tokens of the batch."""
    t, expected = tensors(), reference()["verl"]["reinforce_plus_plus"]
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
        coef = adapted(coef, kl, expected["target"], expected["horizon"], completions)
        assert coef == pytest.approx(wanted, abs=1e-9)
    assert adapted(0.1, 0.03, 0.02, 500, 64) == pytest.approx(0.1 * (1 + 0.2 * 64 / 500))
    assert adapted(0.1, 0.0, 0.02, 100, 1000) == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "luspo", "normalize": "token"}, "set auto or sum"),
        ({"loss": "gspo", "normalize": "sum"}, "set auto or sequence"),
        ({"loss": "vespo", "importance": "sequence"}, "importance weights of its tokens in it; set token"),
        ({"loss": "vespo", "kl_coef": 0.1, "kl_estimator": "k3_is"}, "ratio is that of a whole completion"),
        ({"loss": "vespo", "vespo_lambda_pos": 0.0}, "vespo_lambda_pos"),
        ({"loss": "sapo", "sapo_temperature_pos": -1.0}, "sapo_temperature_pos"),
        ({"loss": "sapo", "dual_clip": 3.0}, "which does not read it"),
    ],
)
def test_what_a_loss_cannot_have_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        AlgoConfig("dr_grpo", **settings).check("algo.")


def test_the_average_a_user_names_is_kept():
    """normalize sum with clip is verl's seq-mean-token-sum: token losses [1, 3] and [2, 2, 2, 6]: 8."""
    mask = T([[True, True, False, False], [True] * 4])
    batch = make_batch(mask, torch.ones(2), old=None)
    algo = dataclasses.replace(AlgoConfig(), normalize="sum")
    weights = loss_denominator(batch, algo.normalizer, 8)
    assert weights == 2
    per_token = T([[1.0, 3.0, 0.0, 0.0], [2.0, 2.0, 2.0, 6.0]])
    assert float((per_token * token_weights(mask, algo.normalizer, weights)).sum()) == 8
