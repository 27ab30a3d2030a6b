"""The forward pass on packed tokens, and from last hidden states to logits.

`hidden_states` runs the pass that was chosen for a model (`causal.rlvr_pass`, set by rlvr.model.probe): its own
forward, or for models built like Llama (Llama, Qwen2, Qwen3, Mistral ...) a faster one.

At the sizes where this project samples and trains, transformers' forward spends most of its time between the matmuls:
casts (one for each projection of the same input), norms and rotations made of many small operations. In the faster pass
a norm and a rotation are one operation each, with a gradient worked out by hand, and the cast is done once. The weights
stay in transformers' modules, whose projections and MLP are called, so that adapters and experts work.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..attention.operations import RMSNorm, Rotation, layer_scores, rotary_angles
from ..cpu.linear import is_gated, project, project_gated
from .packed import Layout

ATTENTION_PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "head_dim", "scaling", "layer_idx")


def hidden_states(causal: Any, layout: Layout, ids: Tensor, positions: Tensor) -> Tensor:
    """Return the last hidden states (N, hidden) of packed tokens; ids and positions (1, N)."""
    return PASSES[causal.rlvr_pass](causal, layout, ids, positions)


def own_hidden_states(causal: Any, layout: Layout, ids: Tensor, positions: Tensor) -> Tensor:
    """Compute them by the model's own forward."""
    # Every model passes a 4D mask on as it is, and builds none; the layout takes its place.
    mask = torch.empty(1, 1, 1, 1, dtype=torch.bool, device=ids.device)
    out = causal.base_model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False, layout=layout)
    return out.last_hidden_state[0]


def llama_hidden_states(causal: Any, layout: Layout, ids: Tensor, positions: Tensor) -> Tensor:
    """Compute them for a model that `is_llama_like`.

    The residual stream keeps the dtype of the embeddings; under autocast the inputs of projections have its dtype.
    """
    base = causal.base_model
    x = base.embed_tokens(ids)[0]
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    cos, sin = rotary_angles(base, x[None], positions)
    recompute = base.training and getattr(base, "gradient_checkpointing", False) and torch.is_grad_enabled()
    for layer in base.layers:
        # A sharded layer gathers its weights around this method (rlvr.model.optim.sharding).
        run = getattr(layer, "packed_pass", None) or partial(decoder_layer, layer)
        if recompute:
            x = checkpoint(run, layout, x, cos, sin, dtype, use_reentrant=False)
        else:
            x = run(layout, x, cos, sin, dtype)
    return RMSNorm.apply(x, base.norm.weight, base.norm.variance_epsilon, x.dtype)


PASSES = {"llama": llama_hidden_states, "own": own_hidden_states}


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
    scores = layer_scores(getattr(attention, "rlvr_window", None))
    mixed = layout.attend(attention.layer_idx, query, key, value, attention.scaling, scores)
    x = x + project(attention.o_proj, mixed.flatten(1))
    norm = layer.post_attention_layernorm
    h = RMSNorm.apply(x, norm.weight, norm.variance_epsilon, dtype)
    return x + (project_gated(layer.mlp, h) if is_gated(layer.mlp) else layer.mlp(h[None])[0])


LOGIT_ADJUSTMENTS = {
    "logit_scale": lambda logits, scale: logits * scale,  # Cohere
    "logits_scaling": lambda logits, scale: logits / scale,  # Granite
    "lm_head_multiplier": lambda logits, scale: logits * scale,  # Falcon-H1
    "final_logit_softcapping": lambda logits, cap: cap * torch.tanh(logits / cap),  # Gemma 2
}


def output_logits(causal: Any, hidden: Tensor) -> Tensor:
    """Return float32 logits (n, V) of last hidden states (n, hidden), as the model's own forward computes them."""
    return narrow_logits(causal, hidden).float()


def narrow_logits(causal: Any, hidden: Tensor) -> Tensor:
    """Return the same in the LM head's dtype, half the size under autocast; adjusted ones in float32."""
    return adjust_logits(causal, project(causal.get_output_embeddings(), hidden))


def adjust_logits(causal: Any, logits: Tensor) -> Tensor:
    """Return logits (n, V) of the LM head scaled or capped as the model does it, then in float32."""
    config = causal.config.get_text_config()
    for name, adjust in LOGIT_ADJUSTMENTS.items():
        value = getattr(config, name, None)
        if value is not None:
            logits = adjust(logits.float(), value)
    return logits


def check_logits(causal: Any) -> None:
    """Raise ValueError where `output_logits` differs from the model's own logits, tried on a few tokens."""
    weight = causal.get_input_embeddings().weight
    ids = (torch.arange(5, 13, device=weight.device) % len(weight))[None]
    with torch.no_grad():
        expected = causal(input_ids=ids, use_cache=False).logits[0].float()
        hidden = causal.base_model(input_ids=ids, use_cache=False).last_hidden_state[0]
        head = causal.get_output_embeddings().weight
        found = output_logits(causal, hidden) if hidden.shape[-1] == head.shape[-1] else hidden
    tolerance = 1e-4 if weight.dtype is torch.float32 else 5e-2
    if found.shape != expected.shape or (found - expected).abs().max() > tolerance * expected.abs().max():
        raise ValueError(
            f"{type(causal).__name__} adjusts its logits in a way that rlvr.model.forward.passes does not know; "
            f"add it to LOGIT_ADJUSTMENTS (known: {', '.join(LOGIT_ADJUSTMENTS)})"
        )
