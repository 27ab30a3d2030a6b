"""A faster forward pass for models built like Llama (Llama, Qwen2, Qwen3, Mistral ...) on packed tokens.

At the sizes where this project samples and trains, transformers' forward spends most of its time between the matmuls:
casts (one for each projection of the same input), norms and rotations made of many small operations. Here a norm and a
rotation are one operation each, with a gradient worked out by hand, and the cast is done once. The weights stay in
transformers' modules, whose projections and MLP are called as they are, so that adapters and experts work; only plain
ones are computed here (rlvr.model.projection).
`is_llama_like` tells whether a model has the parts; rlvr.model.probe tries whether this gives the same result before it
is used.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rlvr.model.projection import gated, is_gated, project
from rlvr.model.scores import layer_scores

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "scaling", "layer_idx")


def is_llama_like(causal: Any) -> bool:
    """Return whether the model has the modules that `llama_hidden_states` calls, and no others in its layers."""
    base = causal.base_model
    if not all(hasattr(base, name) for name in ("embed_tokens", "layers", "norm", "rotary_emb")):
        return False
    parts = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
    return all(
        {name for name, _ in layer.named_children()} == parts
        and all(hasattr(layer.self_attn, name) for name in ATTENTION_PARTS)
        and all(hasattr(norm, "variance_epsilon") for norm in (layer.input_layernorm, layer.post_attention_layernorm))
        for layer in base.layers
    )


def llama_hidden_states(causal: Any, layout: Any, ids: Tensor, positions: Tensor) -> Tensor:
    """Return the last hidden states (N, hidden) of packed tokens; ids and positions (1, N).

    layout: see rlvr.model.forward.packed. The residual stream keeps the dtype of the embeddings; under autocast the inputs
    of projections have its dtype.
    """
    base = causal.base_model
    x = base.embed_tokens(ids)[0]
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    cos, sin = (angle[0][:, None] for angle in base.rotary_emb(x[None], positions))  # (N, 1, D)
    recompute = base.training and getattr(base, "gradient_checkpointing", False) and torch.is_grad_enabled()
    for layer in base.layers:
        # A sharded layer gathers its weights around this method (rlvr.model.sharding).
        run = getattr(layer, "packed_pass", None) or partial(decoder_layer, layer)
        if recompute:
            x = checkpoint(run, layout, x, cos, sin, dtype, use_reentrant=False)
        else:
            x = run(layout, x, cos, sin, dtype)
    return RMSNorm.apply(x, base.norm.weight, base.norm.variance_epsilon, x.dtype)


def decoder_layer(layer: Any, layout: Any, x: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x (N, hidden) after attention and MLP, with their residual connections."""
    attention, norm = layer.self_attn, layer.input_layernorm
    h = RMSNorm.apply(x, norm.weight, norm.variance_epsilon, dtype)
    query, key, value = (
        project(linear, h).unflatten(-1, (-1, attention.head_dim))
        for linear in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if hasattr(attention, "q_norm"):
        query, key = attention.q_norm(query), attention.k_norm(key)
    query, key = Rotation.apply(query, cos, sin), Rotation.apply(key, cos, sin)
    mixed = layout.attend(
        attention.layer_idx, query, key, value, attention.scaling, layer_scores(getattr(attention, "rlvr_window", None))
    )
    x = x + project(attention.o_proj, mixed.flatten(1))
    norm = layer.post_attention_layernorm
    h = RMSNorm.apply(x, norm.weight, norm.variance_epsilon, dtype)
    return x + (gated(layer.mlp, h) if is_gated(layer.mlp) else layer.mlp(h[None])[0])


class RMSNorm(torch.autograd.Function):
    """y = w * x / sqrt(mean(x^2) + eps) over the last dimension (arXiv:1910.07467), computed in float32, as `dtype`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        y, scale = normed(x, weight, eps, dtype)
        ctx.save_for_backward(x, weight, scale)
        return y

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


def normed(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the result of `RMSNorm`, and 1 / sqrt(mean(x^2) + eps) in float32."""
    wide = x.float()
    mean_square = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    scale = mean_square.add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).to(dtype), scale


class Rotation(torch.autograd.Function):
    """Rotary position embedding (arXiv:2104.09864) of x (N, heads, D) by cos and sin (N, 1, D), halves paired."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        return rotate(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return rotate(grad, cos, -sin).to(ctx.dtype), None, None


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x cos + rotated x sin, rotated x being (-second half, first half); in the wider dtype of the two."""
    half = x.shape[-1] // 2
    x = x.to(torch.promote_types(x.dtype, cos.dtype))
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out
