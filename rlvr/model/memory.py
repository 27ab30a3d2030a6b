"""An estimate of the GPU memory of a run, from the model's size and the config: the source of the recipes' figures.

What is held throughout is exact, the rest is an estimate that no GPU has confirmed: allocator, CUDA context and
fragmentation come on top, some 2 to 4 GB. GB = 10^9 bytes; a GPU "of 80 GB" has 85 of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from rlvr.config import Config, TorchSamplerConfig
from rlvr.model.logprobs import logit_bytes

FP32, BF16 = 4, 2
# Tensors that a layer's recomputed backward pass holds, by width. Hidden: norms, queries, attention, residuals. MLP:
# gate, up, their product, and gradients of these.
HIDDEN_TENSORS, MLP_TENSORS = 8, 6
LOGIT_TENSORS = 4  # logits, log-probabilities, and in the backward pass probabilities and the gradient
GPU = 85_000_000_000  # bytes of a GPU "of 80 GB", by which the logits' chunks are chosen
SPARE = 4_000_000_000  # allocator, CUDA context, fragmentation
PROMPT = 150  # tokens of a prompt; the result hardly depends on it


@dataclass(frozen=True)
class Shape:
    """A decoder-only model: parameters in all, layers, width of the hidden and MLP states, and of all (key) heads.

    wide: parameters outside linear layers, and of an LM head that is tied to the embeddings.
    """

    parameters: int
    layers: int
    hidden: int
    mlp: int
    heads_width: int
    kv_width: int
    wide: int

    def adapters(self, rank: int) -> int:
        """Return the parameters of LoRA adapters of this rank on all linear layers but the LM head."""
        attention = 2 * (self.hidden + self.heads_width) + 2 * (self.hidden + self.kv_width)
        return self.layers * rank * (attention + 3 * (self.hidden + self.mlp))


class Trained(Protocol):
    """A policy, or a reward model. causal: transformers' model, which is `model` unless peft wraps it."""

    @property
    def model(self) -> Any: ...

    @property
    def causal(self) -> Any: ...

    @property
    def device(self) -> torch.device: ...

    def parameters(self) -> list[nn.Parameter]:
        """Return the weights that are trained."""
        ...


def shape_of(policy: Trained) -> Shape | None:
    """Return a model's shape, without the adapter that it trains; None where its config has other names for it."""
    config: Any = policy.causal.config.get_text_config()
    try:
        hidden, layers, heads = config.hidden_size, config.num_hidden_layers, config.num_attention_heads
        mlp = config.intermediate_size
    except AttributeError:
        return None
    if not all(isinstance(size, int) for size in (hidden, layers, heads, mlp)):
        return None
    dim = getattr(config, "head_dim", None) or hidden // heads
    adapter = policy.parameters() if policy.causal is not policy.model else []
    parameters = sum(w.numel() for w in policy.model.parameters()) - sum(w.numel() for w in adapter)
    # Of a mixture of experts: those that a token is sent to, and the shared one.
    experts = (getattr(config, "num_experts_per_tok", None) or 0) * (
        getattr(config, "moe_intermediate_size", None) or mlp
    )
    shared = getattr(config, "shared_expert_intermediate_size", None) or 0
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    embeddings = policy.causal.get_input_embeddings().weight
    linear = {
        id(weight): weight.numel()
        for module in policy.causal.modules()
        if isinstance(module, torch.nn.Linear)
        for weight in module.parameters(recurse=False)
        if weight is not embeddings and id(weight) not in {id(w) for w in adapter}
    }
    wide = parameters - sum(linear.values())
    return Shape(parameters, layers, hidden, experts + shared or mlp, heads * dim, kv_heads * dim, wide)


QWEN_15B = Shape(1_543_714_304, layers=28, hidden=1536, mlp=8960, heads_width=1536, kv_width=256, wide=233_461_248)
QWEN_3B = Shape(3_085_938_688, layers=36, hidden=2048, mlp=11008, heads_width=2048, kv_width=256, wide=311_314_432)


