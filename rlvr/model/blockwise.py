"""Attention of tokens laid end to end, tile by tile: time for the keys that are seen, memory linear in the tokens.

The softmax is computed online (arXiv:2112.05682, arXiv:2307.08691), and its probabilities again in the backward pass
from the logarithm of their normalizer. Plain torch operations in a fixed order: deterministic, on any device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlvr.algo.transfer import copy_to
from rlvr.model.scores import Scores
from rlvr.model.spans import Spans, Tile, tiles

# Queries of a block; scores of a tile, for all heads (2 MB in float32, so that they stay in the cache), and its keys.
QUERIES, TILE_SCORES, MIN_KEYS, MAX_KEYS = 128, 2**19, 128, 1024
LOWEST = -1e30  # below any score; -inf minus itself would be nan
# exp2 is twice as fast as exp on the CPU.
LOG2_E = math.log2(math.e)


class TilePlan:
    """The tiles of some spans for a number of heads."""

    def __init__(self, spans: Spans, heads: int, device: torch.device) -> None:
        keys = min(max(TILE_SCORES // (heads * QUERIES), MIN_KEYS), MAX_KEYS)
        self.blocks = list(tiles(spans, QUERIES, keys))
        # The first visible key of each query, and one past its last: of its own row, and of its context.
        own, context, end = (copy_to(x, device) for x in (spans.own, spans.context, spans.context_end))
        token = torch.arange(1, len(own) + 1, device=device)
        self.bounds = {True: (own[:, None], token[:, None]), False: (context[:, None], end[:, None])}

    def hide(self, scores: Tensor, block: int, tile: Tile) -> Tensor:
        """Set scores (H_kv, H / H_kv, q, k) of a tile to LOWEST where the query does not see the key, in place."""
        if tile.whole:
            return scores
        first, end = (x[block + tile.first : block + tile.last] for x in self.bounds[tile.own])
        key = torch.arange(tile.start, tile.end, device=scores.device)
        return scores.masked_fill_((key < first) | (key >= end), LOWEST)


def attend_by_tiles(query: Tensor, key: Tensor, value: Tensor, plan: TilePlan, scores: Scores | None = None) -> Tensor:
    """Return softmax attention of scaled queries (N, H, D) on key (N, H_kv, D) and value (N, H_kv, D_v): (N, H, D_v).

    Heads share keys in groups of H / H_kv. The window is in the plan; `scores` gives soft cap and sinks (H,).
    """
    scores = scores or Scores()
    return Blockwise.apply(query, key, value, scores.sinks, plan, scores.softcap)


class Blockwise(torch.autograd.Function):
    """`attention`, with sinks (H,) or None."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, plan: TilePlan, softcap: float | None
    ) -> Tensor:
        tokens, heads, kv_heads = len(query), query.shape[1], key.shape[1]
        keys, values = _heads_first(key), _heads_first(value)
        out = query.new_empty(tokens, heads, value.shape[2])
        normalizer = query.new_empty(heads, tokens, dtype=torch.float32)  # log2 of the sum of exponentials
        for first, last, block in plan.blocks:
            q = _grouped(query[first:last], kv_heads)
            shape = (*q.shape[:3], 1)
            top, total = (q.new_full(shape, x, dtype=torch.float32) for x in (LOWEST, 0.0))
            mixed = q.new_zeros(*q.shape[:3], value.shape[2], dtype=torch.float32)
            if sinks is not None:
                top, total = (sinks.float() * LOG2_E).view(kv_heads, -1, 1, 1).expand(shape).clone(), total + 1
            for tile in block:
                some = slice(tile.first, tile.last)
                probs = plan.hide(_scores(q[:, :, some], keys, tile, softcap)[0], first, tile)
                high = torch.maximum(top[:, :, some], probs.amax(-1, keepdim=True))
                probs.sub_(high).exp2_()
                fade = (top[:, :, some] - high).exp2_()
                total[:, :, some].mul_(fade).add_(probs.sum(-1, keepdim=True))
                more = torch.bmm(probs.flatten(1, 2).to(value.dtype), values[:, tile.start : tile.end])
                mixed[:, :, some].mul_(fade).add_(more.view(*probs.shape[:3], -1))
                top[:, :, some] = high
            out[first:last] = _ungrouped(mixed.div_(total))
            normalizer[:, first:last] = top.add_(total.log2_()).view(heads, -1)
        ctx.save_for_backward(query, key, value, sinks, out, normalizer)
        ctx.plan, ctx.softcap = plan, softcap
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, sinks, out, normalizer = ctx.saved_tensors
        kv_heads = key.shape[1]
        keys, values = _heads_first(key), _heads_first(value)
        grad_query, grad_sinks = torch.empty_like(query), None if sinks is None else torch.zeros_like(sinks.float())
        grad_keys, grad_values = (torch.zeros_like(x, dtype=torch.float32) for x in (keys, values))
        for first, last, block in ctx.plan.blocks:
            q, g, o = (_grouped(x[first:last], kv_heads) for x in (query, grad, out))
            mean = (g.float() * o.float()).sum(-1, keepdim=True)
            log_total = normalizer[:, first:last].reshape(mean.shape)
            grad_q = torch.zeros_like(q, dtype=torch.float32)
            if grad_sinks is not None:
                sink = ((sinks.float() * LOG2_E).view(kv_heads, -1, 1, 1) - log_total).exp2_()
                grad_sinks -= (sink * mean).sum((2, 3)).view(-1)
            for tile in block:
                some, span = slice(tile.first, tile.last), slice(tile.start, tile.end)
                probs, slope = _scores(q[:, :, some], keys, tile, ctx.softcap)
                probs = ctx.plan.hide(probs, first, tile).sub_(log_total[:, :, some]).exp2_()
                g_some = g[:, :, some].flatten(1, 2)
                _add_product(grad_values[:, span], probs.flatten(1, 2).to(value.dtype).transpose(1, 2), g_some)
                change = torch.bmm(g_some, values[:, span].transpose(1, 2)).float().view(probs.shape)
                change = change.sub_(mean[:, :, some]).mul_(probs)
                change = (change if slope is None else change.mul_(slope)).flatten(1, 2).to(query.dtype)
                grad_q[:, :, some] += torch.bmm(change, keys[:, span]).view(*probs.shape[:3], -1)
                _add_product(grad_keys[:, span], change.transpose(1, 2), q[:, :, some].flatten(1, 2))
            grad_query[first:last] = _ungrouped(grad_q)
        grads = (x.transpose(0, 1).to(key.dtype) for x in (grad_keys, grad_values))
        return grad_query, *grads, None if grad_sinks is None else grad_sinks.to(sinks.dtype), None, None


