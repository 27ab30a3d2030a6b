"""Generalized advantages and the value loss: by hand, and against verl's own numbers."""

from __future__ import annotations

import json

import pytest
import torch

from rlvr.algo.batch import Batch
from rlvr.algo.gae import explained_variance, generalized_advantages, token_rewards, whiten_tokens
from rlvr.algo.losses import loss_denominator, value_loss
from rlvr.config import AlgoConfig
from tests.helpers.batches import loss_of
from tests.helpers.batches import make_batch as make_plain_batch
from tests.helpers.files import GOLDEN

T = torch.tensor


@pytest.mark.parametrize(
    ("gamma", "lam", "expected"), [(1.0, 0.95, [0.751, 0.58, 0.4]), (0.9, 0.5, [0.304, 0.32, 0.4])]
)
def test_generalized_advantages_by_hand(gamma, lam, expected):
    """r = [0, 0, 1], V = [.2, .4, .6]: deltas .2, .2, .4, with the discount .16, .14, .4; R = A + V."""
    rewards, values = T([[0.0, 0.0, 1.0]]), T([[0.2, 0.4, 0.6]])
    advantages, returns = generalized_advantages(rewards, values, torch.ones(1, 3).bool(), gamma=gamma, lam=lam)
    assert advantages[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert returns[0].tolist() == pytest.approx([a + v for a, v in zip(expected, (0.2, 0.4, 0.6))], abs=1e-6)


def test_prompt_and_padding_take_no_part():
    """The same completion behind a prompt and before padding, with anything at those places."""
    rewards, values = T([[9.0, 0.0, 0.0, 1.0, 9.0]]), T([[7.0, 0.2, 0.4, 0.6, 7.0]])
    mask = T([[False, True, True, True, False]])
    advantages, returns = generalized_advantages(rewards, values, mask, gamma=1.0, lam=0.95)
    assert advantages[0].tolist() == pytest.approx([0, 0.751, 0.58, 0.4, 0], abs=1e-6)
    assert returns[0].tolist() == pytest.approx([0, 0.951, 0.98, 1.0, 0], abs=1e-6)


def test_lambda_one_is_the_return_minus_the_value():
    """Without a discount every token's return is the sum of the rewards from it on."""
    rewards, values = T([[0.5, 0.0, 1.0]]), T([[0.2, 0.4, 0.6]])
    _, returns = generalized_advantages(rewards, values, torch.ones(1, 3).bool(), gamma=1.0, lam=1.0)
    assert returns[0].tolist() == pytest.approx([1.5, 1.0, 1.0])


def test_the_score_falls_on_the_last_token_and_the_cost_on_each():
    """Two rows of two tokens and one, behind a prompt of one."""
    mask = T([[False, True, True, False], [False, True, False, False]])
    cost = torch.full((2, 4), 0.25)
    assert token_rewards(T([1.0, 2.0]), mask).tolist() == [[0, 0, 1, 0], [0, 2, 0, 0]]
    assert token_rewards(T([1.0, 2.0]), mask, cost).tolist() == [[0, -0.25, 0.75, 0], [0, 1.75, 0, 0]]


def test_explained_variance_by_hand():
    """Right values explain all, their mean nothing, and with equal returns there is nothing to explain."""
    returns, mask = T([[0.0, 1.0, 2.0, 5.0]]), T([[True, True, True, False]])
    assert explained_variance(returns, returns, mask) == 1.0
    assert explained_variance(torch.ones(1, 4), returns, mask) == 0.0
    assert explained_variance(T([[0.5, 1.0, 1.5, 0.0]]), returns, mask) == pytest.approx(0.75)
    assert explained_variance(returns, torch.ones(1, 4), mask) == 0.0


def test_value_loss_by_hand():
    """V .9, old .5, R 1: clipped to .7, so (.3)^2 counts; V .1 is as far as it may go: (.9)^2; half of their mean."""
    mask = T([[True, True, False]])
    batch = make_batch(mask, values=T([[0.5, 0.3, 0.0]]), returns=T([[1.0, 1.0, 9.0]]))
    loss, clipped = value_loss(T([[0.9, 0.1, 5.0]]), batch, 0.2, 2.0)
    assert float(loss) == pytest.approx(0.5 * (0.09 + 0.81) / 2)
    assert float(clipped) == pytest.approx(0.5)
    loss, clipped = value_loss(T([[0.9, 0.1, 5.0]]), batch, None, 2.0)
    assert float(loss) == pytest.approx(0.5 * (0.01 + 0.81) / 2)
    assert float(clipped) == 0.0


def make_batch(mask, **tensors) -> Batch:
    lengths = torch.full((len(mask),), mask.shape[1])
    return make_plain_batch(mask, lengths=lengths, groups=torch.arange(len(mask)), **tensors)


@pytest.mark.parametrize("case", [0, 1])
def test_ppo_agrees_with_verl(case):
    """Whitened advantages, returns, both losses and their gradients, to 1e-5.

    The figures are those of verl 0.9.1's compute_gae_advantage_return, compute_policy_loss_vanilla and
    compute_value_loss on the tensors in the file; tests/make_ppo_reference.py made it.
    """
    reference = json.loads((GOLDEN / "ppo_reference.json").read_text())
    t = {name: T(values) for name, values in reference["tensors"].items()}
    expected, mask = reference["ppo"][case], t["mask"].bool()
    settings = expected["settings"]
    torch.testing.assert_close(token_rewards(t["scores"], mask, t["cost"]), t["rewards"])
    advantages, returns = generalized_advantages(
        t["rewards"], t["old_values"], mask, gamma=settings["gamma"], lam=settings["lam"]
    )
    advantages = whiten_tokens(advantages, mask)
    torch.testing.assert_close(advantages, T(expected["advantages"]), atol=1e-5, rtol=0)
    torch.testing.assert_close(returns, T(expected["returns"]), atol=1e-5, rtol=0)
    batch = make_batch(
        mask, advantages=advantages, old_logprobs=t["old_logprobs"], values=t["old_values"], returns=returns
    )
    logprobs, values = t["logprobs"].requires_grad_(), t["values"].requires_grad_()
    total = loss_denominator(batch, "token", 0)
    policy, _ = loss_of(logprobs, batch, AlgoConfig("ppo", dual_clip=settings["dual_clip"]), total)
    value, clipped = value_loss(values, batch, settings["value_clip"], total)
    (policy + value).backward()
    assert float(policy.detach()) == pytest.approx(expected["policy_loss"], abs=1e-5)
    assert float(value.detach()) == pytest.approx(expected["value_loss"], abs=1e-5)
    assert float(clipped) == pytest.approx(expected["value_clipped"], abs=1e-5)
    torch.testing.assert_close(logprobs.grad, T(expected["grad_logprobs"]), atol=1e-5, rtol=0)
    torch.testing.assert_close(values.grad, T(expected["grad_values"]), atol=1e-5, rtol=0)
