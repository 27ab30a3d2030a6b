"""What the KL term does: its expected gradient by enumeration, and the KL divergence through real updates.

The policy is a real model of a few thousand weights with five tokens, and a completion has three of them at most: all
85 can be listed with their probabilities, so that an expectation is a sum.
"""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
import torch
from torch import Tensor

from rlvr.algo.batch import Batch, collate
from rlvr.config import AlgoConfig, Config, to_json
from rlvr.core.types import Group, incorrect
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.train import train
from rlvr.training.checkpoint import resume
from rlvr.training.run import Run
from rlvr.training.step.prepare import kl_costs, prepare_batch
from rlvr.training.step.rewards import group_advantages
from rlvr.training.step.update import to_batch
from tests.helpers.batches import loss_of
from tests.helpers.enumeration import cosine, gradient, probabilities, whole_group
from tests.helpers.models import shake
from tests.helpers.runs import make_short_run as make_run

IN_REWARD = ("grpo", "dr_grpo", "rloo", "reinforce", "reinforce_pp", "maxrl")
IN_LOSS = ("k2", "k3", "k3_is")
LOSSES = {"clip": IN_LOSS, "cispo": IN_LOSS, "nll": IN_LOSS, "gspo": ("k2", "k3"), "sequence": ("k2", "k3")}


def batch_of(run: Run, group: Group, advantages: list[float] | None = None) -> Batch:
    """All completions as a batch, with the reference's logprobs."""
    batch = collate([group], [advantages or [0.0] * len(group.completions)], pad_id=0)
    with torch.no_grad():
        ref = token_logprobs(run.learner.reference, batch.tokens, batch.mask)[0]
    return dataclasses.replace(batch, ref_logprobs=ref)


def divergences(run: Run, batch: Batch, sampled: Tensor) -> dict[str, Tensor]:
    """The divergences that the docstrings name. `sampled` (M,): the probability that a completion is sampled."""
    policies = (run.learner.policy, run.learner.reference)
    logprobs, ref = (p.model(batch.tokens).logits[:, :-1].log_softmax(-1) for p in policies)
    at = batch.mask[:, 1:]
    reverse = ((logprobs.exp() * (logprobs - ref)).sum(-1) * at).sum(-1)
    forward = ((ref.exp() * (ref - logprobs)).sum(-1) * at).sum(-1)
    own = token_logprobs(run.learner.policy, batch.tokens, batch.mask)[0].sum(-1)
    whole = own.exp() * (own - batch.ref_logprobs.sum(-1))
    return {"reverse": sampled @ reverse, "forward": sampled @ forward, "completions": whole.sum()}


NAMED = {"k2": "reverse", "k3": "forward", "k3_is": "reverse"}


def expected_loss(run: Run, batch: Batch, sampled: Tensor, algo: AlgoConfig, importance: str = "none") -> Tensor:
    """The mean over completions, by their probabilities, of what `policy_loss` gives for each alone."""
    logprobs = token_logprobs(run.learner.policy, batch.tokens, batch.mask)[0]
    total = torch.zeros(())
    for i, share in enumerate(sampled):
        row = batch.rows(torch.tensor([i]))
        total = total + share * loss_of(logprobs[i : i + 1, : row.mask.shape[1]], row, algo, 1.0, importance)[0]
    return total


@pytest.mark.parametrize(("loss", "estimator"), [(loss, e) for loss, names in LOSSES.items() for e in names])
def test_the_kl_term_in_the_loss_has_the_gradient_that_it_names(tmp_path, loss, estimator):
    """Far from the reference, under each loss, the expected gradient is that of the named divergence."""
    algo = {"loss": loss, "kl_estimator": estimator, "kl_coef": 1.0}
    run = make_run(tmp_path, away=0.2, **algo)
    run.config.check()
    batch = batch_of(run, whole_group(run))
    sampled = probabilities(run, batch)
    found = gradient(run, expected_loss(run, batch, sampled, AlgoConfig(**algo, normalize="constant")))
    wanted = gradient(run, divergences(run, batch, sampled)[NAMED[estimator]])
    assert cosine(found, wanted) > 0.9999
    assert float(found.norm()) == pytest.approx(float(wanted.norm()), rel=1e-3)


@pytest.mark.parametrize("estimator", IN_LOSS)
def test_the_second_update_of_the_same_rollouts_follows_the_divergence_too(tmp_path, estimator):
    """The policy has moved since it sampled. k3_is follows the divergence exactly, k2 and k3 nearly."""
    algo = AlgoConfig(kl_estimator=estimator, kl_coef=1.0, normalize="constant", minibatches=2)
    run = make_run(tmp_path, away=0.2)
    run.config = dataclasses.replace(run.config, algo=algo)
    batch = prepare_batch(run.learner, batch_of(run, whole_group(run)))
    sampled = probabilities(run, batch)
    shake(run.learner.policy, 0.01, 2)
    assert (probabilities(run, batch) - sampled).abs().sum() > 0.01
    found = gradient(run, expected_loss(run, batch, sampled, algo))
    wanted = gradient(run, divergences(run, batch, sampled)[NAMED[estimator]])
    assert cosine(found, wanted) > (0.9999 if estimator == "k3_is" else 0.99)


