"""Attention of tokens laid end to end on a CPU: `PackedAttention` takes the fastest of three ways that give the same.

| which attention | how it is computed |
|---|---|
| plain, rows with many keys a query | torch's fused kernel for CPUs |
| plain, few scores | all at once, in padded rectangles; the probabilities are held for the backward pass |
| any other: many scores, a window, a soft cap, sinks | tile by tile; this runs on any device |

Memory is linear in the tokens, but for the few scores that are held.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlvr.algo.batch import copy_to

from ..attention.operations import Scores
from ..attention.rows import GroupRows, Pad, Rows, Spans, Tile, Unpad, tiles
from . import processor

# Attention scores of a layer that may be held for the backward pass: 64 MB in float32.
MAX_SCORES = 2**24
# Tiles: queries of a block; scores of a tile, for all heads (2 MB in float32 stay in the cache); its fewest, most keys.
QUERIES, TILE_SCORES, MIN_TILE_KEYS, MAX_TILE_KEYS = 128, 2**19, 128, 1024
LOWEST = -1e30  # below any score; -inf minus itself would be nan
LOG2_E = math.log2(math.e)  # exp2 is twice as fast as exp on the CPU
# The fused kernel is slower than the other ways below so many keys a query, and with fewer queries in a call.
MIN_KEYS, MIN_QUERIES = 256, 64
forward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
backward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
KeysAndValues = tuple[Tensor, Tensor]
Prompts = tuple[np.ndarray, np.ndarray, np.ndarray, int]  # of a GroupRows
RowTable = tuple[np.ndarray, np.ndarray, np.ndarray]


class PackedAttention:
    """Attention of prompts, then of completions that each follow one of them.

    prompts, completions: the rectangles that they are padded to, in the order of their tokens. rows: of all rows,
    lengths, and their contexts' first tokens and lengths, (R,) each.
    """

    def __init__(self, prompts: Sequence[Rectangle], completions: Sequence[Rectangle], rows: RowTable) -> None:
        self.prompts, self.completions, self.rows = prompts, completions, rows
        self.sizes = [sum(part.count for part in parts) for parts in (prompts, completions)]
        self.num_scores = sum(part.visible.size for part in (*prompts, *completions))
        self.fused = FusedPlan(*rows)
        self._tile_plans: dict[tuple[int | None, int], TilePlan] = {}

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, scores: Scores | None, kept: KeysAndValues | None = None
    ) -> Tensor:
        """Return attention (N, H, D_v) of scaled queries (N, H, D) on key (N, H_kv, D) and value (N, H_kv, D_v).

        scores: None for plain attention. kept: the prompts' padded keys and values, where they have been made.
        """
        if scores is None and self.fused.pays and can_fuse(query, key, value):
            return FusedRows.apply(query, key, value, self.fused)
        heads = query.shape[1]
        if scores is None and self.num_scores * heads <= MAX_SCORES:
            return self._in_rectangles(query, key, value, kept)
        kind = None if scores is None else scores.window, heads
        if kind not in self._tile_plans:
            self._tile_plans[kind] = TilePlan(Spans.of_rows(*self.rows, kind[0]), heads, query.device)
        return attend_by_tiles(query, key, value, self._tile_plans[kind], scores)

    def _in_rectangles(self, query: Tensor, key: Tensor, value: Tensor, kept: KeysAndValues | None) -> Tensor:
        pieces = []
        prompt_query, own_query = query.split(self.sizes)
        prompt_key, prompt_value = key[: self.sizes[0]], value[: self.sizes[0]]
        for part, q, k, v in zip(self.prompts, *_cut(self.prompts, prompt_query, prompt_key, prompt_value)):
            pieces.append(part.attend(q, *(kept or (Pad.apply(k, part.rows), Pad.apply(v, part.rows)))))
        if len(self.completions) == 1:
            part = self.completions[0]
            pieces.append(part.attend(own_query, Pad.apply(key, part.keys), Pad.apply(value, part.keys)))
            return torch.cat(pieces)
        own = _cut(self.completions, own_query, key[self.sizes[0] :], value[self.sizes[0] :])
        for part, q, k, v in zip(self.completions, *own):
            k, v = (Pad.apply(torch.cat(both), part.keys) for both in ((prompt_key, k), (prompt_value, v)))
            pieces.append(part.attend(q, k, v))
        return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


class Rectangle:
    """Rows that are padded to one length and computed at once: prompts, or completions with their contexts."""

    def __init__(self, lengths: np.ndarray, device: torch.device, prompts: Prompts | None = None) -> None:
        self.rows = Rows(lengths, device)
        self.keys: Rows | GroupRows = self.rows if prompts is None else GroupRows(*prompts, self.rows)
        contexts = self.keys.contexts if isinstance(self.keys, GroupRows) else np.zeros_like(lengths)
        self.visible = Visible(contexts, self.rows.width, device)
        self.count = int(lengths.sum())

    def attend(self, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """query (n, H, D) of its tokens, keys and values (R, H_kv, Lk, D) to (n, H, D)."""
        grid = Pad.apply(query, self.rows)
        return Unpad.apply(attend_at_once(grid, keys, values, self.visible.bias(grid.dtype)), self.rows)


def _cut(parts: Sequence[Rectangle], *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    """Split each tensor (n, ...) into the tokens of the rectangles."""
    return [x.split([part.count for part in parts]) for x in tensors]


class Visible:
    """Which keys each query of R padded rows sees: its whole context, and its own row up to itself.

    contexts (R,): the number of context tokens of each row, which come before its own, padded to the longest; width:
    own tokens, padded at the end. `size` counts query-key pairs, R * width * (longest context + width).
    """

    def __init__(self, contexts: np.ndarray, width: int, device: torch.device) -> None:
        self.contexts, self.width, self.device = contexts, width, device
        self.context = int(contexts.max(initial=0))
        self.size = len(contexts) * width * (self.context + width)
        self._bias: dict[torch.dtype, Tensor] = {}

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Return 0 where a query sees a key, -inf where it does not: (R or 1, 1, width, context + width)."""
        if dtype not in self._bias:
            even = bool((self.contexts == self.context).all())
            contexts = self.contexts[:1] if even else self.contexts
            shape = (len(contexts), self.width)
            prompt = np.broadcast_to((np.arange(self.context) < contexts[:, None])[:, None], (*shape, self.context))
            own = np.broadcast_to(np.tri(self.width, dtype=bool), (*shape, self.width))
            unseen = copy_to(~np.concatenate([prompt, own], axis=2), self.device)[:, None]
            bias = torch.zeros(unseen.shape, device=self.device, dtype=dtype)
            self._bias[dtype] = bias.masked_fill_(unseen, float("-inf"))
        return self._bias[dtype]


