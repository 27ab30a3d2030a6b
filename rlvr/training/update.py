"""A step's optimizer updates: from groups with advantages to moved weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlvr.algo.batch import Batch, chosen, collate, minibatches
from rlvr.algo.losses import batch_loss, denominator, value_loss
from rlvr.config import Config
from rlvr.distributed import gather, sum_gradients, sum_stats
from rlvr.model.health import count_not_finite
from rlvr.model.logprobs import token_logprobs
from rlvr.model.optim import learning_rate, optimizer_step
from rlvr.seeding import derive_seed
from rlvr.training.mismatch import mismatch, warn_of_mismatch
from rlvr.training.prepare import critic_stats, score
from rlvr.training.rollout import has_signal
from rlvr.training.run import Run
from rlvr.types import Group

TOKEN_STATS = ("clip_low", "clip_high", "importance", "importance_clipped")
PAIR_STATS = ("dpo/margin", "dpo/accuracy", "dpo/chosen", "dpo/rejected")
VALUE_STATS = ("critic/value_loss", "critic/value_clipped")


def update(run: Run, step: int, groups: Sequence[Group], advantages: Sequence[Sequence[float]]) -> dict[str, float]:
    """All optimizer steps of a batch. Returns what is logged of them.

    A minibatch without a row to compute has the gradient zero, and its step is taken: AdamW's moments decay and go on
    moving the weights as they would with all rows computed. Where raft or dpo has chosen nothing there is no step.
    """
    config, algo, critic = run.config, run.config.algo, run.critic
    with run.timed("train"):
        batch = score(run, to_batch(run, groups, advantages))
        lr = learning_rate(step, config.optim, config.run.steps)
        sums: Counter[str] = Counter()
        norms: list[float] = []
        critic_norms: list[float] = []
        differences: list[Tensor] = []
        learns = critic is None or step >= critic.settings.warmup
        for minibatch in minibatches(
            batch, count=algo.minibatches, epochs=algo.epochs, seed=derive_seed(config.run.seed, "minibatches", step)
        ):
            if learns:
                sums.update(accumulate_gradient(run, minibatch, differences))
                norms.append(optimizer_step(run.optimizer, lr=lr, max_grad_norm=config.optim.max_grad_norm))
            if critic is not None:
                if not (learns and critic.shares_trunk):
                    sums.update(accumulate_value_gradient(run, minibatch))
                critic_norms.append(critic_step(run, step))
    stats = averages(sums, len(norms), len(critic_norms))
    if critic is not None:
        stats |= critic_stats(batch) if len(batch) else {}
        stats["critic/grad_norm"] = sum(critic_norms) / max(len(critic_norms), 1)
        stats["critic/skipped_updates"] = count_not_finite(critic_norms)
    differences = [part.cpu() for part in gather(differences, run.accelerator)]
    if differences:
        stats |= mismatch(torch.cat(differences))
        # With top-p or top-k the two are logprobs of different distributions.
        if config.rollout.top_p == 1 and config.rollout.top_k == 0:
            bound, sampler = config.sampler.mismatch_alarm, config.sampler.name
            warn_of_mismatch(stats, step + 1, bound, config.staleness(step), sampler)
    if len(batch):  # no row says nothing of gradients
        stats["skipped_updates"] = count_not_finite(norms)
    grad_norm = sum(norms) / max(len(norms), 1)
    return {"lr": lr if learns else 0.0, "loss": 0.0, "grad_norm": grad_norm, **stats}


def averages(sums: Counter[str], updates: int, critic_updates: int) -> dict[str, float]:
    """What is logged of a step's sums over minibatches: losses per update, pairs' sums per pair, the rest per token.

    The loss is that of all sampled rows, of which those without signal add nothing. Per token means per token that was
    computed, groups without signal left out; `trained_tokens` counts them, over all passes. Where there are none
    (as of pairs) the averages are left out too.
    """
    counts = {"loss": updates, **dict.fromkeys(VALUE_STATS, critic_updates)}
    counts |= dict.fromkeys(PAIR_STATS, sums.pop("dpo/pairs", 0))
    tokens = sums.pop("tokens", 0)
    stats = {name: value / counts.get(name, tokens) for name, value in sums.items() if counts.get(name, tokens)}
    if "clip_low" in stats:
        stats["clip_fraction"] = stats["clip_low"] + stats["clip_high"]
    return {"trained_tokens": tokens, **stats}


def to_batch(run: Run, groups: Sequence[Group], advantages: Sequence[Sequence[float]]) -> Batch:
    """The rollouts that are trained on: with raft and dpo the chosen ones, else all.

    The rows of groups without signal are counted and not computed, unless a critic learns from all, or a KL term in
    the loss needs them.
    """
    algo, mask_truncated = run.config.algo, run.config.rollout.truncated == "mask"
    keep_all = algo.row.critic or (algo.kl_coef > 0 and algo.kl_in == "loss")
    if algo.row.chooses:
        groups, advantages = chosen(groups, advantages, mask_truncated=mask_truncated)
    return collate(
        groups,
        advantages,
        pad_id=run.policy.pad_id,
        device=run.policy.device,
        mask_truncated=mask_truncated,
        rows_per_pair=2 if algo.row.pairs else 1,
        computed=[keep_all or has_signal(row) for row in advantages],
    )


def accumulate_gradient(run: Run, minibatch: Batch, differences: list[Tensor] | None = None) -> dict[str, float]:
    """Forward and backward over a minibatch, cut into microbatches; gradients are summed over processes.

    A critic on the policy's trunk learns in the same pass. `differences` is given, microbatch by microbatch,
    log pi_old - log pi_sampler of its tokens (n).
    """
    config, algo = run.config, run.config.algo
    total = denominator(minibatch, algo.normalizer, config.rollout.max_new_tokens)
    device = minibatch.tokens.device
    sums = {name: torch.zeros((), device=device) for name in stat_names(run, minibatch)}
    _, mine = minibatch.share(run.accelerator.process_index, run.accelerator.num_processes)
    for _, micro in mine.split(config.optim.tokens_per_microbatch):
        logprobs, entropy, values = forward(run, micro)
        loss, stats = batch_loss(logprobs, micro, algo, total, importance_kind(config, run.policy.dtype))
        if values is not None:
            loss = loss + critic_loss(run, values, micro, minibatch, stats)
        loss.backward()
        if differences is not None:
            old = logprobs.detach() if micro.old_logprobs is None else micro.old_logprobs
            differences.append((old - micro.sampler_logprobs)[micro.mask])
        stats |= {"loss": loss.detach(), "entropy": masked_sum(entropy, micro.mask), "tokens": micro.mask.sum()}
        for name, value in stats.items():
            sums[name] += value
    parameters = run.policy.parameters()
    if run.critic is not None and run.critic.shares_trunk:
        parameters += run.critic.parameters()
    fill_gradients(parameters, minibatch)
    sum_gradients(parameters, run.accelerator)
    return sum_stats({name: float(value) for name, value in sums.items()}, run.accelerator, device)


def fill_gradients(parameters: Iterable[Tensor], minibatch: Batch) -> None:
    """The gradient of a minibatch without rows, on all processes: zeros, where AdamW would pass over None."""
    if not len(minibatch):
        for weight in parameters:
            weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad


def stat_names(run: Run, minibatch: Batch) -> list[str]:
    """The sums that `accumulate_gradient` makes, equal on every process, also where its share of the rows is empty."""
    names = ["loss", "entropy", "tokens"]
    names += ["dpo/pairs", *PAIR_STATS] if minibatch.rows_per_pair > 1 else TOKEN_STATS
    if minibatch.ref_logprobs is not None and minibatch.rows_per_pair == 1:
        names.append("kl")
    if run.critic is not None and run.critic.shares_trunk:
        names += VALUE_STATS
    return names


def forward(run: Run, micro: Batch) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Logprobs, entropies and, where the critic is a head of the policy, values; each (b, T)."""
    temperature = run.config.rollout.temperature
    if run.critic is not None and run.critic.shares_trunk:
        return run.critic.logprobs_and_values(micro.tokens, micro.mask, temperature=temperature, with_entropy=True)
    return *token_logprobs(run.policy, micro.tokens, micro.mask, temperature=temperature, with_entropy=True), None


