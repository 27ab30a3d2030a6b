"""Log-probabilities of given tokens from logits, without another matrix of the logits' size beside them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

Entropy = Literal[False, True, "gradient"]  # whether entropies are computed, and have a gradient

# Numbers of logits that are worked on at a time: they stay in a CPU's cache, and their memory is used again.
PIECE = 2**18


class TokenLogprobs(torch.autograd.Function):
    """log softmax(logits / temperature)[targets]: logits (n, V), targets (n,) -> logprobs (n,) and entropies (n,).

    Logits may have any dtype; the results are float32 (float64 for logits of float64). The entropies are empty unless
    asked for, and have a gradient where that is asked for. Backward computes the softmax again from the logits, which
    are all that is kept: neither it, nor float32 logits, nor the gradient through the choice of the targets are held
    for all rows.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, with_entropy: Entropy
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(logits, targets)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)
        chosen, entropies = [], []
        for piece, ids in zip(*_pieces(logits, targets), strict=True):
            logprobs = _scaled(piece, temperature).log_softmax(-1)
            chosen.append(logprobs.gather(1, ids[:, None])[:, 0])
            entropies.append(-logprobs.exp().mul_(logprobs).sum(-1) if with_entropy else logprobs.new_empty(0))
        found = torch.cat(entropies)
        if with_entropy != "gradient":
            ctx.mark_non_differentiable(found)
        return torch.cat(chosen), found

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, spread: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        if grad is None and spread is None:
            return None, None, None, None
        logits, targets = ctx.saved_tensors
        grad = targets.new_zeros(len(targets), dtype=torch.float32) if grad is None else grad
        result = torch.empty_like(logits)
        rows = _pieces(logits, targets, grad[:, None], result)
        spreads = [None] * len(rows[0]) if spread is None else _pieces(logits, spread[:, None])[1]
        for piece, ids, g, out, h in zip(*rows, spreads, strict=True):
            # d log softmax(x)[t] / dx = onehot(t) - softmax(x);  dH / dx = -softmax(x) (log softmax(x) + H)
            scaled = _scaled(piece, ctx.temperature)
            change = scaled.softmax(-1).mul_(-g).scatter_add_(1, ids[:, None], g)
            if h is not None:
                logprobs = scaled.log_softmax(-1)
                p = logprobs.exp()
                change -= h * p * (logprobs - (p * logprobs).sum(-1, keepdim=True))
            out.copy_(change if ctx.temperature == 1 else change.div_(ctx.temperature))
        return result, None, None, None


def _scaled(logits: Tensor, temperature: float) -> Tensor:
    """Return logits / temperature, in float32 at least."""
    wide = logits if logits.dtype is torch.float64 else logits.float()
    return wide if temperature == 1 else wide / temperature


def _pieces(logits: Tensor, *others: Tensor) -> list[tuple[Tensor, ...]]:
    """Split logits (n, V), and tensors of as many rows, into pieces of rows."""
    rows = len(logits) if logits.device.type == "cuda" else max(1, PIECE // logits.shape[1])
    return [x.split(max(rows, 1)) for x in (logits, *others)]
