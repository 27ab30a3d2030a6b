"""PPO: generalized advantages, the value loss, the critic's values, its warm-up, its checkpoint."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from rlvr.algo.advantages import subtract_costs
from rlvr.algo.batch import Batch
from rlvr.algo.gae import explained_variance
from rlvr.config import OptimConfig
from rlvr.core.types import error
from rlvr.model.logprobs.critic import Critic
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.train import train
from rlvr.training.rollout.rollout import collect
from rlvr.training.run import Run
from rlvr.training.step.prepare import prepare_batch, sum_kl_costs
from rlvr.training.step.rewards import group_advantages, group_rewards
from rlvr.training.step.update import accumulate_gradient, accumulate_value_gradient, critic_step, to_batch
from tests.helpers.runs import batch_of
from tests.helpers.runs import make_run as make_any_run
from tests.helpers.verifiers import FailsOnThree, HasSeven

KINDS = ("head", "separate")
T = torch.tensor


def make_run(tmp_path, **groups) -> Run:
    """Return a run of PPO; keyword arguments replace settings of a group, or are those of `make_any_run`."""
    groups["algo"] = {"name": "ppo", **groups.get("algo", {})}
    groups["critic"] = {"lr": 1e-3, **groups.get("critic", {})}
    run = make_any_run(tmp_path, **{"verifier": HasSeven(), **groups})
    run.learner.critic = Critic(run.learner.policy, run.config.critic, run.config.optim)
    with torch.no_grad():  # a head that is not zero, so that values differ
        run.learner.critic.head.weight.normal_(0, 0.2, generator=torch.Generator().manual_seed(0))
    return run


def gradients_of(run: Run, minibatch: Batch) -> torch.Tensor:
    """Of policy and critic, as one vector."""
    for weight in (*run.learner.policy.parameters(), *run.learner.critic.parameters()):
        weight.grad = None
    accumulate_gradient(run.learner, minibatch)
    if not run.learner.critic.shares_trunk:
        accumulate_value_gradient(run.learner, minibatch)
    return torch.cat([w.grad.reshape(-1) for w in (*run.learner.policy.parameters(), *run.learner.critic.parameters())])


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_that_of_the_state_before_its_token(tmp_path, kind):
    """The head on the plain model's hidden state one position earlier; another token changes later values alone."""
    run = make_run(tmp_path, critic={"kind": kind})
    tokens = torch.randint(5, 12, (1, 9), generator=torch.Generator().manual_seed(1))
    mask = T([[False] * 3 + [True] * 6])
    with torch.no_grad():
        values = run.learner.critic.values(tokens, mask)
        hidden = run.learner.critic.trunk.causal.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        torch.testing.assert_close(values[0, 3:], run.learner.critic.head(hidden)[0, 2:-1, 0], atol=1e-5, rtol=0)
        assert values[0, :3].tolist() == [0, 0, 0]
        other = tokens.clone()
        other[0, 5] = 4
        changed = run.learner.critic.values(other, mask) != values
    assert changed[0].tolist() == [False] * 6 + [True] * 3


def test_a_head_takes_the_logprobs_pass(tmp_path):
    """One forward gives the very logprobs and entropies of the policy, and the values of the critic."""
    run = make_run(tmp_path, critic={"kind": "head"})
    batch = batch_of(run)
    with torch.no_grad():
        logprobs, entropy, values = run.learner.critic.logprobs_and_values(
            batch.tokens, batch.mask, temperature=0.7, with_entropy=True
        )
        alone = token_logprobs(run.learner.policy, batch.tokens, batch.mask, temperature=0.7, with_entropy=True)
        assert torch.equal(values, run.learner.critic.values(batch.tokens, batch.mask))
    assert torch.equal(logprobs, alone[0])
    assert torch.equal(entropy, alone[1])
    torch.testing.assert_close(values, batch.values, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_do_not_depend_on_microbatches(tmp_path, kind):
    """One microbatch, some, and one for each rollout: the same gradients of policy and critic up to rounding."""
    run = make_run(tmp_path, critic={"kind": kind}, algo={"minibatches": 2, "advantage_scale": "whiten"})
    batch = batch_of(run)
    gradients = []
    for tokens in (10**6, 60, 1):
        run.config = dataclasses.replace(run.config, optim=OptimConfig(tokens_per_microbatch=tokens))
        gradients.append(gradients_of(run, batch))
    assert gradients[0].norm() > 1e-3
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-6, rtol=1e-5)