def accumulate_value_gradient(run: Run, minibatch: Batch) -> dict[str, float]:
    """`accumulate_gradient` for the critic alone. A head does not move the policy's trunk here."""
    critic, device = run.critic, minibatch.tokens.device
    assert critic is not None
    sums = {name: torch.zeros((), device=device) for name in VALUE_STATS}
    _, mine = minibatch.share(run.accelerator.process_index, run.accelerator.num_processes)
    for _, micro in mine.split(run.config.optim.tokens_per_microbatch):
        values = critic.values(micro.tokens, micro.mask, only_head=critic.shares_trunk)
        critic_loss(run, values, micro, minibatch, sums).backward()
    fill_gradients(critic.parameters(), minibatch)
    sum_gradients(critic.parameters(), run.accelerator)
    return sum_stats({name: float(value) for name, value in sums.items()}, run.accelerator, device)


def critic_loss(run: Run, values: Tensor, micro: Batch, minibatch: Batch, stats: dict[str, Tensor]) -> Tensor:
    """The weighted value loss of a microbatch; adds the unweighted one, and the share of clipped values, to stats."""
    assert run.critic is not None
    settings = run.critic.settings
    loss, clipped = value_loss(values, micro, settings.value_clip, denominator(minibatch, "token", 0))
    for name, value in zip(VALUE_STATS, (loss.detach(), clipped), strict=True):
        stats[name] = stats.get(name, torch.zeros_like(value)) + value
    return settings.value_coef * loss


def critic_step(run: Run, step: int) -> float:
    """One step of the critic's own weights. Returns the gradient's norm before clipping."""
    config, critic = run.config, run.critic
    assert critic is not None
    lr = learning_rate(step, replace(config.optim, lr=critic.settings.lr), config.run.steps)
    return optimizer_step(critic.optimizer, lr=lr, max_grad_norm=config.optim.max_grad_norm)


def masked_sum(values: Tensor | None, mask: Tensor) -> Tensor:
    """Sum over the masked positions; 0 where there are no values."""
    return torch.zeros(()) if values is None else (values.detach() * mask).sum()


def importance_kind(config: Config, dtype: torch.dtype = torch.float32) -> str:
    """How sampler and trainer are reconciled: by default per token, and not at all where they are one engine.

    `dtype` is that of the policy's computation: in shorter types than float32 the torch sampler, which reads one token
    at a time, rounds otherwise than the trainer. What is fine-tuned on chosen rollouts needs no correction: it would be
    the same from whatever engine they came.
    """
    kind = config.algo.importance
    if kind != "auto":
        return kind
    one_engine = config.sampler.name == "torch" and dtype is torch.float32
    return "none" if one_engine or config.algo.loss_row.ratio is None else "token"
