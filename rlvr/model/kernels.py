"""Causal attention of padded rows over their context and themselves, in memory below the square of the length.

Three ways to the same result: few scores are computed at once and held for the backward pass; many are computed a few
queries at a time, and recomputed in the backward pass; on a GPU torch's fused kernels are used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

# Scores of all rows together that are held (64 MB in float32), and that are computed at a time where they are not.
MAX_SCORES, AT_ONCE = 2**24, 2**22


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
            unseen = torch.from_numpy(~np.concatenate([prompt, own], axis=2)).to(self.device)[:, None]
            bias = torch.zeros(unseen.shape, device=self.device, dtype=dtype)
            self._bias[dtype] = bias.masked_fill_(unseen, float("-inf"))
        return self._bias[dtype]

    def hide(self, scores: Tensor, rows: slice, first: int) -> None:
        """Set unseen scores (r, H, q, context + first + q) of the queries from `first` on to -inf, in place."""
        if not self.even:
            valid = torch.from_numpy(np.arange(self.context) >= self.contexts[rows][:, None]).to(self.device)
            scores[..., : self.context].masked_fill_(valid[:, None, None], float("-inf"))
        count = scores.shape[2]
        later = torch.ones(count, count, dtype=torch.bool, device=self.device).triu_(1)
        scores[..., self.context + first :].masked_fill_(later, float("-inf"))


def attention(query: Tensor, key: Tensor, value: Tensor, visible: Visible, *, hold: bool) -> Tensor:
    """Return softmax attention of scaled queries (R, H, Lq, D) on key, value (R, H_kv, Lk, D): (R, H, Lq, D_v).

    Heads share keys in groups of H / H_kv. With `hold` the CPU keeps the probabilities for the backward pass.
    """
    if query.device.type != "cpu":
        return fused(query, key, value, visible)
    if hold:
        return multiplied_out(query, key, value, visible.bias(torch.float32))
    return Recomputed.apply(query, key, value, visible)


def multiplied_out(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Compute all scores at once: oneDNN's matmul beats torch's fused kernel on the CPU."""
    (rows, heads, width, dim), kv_heads = query.shape, key.shape[1]
    # Heads that share keys are more query rows to the same matmul.
    grouped = query.reshape(rows, kv_heads, heads // kv_heads * width, dim)
    scores = torch.matmul(grouped, key.transpose(2, 3)).view(rows, heads, width, -1)
    # The bias is float32, and makes the softmax so: torch's bfloat16 softmax is three times slower on the CPU.
    probs = (scores + bias).softmax(-1).to(value.dtype)
    return torch.matmul(probs.view(rows, kv_heads, -1, key.shape[2]), value).view(rows, heads, width, value.shape[3])


def fused(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
    """Compute by torch's fused kernels: with a mask while it is small, else without one by equal context lengths."""
    # Repeated, since with a mask CUDA has no fused kernel for grouped-query heads.
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))
    if visible.context == 0:
        return scaled_dot_product_attention(query, key, value, is_causal=True, scale=1.0)
    if visible.bias_size <= MAX_SCORES:
        return scaled_dot_product_attention(query, key, value, attn_mask=visible.bias(query.dtype), scale=1.0)
    lengths = np.unique(visible.contexts)
    places = [np.flatnonzero(visible.contexts == length) for length in lengths]
    pieces = []
    for length, place in zip(lengths.tolist(), places):
        rows = torch.from_numpy(place).to(query.device)
        k, v = (torch.cat([x[rows, :, :length], x[rows, :, visible.context :]], dim=2) for x in (key, value))
        mask = causal_lower_right(visible.width, length + visible.width)
        pieces.append(scaled_dot_product_attention(query[rows], k, v, attn_mask=mask, scale=1.0))
    order = torch.from_numpy(np.argsort(np.concatenate(places))).to(query.device)
    return torch.cat(pieces)[order]


class Recomputed(torch.autograd.Function):
    """`multiplied_out` for a few rows and queries at a time, each with the keys up to its last; holds no scores.

    The backward pass recomputes the probabilities from the logarithm of their normalizer (arXiv:2205.14135, alg. 4).
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
        out = query.new_empty(*query.shape[:3], value.shape[3])
        normaliser = query.new_empty(query.shape[:3], dtype=torch.float32)
        for rows, part in _parts(query, key):
            scores = _scores(query, key, visible, rows, part)
            normaliser[rows, :, part] = scores.logsumexp(-1)
            probs = (scores - normaliser[rows, :, part, None]).exp_().to(value.dtype)
            seen = value[rows, :, : probs.shape[3]]
            out[rows, :, part] = torch.matmul(_grouped(probs, key), seen).view(*probs.shape[:3], -1)
        ctx.save_for_backward(query, key, value, out, normaliser)
        ctx.visible = visible
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out, normaliser = ctx.saved_tensors
        grads = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        mean = (grad.float() * out.float()).sum(-1, keepdim=True)
        for rows, part in _parts(query, key):
            probs = (_scores(query, key, ctx.visible, rows, part) - normaliser[rows, :, part, None]).exp_()
            count = probs.shape[3]
            g = _grouped(grad[rows, :, part], key)
            grads[2][rows, :, :count] += torch.matmul(_grouped(probs.to(value.dtype), key).transpose(2, 3), g)
            change = torch.matmul(g, value[rows, :, :count].transpose(2, 3)).view(probs.shape).float()
            change = _grouped((change - mean[rows, :, part]).mul_(probs).to(query.dtype), key)
            grads[0][rows, :, part] = torch.matmul(change, key[rows, :, :count]).view(*probs.shape[:3], -1)
            grads[1][rows, :, :count] += torch.matmul(change.transpose(2, 3), _grouped(query[rows, :, part], key))
        return *grads, None


def _parts(query: Tensor, key: Tensor) -> Iterator[tuple[slice, slice]]:
    """Yield rows and queries to compute together: at most AT_ONCE scores, or 64 queries of one row."""
    (rows, heads, width, _), length = query.shape, key.shape[2]
    many = max(1, AT_ONCE // (heads * min(width, 256) * length))
    for row in range(0, rows, many):
        count = max(64, AT_ONCE // (min(many, rows) * heads * length))
        for first in range(0, width, count):
            yield slice(row, row + many), slice(first, min(first + count, width))


def _scores(query: Tensor, key: Tensor, visible: Visible, rows: slice, part: slice) -> Tensor:
    """Return float32 scores (r, H, q, context + part.stop) of some queries, -inf where a key is not seen."""
    some, seen = query[rows, :, part], key[rows, :, : visible.context + part.stop]
    scores = torch.matmul(_grouped(some, key), seen.transpose(2, 3)).view(*some.shape[:3], -1).float()
    visible.hide(scores, rows, part.start)
    return scores


def _grouped(x: Tensor, key: Tensor) -> Tensor:
    """Reshape (r, H, q, n) to (r, H_kv, H / H_kv * q, n): heads that share keys become rows of one matmul."""
    return x.reshape(len(x), key.shape[1], -1, x.shape[3])
