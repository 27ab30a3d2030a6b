"""Linear layers on a CPU, above all while rows are decoded: short operations on a few rows.

oneDNN arranges the second factor of a matmul before it multiplies. So bfloat16 weights are made the first factor where
that is faster (rlvr.model.cpu.processor): (W x^T)^T takes two thirds of the time of x W^T, and needs no copy of W.

`project` and `project_gated` do so in any pass without gradients. `PreparedModel` is a whole Llama-like model for
decoding: its weights are cast and arranged once, those of queries, keys and values are one matrix, and the activation
of the MLP is computed where its product ends.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import SiLUActivation

from ..attention.operations import layer_scores, rotary_angles, rotate
from . import processor
from .processor import use_threads

# The weights from which it is worth another arrangement of the result.
MANY_WEIGHTS = 2**16
GATED = {"gate_proj", "up_proj", "down_proj", "act_fn"}
# Rows up to which a product in bfloat16 takes the time of reading its weights.
MEMORY_BOUND_ROWS = 64


def project(linear: Any, x: Tensor, *, dense: bool = True) -> Tensor:
    """Return linear(x), x (n, in): (n, out). With `dense` False it may be a transposed view, where that is faster.

    Anything but a plain linear layer is called as it is, as are those whose gradient is wanted.
    """
    plain = type(linear) is nn.Linear and not torch.is_grad_enabled()
    if not plain or not _weights_go_first(linear.weight, x):
        found: Tensor = linear(x)
        return found
    turned = multiply_weights_first(linear.weight, linear.bias, x.to(torch.bfloat16))
    return turned.contiguous() if dense else turned


def _weights_go_first(weight: Tensor, x: Tensor) -> bool:
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    large = weight.numel() >= MANY_WEIGHTS and dtype is torch.bfloat16 and device == "cpu"
    return large and len(x) in processor.rows_with_weights_first()


def multiply_weights_first(weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
    """Return x W^T + b as (W x^T + b)^T, x (n, in)."""
    columns = x.t()
    return (torch.mm(weight, columns) if bias is None else torch.addmm(bias[:, None], weight, columns)).t()


def is_gated(mlp: Any) -> bool:
    """Return whether a module has the parts of an MLP with a gate, and no others."""
    return {name for name, _ in mlp.named_children()} == GATED


def project_gated(mlp: Any, x: Tensor) -> Tensor:
    """Return the output (n, hidden) of an MLP with a gate, x (n, hidden)."""
    gate, up = (project(linear, x, dense=False) for linear in (mlp.gate_proj, mlp.up_proj))
    return project(mlp.down_proj, mlp.act_fn(gate) * up)


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


def join(linears: Sequence[nn.Linear], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
    """Return weight (sum of out, in) and bias of linear layers of one input, as `dtype`."""
    weights = [linear.weight.to(dtype) for linear in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    biases = [linear.bias for linear in linears]
    if all(bias is None for bias in biases):
        return weight, None
    return weight, torch.cat([w.new_zeros(len(w)) if b is None else b.to(dtype) for w, b in zip(weights, biases)])


class Prepared:
    """Linear layers of one input as one: (N, in) to (N, sum of out), in `dtype`.

    Weights that have another are cast and joined and, where the processor has instructions for bfloat16, kept in the
    order in which oneDNN reads them. The others are not copied.
    """

    def __init__(self, linears: Sequence[nn.Linear], dtype: torch.dtype) -> None:
        self.dtype, self.packs = dtype, False
        self.parts: list[tuple[Tensor, Tensor | None]]
        if all(linear.weight.dtype is dtype for linear in linears):
            self.parts = [(linear.weight, linear.bias) for linear in linears]
        else:
            self.parts = [join(linears, dtype)]
            self.packs = dtype is torch.bfloat16 and processor.packs_weights()
        self.nbytes = sum(weight.nbytes for weight, _ in self.parts)
        if self.packs:
            [(weight, bias)] = self.parts
            self.parts = [(torch.ops.mkldnn._reorder_linear_weight(weight), bias)]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs beside each other."""
        if self.packs:
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, *self.parts[0], "none", [], "")
            return found
        parts = [
            multiply_weights_first(w, b, x) if _weights_go_first(w, x) else nn.functional.linear(x, w, b)
            for w, b in self.parts
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)

    def gate(self, x: Tensor, act: Any) -> Tensor:
        """Return the activation of the output, where weights are packed without rounding in between."""
        if self.packs and isinstance(act, (nn.SiLU, SiLUActivation)):
            found: Tensor = torch.ops.mkldnn._linear_pointwise(x, *self.parts[0], "swish", [], "")
            return found
        return act(self(x))

    def times(self, x: Tensor, other: Tensor) -> Tensor:
        """Return the output times another tensor, likewise."""
        if self.packs:
            found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, *self.parts[0], "mul")
            return found
        return self(x) * other

    def bytes_read(self, tokens: int) -> float:
        """Return the bytes of the weights, if multiplying so many tokens takes the time of reading them; else inf."""
        memory_bound = self.dtype is torch.bfloat16 and tokens <= MEMORY_BOUND_ROWS
        return self.nbytes if memory_bound else math.inf


