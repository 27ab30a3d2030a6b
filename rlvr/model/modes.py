"""What is set in a model once it is loaded: dtypes, attention, gradient checkpointing, dropout."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from rlvr.model.load_errors import first_line


def shorten(causal: Any, dtype: torch.dtype) -> None:
    """Store the weights of linear layers in the dtype that autocast gives them at each use: the results are the same.

    Embeddings, an LM head that is tied to them, and norms stay as they are.
    """
    embeddings = causal.get_input_embeddings().weight
    for module in causal.modules():
        if isinstance(module, nn.Linear) and module.weight is not embeddings:
            module.to(dtype)


def store_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Store a model's weights in a dtype. Buffers, such as the frequencies of rotary embeddings, stay as they are."""
    for weight in model.parameters():
        weight.data = weight.data.to(dtype)


def set_attention(model: Any, attention: str) -> None:
    """Choose a model's attention implementation; auto leaves it. ValueError for one that it does not have."""
    if attention != "auto":
        try:
            model.set_attn_implementation(attention)
        except (ValueError, ImportError) as error:
            raise ValueError(f"model.attention {attention!r}: {first_line(error)}") from error


def recompute_activations(model: Any, *, lora: bool) -> None:
    """Switch gradient checkpointing on, by the name that the installed transformers has for it."""
    if lora:
        # Otherwise no input of a recomputed block requires a gradient, and the adapters would get none.
        model.enable_input_require_grads()
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable()
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def switch_off_dropout(model: Any) -> None:
    """Set all dropout to 0: it would put noise into the ratio of new to old probabilities."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