def attend_at_once(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Return softmax attention of scaled queries (R, H, Lq, D) on key, value (R, H_kv, Lk, D): (R, H, Lq, D_v).

    Heads share keys in groups of H / H_kv. For few scores oneDNN's matmul beats torch's fused kernel.
    """
    (rows, heads, width, dim), kv_heads = query.shape, key.shape[1]
    # Heads that share keys become more query rows of one matmul.
    grouped = query.reshape(rows, kv_heads, heads // kv_heads * width, dim)
    scores = torch.matmul(grouped, key.transpose(2, 3)).view(rows, heads, width, -1)
    scores = scores + bias
    probs = scores.softmax(-1, dtype=processor.softmax_dtype(scores)).to(scores.dtype)
    return torch.matmul(probs.view(rows, kv_heads, -1, key.shape[2]), value).view(rows, heads, width, value.shape[3])


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
    """Return what `PackedAttention.attend` does. The window is in the plan; `scores` gives soft cap and sinks (H,)."""
    scores = scores or Scores()
    return Tiled.apply(query, key, value, scores.sinks, plan, scores.softcap)


class Tiled(torch.autograd.Function):
    """Attention with an online softmax (arXiv:2112.05682, arXiv:2307.08691): sinks (H,) or None.

    The backward pass computes probabilities again, from the logarithm of their normalizer. Tiles are added in a fixed
    order, so that a resumed run gives the same bits.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None, plan: TilePlan, softcap: float | None
    ) -> Tensor:
        tokens, heads, kv_heads = len(query), query.shape[1], key.shape[1]
        keys, values = _heads_first(key), _heads_first(value)
        out = query.new_empty(tokens, heads, value.shape[2])
        normalizer = query.new_empty(heads, tokens, dtype=torch.float32)  # log2 of the sum of exponentials
        for first, last, block in plan.blocks:
            q = _group(query[first:last], kv_heads)
            shape = (*q.shape[:3], 1)
            top, total = (q.new_full(shape, x, dtype=torch.float32) for x in (LOWEST, 0.0))
            mixed = q.new_zeros(*q.shape[:3], value.shape[2], dtype=torch.float32)
            if sinks is not None:
                top, total = (sinks.float() * LOG2_E).view(kv_heads, -1, 1, 1).expand(shape).clone(), total + 1
            for tile in block:
                some = slice(tile.first, tile.last)
                probs = plan.hide(_tile_scores(q[:, :, some], keys, tile, softcap)[0], first, tile)
                high = torch.maximum(top[:, :, some], probs.amax(-1, keepdim=True))
                probs.sub_(high).exp2_()
                fade = (top[:, :, some] - high).exp2_()
                total[:, :, some].mul_(fade).add_(probs.sum(-1, keepdim=True))
                more = torch.bmm(probs.flatten(1, 2).to(value.dtype), values[:, tile.start : tile.end])
                mixed[:, :, some].mul_(fade).add_(more.view(*probs.shape[:3], -1))
                top[:, :, some] = high
            out[first:last] = _ungroup(mixed.div_(total))
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
            q, g, o = (_group(x[first:last], kv_heads) for x in (query, grad, out))
            mean = (g.float() * o.float()).sum(-1, keepdim=True)
            log_total = normalizer[:, first:last].reshape(mean.shape)
            grad_q = torch.zeros_like(q, dtype=torch.float32)
            if grad_sinks is not None:
                sink = ((sinks.float() * LOG2_E).view(kv_heads, -1, 1, 1) - log_total).exp2_()
                grad_sinks -= (sink * mean).sum((2, 3)).view(-1)
            for tile in block:
                some, span = slice(tile.first, tile.last), slice(tile.start, tile.end)
                probs, slope = _tile_scores(q[:, :, some], keys, tile, ctx.softcap)
                probs = ctx.plan.hide(probs, first, tile).sub_(log_total[:, :, some]).exp2_()
                g_some = g[:, :, some].flatten(1, 2)
                _add_product(grad_values[:, span], probs.flatten(1, 2).to(value.dtype).transpose(1, 2), g_some)
                change = torch.bmm(g_some, values[:, span].transpose(1, 2)).float().view(probs.shape)
                change = change.sub_(mean[:, :, some]).mul_(probs)
                change = (change if slope is None else change.mul_(slope)).flatten(1, 2).to(query.dtype)
                grad_q[:, :, some] += torch.bmm(change, keys[:, span]).view(*probs.shape[:3], -1)
                _add_product(grad_keys[:, span], change.transpose(1, 2), q[:, :, some].flatten(1, 2))
            grad_query[first:last] = _ungroup(grad_q)
        grads = (x.transpose(0, 1).to(key.dtype) for x in (grad_keys, grad_values))
        return grad_query, *grads, None if grad_sinks is None else grad_sinks.to(sinks.dtype), None, None


