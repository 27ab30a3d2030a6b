"""An estimate of the GPU memory of a run, from the model's size and the config: the source of the recipes' figures.

What is held throughout is exact, the rest is an estimate, compared with a CPU's peaks by tests/bench/memory_plan.py. No
GPU has confirmed it: allocator, CUDA context and fragmentation come on top, some 2 to 4 GB. GB = 10^9 bytes; a GPU "of
80 GB" has 85 of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from rlvr.config import Config, TorchSamplerConfig
from rlvr.model.logprobs.scoring import logit_bytes
from rlvr.model.optim.adamw import BLOCK, BUCKET

FP32, BF16 = 4, 2
MOMENTS = {"adamw": 2 * FP32, "adamw8bit": 2 * (1 + FP32 / BLOCK)}  # bytes a weight of both moments
# In float32: logits, log-probabilities and probabilities. A CPU has those of a few tokens at a time, and holds logits
# and their gradient in the computation's dtype.
LOGIT_TENSORS = 3
SAMPLED_LOGITS = 3  # of a decoding step: logits, scaled logits, probabilities
GPU = 85_000_000_000  # bytes of a GPU "of 80 GB", by which the logits' chunks are chosen
SPARE = 4_000_000_000  # allocator, CUDA context, fragmentation
# Layers of a model in shards that are whole at a time, measured by tests/bench/sharded_memory.py. Of weights, the one
# that computes, and the next as it is gathered and as it is copied out; those that FSDP2 frees in the next pass only;
# of gradients, a layer's before they are summed.
GATHERED, LEFT, SUMMED = 3, 2, 1
PROMPT = 150  # tokens of a prompt; the result hardly depends on it


@dataclass(frozen=True)
class Shape:
    """A decoder-only model: parameters in all, layers, width of the hidden and MLP states, and of all (key) heads.

    wide: parameters outside linear layers, and of an LM head that is tied to the embeddings. vocabulary: rows of the
    LM head; untied: whether it has weights of its own.
    """

    parameters: int
    layers: int
    hidden: int
    mlp: int
    heads_width: int
    kv_width: int
    wide: int
    vocabulary: int = 0
    untied: bool = False

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
    head = policy.causal.get_output_embeddings()  # None: a classifier's scores are few
    width, kv_width = heads * dim, kv_heads * dim
    shape = Shape(parameters, layers, hidden, experts + shared or mlp, width, kv_width, wide)
    return shape if head is None else replace(shape, vocabulary=len(head.weight), untied=head.weight is not embeddings)


# Qwen2.5, from its models' config.json.
QWEN_15B = Shape(1_543_714_304, 28, 1536, 8960, heads_width=1536, kv_width=256, wide=233_461_248, vocabulary=151_936)
QWEN_3B = Shape(3_085_938_688, 36, 2048, 11008, heads_width=2048, kv_width=256, wide=311_314_432, vocabulary=151_936)
QWEN_7B = Shape(7_615_616_512, 28, 3584, 18944, 3584, 512, wide=545_201_664, vocabulary=152_064, untied=True)
QWEN_32B = Shape(32_763_876_352, 64, 5120, 27648, 5120, 1024, wide=779_228_160, vocabulary=152_064, untied=True)


def computed_bytes(config: Config) -> int:
    """Return the bytes of a number in the computation; `auto` stands for bfloat16, as on a GPU."""
    shorter = config.model.dtype != "float32" or stored_bytes(config) == BF16
    return BF16 if shorter else FP32


def stored_bytes(config: Config) -> int:
    """Return the bytes of a trained weight, and of its gradient."""
    return BF16 if config.model.weights == "bfloat16" and not config.model.lora_rank else FP32


def count_trained(shape: Shape, config: Config) -> int:
    """Return how many weights of the policy are trained."""
    return shape.adapters(config.model.lora_rank) if config.model.lora_rank else shape.parameters


def weight_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes of the policy's weights; with LoRA those of the model have the computation's dtype."""
    frozen = shape.parameters * computed_bytes(config) if config.model.lora_rank else 0
    return count_trained(shape, config) * stored_bytes(config) + frozen


def gradient_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes of gradients: the policy's, and then the critic's, which come after them."""
    return count_trained(shape, config) * stored_bytes(config)


def state_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes of the optimizer's state of the policy: moments, and float32 copies of shorter weights."""
    each = MOMENTS[config.optim.name] + (FP32 if stored_bytes(config) < FP32 else 0)
    return int(count_trained(shape, config) * each)


