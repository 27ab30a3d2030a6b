"""Operations of a decoder layer: norm and rotation with gradients by hand, and how attention scores are changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Scores:
    """How the attention of one layer differs from the plain one; every part may be missing.

    window: a query sees this many keys, its own included. softcap: scores s become softcap * tanh(s / softcap)
    (Gemma 2, arXiv:2408.00118). sinks (H,): one logit for each head that takes probability from the keys (gpt-oss).
    """

    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def is_plain_within(self, length: int) -> bool:
        """Return whether this is plain attention for rows of up to `length` tokens."""
        return self.softcap is None and self.sinks is None and (self.window is None or self.window >= length)

    def probabilities(self, scores: Tensor, hidden: Tensor) -> Tensor:
        """Return float32 softmax of scores (..., H, Lq, Lk) over the keys, 0 where `hidden` is True."""
        scores = self.cap(scores.float()).masked_fill(hidden, float("-inf"))
        if self.sinks is None:
            return scores.softmax(-1)
        sinks = self.sinks.float()[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1)[..., :-1]

    def cap(self, scores: Tensor) -> Tensor:
        """Return scores below the soft cap."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


def layer_scores(window: Any, softcap: Any = None, sinks: Any = None) -> Scores | None:
    """Return a layer's Scores, None for plain attention."""
    return None if window is None and softcap is None and sinks is None else Scores(window, softcap, sinks)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return what RMSNorm does, and 1 / sqrt(mean(x^2) + eps) of each row (..., 1)."""
    wide = x.float()
    mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    scale = mean_square.add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).to(dtype), scale


class RMSNorm(torch.autograd.Function):
    """y = w * x / sqrt(mean(x^2) + eps) over the last dimension (arXiv:1910.07467), computed in float32, as `dtype`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        normed, scale = rms_norm(x, weight, eps, dtype)
        ctx.save_for_backward(x, weight, scale)
        return normed

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x.float() * scale
        product = grad * normed
        # d/dx of w * n, n = x * scale: scale * (g w - n * mean(g w n))
        mean = (product @ weight.float())[:, None] / x.shape[-1]
        grad_x = (grad.float() * weight).addcmul_(normed, mean, value=-1).mul_(scale).to(x.dtype)
        grad_weight = product.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return grad_x, grad_weight, None, None


class Rotation(torch.autograd.Function):
    """Rotary position embedding (arXiv:2104.09864) of x (N, heads, D) by the `rotary_angles` of its tokens."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos, -sin).to(ctx.dtype), None, None


def rotary_angles(base: Any, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin (N, 1, D) of N tokens, sin negated in its first half; x (1, N, hidden), positions (1, N)."""
    cos, sin = (angle[0][:, None] for angle in base.rotary_emb(x, positions))
    first, second = sin.chunk(2, dim=-1)
    return cos, torch.cat([-first, second], dim=-1)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x cos + (second half, first half) of x times sin; in the wider dtype of the two."""
    x = x.to(torch.promote_types(x.dtype, cos.dtype))
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, -1), sin)
