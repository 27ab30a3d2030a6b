"""Causal attention of padded rows over their context and themselves, for few scores.

On the CPU they are computed at once and held for the backward pass. On a GPU without flex_attention (rlvr.model.flex)
torch's fused kernels are used. Many scores are computed by rlvr.model.blockwise.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from rlvr.algo.transfer import copy_to
from rlvr.model import processor

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


def attention(query: Tensor, key: Tensor, value: Tensor, visible: Visible) -> Tensor:
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