def reference_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes of the reference policy; with LoRA it is the model without the adapter."""
    if not config.algo.needs_reference or config.model.lora_rank:
        return 0
    return shape.wide * stored_bytes(config) + (shape.parameters - shape.wide) * min(
        stored_bytes(config), computed_bytes(config)
    )


def critic_shape(shape: Shape, config: Config) -> Shape | None:
    """Return the trunk of a critic that has its own; it shares frozen weights, and has no LM head of its own."""
    if config.critic is None or config.critic.kind != "separate":
        return None
    head = shape.vocabulary * shape.hidden if shape.untied else 0
    return replace(shape, parameters=shape.parameters - head)


def critic_bytes(shape: Shape, config: Config) -> tuple[int, int]:
    """Return the bytes of a critic's trained weights, and of the optimizer's state of them."""
    trunk = critic_shape(shape, config)
    if trunk is None:
        return 0, 0
    return count_trained(trunk, config) * stored_bytes(config), state_bytes(trunk, config)


def copy_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes of autocast's copy of float32 weights, which lasts through a pass."""
    return (
        shape.parameters * BF16 if not config.model.lora_rank and computed_bytes(config) < stored_bytes(config) else 0
    )


def held_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes that are held on the GPU through a backward pass, whatever the batch.

    Full training in float32: weights, gradients and AdamW's two moments, 16 bytes a parameter; 2 more with a reference
    policy (4 outside linear layers, or in float32), 12 more with a separate critic, whose gradients come after the
    policy's. LoRA: bf16 weights, and 16 bytes per parameter of the adapters; the reference is the model without them.
    With optim.offload the optimizer's states are not on the GPU. With shards, a process's part of all this.
    """
    weights, state = critic_bytes(shape, config)
    state = 0 if config.optim.offload else state + state_bytes(shape, config)
    held = weight_bytes(shape, config) + gradient_bytes(shape, config) + reference_bytes(shape, config)
    return (held + weights + state) // config.model.shard


def bucket_bytes(shape: Shape, config: Config) -> int:
    """Return what an update takes beside what is held: a bucket of float32 gradients, and of a state that is away."""
    each: float = FP32 if stored_bytes(config) < FP32 else 0
    if config.optim.offload:
        each += MOMENTS[config.optim.name] + each
    return int(each * min(BUCKET, count_trained(shape, config)))


def training_bytes(shape: Shape, config: Config) -> int:
    """Return the peak while a microbatch is trained on, in bf16.

    What is held; autocast's bf16 copy of the fp32 weights; what is kept for each token; a chunk's logits.
    """
    tokens = config.optim.tokens_per_microbatch * token_bytes(shape, config)
    return fixed_bytes(shape, config, GPU) + tokens


def fixed_bytes(shape: Shape, config: Config, memory: int) -> int:
    """Return what training takes whatever the microbatch, on a GPU with so many bytes of memory."""
    chunk, shards = chunk_bytes(shape, config, memory), config.model.shard
    held = held_bytes(shape, config) + copy_bytes(shape, config) + gathered_bytes(shape, config, shards)
    return held + max(chunk, summed_bytes(shape, config, shards))


def root_weights(shape: Shape) -> int:
    """Return the weights outside the layers: of embeddings and LM head."""
    return shape.vocabulary * shape.hidden * (1 + shape.untied)


def layer_weights(shape: Shape) -> int:
    """Return the weights of a layer."""
    return max(shape.parameters - root_weights(shape), 0) // max(shape.layers, 1)


def gathered_bytes(shape: Shape, config: Config, shards: int) -> int:
    """Return the bytes of whole weights in a pass of a model in shards: embeddings, LM head, some layers."""
    if shards == 1:
        return 0
    each = weight_bytes(shape, config) / (shape.parameters or 1)
    return int(each * (root_weights(shape) + (GATHERED + LEFT) * layer_weights(shape)))


def left_bytes(shape: Shape, config: Config, shards: int) -> int:
    """Return the bytes of whole layers that a model in shards keeps between the passes."""
    if shards == 1:
        return 0
    return int(LEFT * layer_weights(shape) * weight_bytes(shape, config) / (shape.parameters or 1))


def summed_bytes(shape: Shape, config: Config, shards: int) -> int:
    """Return the bytes of whole gradients in a backward pass of a model in shards: a layer's, and the LM head's."""
    if shards == 1:
        return 0
    head = 0 if config.model.lora_rank else shape.vocabulary * shape.hidden * stored_bytes(config)
    return head + int(SUMMED * layer_weights(shape) * gradient_bytes(shape, config) / (shape.parameters or 1))


def last_bytes(shape: Shape, config: Config, shards: int) -> int:
    """Return the bytes of whole gradients when the backward pass of a model in shards ends, and activations are gone.

    Those of embeddings and LM head, and the same as they are summed up.
    """
    return 0 if shards == 1 or config.model.lora_rank else 2 * root_weights(shape) * stored_bytes(config)


def chunk_bytes(shape: Shape, config: Config, memory: int | None, tokens: int | None = None) -> int:
    """Return what a chunk of logits takes, and the gradient of the LM head that is added to; memory None: on a CPU."""
    count, number = logit_bytes(memory) // FP32, computed_bytes(config)
    if tokens is not None:
        count = min(count, tokens * shape.vocabulary)
    each = 2 * number if memory is None else LOGIT_TENSORS * FP32 + (number if number < FP32 else 0)
    head = 0 if config.model.lora_rank else shape.vocabulary * shape.hidden * stored_bytes(config)
    return count * each + head


def layer_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes that a layer keeps of each token for its backward pass, on packed tokens.

    In the dtype of the embeddings, the inputs of its two norms; in that of the computation, the inputs of the
    projections, queries, keys, values, what attention returns, and in the MLP gate, its activation, up, their product.
    An adapter that is stored in float32 keeps its own cast of the inputs.
    """
    stream, number, rank = stream_bytes(config), computed_bytes(config), config.model.lora_rank
    kept = 2 * stream * shape.hidden
    kept += number * (2 * shape.hidden + 2 * shape.heads_width + 2 * shape.kv_width + 4 * shape.mlp)
    if rank and number < FP32:
        kept += number * (5 * shape.hidden + shape.heads_width + shape.mlp)
    return kept