@pytest.mark.parametrize("importance", ["token", "sequence"])
def test_k3_is_follows_the_divergence_on_rollouts_of_another_engine(tmp_path, importance):
    """The engine that sampled had other weights: its importance weights correct the estimate of the KL too."""
    algo = AlgoConfig(kl_estimator="k3_is", kl_coef=1.0, normalize="constant", importance_cap=1e6)
    run = make_run(tmp_path, away=0.2)
    batch = batch_of(run, whole_group(run))
    sampled = probabilities(run, batch)
    with torch.no_grad():
        engine = token_logprobs(run.learner.policy, batch.tokens, batch.mask)[0]
    shake(run.learner.policy, 0.05, 2)
    batch = dataclasses.replace(batch, sampler_logprobs=engine)
    total = expected_loss(run, batch, sampled, algo, importance)
    # A whole completion's weight makes the prefix that of the present policy, too
    prefixes = probabilities(run, batch) if importance == "sequence" else sampled
    assert cosine(gradient(run, total), gradient(run, divergences(run, batch, prefixes)["reverse"])) > 0.9999


def reward_advantages(run: Run, group: Group, sampled: Tensor) -> list[float]:
    """For each completion the expectation of its advantage times its probability, over all groups of two."""
    costs = kl_costs(run.learner, [group], {})[0]
    totals = [0.0] * len(costs)
    for i, j in itertools.product(range(len(costs)), repeat=2):
        pair = dataclasses.replace(
            group, completions=(group.completions[i], group.completions[j]), verdicts=(incorrect(), incorrect())
        )
        ((first, _),) = group_advantages([pair], [[0.0, 0.0]], run.config.algo, [[costs[i], costs[j]]])
        totals[i] += float(sampled[i] * sampled[j]) * first
    return totals


def reward_gradient(run: Run) -> tuple[Tensor, Tensor]:
    """The expected gradient with the KL term in the reward, and that of the KL divergence of whole completions."""
    group = whole_group(run)
    batch = batch_of(run, group)
    sampled = probabilities(run, batch)
    batch = dataclasses.replace(
        batch, ref_logprobs=None, advantages=torch.tensor(reward_advantages(run, group, sampled))
    )
    wanted = gradient(run, divergences(run, batch_of(run, group), sampled)["completions"])
    logprobs = token_logprobs(run.learner.policy, batch.tokens, batch.mask)[0]
    algo = dataclasses.replace(run.config.algo, normalize="constant")
    return gradient(run, loss_of(logprobs, batch, algo, 1.0)[0]), wanted


@pytest.mark.parametrize("advantage", IN_REWARD)
def test_the_kl_term_in_the_reward_has_the_gradient_of_the_divergence(tmp_path, advantage):
    """Under every rule: that of KL(pi || ref) of whole completions, times kl_coef (and 1/2 where a mean is of two)."""
    run = make_run(tmp_path, away=0.2, name=advantage, kl_in="reward")
    run.config.check()
    found, wanted = reward_gradient(run)
    assert cosine(found, wanted) > 0.9999
    factor = 1.0 if advantage == "rloo" else 0.5
    assert float(found.norm()) == pytest.approx(factor * 0.1 * float(wanted.norm()), rel=1e-3)


def test_ppo_pays_the_divergence_token_by_token(tmp_path):
    """With lambda 1 and a critic that knows nothing, the sum of the costs to come: the same gradient."""
    run = make_run(tmp_path, away=0.2, name="ppo", kl_in="reward", gae_lambda=1.0)
    run.config.check()
    plain = batch_of(run, whole_group(run))
    sampled = probabilities(run, plain)
    batch = dataclasses.replace(prepare_batch(run.learner, plain), ref_logprobs=None)
    algo = dataclasses.replace(run.config.algo, normalize="constant")
    found = gradient(run, expected_loss(run, batch, sampled, algo))
    wanted = gradient(run, divergences(run, plain, sampled)["completions"])
    assert cosine(found, wanted) > 0.9999
    assert float(found.norm()) == pytest.approx(0.1 * float(wanted.norm()), rel=1e-3)


