"""Causal attention of padded rows over their context and themselves, for few scores.

On the CPU they are computed at once and held for the backward pass. On a GPU without flex_attention (rlvr.model.attention.flex)
torch's fused kernels are used. Many scores are computed by rlvr.model.cpu.attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from rlvr.algo.transfer import copy_to
from rlvr.model.attention.operations import Scores
from rlvr.model.attention.rows import Spans, Tile, tiles
from rlvr.model.cpu import processor

# Attention scores of a layer that may be held for the backward pass: 64 MB in float32.
MAX_SCORES = 2**24


class Visible:
    """Which keys each query of R rows sees: its whole context, and the tokens of its own row up to itself.

    contexts (R,): the number of context tokens of each row, which come before its own, padded to the longest; width:
    own tokens, padded at the end. `size` counts query-key pairs, R * width * (longest context + width).
    """

    def __init__(self, contexts: np.ndarray, width: int, device: torch.device) -> None:
        self.contexts, self.width, self.device = contexts, width, device
        self.context = int(contexts.max(initial=0))
        self.even = bool((contexts == self.context).all())
        self.size = len(contexts) * width * (self.context + width)
        self._bias: dict[torch.dtype, Tensor] = {}

    @property
    def bias_size(self) -> int:
        """The number of elements of `bias`."""
        return self.size // len(self.contexts) if self.even else self.size

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return 0 where a query sees a key, -inf where it does not: (R or 1, 1, width, context + width)."""
        if dtype not in self._bias:
            contexts = self.contexts[:1] if self.even else self.contexts
            shape = (len(contexts), self.width)
            prompt = np.broadcast_to((np.arange(self.context) < contexts[:, None])[:, None], (*shape, self.context))
            own = np.broadcast_to(np.tri(self.width, dtype=bool), (*shape, self.width))
            unseen = copy_to(~np.concatenate([prompt, own], axis=2), self.device)[:, None]
            bias = torch.zeros(unseen.shape, device=self.device, dtype=dtype)
            self._bias[dtype] = bias.masked_fill_(unseen, float("-inf"))
        return self._bias[dtype]


def attend_in_rectangle(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
    """Return softmax attention of scaled queries (R, H, Lq, D) on key, value (R, H_kv, Lk, D): (R, H, Lq, D_v).

    Heads share keys in groups of H / H_kv. The CPU keeps the probabilities for the backward pass.
    """
    if query.device.type == "cuda":
        return fused(query, key, value, visible)
    return attend_at_once(query, key, value, visible.bias(query.dtype))


def attend_at_once(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Compute all scores at once: oneDNN's matmul beats torch's fused kernel on the CPU."""
    (rows, heads, width, dim), kv_heads = query.shape, key.shape[1]
    # Heads that share keys become more query rows of one matmul.
    grouped = query.reshape(rows, kv_heads, heads // kv_heads * width, dim)
    scores = torch.matmul(grouped, key.transpose(2, 3)).view(rows, heads, width, -1)
    scores = scores + bias
    probs = scores.softmax(-1, dtype=processor.softmax_dtype(scores)).to(scores.dtype)
    return torch.matmul(probs.view(rows, kv_heads, -1, key.shape[2]), value).view(rows, heads, width, value.shape[3])


def fused(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
    """Compute by torch's fused kernels: with a mask while it is small, else without one by equal context lengths."""
    # Repeated: with a mask, CUDA has no fused kernel for grouped-query heads.
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))
    if visible.context == 0:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
    if visible.bias_size <= MAX_SCORES:
        return scaled_dot_product_attention(query, key, value, attn_mask=visible.bias(query.dtype), scale=1.0)
    lengths = np.unique(visible.contexts)
    places = [np.flatnonzero(visible.contexts == length) for length in lengths]
    pieces = []
    for length, place in zip(lengths.tolist(), places):
        rows = copy_to(place, query.device)
        k, v = (torch.cat([x[rows, :, :length], x[rows, :, visible.context :]], dim=2) for x in (key, value))
        mask = causal_lower_right(visible.width, length + visible.width)
        pieces.append(scaled_dot_product_attention(query[rows], k, v, attn_mask=mask, scale=1.0))
    order = copy_to(np.argsort(np.concatenate(places)), query.device)
    return torch.cat(pieces)[order]


# Attention of tokens laid end to end, tile by tile: time for the keys that are seen, memory linear in the tokens.
#
# The softmax is computed online (arXiv:2112.05682, arXiv:2307.08691), and its probabilities again in the backward pass
# from the logarithm of their normalizer. Plain torch operations in a fixed order: deterministic, on any device.

# Queries of a block; scores of a tile, for all heads (2 MB in float32, so that they stay in the cache), and its keys.
QUERIES, TILE_SCORES, MIN_TILE_KEYS, MAX_TILE_KEYS = 128, 2**19, 128, 1024
LOWEST = -1e30  # below any score; -inf minus itself would be nan
# exp2 is twice as fast as exp on the CPU.
LOG2_E = math.log2(math.e)


