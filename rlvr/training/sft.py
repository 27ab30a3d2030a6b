"""Supervised fine-tuning on a pack's demonstrations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from accelerate import Accelerator

from rlvr.algo.batch import Batch, collate
from rlvr.config import OptimConfig, SFTConfig
from rlvr.core.turns import Reply, Turn
from rlvr.core.types import Completion, Group, correct
from rlvr.distributed import sum_gradients
from rlvr.model.health import GradientWatch, check_weights, count_not_finite, python_warning
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim import make_optimizer, optimizer_step
from rlvr.model.policy import Policy
from rlvr.training.demonstrations import Demonstration
from rlvr.training.problems.draws import items_of_step
from rlvr.training.rollout.episodes import Play, replies
from rlvr.training.step.prepare import microbatches
from rlvr.training.supervised_checkpoints import SupervisedCheckpoints


def sft(
    policy: Policy,
    demonstrations: Sequence[Demonstration],
    config: SFTConfig,
    accelerator: Accelerator,
    *,
    seed: int,
    tokens_per_microbatch: int,
    plan: Play | None = None,
    optim: OptimConfig | None = None,
    on_step: Callable[[int, float], None] | None = None,
    warn: Callable[[str], None] = python_warning,
    checkpoints: SupervisedCheckpoints | None = None,
) -> None:
    """Minimize the mean negative log-likelihood of the demonstrations' tokens, the end token included.

    With a `plan` they are the model's turns, played through its environment: replies are read, and not learned.

    AdamW (.9, .99), learning rate by `cosine`, gradient norm clipped at 1; of `optim` only `name` and `offload` are
    read. After each step `on_step(step, loss)` gets
    this process's part of the loss. `warn` gets one line for each step with a broken gradient. With `checkpoints` it
    goes on from the last one. Raises NotFinite where gradients are not finite in several steps in a row, or the weights
    at the end; Stopped where a signal ends it, after a checkpoint.
    """
    hint = f"--sft.lr ({config.lr:g}) and --model.dtype (float32 does not overflow where the others do)"
    gradients = GradientWatch(warn if accelerator.is_main_process else lambda text: None, hint)
    kind = replace(optim or OptimConfig(), lr=config.lr, betas=(0.9, 0.99), weight_decay=0.0)
    optimizer = make_optimizer(policy.parameters(), kind)
    left = checkpoints.steps(config.steps, policy, optimizer, gradients) if checkpoints else range(config.steps)
    for step in left:
        chosen = items_of_step(demonstrations, config.batch_size, seed=seed, step=step)
        loss = accumulate(policy, demonstration_batch(policy, chosen, plan, seed), accelerator, tokens_per_microbatch)
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


def demonstration_batch(
    policy: Policy, demonstrations: Sequence[Demonstration], plan: Play | None = None, seed: int = 0
) -> Batch:
    """Return demonstrations as a batch whose mask covers the turns of the model with their end tokens.

    seed: of an environment's random numbers, which are a function of it and the problem. Raises what `replies` does.
    """
    turns = [[said] if isinstance(said, str) else list(said) for _, said in demonstrations]
    found: Sequence[Sequence[Reply]] = [()] * len(turns)
    if plan is not None:
        found = replies([(problem, said) for (problem, _), said in zip(demonstrations, turns)], plan, seed)
    groups = []
    for (problem, _), said, heard in zip(demonstrations, turns, found, strict=True):
        completion = demonstrated(policy, said, heard, plan)
        groups.append(Group(problem, tuple(policy.render(problem.prompt)), (completion,), (correct(),)))
    return collate(groups, [[1.0]] * len(groups), pad_id=policy.pad_id, device=policy.device)


def demonstrated(policy: Policy, said: Sequence[str], heard: Sequence[Reply], plan: Play | None) -> Completion:
    """Return turns of the model, each with an end token, and the replies between them as a completion."""
    ids: list[int] = []
    turns: list[Turn] = []
    for number, text in enumerate(said):
        own = [*policy.encode(text), policy.eos_id]
        ids += own
        turns.append(Turn("assistant", text, len(own)))
        if plan is not None and number + 1 < len(said):
            reply = heard[number]
            reply = replace(reply, text=policy.shortened(reply.text, plan.limits.reply_tokens, reply.payload))
            other = policy.encode_reply(reply, ended=policy.eos_id)
            ids += other
            turns.append(Turn(reply.role, reply.text, len(other)))
    return Completion(said[-1], tuple(ids), (0.0,) * len(ids), turns=tuple(turns) if plan is not None else ())


def accumulate(policy: Policy, batch: Batch, accelerator: Accelerator, tokens_per_microbatch: int) -> float:
    """Run forward and backward over a batch; return this process's part of the loss. Gradients are those of all."""
    loss = add_gradient(policy, batch, accelerator, tokens_per_microbatch)
    sum_gradients(policy.parameters(), accelerator)
    return loss


def add_gradient(
    policy: Policy, batch: Batch, accelerator: Accelerator, tokens_per_microbatch: int, weight: float = 1.0
) -> float:
    """Add weight x the gradient of the loss over this process's share of a batch; return its part of the loss.

    The loss is the mean negative log-likelihood per token of the whole batch.
    """
    total = batch.num_completion_tokens
    loss_sum = 0.0
    for _, micro, counted in microbatches(batch, policy, accelerator, tokens_per_microbatch):
        logprobs, _ = token_logprobs(policy, micro.tokens, micro.scored)
        loss = -counted * logprobs.sum() / total
        (loss if weight == 1 else weight * loss).backward()
        loss_sum += float(loss.detach())
    return loss_sum