class PreparedLayer:
    """A decoder layer; the pass is otherwise that of rlvr.model.forward.passes."""

    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        query, key, value, out, gate, up, down = _linears(layer)
        self.attention, self.act, self.dtype = layer.self_attn, layer.mlp.act_fn, dtype
        self.project = Prepared([query, key, value], dtype)
        self.out, self.gate, self.up, self.down = (Prepared([linear], dtype) for linear in (out, gate, up, down))
        dim = layer.self_attn.head_dim
        self.heads = [query.out_features // dim, key.out_features // dim, value.out_features // dim]
        self.norms = (layer.input_layernorm, layer.post_attention_layernorm)
        self.has_norms = hasattr(layer.self_attn, "q_norm")

    def __call__(self, layout: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x (N, hidden) after attention and MLP, perhaps in place; cos and sin (N, 1, D)."""
        attention = self.attention
        read = max(part.bytes_read(len(x)) for part in (self.project, self.gate, self.down))
        with use_threads(read, x.device):
            query, key, value = self.heads_of(x, cos, sin)
        scores = layer_scores(getattr(attention, "rlvr_window", None))
        with use_threads(layout.bytes_per_layer(), x.device):
            mixed = layout.attend(attention.layer_idx, query, key, value, attention.scaling, scores)
        with use_threads(read, x.device):
            x = x.add_(self.out(mixed.flatten(1)))
            h = normalize(x, self.norms[1], self.dtype)
            return x.add_(self.down(self.up.times(h, self.gate.gate(h, self.act))))

    def heads_of(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, (N, H, D), (N, H_kv, D) twice."""
        projected = self.project(normalize(x, self.norms[0], self.dtype)).view(len(x), sum(self.heads), -1)
        turned, value = projected.split([self.heads[0] + self.heads[1], self.heads[2]], dim=1)
        if self.has_norms:
            query, key = turned.split(self.heads[:2], dim=1)
            turned = torch.cat([self.attention.q_norm(query), self.attention.k_norm(key)], dim=1)
        query, key = rotate(turned, cos, sin).split(self.heads[:2], dim=1)
        return query, key, value


def normalize(x: Tensor, norm: Any, dtype: torch.dtype) -> Tensor:
    """Return RMSNorm of x (N, hidden), computed in float32: one call of torch, so that another thread waits less."""
    return nn.functional.rms_norm(x.float(), x.shape[-1:], norm.weight.float(), norm.variance_epsilon).to(dtype)


class PreparedModel:
    """The model with its present weights, for passes without a gradient. Made and used under the same autocast."""

    def __init__(self, causal: Any) -> None:
        self.causal = causal
        dtype = causal.base_model.layers[0].self_attn.q_proj.weight.dtype
        self.dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else dtype
        self.layers = [PreparedLayer(layer, self.dtype) for layer in causal.base_model.layers]
        self.head = Prepared([causal.get_output_embeddings()], self.dtype)

    def hidden_states(self, layout: Any, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the last hidden states (N, hidden) of packed tokens; ids and positions (1, N)."""
        base = self.causal.base_model
        with torch.autocast("cpu", enabled=False):
            embedded = base.embed_tokens(ids)
            cos, sin = rotary_angles(base, embedded, positions)
            x = embedded[0]
            for layer in self.layers:
                x = layer(layout, x, cos, sin)
            return normalize(x, base.norm, self.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (n, V) of last hidden states (n, hidden), as the LM head gives them."""
        with torch.autocast("cpu", enabled=False), use_threads(self.head.bytes_read(len(hidden)), hidden.device):
            return self.head(hidden)