def stream_bytes(config: Config) -> int:
    """Return the bytes of a number of the residual stream, which has the dtype of the embeddings."""
    return computed_bytes(config) if config.model.lora_rank else stored_bytes(config)


def kept_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes that are kept of each token: by the layers (with checkpointing, their inputs) and at the end."""
    each = stream_bytes(config) * shape.hidden if config.model.gradient_checkpointing else layer_bytes(shape, config)
    return shape.layers * each + 4 * stream_bytes(config) * shape.hidden


def token_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes that a forward and backward pass takes for each token.

    What the layers keep, the last states with their gradients, and what passes in one layer's backward pass. Attention
    adds nothing that grows faster than the tokens.
    """
    return kept_bytes(shape, config) + passing_bytes(shape, config)


def passing_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes of each token in one layer's backward pass: gradients, and the layer again if checkpointed."""
    gradients = computed_bytes(config) * 4 * shape.mlp + 4 * stream_bytes(config) * shape.hidden
    return gradients + (layer_bytes(shape, config) if config.model.gradient_checkpointing else 0)


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
    # An engine that sleeps gives its memory back, and a server that runs elsewhere has its own.
    return tokens_that_fit(shape, config, memory, 1 - engine_share(config))


def engine_share(config: Config) -> float:
    """Return the share of a GPU that the sampler's engine has while the trainer trains: 0 for one that sleeps."""
    sampler = config.sampler
    if isinstance(sampler, TorchSamplerConfig) or sampler.sleep or getattr(sampler, "url", None):
        return 0.0
    return sampler.gpu_memory_utilization


def tokens_that_fit(shape: Shape, config: Config, memory: int, share: float = 1.0) -> int:
    """Return the tokens of a microbatch that fit into a share of a GPU's bytes, of which SPARE are left over."""
    room = share * memory - SPARE - fixed_bytes(shape, config, memory)
    return max(1, int(room / token_bytes(shape, config)))


def sampling_bytes(shape: Shape, config: Config) -> int:
    """Return the peak while the torch sampler runs, with completions of full length: no gradients, but a cache."""
    held = held_bytes(shape, config) - gradient_bytes(shape, config) // config.model.shard
    return held + copy_bytes(shape, config) + cache_bytes(shape, config)


def snapshot_bytes(shape: Shape, config: Config, shards: int) -> int:
    """Return the bytes of the copy that run.async_save writes a checkpoint from, on the process that takes most.

    The trained weights and the optimizer's state, the critic's too, and a reference policy that is reset. Of a model in
    shards that is its part of the state, and all weights, gathered.
    """
    weights, state = critic_bytes(shape, config)
    gathered = count_trained(shape, config) * stored_bytes(config) if shards == 1 else weight_bytes(shape, config)
    reference = reference_bytes(shape, config) if config.algo.reference_every else 0
    return gathered + weights + reference + (state + state_bytes(shape, config)) // shards


def cache_bytes(shape: Shape, config: Config, row: int | None = None) -> int:
    """Return what the torch sampler takes beside what is held.

    Keys and values of all layers for sampler.batch_size completions, in the computation's dtype, at most
    sampler.cache_gib, in one layer a copy for every head, and the logits of a step. row: the tokens of a rollout of
    several turns, whose rows share no prompt after the first.
    """
    r, number = config.rollout, computed_bytes(config)
    rows = min(config.sampler.batch_size, r.problems_per_step * r.group_size)
    cache = 2 * number * shape.layers * shape.kv_width * rows * (row or r.max_new_tokens)
    if config.sampler.cache_gib is not None:
        cache = min(cache, int(config.sampler.cache_gib * 2**30))
    repeated = 2 * number * shape.heads_width * rows * (row or r.max_new_tokens + PROMPT)
    return cache + repeated + SAMPLED_LOGITS * FP32 * rows * shape.vocabulary


def peak_bytes(shape: Shape, config: Config) -> int:
    """Return the larger of the two peaks."""
    return max(training_bytes(shape, config), sampling_bytes(shape, config))
