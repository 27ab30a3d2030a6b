"""Attention of tokens laid end to end by torch's flex_attention: what a GPU computes that the flash kernel does not.

A block mask tells the kernel which blocks of keys each block of queries sees: prompts are shared, rows are apart, and
blocks outside a sliding window are skipped. Its memory grows with the square of the number of blocks of 128 tokens,
which is nothing beside the tokens themselves; no mask of tokens by tokens is ever made.
"""

from __future__ import annotations

import functools
import importlib.util
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

from rlvr.algo.batch import copy_to

from .operations import Scores
from .rows import Spans

BLOCK = 128
# Kernels that are compiled at most: one for each type, score function, number of heads, with gradients and without.
VARIANTS = 64


class FlexPlan:
    """The block mask of some spans: (N padded to whole blocks)^2."""

    def __init__(self, spans: Spans, device: torch.device) -> None:
        self.tokens = len(spans.own)
        self.padding = -self.tokens % BLOCK
        # A padding query sees itself, and no other query sees it.
        own = np.concatenate([spans.own, np.arange(self.tokens, self.tokens + self.padding)])
        nothing = np.zeros(self.padding, dtype=np.int64)
        context, end = (np.concatenate([x, nothing]) for x in (spans.context, spans.context_end))
        seen, whole = Spans(own, context, end).block_map(BLOCK)
        first, left, right = (copy_to(x.astype(np.int32), device) for x in (own, context, end))

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = (key >= first[query]) & (key <= query)
            return own | ((key >= left[query]) & (key < right[query]))

        partial_blocks, whole_blocks = (_list_blocks(x, device) for x in (seen & ~whole, whole))
        size = self.tokens + self.padding
        self.mask = BlockMask.from_kv_blocks(
            *partial_blocks, *whole_blocks, BLOCK_SIZE=BLOCK, mask_mod=visible, seq_lengths=(size, size)
        )


def _list_blocks(blocks: np.ndarray, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return for each block of queries the number of its blocks of keys, and their indices first: int32 (1, 1, ...)."""
    order = np.argsort(~blocks, axis=1, kind="stable")
    counts, indices = (copy_to(x.astype(np.int32), device) for x in (blocks.sum(axis=1), order))
    return counts[None, None], indices[None, None]


def attend(
    query: Tensor, key: Tensor, value: Tensor, plan: FlexPlan, scores: Scores | None = None, *, compiled: bool = True
) -> Tensor:
    """Return what `attend_by_tiles` does (rlvr.model.cpu.attention). Compiled for a CPU: no gradients, no sinks."""
    scores = scores or Scores()
    kernel: Any = _run_compiled if compiled else flex_attention
    q, k, v = (
        torch.nn.functional.pad(x, (0, 0, 0, 0, 0, plan.padding)).transpose(0, 1)[None] for x in (query, key, value)
    )
    options: dict[str, Any] = {"block_mask": plan.mask, "scale": 1.0, "enable_gqa": q.shape[1] != k.shape[1]}
    if scores.softcap is not None:
        options["score_mod"] = _cap_scores(torch.tensor(scores.softcap, device=q.device))
    if scores.sinks is None:
        out = kernel(q, k, v, **options)
    else:
        out, aux = kernel(q, k, v, return_aux=AuxRequest(lse=True), **options)
        # A sink takes its share of the softmax: Z / (Z + exp(sink)).
        out = out * torch.sigmoid(aux.lse - scores.sinks.float()[:, None]).unsqueeze(-1).to(out.dtype)
    return out[0].transpose(0, 1)[: plan.tokens]


def _cap_scores(cap: Tensor) -> Any:
    """Return the score function of a soft cap, a tensor: the compiler would make a float one of 64 bits."""

    def cap_score(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return cap_score


def _run_compiled(*args: Any, **options: Any) -> Any:
    """Run the compiled kernel. Where the compiler gives up, that is an error: eagerly it makes all (N, N) scores."""
    with torch._dynamo.config.patch(recompile_limit=VARIANTS, fail_on_recompile_limit_hit=True):
        return _compile()(*args, **options)


@functools.cache
def _compile() -> Any:
    """Return the compiled kernel. Lengths are dynamic: every microbatch has another one."""
    return torch.compile(flex_attention, dynamic=True)


@functools.cache
def is_available(device: torch.device) -> bool:
    """Return whether the compiled kernel runs forward and backward on the device, tried once on a few tokens."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    lengths, none = np.array([150, 9]), np.zeros(2, dtype=np.int64)
    plan = FlexPlan(Spans.of_rows(lengths, none, np.array([0, 150])), device)
    try:
        query, key = (torch.ones(159, heads, 64, device=device, dtype=torch.bfloat16) for heads in (4, 2))
        value = key.clone()
        with torch.enable_grad():
            out = attend(query.requires_grad_(), key.requires_grad_(), value.requires_grad_(), plan)
            grads = torch.autograd.grad(out.sum(), (query, key, value))
        # All values are equal, and so is every mean of them.
        works = all(bool(x.isfinite().all()) for x in grads) and bool((out - 1).abs().max() < 0.01)
    except Exception as error:  # the compiler's errors have no common class
        warnings.warn(
            f"flex_attention does not run on {device}, and attention is slow ({str(error).splitlines()[:1]})",
            stacklevel=2,
        )
        return False
    return works
