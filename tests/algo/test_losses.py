"""The policy loss against hand-worked numbers and TRL 1.16's own, and its independence of microbatches."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from rlvr.algo.losses import cispo, clipped_surrogate, importance_weights, k1, k2, k3, loss_denominator
from rlvr.config import AlgoConfig, Config
from tests.helpers.batches import loss_of, make_batch

T = torch.tensor


def surrogate(ratio, advantage, **options):
    return float(clipped_surrogate(T([[ratio]]), T([[advantage]]), T([[0.0]]), **options))


def test_clipped_surrogate_by_hand():
    """Ratio 1.3 pays 1.2 at most, 1.28 with clip-higher; a bad action at ratio 4 costs 4, with dual clip 3."""
    assert surrogate(1.3, 1.0) == pytest.approx(-1.2)
    assert surrogate(1.3, 1.0, clip_high=0.28) == pytest.approx(-1.28)
    assert surrogate(4.0, -1.0) == pytest.approx(4.0)
    assert surrogate(4.0, -1.0, dual_clip=3.0) == pytest.approx(3.0)
    assert surrogate(0.5, -1.0) == pytest.approx(0.8)


def test_kl_estimators_by_hand():
    """lp -1, ref -1.2; lp -2, ref -.5."""
    lp, ref = T([-1.0, -2.0, -0.1]), T([-1.2, -0.5, -3.0])
    one = torch.ones(3)
    assert k1(lp, ref, one).tolist() == pytest.approx([0.2, -1.5, 2.9], abs=1e-6)
    assert k2(lp, ref, one).tolist() == pytest.approx([0.02, 1.125, 4.205], abs=1e-6)
    assert k3(lp, ref, one).tolist() == pytest.approx([0.018731, 1.981689, 1.955023], abs=1e-6)


def test_importance_weights_by_hand():
    """old (-1,-2,-.5) against sampler (-1.2,-1,-.5): weights 1.2214, .3679, 1; product .4493."""
    old, sampled, mask = T([[-1.0, -2.0, -0.5]]), T([[-1.2, -1.0, -0.5]]), torch.ones(1, 3, dtype=torch.bool)
    assert importance_weights(old, sampled, mask, "token", 1.1)[0].tolist() == pytest.approx(
        [1.1, 0.367879, 1.0], abs=1e-5
    )
    assert importance_weights(old, sampled, mask, "token_mask", 2.0)[0].tolist() == pytest.approx(
        [1.221403, 0.0, 1.0], abs=1e-5
    )
    assert importance_weights(old, sampled, mask, "sequence", 2.0)[0].tolist() == pytest.approx(
        [0.449329] * 3, abs=1e-5
    )
    assert importance_weights(old, sampled, mask, "none", 2.0)[0].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("normalize", "expected"), [("sequence", 2.5), ("token", 16 / 6), ("constant", 16 / 16)], ids=str
)
def test_normalisation_by_hand(normalize, expected):
    """Token losses [1, 3] and [2, 2, 2, 6]: mean of means 2.5, over tokens 2.667, over 2 x 8 slots 1.0."""
    mask = T([[1, 1, 0, 0], [1, 1, 1, 1]]).bool()
    losses = T([[1.0, 3.0, 0, 0], [2.0, 2.0, 2.0, 6.0]])
    batch = make_batch(mask, torch.ones(2), old=None)
    algo = AlgoConfig(loss="cispo", normalize=normalize)
    total = loss_denominator(batch, normalize, 8)
    loss, _ = loss_of(-losses, batch, algo, total)  # CISPO at ratio 1: -A * logprob
    assert float(loss) == pytest.approx(expected)


NOT_OFFERED = {"sapo", "luspo", "vespo"}


def algo_like(config):
    """Our settings for a configuration of TRL's GRPO loss, or None where we do not offer it."""
    kind = config["loss_type"]
    accumulates = config.get("gradient_accumulation_steps", 1) > 1
    if kind in NOT_OFFERED or "entropy_coef" in config or "top_entropy_quantile" in config:
        return None
    if kind == "bnpo" and accumulates:  # normalised by each microbatch's own tokens
        return None
    normalize = {"grpo": "sequence", "dr_grpo": "constant"}.get(kind, "token")
    low, high = config.get("epsilon", 0.2), config.get("epsilon_high", config.get("epsilon", 0.2))
    loss = "gspo" if config.get("importance_sampling_level") == "sequence" else "clip"
    if kind == "cispo":
        loss, low, high = "cispo", 1.0, high - 1.0
    return AlgoConfig(
        loss=loss,
        normalize=normalize,
        clip_low=low,
        clip_high=high,
        dual_clip=config.get("delta"),
        kl_coef=config.get("beta", 0.0),
        kl_estimator="k3_is" if config.get("use_bias_correction_kl", True) else "k3",
    )