def _tile_scores(query: Tensor, keys: Tensor, tile: Tile, softcap: float | None) -> tuple[Tensor, Tensor | None]:
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


def _group(x: Tensor, kv_heads: int) -> Tensor:
    """Rearrange (q, H, D) to (H_kv, H / H_kv, q, D): heads that share keys become more query rows of one matmul."""
    return x.transpose(0, 1).reshape(kv_heads, -1, len(x), x.shape[2])


def _ungroup(x: Tensor) -> Tensor:
    """Rearrange (H_kv, G, q, D) to (q, H, D)."""
    return x.flatten(0, 1).transpose(0, 1)


@dataclass(frozen=True)
class Call:
    """A call of the fused kernel: queries on keys, of `rows` rows on their own tokens, or of one on a context."""

    queries: slice
    keys: slice
    rows: int
    own: bool


class FusedPlan:
    """The kernel's calls for R rows that lie end to end; see PackedAttention for the arguments."""

    def __init__(self, lengths: np.ndarray, context_starts: np.ndarray, context_lengths: np.ndarray) -> None:
        firsts = np.cumsum(lengths) - lengths

        def tokens_of(a: int, b: int) -> slice:
            return slice(int(firsts[a]), int(firsts[b - 1] + lengths[b - 1]))

        self.calls = [Call(tokens_of(a, b), tokens_of(a, b), b - a, True) for a, b in _runs(lengths)]
        for a, b in _runs(context_starts, context_lengths):
            if context_lengths[a]:
                start = int(context_starts[a])
                context = slice(start, start + int(context_lengths[a]))
                self.calls.append(Call(tokens_of(a, b), context, 1, False))
        tokens, keys = int(lengths.sum()), int((lengths * (context_lengths + lengths)).sum())
        self.pays = keys >= MIN_KEYS * tokens and len(self.calls) * MIN_QUERIES <= tokens


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


