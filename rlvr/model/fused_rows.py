"""Plain attention of tokens laid end to end by torch's fused kernel for CPUs: long rows, on their contexts.

A row's own tokens and its context are two calls of the kernel, which also returns the logarithm of each softmax's
normalizer; the two outputs are mixed by them (arXiv:2310.01889). Given the output and the normalizer of both together,
the kernel's backward pass is exact for each. Memory is linear in the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
