"""Supervised fine-tuning on a pack's demonstrations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from accelerate import Accelerator

from rlvr.algo.batch import Batch, collate
from rlvr.config import OptimConfig, SFTConfig
from rlvr.distributed import sum_gradients
from rlvr.model.health import GradientWatch, check_weights, count_not_finite, python_warning
from rlvr.model.logprobs import token_logprobs
from rlvr.model.optim import make_optimizer, optimizer_step
from rlvr.model.policy import Policy
from rlvr.training.epochs import items_of_step
from rlvr.training.microbatches import microbatches
from rlvr.types import Completion, Group, Problem, correct


def sft(
    policy: Policy,
    demonstrations: Sequence[tuple[Problem, str]],
    config: SFTConfig,
    accelerator: Accelerator,
    *,
    seed: int,
    tokens_per_microbatch: int,
    optim: OptimConfig | None = None,
    on_step: Callable[[int, float], None] | None = None,
    warn: Callable[[str], None] = python_warning,
) -> None:
    """Minimize the mean negative log-likelihood of the demonstrations' tokens, the end token included.

    AdamW (.9, .99), learning rate by `cosine`, gradient norm clipped at 1; of `optim` only `name` and `offload` are
    read. After each step `on_step(step, loss)` gets
    this process's part of the loss. `warn` gets one line for each step with a broken gradient. Raises NotFinite where
    gradients are not finite in several steps in a row, or the weights at the end.
    """
    hint = f"--sft.lr ({config.lr:g}) and --model.dtype (float32 does not overflow where the others do)"
    gradients = GradientWatch(warn if accelerator.is_main_process else lambda text: None, hint)
    kind = replace(optim or OptimConfig(), lr=config.lr, betas=(0.9, 0.99), weight_decay=0.0)
    optimizer = make_optimizer(policy.parameters(), kind)
    for step in range(config.steps):
        chosen = items_of_step(demonstrations, config.batch_size, seed=seed, step=step)
        loss = accumulate(policy, demonstration_batch(policy, chosen), accelerator, tokens_per_microbatch)
        norm = optimizer_step(optimizer, lr=cosine(step, config), max_grad_norm=1.0)
        gradients.observe(step + 1, count_not_finite([norm]), "gradient of the fine-tuning")
        if on_step:
            on_step(step + 1, loss)
    check_weights(policy.model.named_parameters(), f"the fine-tuning broke the policy (look at {hint})")


def cosine(step: int, config: SFTConfig) -> float:
    """Return the learning rate of a step (from 0): a linear warm-up, then lr (1 + cos(pi step / steps)) / 2.

    The cosine is counted from step 0, so that after the warm-up the rate goes on from slightly below lr.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    return config.lr * (1 + math.cos(math.pi * step / config.steps)) / 2


def demonstration_batch(policy: Policy, demonstrations: Sequence[tuple[Problem, str]]) -> Batch:
    """Return demonstrations as a batch whose mask covers the completion and its end token."""
    groups = []
    for problem, text in demonstrations:
        ids = (*policy.encode(text), policy.eos_id)
        completion = Completion(text, ids, (0.0,) * len(ids))
        groups.append(Group(problem, tuple(policy.render(problem.prompt)), (completion,), (correct(),)))
    return collate(groups, [[1.0]] * len(groups), pad_id=policy.pad_id, device=policy.device)


def accumulate(policy: Policy, batch: Batch, accelerator: Accelerator, tokens_per_microbatch: int) -> float:
    """Run forward and backward over this process's share of a batch; return its part of the loss."""
    total = batch.num_completion_tokens
    loss_sum = 0.0
    for _, micro, weight in microbatches(batch, policy, accelerator, tokens_per_microbatch):
        logprobs, _ = token_logprobs(policy, micro.tokens, micro.scored)
        loss = -weight * logprobs.sum() / total
        loss.backward()
        loss_sum += float(loss.detach())
    sum_gradients(policy.parameters(), accelerator)
    return loss_sum