class TilePlan:
    """The tiles of some spans for a number of heads."""

    def __init__(self, spans: Spans, heads: int, device: torch.device) -> None:
        keys = min(max(TILE_SCORES // (heads * QUERIES), MIN_TILE_KEYS), MAX_TILE_KEYS)
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


# Plain attention of tokens laid end to end by torch's fused kernel for CPUs: long rows, on their contexts.
#
# A row's own tokens and its context are two calls of the kernel, which also returns the logarithm of each softmax's
# normalizer; the two outputs are mixed by them (arXiv:2310.01889). Given the output and the normalizer of both together,
# the kernel's backward pass is exact for each. Memory is linear in the tokens.

# Below so many keys a query other ways are faster, and so are they where a call would have fewer queries.
MIN_KEYS, MIN_QUERIES = 256, 64
forward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
backward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True)
class Call:
    """Queries first <= i < last on the keys start <= k < end: of `rows` rows on their own tokens, or on one context."""

    first: int
    last: int
    start: int
    end: int
    rows: int
    own: bool


class RowsPlan:
    """The calls for R rows that lie end to end, by their lengths and their contexts' first token and length (R,)."""

    def __init__(self, lengths: np.ndarray, context_starts: np.ndarray, context_lengths: np.ndarray) -> None:
        firsts = np.cumsum(lengths) - lengths
        self.own, self.contexts = [], []
        for a, b in _runs(lengths):
            first, last = int(firsts[a]), int(firsts[b - 1] + lengths[b - 1])
            self.own.append(Call(first, last, first, last, b - a, True))
        for a, b in _runs(context_starts, context_lengths):
            if context_lengths[a]:
                start = int(context_starts[a])
                end = start + int(context_lengths[a])
                last = int(firsts[b - 1] + lengths[b - 1])
                self.contexts.append(Call(int(firsts[a]), last, start, end, 1, False))
        tokens, keys = int(lengths.sum()), int((lengths * (context_lengths + lengths)).sum())
        calls = len(self.own) + len(self.contexts)
        self.pays = keys >= MIN_KEYS * tokens and calls * MIN_QUERIES <= tokens


def _runs(*columns: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield first and last + 1 of each run of equal entries."""
    changes = np.flatnonzero(np.any([np.diff(x) != 0 for x in columns], axis=0)) + 1
    ends = [*changes.tolist(), len(columns[0])]
    yield from zip([0, *ends[:-1]], ends)


def can_fuse(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the kernel computes attention of these tensors, and in float32 without the slow "medium"."""
    if query.device.type != "cpu" or query.dtype is not key.dtype or key.shape != value.shape:
        return False
    plain = query.dtype is torch.float32 and torch.get_float32_matmul_precision() == "highest"
    return plain or query.dtype is torch.bfloat16


def attend_by_fused_rows(query: Tensor, key: Tensor, value: Tensor, plan: RowsPlan) -> Tensor:
    """Return softmax attention of scaled queries (N, H, D) on key and value (N, H_kv, D): (N, H, D)."""
    return FusedRows.apply(query, key, value, plan)


class FusedRows(torch.autograd.Function):
    """`attention`."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: RowsPlan) -> Tensor:
        out = torch.empty_like(query)
        normalizer = query.new_empty(*query.shape[:2], dtype=torch.float32)
        for call in plan.own:
            for heads in _heads(query, key):
                q, k, v = (_rows(x, call, kind) for x, kind in ((query[:, heads], "q"), (key, "k"), (value, "k")))
                found, log = forward_kernel(q, k, v, 0.0, True, scale=1.0)
                _rows(out[:, heads], call, "q").copy_(found)
                _rows(normalizer[:, heads], call, "q").copy_(log)
        for call in plan.contexts:
            for heads in _heads(query, key):
                q, k, v = (_rows(x, call, kind) for x, kind in ((query[:, heads], "q"), (key, "k"), (value, "k")))
                found, log = forward_kernel(q, k, v, 0.0, False, scale=1.0)
                mixed, total = (_rows(x[:, heads], call, "q") for x in (out, normalizer))
                share = (log - total).sigmoid_()  # of the context in both
                total.copy_(torch.logaddexp(total, log))
                mixed.lerp_(found, share[..., None].to(found.dtype))
        ctx.save_for_backward(query, key, value, out, normalizer)
        ctx.plan = plan
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, normalizer = ctx.saved_tensors
        grads = [torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value)]
        for call in (*ctx.plan.own, *ctx.plan.contexts):
            for heads in _heads(query, key):
                g, q, o, log = (_rows(x[:, heads], call, "q") for x in (grad, query, out, normalizer))
                k, v = (_rows(x, call, "k") for x in (key, value))
                found = backward_kernel(g, q, k, v, o, log.contiguous(), 0.0, call.own, scale=1.0)
                for total, part, kind in zip((grads[0][:, heads], *grads[1:]), found, ("q", "k", "k")):
                    _rows(total, call, kind).add_(part)
        return *(total.to(x.dtype) for total, x in zip(grads, (query, key, value))), None


def _heads(query: Tensor, key: Tensor) -> list[slice]:
    """Return which query heads go to the kernel together: one for each head of keys."""
    share = query.shape[1] // key.shape[1]
    return [slice(member, None, share) for member in range(share)]


def _rows(x: Tensor, call: Call, kind: str) -> Tensor:
    """Return the call's queries ("q") or keys ("k") of x (N, H, ...) as a view (rows, H, L, ...)."""
    part = x[call.first : call.last] if kind == "q" else x[call.start : call.end]
    return part.unflatten(0, (call.rows, -1)).transpose(1, 2)
