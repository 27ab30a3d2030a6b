"""Batches of tensors for losses, without a model."""

from __future__ import annotations

import torch
from torch import Tensor

from rlvr.algo.batch import Batch
from rlvr.algo.losses import batch_loss
from rlvr.config import AlgoConfig


def make_batch(
    mask: Tensor,
    advantages: Tensor | None = None,
    old: Tensor | None = None,
    ref: Tensor | None = None,
    sampler: Tensor | None = None,
    **tensors,
) -> Batch:
    """Return a batch of zero tokens in groups of four; mask: (B, T) bool, advantages: (B,), logprobs: (B, T)."""
    fields = {
        "tokens": torch.zeros(mask.shape, dtype=torch.long),
        "mask": mask,
        "scored": mask,
        "sampler_logprobs": torch.zeros(mask.shape) if sampler is None else sampler,
        "advantages": torch.zeros(len(mask)) if advantages is None else advantages,
        "lengths": mask.sum(-1),
        "groups": torch.arange(len(mask)) // 4,
        "old_logprobs": old,
        "ref_logprobs": ref,
    }
    return Batch(**{**fields, **tensors})


def loss_of(
    logprobs: Tensor, batch: Batch, algo: AlgoConfig, denominator: float, importance: str = "none"
) -> tuple[Tensor, dict[str, Tensor]]:
    """The configured loss of a batch, and its sums for the log."""
    arguments = algo.loss_arguments()
    if not algo.loss_row.of_completions:
        arguments["importance"] = importance
    return batch_loss(logprobs, batch, denominator, **arguments)


def split(batch: Batch, max_tokens: int, *, shared_prompts: bool = True) -> list[tuple[Tensor, Batch]]:
    """The microbatches of one process, each with its rows' indices."""
    return [(index, batch.rows(index)) for index, _ in batch.plan(1, max_tokens, shared_prompts=shared_prompts)[0]]