def test_whitening_scales_advantages_and_not_what_the_critic_learns(tmp_path):
    """gae whitens unless told otherwise: tokens have mean 0 and deviation 1, returns are rewards."""
    run = make_run(tmp_path, algo={"gae_lambda": 1.0})
    groups = collect(run.worker, 0)
    rewards = group_rewards(groups, run.config.rollout)
    advantages = group_advantages(groups, rewards, run.config.algo)
    batch = prepare_batch(run.learner, to_batch(run.learner, groups, advantages))
    tokens = batch.advantages[batch.mask]
    assert abs(float(tokens.mean())) < 1e-5
    assert abs(float(tokens.std()) - 1) < 1e-4
    firsts = batch.mask.int().argmax(-1)
    flat = torch.tensor([value for row in rewards for value in row])
    assert flat.max() > flat.min()
    torch.testing.assert_close(batch.returns[torch.arange(24), firsts], flat, atol=1e-5, rtol=0)


def test_kl_in_the_reward_is_paid_token_by_token(tmp_path):
    """With lambda 1 the first token's return is the score minus the whole completion's KL cost."""
    run = make_run(tmp_path, reference=True, algo={"kl_coef": 0.5, "kl_in": "reward", "gae_lambda": 1.0})
    with torch.no_grad():
        for weight in run.learner.policy.parameters():
            weight.mul_(1.1)
    groups = collect(run.worker, 0)
    rewards = group_rewards(groups, run.config.rollout)
    advantages = group_advantages(groups, rewards, run.config.algo)
    batch = prepare_batch(run.learner, to_batch(run.learner, groups, advantages))
    costs = sum_kl_costs(run.learner, groups, {})
    whole = torch.tensor([value for row in subtract_costs(rewards, costs) for value in row])
    firsts = batch.mask.int().argmax(-1)
    torch.testing.assert_close(batch.returns[torch.arange(24), firsts], whole, atol=1e-4, rtol=0)
    assert (whole != torch.tensor([r for row in rewards for r in row])).any()


def test_all_scored_rollouts_are_trained_on(tmp_path):
    """Groups with equal rewards too, since the critic sees them; a rollout without score is left out."""
    run = make_run(tmp_path, verifier=FailsOnThree(), rollout={"group_size": 1})
    groups = collect(run.worker, 0)
    rewards = group_rewards(groups, run.config.rollout)
    unscored = sum(r is None for row in rewards for r in row)
    assert 0 < unscored < 6
    assert len(to_batch(run.learner, groups, group_advantages(groups, rewards, run.config.algo))) == 6 - unscored


class AlwaysFails(HasSeven):
    """Its own fault on every completion."""

    def judge(self, problem, text):
        return error("broken")


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_without_any_score_is_a_step_with_gradient_zero(tmp_path, kind):
    """Nothing to learn from: weights stay, nothing is NaN, and what cannot be known is not logged."""
    run = make_run(tmp_path, verifier=AlwaysFails(), critic={"kind": kind}, algo={"minibatches": 2}, run={"steps": 1})
    before = [w.detach().clone() for w in (*run.learner.policy.parameters(), *run.learner.critic.parameters())]
    train(run)
    after = (*run.learner.policy.parameters(), *run.learner.critic.parameters())
    assert all(torch.equal(w, old) for w, old in zip(after, before, strict=True))
    record = run.reporter.log.read("metrics")[0]
    assert record["unscored"] == 1.0
    assert record["grad_norm"] == record["critic/grad_norm"] == record["trained_tokens"] == 0.0
    assert all(math.isfinite(value) for value in record.values())
    assert "critic/explained_variance" not in record
    assert "entropy" not in record


