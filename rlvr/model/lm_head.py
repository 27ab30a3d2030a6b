"""From last hidden states to logits, for a few tokens at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlvr.model.projection import project

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
    """Return the same in the dtype that the LM head gives, half the size under autocast; adjusted ones in float32."""
    return adjusted(causal, project(causal.get_output_embeddings(), hidden))


def adjusted(causal: Any, logits: Tensor) -> Tensor:
    """Return logits (n, V) of the LM head as the model changes them, adjusted ones in float32."""
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
            f"{type(causal).__name__} adjusts its logits in a way that rlvr.model.lm_head does not know; "
            f"add it to LOGIT_ADJUSTMENTS (known: {', '.join(LOGIT_ADJUSTMENTS)})"
        )
