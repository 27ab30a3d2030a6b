"""What a batch is given before the updates: old and reference logprobs, values, advantages of tokens, KL in rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlvr.algo.batch import Batch, collate
from rlvr.algo.gae import explained_variance, generalized_advantages, token_rewards, whiten_tokens
from rlvr.algo.losses import KL
from rlvr.distributed import sum_tensor
from rlvr.model.logprobs import token_logprobs
from rlvr.model.policy import Policy
from rlvr.training.run import Run
from rlvr.types import Group


def score(run: Run, batch: Batch) -> Batch:
    """The batch with old logprobs, reference logprobs, values and advantages of tokens, where they are needed.

    Old logprobs are if the policy moves twice or more, and for a KL term in the reward of each token.
    """
    if not len(batch):
        return batch
    algo, critic = run.config.algo, run.critic
    costs_kl = critic is not None and run.reference is not None and algo.kl_in == "reward"
    needs_old = algo.epochs * algo.minibatches > 1 or costs_kl
    if critic is not None and critic.shares_trunk and needs_old:
        old, values = logprobs_and_values(run, batch)
        batch = replace(batch, old_logprobs=old, values=values)
    elif needs_old:
        batch = replace(batch, old_logprobs=all_logprobs(run, run.policy, batch))
    if run.reference is not None and not subtracts_kl(run):
        batch = replace(batch, ref_logprobs=all_logprobs(run, run.reference, batch))
    if critic is None:
        return batch
    if batch.values is None:
        values = over_rows(run, batch, lambda micro: critic.values(micro.tokens, micro.mask)[None])[0]
        batch = replace(batch, values=values)
    return with_token_advantages(run, batch)


def with_token_advantages(run: Run, batch: Batch) -> Batch:
    """The batch with advantages (B, T) and returns, from its values and its advantages so far: the rewards (B,)."""
    algo = run.config.algo
    assert batch.values is not None
    cost = None
    if run.reference is not None and algo.kl_in == "reward":
        cost = algo.kl_coef * divergence(run, batch.old_logprobs, batch.ref_logprobs)
    rewards = token_rewards(batch.advantages, batch.mask, cost)
    advantages, returns = generalized_advantages(
        rewards, batch.values, batch.mask, gamma=algo.gamma, lam=algo.gae_lambda
    )
    if algo.scale == "whiten":
        advantages = whiten_tokens(advantages, batch.mask)
    return replace(batch, advantages=advantages, returns=returns)


def critic_stats(batch: Batch) -> dict[str, float]:
    """What is logged of the critic before its updates: means over tokens, and the variance of returns it explains."""
    assert batch.values is not None
    assert batch.returns is not None
    return {
        "critic/value": float(batch.values[batch.mask].mean()),
        "critic/return": float(batch.returns[batch.mask].mean()),
        "critic/explained_variance": explained_variance(batch.values, batch.returns, batch.mask),
    }


def divergence(run: Run, old: Tensor | None, ref: Tensor | None) -> Tensor:
    """Estimates (B, T) of the KL divergence of the sampling from the reference policy."""
    assert old is not None
    assert ref is not None
    return KL[run.config.algo.estimator](old, ref, torch.ones_like(old))


def all_logprobs(run: Run, policy: Policy, batch: Batch) -> Tensor:
    """Logprobs (B, T) of the whole batch under a policy."""
    temperature = run.config.rollout.temperature
    return over_rows(
        run, batch, lambda micro: token_logprobs(policy, micro.tokens, micro.mask, temperature=temperature)[0][None]
    )[0]


def logprobs_and_values(run: Run, batch: Batch) -> Tensor:
    """Logprobs and values (2, B, T) of the whole batch, for a critic on the policy's trunk."""
    critic, temperature = run.critic, run.config.rollout.temperature
    assert critic is not None

    def both(micro: Batch) -> Tensor:
        logprobs, _, values = critic.logprobs_and_values(micro.tokens, micro.mask, temperature=temperature)
        return torch.stack([logprobs.float(), values])

    return over_rows(run, batch, both, count=2)


@torch.no_grad()
def over_rows(run: Run, batch: Batch, compute: Callable[[Batch], Tensor], *, count: int = 1) -> Tensor:
    """(count, B, T) from what `compute` makes of a microbatch (count, b, t); each process computes its share."""
    result = batch.sampler_logprobs.new_zeros(count, *batch.tokens.shape)
    rows, mine = batch.share(run.accelerator.process_index, run.accelerator.num_processes)
    for index, micro in mine.split(run.config.optim.tokens_per_microbatch):
        part = compute(micro)
        result[:, rows[index], : part.shape[-1]] = part.float()
    return sum_tensor(result, run.accelerator)


def subtracts_kl(run: Run) -> bool:
    """Whether the KL term is a cost of whole completions, `kl_costs`. A critic takes it token by token instead."""
    algo = run.config.algo
    return run.reference is not None and algo.kl_in == "reward" and not (algo.row.critic or algo.row.pairs)


def kl_costs(run: Run, groups: Sequence[Group]) -> tuple[list[list[float]], float]:
    """kl_coef * sum over the completion of the KL estimate between the present and the reference policy, each G.

    0 where there is no score. Also returns the estimate's mean over all tokens, for the log.
    """
    assert run.reference is not None
    algo = run.config.algo
    everything = [[1.0] * len(group.completions) for group in groups]
    with run.timed("train"):
        batch = collate(groups, everything, pad_id=run.policy.pad_id, device=run.policy.device)
        estimates = divergence(run, all_logprobs(run, run.policy, batch), all_logprobs(run, run.reference, batch))
        estimates = estimates * batch.mask
    sums = iter(estimates.sum(-1).tolist())
    # `collate` takes the rollouts that have a score and tokens, in this order
    costs = [
        [
            algo.kl_coef * next(sums) if v.score is not None and c.token_ids else 0.0
            for c, v in zip(g.completions, g.verdicts)
        ]
        for g in groups
    ]
    return costs, float(estimates.sum() / batch.mask.sum().clamp(min=1))