def held_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes that are held through an optimizer step, whatever the batch.

    Full training: fp32 weights, gradients and AdamW's two moments, 16 bytes a parameter; 2 more with a reference policy
    (4 outside linear layers, or in float32), 16 more with a separate critic. LoRA: bf16 weights, and 16 bytes per
    parameter of the adapters; the reference is the model without them. With shards, a process's part of all this.
    """
    rank = config.model.lora_rank
    critic = config.critic is not None and config.critic.kind == "separate"
    trained = shape.adapters(rank) if rank else shape.parameters
    frozen = shape.parameters * BF16 if rank else 0
    linear = FP32 if config.model.dtype == "float32" else BF16
    reference = shape.wide * FP32 + (shape.parameters - shape.wide) * linear
    reference *= config.algo.needs_reference and not rank
    return (4 * FP32 * trained * (1 + critic) + frozen * (1 + critic) + reference) // config.model.shard


def training_bytes(shape: Shape, config: Config) -> int:
    """Return the peak while a microbatch is trained on, in bf16.

    What is held; autocast's bf16 copy of the fp32 weights; what is kept for each token; a chunk's logits.
    """
    tokens = config.optim.tokens_per_microbatch * token_bytes(shape, config)
    return fixed_bytes(shape, config, GPU) + tokens


def fixed_bytes(shape: Shape, config: Config, memory: int) -> int:
    """Return what training takes whatever the microbatch, on a GPU with so many bytes of memory."""
    copy = 0 if config.model.lora_rank else shape.parameters * BF16
    return held_bytes(shape, config) + copy + LOGIT_TENSORS * logit_bytes(memory)


def token_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes that a forward and backward pass in bf16 takes for each token.

    What one layer's backward pass holds, in all layers or, with gradient checkpointing, in one beside the inputs of
    all. Attention adds nothing that grows faster than the tokens.
    """
    layer = HIDDEN_TENSORS * shape.hidden * FP32 + MLP_TENSORS * shape.mlp * BF16
    if not config.model.gradient_checkpointing:
        return shape.layers * layer
    return layer + shape.layers * shape.hidden * (BF16 if config.model.lora_rank else FP32)


def microbatch_tokens(policy: Trained, config: Config) -> int:
    """Return the most tokens of a microbatch: optim.tokens_per_microbatch, or fewer where the GPU's memory is short."""
    tokens = config.optim.tokens_per_microbatch
    return min(tokens, fitting_tokens(policy, config) or tokens)


def fitting_tokens(policy: Trained, config: Config) -> int | None:
    """Return the tokens of a microbatch that the model's GPU has memory for, by the estimate; None: no bound is known.

    A function of the kind of GPU and of the settings, not of what happens to be free: a resumed run cuts the same
    microbatches. Raises no error where not even one token fits: the estimate may be wrong, and one row runs alone.
    """
    if policy.device.type != "cuda" or (shape := shape_of(policy)) is None:
        return None
    memory = torch.cuda.get_device_properties(policy.device).total_memory
    sampler = config.sampler
    # An engine that sleeps gives its memory back, and a server that runs elsewhere has its own.
    beside = not (isinstance(sampler, TorchSamplerConfig) or sampler.sleep or getattr(sampler, "url", None))
    return fitting(shape, config, memory, 1 - getattr(sampler, "gpu_memory_utilization", 0.0) if beside else 1.0)


def fitting(shape: Shape, config: Config, memory: int, share: float = 1.0) -> int:
    """Return the tokens of a microbatch that fit into a share of a GPU's bytes, of which SPARE are left over."""
    room = share * memory - SPARE - fixed_bytes(shape, config, memory)
    return max(1, int(room / token_bytes(shape, config)))


def sampling_bytes(shape: Shape, config: Config) -> int:
    """Return the peak while the torch sampler runs, with completions of full length: no gradients, but a cache.

    Keys and values of all layers for sampler.batch_size completions, in bf16, at most sampler.cache_gib, and in one
    layer a copy for every head.
    """
    rank, r = config.model.lora_rank, config.rollout
    rows = min(config.sampler.batch_size, r.problems_per_step * r.group_size)
    gradients = FP32 * (shape.adapters(rank) if rank else shape.parameters)
    copy = 0 if rank else shape.parameters * BF16
    cache = 2 * BF16 * shape.layers * shape.kv_width * rows * r.max_new_tokens
    if config.sampler.cache_gib is not None:
        cache = min(cache, int(config.sampler.cache_gib * 2**30))
    repeated = 2 * BF16 * shape.heads_width * rows * (r.max_new_tokens + PROMPT)
    return held_bytes(shape, config) - gradients + copy + cache + repeated


def peak_bytes(shape: Shape, config: Config) -> int:
    """Return the larger of the two peaks."""
    return max(training_bytes(shape, config), sampling_bytes(shape, config))