@pytest.mark.parametrize("kind", KINDS)
def test_warm_up_moves_the_critic_alone(tmp_path, kind):
    """Two steps of the critic, of a head only the head; in the third the policy moves too."""
    run = make_run(tmp_path, critic={"kind": kind, "warmup": 2}, run={"steps": 2})
    before = [w.detach().clone() for w in run.learner.policy.parameters()]
    head = run.learner.critic.head.weight.detach().clone()
    train(run)
    assert all(torch.equal(w, old) for w, old in zip(run.learner.policy.parameters(), before, strict=True))
    assert not torch.equal(run.learner.critic.head.weight, head)
    run.config = dataclasses.replace(run.config, run=dataclasses.replace(run.config.run, steps=3))
    train(run, 2)
    assert not all(torch.equal(w, old) for w, old in zip(run.learner.policy.parameters(), before, strict=True))
    records = run.reporter.log.read("metrics")
    assert [record["lr"] > 0 for record in records] == [False, False, True]
    assert all(math.isfinite(record["critic/value_loss"]) for record in records)


def test_a_critic_of_its_own_leaves_the_policy_alone(tmp_path):
    """Its gradient and its steps touch no weight of the policy; a head's gradient reaches the trunk."""
    for kind in KINDS:
        run = make_run(tmp_path, critic={"kind": kind})
        batch = batch_of(run)
        run.learner.critic.values(batch.tokens, batch.mask).sum().backward()
        reached = any(weight.grad is not None for weight in run.learner.policy.parameters())
        assert reached == (kind == "head")


def test_with_lora_the_critic_has_adapters_of_its_own_on_the_same_weights(tmp_path):
    """Frozen weights are held once; the adapters are copies, and they are what the critic trains beside its head."""
    run = make_run(tmp_path, model={"lora_rank": 2})
    policy, critic = run.learner.policy, run.learner.critic
    mine = {id(weight) for weight in policy.model.parameters()}
    frozen = [weight for weight in critic.trunk.model.parameters() if not weight.requires_grad]
    assert frozen
    assert all(id(weight) in mine for weight in frozen)
    assert not any(id(weight) in mine for weight in critic.parameters())
    assert len(critic.parameters()) == len(policy.parameters()) + 2
    train(run)
    assert run.reporter.log.read("metrics")[-1]["critic/grad_norm"] > 0


def test_an_lm_head_of_its_own_is_neither_copied_nor_trained(tmp_path):
    """Untied embeddings: the critic never computes logits."""
    run = make_run(tmp_path)
    causal = run.learner.policy.causal
    causal.lm_head.weight = torch.nn.Parameter(causal.lm_head.weight.detach().clone())
    critic = Critic(run.learner.policy, run.config.critic, run.config.optim)
    assert critic.trunk.causal.lm_head.weight is causal.lm_head.weight
    assert not any(weight is causal.lm_head.weight for weight in critic.parameters())
    assert not {id(w) for w in critic.parameters()} & {id(w) for w in run.learner.policy.parameters()}


@pytest.mark.parametrize("kind", KINDS)
def test_learns_a_simple_reward(tmp_path, kind):
    """Twenty-five steps on "has a 7" raise the reward far beyond chance."""
    run = make_run(tmp_path, run={"steps": 25}, critic={"kind": kind, "lr": 3e-3})
    train(run)
    records = run.reporter.log.read("metrics")
    assert sum(record["reward"] for record in records[:3]) / 3 < 0.7
    assert sum(record["reward"] for record in records[-3:]) / 3 > 0.85
    assert all(record["no_signal"] == 0 for record in records)


def test_a_critic_learns_the_returns_of_a_batch(tmp_path):
    """After sixty updates on one batch, its returns being "has a 7", the critic explains half of their variance."""
    run = make_run(tmp_path, critic={"lr": 1e-3, "value_clip": None}, algo={"gae_lambda": 1.0})
    batch = batch_of(run)
    before = explained_variance(batch.values, batch.returns, batch.mask)
    for _ in range(60):
        accumulate_value_gradient(run.learner, batch)
        critic_step(run.learner, 0)
    with torch.no_grad():
        values = run.learner.critic.values(batch.tokens, batch.mask)
    assert before < 0.2
    assert explained_variance(values, batch.returns, batch.mask) > 0.5