class FusedRows(torch.autograd.Function):
    """Plain attention by torch's fused kernel for CPUs.

    A row's own tokens and its context are two calls, which also return the logarithm of each softmax's normalizer; the
    two outputs are mixed by them (arXiv:2310.01889). Given the output and the normalizer of both together, the kernel's
    backward pass is exact for each.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: FusedPlan) -> Tensor:
        out = torch.empty_like(query)
        normalizer = query.new_empty(*query.shape[:2], dtype=torch.float32)
        for call in plan.calls:
            k, v = (_view_rows(x, call.keys, call.rows) for x in (key, value))
            for heads in _head_groups(query, key):
                q, mixed, total = (_view_rows(x[:, heads], call.queries, call.rows) for x in (query, out, normalizer))
                found, log = forward_kernel(q, k, v, 0.0, call.own, scale=1.0)
                if call.own:
                    mixed.copy_(found)
                    total.copy_(log)
                else:
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
        for call in ctx.plan.calls:
            k, v, grad_k, grad_v = (_view_rows(x, call.keys, call.rows) for x in (key, value, *grads[1:]))
            for heads in _head_groups(query, key):
                g, q, o, log, grad_q = (
                    _view_rows(x[:, heads], call.queries, call.rows) for x in (grad, query, out, normalizer, grads[0])
                )
                found = backward_kernel(g, q, k, v, o, log.contiguous(), 0.0, call.own, scale=1.0)
                for total, part in zip((grad_q, grad_k, grad_v), found):
                    total.add_(part)
        return *(total.to(x.dtype) for total, x in zip(grads, (query, key, value))), None


def _head_groups(query: Tensor, key: Tensor) -> list[slice]:
    """Return which query heads go to the kernel together: one for each head of keys."""
    share = query.shape[1] // key.shape[1]
    return [slice(member, None, share) for member in range(share)]


def _view_rows(x: Tensor, part: slice, rows: int) -> Tensor:
    """Return a part of x (N, H, ...) as a view (rows, H, L, ...)."""
    return x[part].unflatten(0, (rows, -1)).transpose(1, 2)
