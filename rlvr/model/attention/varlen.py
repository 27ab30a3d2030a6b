"""Plain attention of tokens laid end to end by two calls of torch's flash kernel: what a GPU computes.

The first call is causal, each row by itself. In the second, completions see all of their prompt's keys, which lie there
once for the group. Both return the log of their softmax's sum, so the results can be weighed against each other as one
softmax over all keys; and since a flash backward pass needs no more than the output and that log, each call's backward
pass, given those of the whole, returns its share of the gradients.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlvr.algo.batch import copy_to

LARGEST_HEAD = 256
Index = Tensor | slice  # of tokens


class Sequences:
    """Where the queries and the keys of each sequence begin, and the longest of both, as the kernel reads them."""

    def __init__(self, queries: np.ndarray, keys: np.ndarray, device: torch.device) -> None:
        begins = (np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32) for lengths in (queries, keys))
        self.query_begins, self.key_begins = (copy_to(x, device) for x in begins)
        self.longest = int(queries.max(initial=0)), int(keys.max(initial=0))


class VarlenPlan:
    """Which tokens both calls read. rows: the lengths of R rows, the first token of each one's context, its length.

    A context is a whole row, and several rows may have the same.
    """

    def __init__(self, rows: tuple[np.ndarray, np.ndarray, np.ndarray], device: torch.device) -> None:
        lengths, contexts, context_lengths = rows
        self.own = Sequences(lengths, lengths, device)
        self.context: Sequences | None = None
        after = np.flatnonzero(context_lengths)
        if not len(after):
            return
        after = after[np.argsort(contexts[after], kind="stable")]
        shared, place = np.unique(contexts[after], return_index=True)
        first = np.cumsum(lengths) - lengths
        self.queries = _index(first[after], lengths[after], device)
        self.keys = _index(shared, context_lengths[after][place], device)
        self.context = Sequences(np.add.reduceat(lengths[after], place), context_lengths[after][place], device)


def _index(first: np.ndarray, lengths: np.ndarray, device: torch.device) -> Index:
    """Return the tokens of some rows by their first ones and lengths; a slice where they lie end to end."""
    if np.array_equal(first[1:], (first + lengths)[:-1]):
        return slice(int(first[0]), int(first[-1] + lengths[-1]))
    return copy_to(np.concatenate([np.arange(f, f + n) for f, n in zip(first, lengths)]), device)


def fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the kernel takes these: on a GPU, in half precision, heads of one size up to LARGEST_HEAD."""
    half = value.dtype in (torch.bfloat16, torch.float16)
    size = value.shape[-1]
    return half and key.shape[-1] == size <= LARGEST_HEAD and size % 8 == 0 and is_available(value.device)


def attend(query: Tensor, key: Tensor, value: Tensor, plan: VarlenPlan) -> Tensor:
    """Return the output (N, H, D) of attention: query (N, H, D), already scaled; key and value (N, H_kv, D)."""
    return VarlenAttention.apply(query, key, value, plan)


class VarlenAttention(torch.autograd.Function):
    """The two calls as one operation, with the gradient of the whole softmax."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, plan: VarlenPlan) -> Tensor:
        out, log_sum = flash_forward(query, key, value, plan.own, causal=True)
        if plan.context is not None:
            q, k = plan.queries, plan.keys
            seen, log_seen = flash_forward(query[q], key[k], value[k], plan.context, causal=False)
            log_own = log_sum[:, q]
            log_whole = torch.logaddexp(log_own, log_seen)
            share = ((part - log_whole).exp().t()[..., None] for part in (log_own, log_seen))
            out[q] = sum(x.float() * weight for x, weight in zip((out[q], seen), share)).to(out.dtype)  # type: ignore[union-attr]
            log_sum[:, q] = log_whole
        ctx.plan = plan
        ctx.save_for_backward(query, key, value, out, log_sum)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, out, log_sum = ctx.saved_tensors
        plan, grad = ctx.plan, grad.contiguous()
        grads = flash_backward(grad, query, key, value, out, log_sum, plan.own, causal=True)
        if plan.context is not None:
            q, k = plan.queries, plan.keys
            part = (grad[q], query[q], key[k], value[k], out[q], log_sum[:, q].contiguous())
            added = flash_backward(*part, plan.context, causal=False)
            for whole, more, index in zip(grads, added, (q, k, k)):
                whole[index] += more
        return *grads, None


def flash_forward(query: Tensor, key: Tensor, value: Tensor, rows: Sequences, *, causal: bool) -> tuple[Tensor, Tensor]:
    """Return torch's flash attention of sequences laid end to end (N, H, D), and the logs of the sums (H, N)."""
    where = rows.query_begins, rows.key_begins, *rows.longest
    out, log_sum, *_ = torch.ops.aten._flash_attention_forward(query, key, value, *where, 0.0, causal, False, scale=1.0)
    return out, log_sum


def flash_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_sum: Tensor,
    rows: Sequences,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value by the kernel's backward pass, added up in a fixed order."""
    where = rows.query_begins, rows.key_begins, *rows.longest
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)  # of random numbers, which dropout would draw
    with _deterministic():
        found = torch.ops.aten._flash_attention_backward(
            grad, query, key, value, out, log_sum, *where, 0.0, causal, state, state, scale=1.0
        )
    return found


@contextmanager
def _deterministic() -> Iterator[None]:
    """Context in which the kernel adds up a query's gradients in a fixed order: runs repeat and resume exactly."""
    before, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warn)


@functools.cache
def is_available(device: torch.device) -> bool:
    """Return whether the kernel is right on the device, forward and backward: tried once on a few tokens."""
    if device.type != "cuda":
        return False
    reason = "its results are wrong"
    try:
        if is_right(device):
            return True
    except Exception as error:  # the kernels' errors have no common class
        reason = next(iter(str(error).splitlines()), type(error).__name__)
    warnings.warn(f"the flash kernel is not used on {device}, but flex_attention ({reason})", stacklevel=2)
    return False


def is_right(device: torch.device) -> bool:
    """Return whether `attend` gives what all scores at once do: two rows, the second after the first as its context."""
    lengths = np.array([150, 9])
    generator, total = torch.Generator().manual_seed(0), int(lengths.sum())
    given = [torch.randn(total, heads, 64, generator=generator).to(device, torch.bfloat16) for heads in (4, 2, 2)]
    given[0] = given[0] / 8
    plan = VarlenPlan((lengths, np.array([0, 0]), np.array([0, lengths[0]])), device)
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        tensors = [x.requires_grad_() for x in given]
        exact = [x.detach().float().requires_grad_() for x in given]
        key, value = (x.repeat_interleave(2, dim=1) for x in exact[1:])
        scores = torch.einsum("qhd,khd->hqk", exact[0], key)
        later = torch.ones(total, total, dtype=torch.bool, device=device).triu(1)
        weights = scores.masked_fill(later, float("-inf")).softmax(-1)
        expected = torch.einsum("hqk,khd->qhd", weights, value)
        found = attend(tensors[0], tensors[1], tensors[2], plan)
        wanted = [expected.detach(), *torch.autograd.grad(expected.square().sum(), exact)]
        got = [found.detach(), *torch.autograd.grad(found.float().square().sum(), tensors)]
    return all(float((a - b).abs().max()) < 0.03 * float(b.abs().max()) for a, b in zip(got, wanted))
