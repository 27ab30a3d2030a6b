"""Checks of what transformers loaded: a decoder whose tokens do not see what follows, with known hidden states."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlvr.model.lm_head import check_logits
from rlvr.model.probe import (
    COARSE,
    NOISE,
    SHORT,
    Tolerance,
    check_plain,
    plain_states,
    rounded_embeddings,
    text,
    trying,
)


def check_decoder(config: Any, name: str) -> None:
    """Raise ValueError for the config of an encoder-decoder: as a causal LM it would be a decoder without its input."""
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{name} is an encoder-decoder ({config.model_type}); expected a causal language model")


def check_causal(causal: Any) -> None:
    """Raise ValueError for a model that is no causal LM, or whose hidden states and logits are unknown.

    A model whose class names the wrong part (`base_model_prefix`) is given the right name.
    """
    kind = type(causal).__name__
    if causal.get_output_embeddings() is None:
        raise ValueError(f"{kind} has no LM head; expected a causal language model")
    if causal.base_model is causal and isinstance(getattr(causal, "model", None), nn.Module):
        causal.base_model_prefix = "model"  # Llama 4
    if causal.base_model is causal:
        raise ValueError(f"{kind} names no part that gives its last hidden states (base_model_prefix)")
    row = text(causal, SHORT)
    with trying(causal):
        part, whole = plain_states(causal, [row[: SHORT // 2]])[0], plain_states(causal, [row])[0, : SHORT // 2]
        with rounded_embeddings(causal):
            noise = (plain_states(causal, [row])[0, : SHORT // 2] - whole).float().abs()
    # With broken weights this cannot be decided; whoever uses the model checks them.
    exact, finite = whole.dtype is torch.float32, bool(whole.isfinite().all())
    difference, scale = (part - whole).float().abs(), whole.float().abs()
    if exact:
        differs = difference.max() > max(1e-4 * scale.max(), NOISE * noise.max())
    else:
        differs = difference.mean() > max(COARSE * scale.mean(), NOISE * noise.mean())
    if finite and bool(differs):
        raise ValueError(
            f"{kind} gives a token another state where other tokens follow it; expected a causal language model (an "
            "encoder needs is_decoder in its config)"
        )
    check_logits(causal)
    check_plain(causal, SHORT, Tolerance(causal, SHORT))