def loss_and_gradient(algo, tensors, advantages, pieces=1):
    """Our loss and its gradient to the logprobs, computed in `pieces` microbatches."""
    mask = T(tensors["mask"]).bool()
    ref = T(tensors["ref_logps"]) if algo.kl_coef else None
    batch = make_batch(mask, T(advantages), T(tensors["old_logps"]), ref)
    logprobs = T(tensors["logps"]).requires_grad_()
    total = loss_denominator(batch, algo.normalize, 10)
    value = 0.0
    for index in torch.arange(len(mask)).chunk(pieces):
        width = mask.shape[1]
        micro = batch.rows(index)
        padded = dataclasses.replace(
            micro,
            **{
                name: torch.nn.functional.pad(getattr(micro, name), (0, width - micro.mask.shape[1]))
                for name in ("mask", "sampler_logprobs", "old_logprobs", "ref_logprobs")
                if getattr(micro, name) is not None
            },
        )
        loss, _ = loss_of(logprobs[index], padded, algo, total)
        loss.backward()
        value += float(loss.detach())
    return value, logprobs.grad


def check_against_trl(case, algo, tensors, advantages):
    loss, gradient = loss_and_gradient(algo, tensors, advantages)
    assert loss == pytest.approx(case["loss"], abs=1e-5), case["config"]
    torch.testing.assert_close(gradient, T(case["grad_logps"]), atol=1e-5, rtol=0, msg=str(case["config"]))


def test_grpo_losses_and_gradients_agree_with_trl(rlvr_data):
    """Every variant of TRL 1.16 that is offered, to 1e-5."""
    reference = json.loads(rlvr_data("trl_reference.json").read_text())
    checked = 0
    for case in reference["grpo_loss"]:
        algo = algo_like(case["config"])
        if algo is not None:
            check_against_trl(case, algo, reference["tensors"], reference["tensors"]["adv_for_losses"])
            checked += 1
    assert checked == (21 if rlvr_data.whole("trl_reference.json") else 10)


def test_rloo_losses_and_gradients_agree_with_trl(rlvr_data):
    """The clipped ratio of whole sequences, averaged over sequences."""
    reference = json.loads(rlvr_data("trl_reference.json").read_text())
    for case in reference["rloo_loss"]:
        low = case["config"].get("epsilon", 0.2)
        high = case["config"].get("epsilon_high", low)
        algo = AlgoConfig(loss="sequence", normalize="sequence", clip_low=low, clip_high=high)
        check_against_trl(case, algo, reference["tensors"], case["advantages"])


@pytest.mark.parametrize("normalize", ["token", "sequence", "constant"])
@pytest.mark.parametrize("loss", ["clip", "gspo", "sequence", "cispo"])
def test_loss_does_not_depend_on_microbatches(loss, normalize):
    """Eight rows in one piece, in two, in eight: the same loss and gradient."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 7, (8,), generator=generator)
    tensors = {
        "mask": (torch.arange(6) < lengths[:, None]).int().tolist(),
        **{name: (-torch.rand(8, 6, generator=generator)).tolist() for name in ("logps", "old_logps", "ref_logps")},
    }
    advantages = torch.randn(8, generator=generator).tolist()
    algo = AlgoConfig(loss=loss, normalize=normalize, kl_coef=0.1)
    whole, gradient = loss_and_gradient(algo, tensors, advantages)
    for pieces in (2, 8):
        value, other = loss_and_gradient(algo, tensors, advantages, pieces)
        assert value == pytest.approx(whole, abs=1e-6)
        torch.testing.assert_close(other, gradient, atol=1e-6, rtol=0)


def test_without_old_logprobs_the_ratio_is_one():
    """One update per batch: the gradient is that of REINFORCE, and nothing is clipped."""
    mask = torch.ones(2, 3, dtype=torch.bool)
    logprobs = (-torch.rand(2, 3)).requires_grad_()
    batch = make_batch(mask, T([1.0, -2.0]), old=None)
    loss, stats = loss_of(logprobs, batch, AlgoConfig(), loss_denominator(batch, "token", 3))
    loss.backward()
    torch.testing.assert_close(logprobs.grad, T([[-1 / 6] * 3, [2 / 6] * 3]))
    assert int(stats["clip_low"]) == int(stats["clip_high"]) == 0


def test_cispo_passes_no_gradient_through_the_weight():
    """-A * weight is the whole gradient to the logprob."""
    logprobs = T([[-1.0]]).requires_grad_()
    ratio = (logprobs + 1.0).exp() * 4
    loss = cispo(ratio, T([[1.0]]), logprobs, clip_low=1.0, clip_high=4.0)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(4.0)
    assert float(logprobs.grad) == pytest.approx(-4.0)


@pytest.mark.parametrize(
    ("algo", "message"),
    [
        ({"dual_clip": 1.0}, "above 1 \\+ algo.clip_high"),
        ({"dual_clip": 3.0, "clip_high": 4.0}, "above 1 \\+ algo.clip_high \\(5\\)"),
        ({"dual_clip": 6.0, "loss": "cispo", "clip_high": 4.0}, "algo.loss cispo, which does not read it"),
        ({"dual_clip": 3.0, "loss": "nll"}, "algo.loss nll, which does not read it"),
    ],
)
def test_a_bound_that_would_do_something_else_is_refused(algo, message):
    """Dual clip is for negative advantages: lower than the upper clip it would bound good completions, too."""
    Config(algo=AlgoConfig(dual_clip=1.3)).check()
    with pytest.raises(ValueError, match=message):
        Config(algo=AlgoConfig(**algo)).check()
