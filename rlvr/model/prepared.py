"""The weights of a Llama-like model as decoding on a CPU multiplies them, and its forward pass on them.

A step of decoding is short operations on a few rows. Here the weights are cast once, not looked up in autocast's cache
by each operation, and those of the same input (queries, keys and values; gate and up) are one matrix. Weights that
already have the computation's dtype are not copied, and not joined. The pass is otherwise that of rlvr.model.llama;
rlvr.model.probe tries whether it gives the plain forward's result before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rlvr.model.device import threads_for
from rlvr.model.llama import normed, rotated
from rlvr.model.lm_head import adjusted
from rlvr.model.projection import is_gated, times
from rlvr.model.scores import layer_scores

# Rows up to which a product in bfloat16 takes the time of reading its weights.
MEMORY_BOUND_ROWS = 64


def can_prepare(causal: Any) -> bool:
    """Return whether the model is Llama-like, on a CPU, with plain linear layers (no adapter, no experts)."""
    if getattr(causal, "rlvr_pass", "") != "llama" or causal.get_input_embeddings().weight.device.type != "cpu":
        return False
    return type(causal.get_output_embeddings()) is nn.Linear and all(
        is_gated(layer.mlp) and all(type(linear) is nn.Linear for linear in _linears(layer))
        for layer in causal.base_model.layers
    )


def _linears(layer: Any) -> list[Any]:
    attention, mlp = layer.self_attn, layer.mlp
    projections = [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj]
    return [*projections, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


class Joined:
    """Linear layers of one input, as one: (n, in) to (n, sum of out). Copies weights of another dtype than `dtype`."""

    def __init__(self, linears: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self.sizes, self.dtype = [linear.out_features for linear in linears], dtype
        self.parts: list[tuple[Tensor, Tensor | None]] = []
        if all(linear.weight.dtype is dtype for linear in linears):
            self.parts = [(linear.weight, linear.bias) for linear in linears]
            return
        weight, first = torch.empty(sum(self.sizes), linears[0].in_features, dtype=dtype), 0
        bias = None if all(linear.bias is None for linear in linears) else torch.zeros(sum(self.sizes), dtype=dtype)
        for linear in linears:
            last = first + linear.out_features
            weight[first:last] = linear.weight
            if linear.bias is not None and bias is not None:
                bias[first:last] = linear.bias
            first = last
        self.parts = [(weight, bias)]

    @property
    def nbytes(self) -> int:
        """The bytes of the weights."""
        return sum(weight.nbytes for weight, _ in self.parts)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs side by side, perhaps as a transposed view."""
        found = [times(weight, bias, x) for weight, bias in self.parts]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def each(self, x: Tensor) -> Sequence[Tensor]:
        """Return the output of each layer."""
        if len(self.parts) == len(self.sizes):
            return [times(weight, bias, x) for weight, bias in self.parts]
        return self(x).split(self.sizes, dim=1)


def bytes_read(joined: Joined, x: Tensor) -> float:
    """Return the bytes of the weights that x (n, in) is multiplied by, if that takes the time of reading them."""
    return joined.nbytes if joined.dtype is torch.bfloat16 and len(x) <= MEMORY_BOUND_ROWS else math.inf


class PreparedLayer:
    """A decoder layer."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        query, key, value, out, gate, up, down = _linears(layer)
        self.layer, self.dtype = layer, dtype
        self.project, self.out = Joined([query, key, value], dtype), Joined([out], dtype)
        self.gate, self.down = Joined([gate, up], dtype), Joined([down], dtype)
        dim = layer.self_attn.head_dim
        self.heads = [query.out_features // dim, key.out_features // dim, value.out_features // dim]

    def __call__(self, layout: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x (N, hidden) after attention and MLP; cos and sin (N, 1, D)."""
        attention = self.layer.self_attn
        read = max(bytes_read(joined, x) for joined in (self.project, self.gate, self.down))
        with threads_for(read, x.device):
            query, key, value = self.heads_of(x, cos, sin)
        scores = layer_scores(getattr(attention, "rlvr_window", None))
        with threads_for(layout.bytes_per_layer(), x.device):
            mixed = layout.attend(attention.layer_idx, query, key, value, attention.scaling, scores)
        with threads_for(read, x.device):
            return self.after_attention(x, mixed)

    def heads_of(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (N, H, D), (N, H_kv, D) twice."""
        attention, norm = self.layer.self_attn, self.layer.input_layernorm
        h = normed(x, norm.weight, norm.variance_epsilon, self.dtype)[0]
        projected = self.project(h).contiguous().view(len(x), sum(self.heads), attention.head_dim)
        turned, value = projected.split([self.heads[0] + self.heads[1], self.heads[2]], dim=1)
        if hasattr(attention, "q_norm"):
            query, key, _ = projected.split(self.heads, dim=1)
            turned = torch.cat([attention.q_norm(query), attention.k_norm(key)], dim=1)
        query, key = rotated(turned, cos, sin).split(self.heads[:2], dim=1)
        return query, key, value

    def after_attention(self, x: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output for the attention's output (N, H, D)."""
        x = x + self.out(mixed.flatten(1))
        norm = self.layer.post_attention_layernorm
        gate, up = self.gate.each(normed(x, norm.weight, norm.variance_epsilon, self.dtype)[0])
        return x + self.down(self.layer.mlp.act_fn(gate) * up)


class Prepared:
    """The model with its present weights, for passes without a gradient. Made and used under the same autocast."""

    def __init__(self, causal: Any) -> None:
        self.causal = causal
        dtype = causal.base_model.layers[0].self_attn.q_proj.weight.dtype
        self.dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else dtype
        self.layers = [PreparedLayer(layer, self.dtype) for layer in causal.base_model.layers]
        self.head = Joined([causal.get_output_embeddings()], self.dtype)

    def hidden_states(self, layout: Any, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the last hidden states (N, hidden) of packed tokens; ids and positions (1, N)."""
        base = self.causal.base_model
        with torch.autocast("cpu", enabled=False):
            x = base.embed_tokens(ids)[0]
            cos, sin = (angle[0][:, None] for angle in base.rotary_emb(x[None], positions))
            for layer in self.layers:
                x = layer(layout, x, cos, sin)
            return normed(x, base.norm.weight, base.norm.variance_epsilon, self.dtype)[0]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return float32 logits (n, V) of last hidden states (n, hidden)."""
        read = bytes_read(self.head, hidden)
        with torch.autocast("cpu", enabled=False), threads_for(read, hidden.device):
            return adjusted(self.causal, self.head(hidden)).float()