REFUSED = [
    ({"kl_estimator": "k1"}, "expected gradient is zero"),
    ({"kl_estimator": "k2", "kl_in": "reward"}, "set k1"),
    ({"kl_estimator": "k3", "kl_in": "reward"}, "set k1"),
    ({"kl_estimator": "k3_is", "kl_in": "reward"}, "set k1"),
    ({"kl_estimator": "k3_is", "loss": "gspo"}, "ratio is that of a whole completion"),
    ({"kl_estimator": "k3_is", "loss": "sequence"}, "ratio is that of a whole completion"),
]


@pytest.mark.parametrize(("algo", "message"), REFUSED)
def test_what_has_another_gradient_is_refused(tmp_path, algo, message):
    """One line at the check; and by the same enumeration the gradient is none of the named divergence."""
    with pytest.raises(ValueError, match=message) as refused:
        Config(algo=AlgoConfig(kl_coef=0.1, **algo)).check()
    assert "\n" not in str(refused.value)
    Config(algo=AlgoConfig(**algo)).check()  # without a KL term nothing reads it
    run = make_run(tmp_path, away=0.1, name="dr_grpo", **algo)
    if "kl_in" in algo:
        assert cosine(*reward_gradient(run)) < 0.9
        return
    batch = batch_of(run, whole_group(run))
    sampled = probabilities(run, batch)
    found = gradient(
        run, expected_loss(run, batch, sampled, dataclasses.replace(run.config.algo, normalize="constant"))
    )
    wanted = gradient(run, divergences(run, batch, sampled)["reverse"])
    assert found.norm() < 1e-4 * wanted.norm() or cosine(found, wanted) < 0.99


def present_divergence(run: Run) -> float:
    batch = batch_of(run, whole_group(run))
    with torch.no_grad():
        return float(divergences(run, batch, probabilities(run, batch))["completions"])


@pytest.mark.parametrize(
    "algo",
    [
        *({"kl_estimator": estimator} for estimator in IN_LOSS),
        *({"kl_estimator": estimator, "minibatches": 2} for estimator in IN_LOSS),
        *({"kl_in": "reward", "name": advantage} for advantage in (*IN_REWARD, "ppo")),
        {"name": "raft"},
        {"kl_in": "reward", "name": "reinforce", "advantage_scale": "whiten", "minibatches": 2},
        {"kl_in": "reward", "name": "dr_grpo", "advantage_scale": "batch_std", "normalize": "constant"},
    ],
    ids=lambda algo: "-".join(str(value) for value in algo.values()),
)
def test_fifty_updates_without_a_reward_bring_the_policy_back(tmp_path, algo):
    """The KL divergence falls through the real loop by half at least where nothing but the KL term is to be learned."""
    run = make_run(tmp_path, away=0.2, **algo)
    run.config.check()
    before = present_divergence(run)
    train(run)
    after = present_divergence(run)
    assert before > 0.2
    assert after < before / 2


def test_a_run_of_explicit_settings_goes_on_under_auto(tmp_path):
    """A name in config.json and the auto that stands for it are one; an estimator that nothing reads is no matter."""
    explicit = {"kl_estimator": "k3", "normalize": "token", "loss": "clip", "advantage_scale": "none"}

    def difference(held: dict, wanted: dict) -> str | None:
        records = ({**json.loads(to_json(Config(algo=AlgoConfig(**a)))), "fingerprint": ""} for a in (held, wanted))
        return resume.find_difference(*records)

    assert difference(explicit, {}) is None
    assert difference({"kl_estimator": "k1", "kl_in": "reward"}, {}) is None
    assert difference({"kl_coef": 0.1, **explicit}, {"kl_coef": 0.1}) is None
    found = difference({"kl_coef": 0.1, "kl_in": "reward", **explicit}, {"kl_coef": 0.1, "kl_in": "reward"})
    assert found == "algo.kl_estimator is 'k3' there and 'auto' here"
    assert difference({"loss": "gspo", "normalize": "token"}, {"loss": "gspo"}) is not None


@pytest.mark.parametrize("advantage", [*IN_REWARD, "ppo"])
def test_the_advantage_of_the_kl_term_grows_with_its_coefficient(tmp_path, advantage):
    """Without a task reward, through the real costs and scores: a hundred times kl_coef, a hundred times |A|."""
    sizes = []
    for kl_coef in (1e-3, 1e-1):
        run = make_run(tmp_path, away=0.2, name=advantage, kl_in="reward", kl_coef=kl_coef)
        groups = [whole_group(run)]
        rewards = [[0.0] * len(groups[0].completions)]
        costs = kl_costs(run.learner, groups, {})
        advantages = group_advantages(groups, rewards, run.config.algo, costs)
        batch = prepare_batch(run.learner, to_batch(run.learner, groups, advantages))
        sizes.append(float(batch.advantages.abs().mean()))
    assert sizes[1] == pytest.approx(100 * sizes[0], rel=1e-3)
    assert sizes[0] > 1e-5
