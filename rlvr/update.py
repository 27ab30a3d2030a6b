"""A step's optimizer updates: from groups with advantages to moved weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlvr.batch import Batch, collate, minibatches
from rlvr.config import Config
from rlvr.distributed import sum_gradients, sum_stats, sum_tensor
from rlvr.logprobs import token_logprobs
from rlvr.losses import KL, denominator, policy_loss
from rlvr.mismatch import mismatch, warn_of_mismatch
from rlvr.optim import learning_rate, optimizer_step
from rlvr.policy import Policy
from rlvr.rollout import has_signal
from rlvr.run import Run
from rlvr.seeding import derive_seed
from rlvr.types import Group


def update(run: Run, step: int, groups: Sequence[Group], advantages: Sequence[Sequence[float]]) -> dict[str, float]:
    """All optimizer steps of a batch. Returns what is logged of them."""
    config, algo = run.config, run.config.algo
    with run.timed("train"):
        batch = to_batch(run, groups, advantages)
        lr = learning_rate(step, config.optim, config.run.steps)
        if not len(batch):
            return {"lr": lr, "loss": 0.0, "grad_norm": 0.0}
        batch = score(run, batch)
        sums: Counter[str] = Counter()
        norms = []
        differences: list[Tensor] = []
        for minibatch in minibatches(
            batch, count=algo.minibatches, epochs=algo.epochs, seed=derive_seed(config.run.seed, "minibatches", step)
        ):
            sums.update(accumulate_gradient(run, minibatch, differences))
            norms.append(optimizer_step(run.optimizer, lr=lr, max_grad_norm=config.optim.max_grad_norm))
    tokens = max(sums.pop("tokens"), 1.0)
    loss = sums.pop("loss") / len(norms)
    means = {name: value / tokens for name, value in sums.items()}
    means["clip_fraction"] = means["clip_low"] + means["clip_high"]
    if config.rollout.sampler != "torch":
        means |= mismatch(torch.cat(differences))
        warn_of_mismatch(means, step + 1, config.vllm.mismatch_alarm, config.staleness(step))
    return {"lr": lr, "loss": loss, "grad_norm": sum(norms) / len(norms), "trained_tokens": tokens, **means}


def to_batch(run: Run, groups: Sequence[Group], advantages: Sequence[Sequence[float]]) -> Batch:
    """The rollouts that are trained on. Groups without signal are left out unless a KL term in the loss needs them."""
    config = run.config
    keep_all = config.algo.kl_coef > 0 and config.algo.kl_in == "loss"
    kept = [i for i, row in enumerate(advantages) if keep_all or has_signal(row)]
    return collate(
        [groups[i] for i in kept],
        [advantages[i] for i in kept],
        pad_id=run.policy.pad_id,
        device=run.policy.device,
        mask_truncated=config.rollout.truncated == "mask",
    )


def accumulate_gradient(run: Run, minibatch: Batch, differences: list[Tensor] | None = None) -> dict[str, float]:
    """Forward and backward over a minibatch, cut into microbatches; gradients are summed over processes.

    `differences` is given, microbatch by microbatch, log pi_old - log pi_sampler of its tokens (n).
    """
    config, algo = run.config, run.config.algo
    total = denominator(minibatch, algo.normalize, config.rollout.max_new_tokens)
    device = minibatch.tokens.device
    names = ("loss", "entropy", "tokens", "clip_low", "clip_high", "importance", "importance_clipped")
    sums = {name: torch.zeros((), device=device) for name in names}
    if minibatch.ref_logprobs is not None:
        sums["kl"] = torch.zeros((), device=device)
    _, mine = minibatch.share(run.accelerator.process_index, run.accelerator.num_processes)
    for _, micro in mine.split(config.optim.tokens_per_microbatch):
        logprobs, entropy = token_logprobs(
            run.policy, micro.tokens, micro.mask, temperature=config.rollout.temperature, with_entropy=True
        )
        loss, stats = policy_loss(logprobs, micro, algo, total, importance_kind(config))
        loss.backward()
        if differences is not None:
            old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
            differences.append((old - micro.sampler_logprobs)[micro.mask])
        stats |= {"loss": loss.detach(), "entropy": masked_sum(entropy, micro.mask), "tokens": micro.mask.sum()}
        for name, value in stats.items():
            sums[name] += value
    sum_gradients(run.policy.parameters(), run.accelerator)
    return sum_stats({name: float(value) for name, value in sums.items()}, run.accelerator, device)


def masked_sum(values: Tensor | None, mask: Tensor) -> Tensor:
    """Sum over the masked positions; 0 where there are no values."""
    return torch.zeros(()) if values is None else (values.detach() * mask).sum()


def importance_kind(config: Config) -> str:
    """How sampler and trainer are reconciled: by default per token, and not at all where they are one engine."""
    kind = config.algo.importance
    if kind != "auto":
        return kind
    return "none" if config.rollout.sampler == "torch" else "token"


def score(run: Run, batch: Batch) -> Batch:
    """The batch with old logprobs (if the policy moves twice or more) and reference logprobs (if KL is in the loss)."""
    algo = run.config.algo
    if algo.epochs * algo.minibatches > 1:
        batch = replace(batch, old_logprobs=all_logprobs(run, run.policy, batch))
    if run.reference is not None and algo.kl_in == "loss":
        batch = replace(batch, ref_logprobs=all_logprobs(run, run.reference, batch))
    return batch


@torch.no_grad()
def all_logprobs(run: Run, policy: Policy, batch: Batch) -> Tensor:
    """Logprobs (B, T) of the whole batch under a policy, each process computing its share of the rows."""
    result = torch.zeros_like(batch.sampler_logprobs)
    rows, mine = batch.share(run.accelerator.process_index, run.accelerator.num_processes)
    for index, micro in mine.split(run.config.optim.tokens_per_microbatch):
        logprobs, _ = token_logprobs(policy, micro.tokens, micro.mask, temperature=run.config.rollout.temperature)
        result[rows[index], : logprobs.shape[1]] = logprobs.float()
    return sum_tensor(result, run.accelerator)


def subtract_kl(
    run: Run, groups: Sequence[Group], rewards: Sequence[Sequence[float | None]]
) -> list[list[float | None]]:
    """r - kl_coef * sum over the completion of the KL estimate between the sampling and the reference policy."""
    assert run.reference is not None
    algo = run.config.algo
    everything = [[1.0] * len(group.completions) for group in groups]
    batch = collate(groups, everything, pad_id=run.policy.pad_id, device=run.policy.device)
    old, ref = all_logprobs(run, run.policy, batch), all_logprobs(run, run.reference, batch)
    ones = torch.ones_like(old)
    divergence = iter((KL[algo.kl_estimator](old, ref, ones) * batch.mask).sum(-1).tolist())
    # `collate` takes the rollouts that have a score and tokens, in this order
    cost = [
        [next(divergence) if v.score is not None and c.token_ids else 0.0 for c, v in zip(g.completions, g.verdicts)]
        for g in groups
    ]
    return [
        [None if r is None else r - algo.kl_coef * kl for r, kl in zip(row, costs, strict=True)]
        for row, costs in zip(rewards, cost, strict=True)
    ]
