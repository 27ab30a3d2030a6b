"""Draw one token per row: temperature, top-k, top-p and the inverse of the cumulative distribution."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlvr.core.types import Sampling
from rlvr.model.optim.health import NotFinite


def uniforms(seeds: Sequence[int], count: int) -> Tensor:
    """Return (len(seeds), count) float32 numbers in [0, 1); row i is the Philox stream with the key seeds[i].

    They have 24 bits, so that rounding cannot turn one into a 1. A longer row begins with the shorter one.
    """
    drawn = np.empty((len(seeds), count), dtype=np.float32)
    for row, seed in zip(drawn, seeds):
        np.random.Generator(np.random.Philox(key=seed)).random(out=row, dtype=np.float32)
    return torch.from_numpy(drawn)


def draw(logits: Tensor, uniform: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return tokens (B,) and their log-probabilities (B,) under the distribution that they are drawn from.

    logits (B, V) float32, uniform (B,). Temperature 0 takes the most likely token, with log-probability 0. Where a row
    has NaN, or its largest logit is not finite, the log-probability is NaN, for `check_finite`: nothing here makes the
    host wait for the device.
    """
    if sampling.temperature == 0:
        tokens = logits.argmax(-1)  # it treats NaN as the largest
        best = logits.gather(1, tokens[:, None])[:, 0]
        return tokens, best - best
    scaled = logits if sampling.temperature == 1 else logits / sampling.temperature
    logprobs = truncated(scaled, sampling).log_softmax(-1)
    probs = logprobs.exp()
    cumulative = probs.cumsum(-1)
    total = cumulative[:, -1:].contiguous()
    # The first token whose cumulative mass exceeds u; if rounding leaves none, the last one with any mass.
    token = torch.searchsorted(cumulative, uniform[:, None] * total, right=True)
    token = torch.minimum(token, torch.searchsorted(cumulative, total)).clamp_(max=logits.shape[1] - 1)
    if logits.is_cuda:
        # The parallel sum of a GPU need not ascend where the mass is 0.
        token = torch.where(probs.gather(1, token) > 0, token, probs.argmax(-1, keepdim=True))
    return token[:, 0], logprobs.gather(1, token)[:, 0]


def check_finite(logprobs: Tensor) -> None:
    """Raise NotFinite where any log-probability (n, B) of the tokens drawn last is NaN or infinite."""
    finite = logprobs.isfinite().all(0)
    if not bool(finite.all()):
        raise NotFinite(
            f"the model's logits are NaN or infinite in {int((~finite).sum())} of {len(finite)} rows that are sampled; "
            "its weights are broken, or the computation overflows (then --model.dtype float32 helps)"
        )


def truncated(logits: Tensor, sampling: Sampling) -> Tensor:
    """Return the logits (B, V) with those outside top-k, then outside top-p, set to -inf; ties at the border stay."""
    if 0 < sampling.top_k < logits.shape[1]:
        border = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < border, float("-inf"))
    if sampling.top_p < 1:
        ordered = logits.sort(dim=-1, descending=True).values
        mass = ordered.softmax(-1).cumsum(-1)
        # A token is kept if those before it hold less than top_p; the first always is.
        last = (mass < sampling.top_p).sum(-1, keepdim=True).clamp(max=logits.shape[1] - 1)
        logits = logits.masked_fill(logits < ordered.gather(1, last), float("-inf"))
    return logits