def _scores(query: Tensor, keys: Tensor, tile: Tile, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Return float32 scores (H_kv, G, q, k) of a tile times log2 e, and with a soft cap its derivative.

    query (H_kv, G, q, D), keys (H_kv, N, D).
    """
    rows, some = query.flatten(1, 2), keys[:, tile.start : tile.end].transpose(1, 2)
    if softcap is None:
        return torch.bmm(rows * LOG2_E, some).float().view(*query.shape[:3], -1), None
    bounded = torch.bmm(rows, some).float().div_(softcap).tanh_().view(*query.shape[:3], -1)
    return bounded * (softcap * LOG2_E), 1 - bounded.square()


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `total`, which is float32, in place."""
    if a.dtype is total.dtype:
        total.baddbmm_(a, b)
    else:
        total.add_(torch.bmm(a, b))


def _heads_first(x: Tensor) -> Tensor:
    """Rearrange (N, H, D) to (H, N, D), contiguous."""
    return x.transpose(0, 1).contiguous()


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """Rearrange (q, H, D) to (H_kv, H / H_kv, q, D): heads that share keys become more query rows of one matmul."""
    return x.transpose(0, 1).reshape(kv_heads, -1, len(x), x.shape[2])


def _ungrouped(x: Tensor) -> Tensor:
    """Rearrange (H_kv, G, q, D) to (q, H, D)."""
    return x.flatten(0, 1).transpose(0, 1)
