"""Prepare a batch for the updates: old and reference logprobs, values, token advantages, KL costs; microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.algo.batch import Batch, collate, is_trained
from rlvr.algo.gae import explained_variance, generalized_advantages, token_rewards, whiten_tokens
from rlvr.algo.losses import KL
from rlvr.core.heartbeat import beat, enter
from rlvr.core.types import Group
from rlvr.distributed import sum_tensor
from rlvr.model.cpu.threads import GradientSum, add_to_weights, passes_at_once, run_at_once
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.memory.estimate import microbatch_tokens

from .learner import Learner

T = TypeVar("T")


@dataclass(frozen=True)
class Microbatch:
    """Rows of a batch that are computed together.

    index: their places in the batch. weight: factor in loss and statistics; 1, or 0 for a dummy. first: whether it is
    the first of its batch on this rank. backward: adds the gradient of a loss of these rows to the trained weights'.
    """

    index: Tensor
    rows: Batch
    weight: float
    first: bool
    backward: Callable[[Tensor], None]


def run_microbatches(
    batch: Batch,
    policy: Policy,
    accelerator: Accelerator,
    max_tokens: int,
    compute: Callable[[Microbatch], T],
    trained: Sequence[Tensor] = (),
    *,
    threads: bool = True,
) -> list[T]:
    """Call `compute` for this rank's microbatches of at most `max_tokens` tokens; return what it returns, in order.

    trained: the weights whose `grad` the microbatches' `backward` adds to. With sharded weights all ranks must run
    equally many forward and backward passes, so some run dummies. On a CPU several passes run at once, which together
    have `max_tokens` tokens; then `compute` is called in several threads, unless `threads` is False.
    """
    at_once = 1
    if threads and accelerator.num_processes == 1 and policy.allows_threads and len(batch):  # ranks must cut alike
        longest = int(batch.lengths.max())
        at_once = max(min(passes_at_once(policy.device), max_tokens // longest), 1)
        if policy.packs:
            policy.trial.packs(longest)  # probes the model before the threads start, if that was not done yet
    plan = batch.plan(
        accelerator.num_processes * at_once,
        max_tokens // at_once,
        shared_prompts=policy.packs,
        equal=policy.mesh is not None,
    )
    parts = plan[accelerator.process_index * at_once :][:at_once]
    sums = [GradientSum(trained) for _ in parts]

    def run(number: int) -> list[T]:
        add = sums[number].add if at_once > 1 else Tensor.backward
        found = []
        for place, (index, weight) in enumerate(parts[number]):
            beat()
            found.append(compute(Microbatch(index, batch.rows(index), weight, number == place == 0, add)))
        return found

    found = run_at_once([partial(run, number) for number in range(len(parts))])
    if at_once > 1:
        add_to_weights(sums)
    return [result for results in found for result in results]


def prepare_batch(learner: Learner, batch: Batch) -> Batch:
    """Return the batch with the old logprobs, reference logprobs, values and token advantages that the updates need.

    Old logprobs are computed if a batch is used for several updates, if a per-token KL penalty is in the reward, and
    for KTO.
    """
    if not len(batch):
        return batch
    algo, critic = learner.algo, learner.critic
    kl_per_token = algo.row.per_token and learner.reference is not None and algo.kl_place == "reward"
    needs_old = algo.epochs * algo.minibatches > 1 or kl_per_token or algo.row.labels
    if critic is not None and critic.shares_trunk and needs_old:
        old, values = logprobs_and_values(learner, batch)
        batch = replace(batch, old_logprobs=old, values=values)
    elif needs_old:
        batch = replace(batch, old_logprobs=all_logprobs(learner, learner.policy, batch))
    if learner.reference is not None and not subtracts_kl(learner):
        batch = replace(batch, ref_logprobs=all_logprobs(learner, learner.reference, batch))
    if algo.row.labels:
        return with_kl(batch)
    if critic is None:
        return with_token_advantages(learner, batch) if algo.row.token_returns else batch
    if batch.values is None:
        values = compute_rows(learner, batch, lambda micro: critic.values(micro.tokens, micro.scored)[None])[0]
        batch = replace(batch, values=values)
    return with_token_advantages(learner, batch)


def with_kl(batch: Batch) -> Batch:
    """Return the batch with KTO's estimate of KL(pi || ref) (B,): the mean of log pi/ref over its rollouts, at least 0.

    The rollouts are the policy's own, so no mismatched pairs are needed (arXiv:2402.01306, section 4.1).
    """
    assert batch.old_logprobs is not None
    assert batch.ref_logprobs is not None
    gains = ((batch.old_logprobs - batch.ref_logprobs) * batch.mask).sum(-1)
    return replace(batch, kl=gains.mean().clamp(min=0).expand(len(batch)))


def with_token_advantages(learner: Learner, batch: Batch) -> Batch:
    """Return the batch with GAE advantages and returns (B, T).

    The batch's `advantages` are still rewards: (B,), or with credit per turn or step (B, T), on the last token of each.
    Without values the advantages are the returns.
    """
    algo = learner.algo
    values = torch.zeros_like(batch.sampler_logprobs) if batch.values is None else batch.values
    cost = None
    if learner.reference is not None and algo.kl_place == "reward":
        cost = algo.kl_coef * divergence(learner, batch.old_logprobs, batch.ref_logprobs)
    rewards = token_rewards(batch.advantages, batch.mask, cost)
    lam = algo.gae_lambda if algo.row.critic else 1.0  # without a critic the advantages are the returns
    advantages, returns = generalized_advantages(rewards, values, batch.mask, gamma=algo.gamma, lam=lam)
    if algo.scale == "whiten":
        advantages = whiten_tokens(advantages, batch.mask)
    return replace(batch, advantages=advantages, returns=returns)


def critic_stats(batch: Batch) -> dict[str, float]:
    """Return the critic's metrics before its updates: means over tokens, and explained variance."""
    assert batch.values is not None
    assert batch.returns is not None
    return {
        "critic/value": float(batch.values[batch.mask].mean()),
        "critic/return": float(batch.returns[batch.mask].mean()),
        "critic/explained_variance": explained_variance(batch.values, batch.returns, batch.mask),
    }


def divergence(learner: Learner, old: Tensor | None, ref: Tensor | None) -> Tensor:
    """Return estimates (B, T) of the KL divergence between the trainer's present policy and the reference."""
    assert old is not None
    assert ref is not None
    return KL[learner.algo.estimator](old, ref, torch.ones_like(old))


def all_logprobs(learner: Learner, policy: Policy, batch: Batch) -> Tensor:
    temperature = learner.config.rollout.temperature

    def compute(micro: Batch) -> Tensor:
        return token_logprobs(policy, micro.tokens, micro.scored, temperature=temperature)[0][None]

    return compute_rows(learner, batch, compute, policy=policy)[0]


def logprobs_and_values(learner: Learner, batch: Batch) -> Tensor:
    """Return logprobs and values (2, B, T) of the whole batch, for a critic on the policy's trunk."""
    critic, temperature = learner.critic, learner.config.rollout.temperature
    assert critic is not None

    def both(micro: Batch) -> Tensor:
        logprobs, _, values = critic.logprobs_and_values(micro.tokens, micro.scored, temperature=temperature)
        return torch.stack([logprobs.float(), values])

    return compute_rows(learner, batch, both, count=2)


def run_learner(
    learner: Learner,
    batch: Batch,
    compute: Callable[[Microbatch], T],
    trained: Sequence[Tensor] = (),
    *,
    policy: Policy | None = None,
) -> list[T]:
    """Call `run_microbatches` with as many tokens as optim.tokens_per_microbatch and the device's memory allow.

    policy: the one that `compute` uses; the learner's unless given. A teacher may not allow threads.
    """
    teacher = learner.teacher
    tokens = microbatch_tokens(learner.policy, learner.config, 0 if teacher is None else teacher.parameters)
    threads = teacher is None or teacher.allows_threads
    chosen = policy or learner.policy
    return run_microbatches(batch, chosen, learner.accelerator, tokens, compute, trained, threads=threads)


@torch.no_grad()
def compute_rows(
    learner: Learner,
    batch: Batch,
    compute: Callable[[Batch], Tensor],
    *,
    policy: Policy | None = None,
    count: int = 1,
) -> Tensor:
    """Return (count, B, T): `compute` (count, b, t) of all microbatches, of which each rank computes its share."""
    result = batch.sampler_logprobs.new_zeros(count, *batch.tokens.shape)
    enter("scoring")

    def fill(micro: Microbatch) -> None:
        part = compute(micro.rows)
        if micro.weight:
            result[:, micro.index, : part.shape[-1]] = part.float()

    run_learner(learner, batch, fill, policy=policy)
    return sum_tensor(result, learner.accelerator)


def subtracts_kl(learner: Learner) -> bool:
    """Return whether the KL term is a cost of whole completions (`kl_costs`), and not of tokens."""
    algo = learner.algo
    return learner.reference is not None and algo.kl_coef > 0 and algo.kl_place == "reward" and not algo.row.per_token


def kl_costs(learner: Learner, groups: Sequence[Group], stats: dict[str, float]) -> list[list[float]] | None:
    """Return `sum_kl_costs`; None if the KL term is not a cost of whole completions."""
    return sum_kl_costs(learner, groups, stats) if subtracts_kl(learner) else None


def sum_kl_costs(learner: Learner, groups: Sequence[Group], stats: dict[str, float]) -> list[list[float]]:
    """Return the KL cost of each completion (P x G).

    A cost is kl_coef times the sum of the KL estimates over the completion's tokens; 0 for a completion without a
    score. Adds "kl", the mean estimate over all tokens, to `stats`.
    """
    assert learner.reference is not None
    algo = learner.algo
    everything = [[1.0] * len(group.completions) for group in groups]
    batch = collate(groups, everything, pad_id=learner.policy.pad_id, device=learner.policy.device)
    now, before = (all_logprobs(learner, policy, batch) for policy in (learner.policy, learner.reference))
    estimates = divergence(learner, now, before) * batch.mask
    sums = iter(estimates.sum(-1).tolist())
    # `collate` takes the rollouts that have a score and tokens that were sampled, in this order.
    costs = [
        [
            algo.kl_coef * next(sums) if is_trained(c, v, mask_truncated=False) else 0.0
            for c, v in zip(g.completions, g.verdicts)
        ]
        for g in groups
    ]
    stats["kl"] = float(estimates.sum() / batch.mask.sum().clamp(min=1))
    return costs
