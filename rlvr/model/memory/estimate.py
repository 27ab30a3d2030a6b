"""An estimate of the GPU memory of a run, from the model's size and the config: the source of the recipes' figures.

What is held throughout is exact, the rest is an estimate, compared with a CPU's peaks by benchmarks/memory_plan.py. No
GPU has confirmed it: allocator, CUDA context and fragmentation come on top, some 2 to 4 GB. GB = 10^9 bytes; a GPU "of
80 GB" has 85 of these.
"""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import nn

from rlvr.config import Config, TorchSamplerConfig, VLLMServerConfig

from ..logprobs.scoring import logit_bytes
from ..optim.optimizer import BLOCK, BUCKET

FP32, BF16 = 4, 2
MOMENTS = {"adamw": 2 * FP32, "adamw8bit": 2 * (1 + FP32 / BLOCK)}  # bytes a weight of both moments
# In float32: logits, log-probabilities and probabilities. A CPU has those of a few tokens at a time, and holds logits
# and their gradient in the computation's dtype.
LOGIT_TENSORS = 3
SAMPLED_LOGITS = 3  # of a decoding step: logits, scaled logits, probabilities
SPARE = 4_000_000_000  # allocator, CUDA context, fragmentation
# Layers of a model in shards that are whole at a time, measured by benchmarks/sharded_memory.py. Of weights, the one
# that computes, and the next as it is gathered and as it is copied out; those that FSDP2 frees in the next pass only;
# of gradients, a layer's before they are summed.
GATHERED, LEFT, SUMMED = 3, 2, 1
PROMPT = 150  # tokens of a prompt; the result hardly depends on it
# Where the settings do not say: the most tokens of a microbatch, and the share of a GPU's memory that it leaves free.
MICROBATCH, MARGIN = 16384, 0.1


@dataclass(frozen=True)
class Shape:
    """A decoder-only model: parameters in all, layers, width of the hidden and MLP states, and of all (key) heads.

    wide: parameters outside linear layers, and of an LM head that is tied to the embeddings. vocabulary: rows of the
    LM head; untied: whether it has weights of its own. teacher: parameters of another model that teaches it.
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
    teacher: int = 0

    def adapters(self, rank: int) -> int:
        """Return the parameters of LoRA adapters of this rank on all linear layers but the LM head."""
        attention = 2 * (self.hidden + self.heads_width) + 2 * (self.hidden + self.kv_width)
        return self.layers * rank * (attention + 3 * (self.hidden + self.mlp))

    @property
    def head(self) -> int:
        """The weights of the LM head."""
        return self.vocabulary * self.hidden

    @property
    def root(self) -> int:
        """The weights outside the layers: of embeddings and LM head."""
        return self.head * (1 + self.untied)

    @property
    def layer(self) -> int:
        """The weights of a layer."""
        return max(self.parameters - self.root, 0) // max(self.layers, 1)


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
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    sizes = [size for name in names if isinstance(size := getattr(config, name, None), int)]
    if len(sizes) < len(names):
        return None
    hidden, layers, heads, mlp = sizes
    dim = getattr(config, "head_dim", None) or hidden // heads
    adapter = policy.parameters() if policy.causal is not policy.model else []
    parameters = sum(w.numel() for w in policy.model.parameters()) - sum(w.numel() for w in adapter)
    # Of a mixture of experts: those that a token is sent to, and the shared one.
    per_token = getattr(config, "num_experts_per_tok", None) or 0
    experts = per_token * (getattr(config, "moe_intermediate_size", None) or mlp)
    experts += getattr(config, "shared_expert_intermediate_size", None) or 0
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    embeddings, own = policy.causal.get_input_embeddings().weight, {id(w) for w in adapter}
    linear = {
        id(weight): weight.numel()
        for module in policy.causal.modules()
        if isinstance(module, torch.nn.Linear)
        for weight in module.parameters(recurse=False)
        if weight is not embeddings and id(weight) not in own
    }
    shape = Shape(
        parameters, layers, hidden, experts or mlp, heads * dim, kv_heads * dim, wide=parameters - sum(linear.values())
    )
    head = policy.causal.get_output_embeddings()  # None: a classifier's scores are few
    return shape if head is None else replace(shape, vocabulary=len(head.weight), untied=head.weight is not embeddings)


@dataclass(frozen=True)
class Estimate:
    """Bytes that a run takes with a model of some shape. shards: parts that weights and optimizer state are cut into.

    Full training in float32 holds weights, gradients and AdamW's two moments, 16 bytes a parameter; 2 more with a
    reference policy (4 outside linear layers, or in float32), 12 more with a separate critic, whose gradients come
    after the policy's. LoRA: bf16 weights, and 16 bytes per parameter of the adapters; the reference is the model
    without them.
    """

    shape: Shape
    config: Config
    shards: int = 1

    @property
    def number(self) -> int:
        """A number in the computation; `auto` stands for bfloat16, as on a GPU."""
        return BF16 if self.config.model.dtype != "float32" or self.weight_bytes == BF16 else FP32

    @property
    def weight_bytes(self) -> int:
        """A trained weight. Its gradient has float32."""
        return BF16 if self.config.model.weights == "bfloat16" and not self.config.model.lora_rank else FP32

    @property
    def stream(self) -> int:
        """A number of the residual stream, which has the dtype of the embeddings; shards are gathered in `number`."""
        return self.number if self.config.model.lora_rank or self.shards > 1 else self.weight_bytes

    @property
    def num_trained(self) -> int:
        """How many weights of the policy are trained."""
        rank = self.config.model.lora_rank
        return self.shape.adapters(rank) if rank else self.shape.parameters

    @property
    def weights(self) -> int:
        """The policy's weights; with LoRA those of the model have the computation's dtype."""
        frozen = self.shape.parameters * self.number if self.config.model.lora_rank else 0
        return self.trained_weights + frozen

    @property
    def trained_weights(self) -> int:
        """The policy's trained weights, or the critic's."""
        return self.num_trained * self.weight_bytes

    @property
    def gradients(self) -> int:
        """The policy's gradients, or the critic's, which come after them."""
        return self.num_trained * FP32

    @property
    def state(self) -> int:
        """The optimizer's state of the policy: moments, and float32 copies of shorter weights."""
        each = MOMENTS[self.config.optim.name] + (FP32 if self.weight_bytes < FP32 else 0)
        return int(self.num_trained * each)

    @property
    def reference(self) -> int:
        """The reference policy; with LoRA it is the model without the adapter."""
        needed = self.config.algo.needs_reference or self.config.teacher_kind == "start"
        if not needed or self.config.model.lora_rank:
            return 0
        wide = self.shape.wide if self.shards == 1 else 0
        return wide * self.weight_bytes + (self.shape.parameters - wide) * min(self.weight_bytes, self.number)

    @property
    def teacher(self) -> int:
        """The average that teaches, a copy of the trained weights; or another model, in the computation's dtype."""
        return self.average or self.shape.teacher * self.number

    @property
    def average(self) -> int:
        """The average that teaches."""
        return self.trained_weights if self.config.teacher_kind == "ema" else 0

    @property
    def critic(self) -> Estimate | None:
        """The estimate of a critic's own trunk. It shares frozen weights, and has no LM head of its own."""
        if self.config.critic is None or self.config.critic.kind != "separate":
            return None
        head = self.shape.head if self.shape.untied else 0
        return replace(self, shape=replace(self.shape, parameters=self.shape.parameters - head))

    @property
    def autocast_copy(self) -> int:
        """Autocast's copy of float32 weights, which lasts through a pass. Shards need none."""
        if self.config.model.lora_rank or self.shards > 1 or self.number >= self.weight_bytes:
            return 0
        return self.shape.parameters * BF16

    @property
    def resident(self) -> int:
        """What is held on a GPU through a backward pass, whatever the batch."""
        weights, state = self.weights + self.gradients + self.reference + self.teacher, self.state
        if self.critic is not None:
            weights, state = weights + self.critic.trained_weights, state + self.critic.state
        return (weights + (0 if self.config.optim.offload else state)) // self.shards

    @property
    def bucket(self) -> int:
        """What an update takes on top: a bucket of a state that is offloaded."""
        share = min(BUCKET / (self.num_trained or 1), 1)
        return int(share * self.state) if self.config.optim.offload else 0

    @property
    def gather_buffer(self) -> int:
        """Whole weights in a pass of a model in shards: embeddings, LM head, some layers."""
        weights = self.shape.root + (GATHERED + LEFT) * self.shape.layer
        return int(self._each(self.whole) * weights) if self.shards > 1 else 0

    @property
    def whole(self) -> int:
        """All weights of a model in shards, adapters too, as they are gathered."""
        return self.number * (self.shape.parameters + self.shape.adapters(self.config.model.lora_rank))

    @property
    def left(self) -> int:
        """The layers that FSDP leaves gathered between the passes."""
        return int(self._each(self.whole) * LEFT * self.shape.layer) if self.shards > 1 else 0

    @property
    def reduce_buffer(self) -> int:
        """Whole gradients in a backward pass of a model in shards: a layer's, and the LM head's."""
        return self._head + int(self._each(self.gradients) * SUMMED * self.shape.layer) if self.shards > 1 else 0

    @property
    def last(self) -> int:
        """Whole gradients when the backward pass of a model in shards ends, and activations are gone.

        Those of embeddings and LM head, and the same as they are summed up.
        """
        return 0 if self.shards == 1 or self.config.model.lora_rank else 2 * self.shape.root * FP32

    def _each(self, total: int) -> float:
        return total / (self.shape.parameters or 1)

    @property
    def _head(self) -> int:
        """The gradient of the LM head."""
        return 0 if self.config.model.lora_rank else self.shape.head * FP32

    def chunk(self, memory: int | None, tokens: int | None = None) -> int:
        """Return what a chunk of logits takes, and the LM head's gradient that is added to; memory None: on a CPU."""
        count = logit_bytes(memory) // FP32
        if tokens is not None:
            count = min(count, tokens * self.shape.vocabulary)
        short = self.number if self.number < FP32 else 0
        each = 2 * self.number if memory is None else LOGIT_TENSORS * FP32 + short
        return count * each + self._head

    def fixed_bytes(self, memory: int) -> int:
        """Return what training takes with any microbatch, on a GPU with so many bytes of memory."""
        return self.resident + self.autocast_copy + self.gather_buffer + max(self.chunk(memory), self.reduce_buffer)

    @property
    def layer(self) -> int:
        """What a layer keeps of each token for its backward pass, on packed tokens.

        In the dtype of the embeddings, the inputs of its two norms; in that of the computation, the inputs of the
        projections, queries, keys, values, what attention returns, and in the MLP gate, its activation, up, their
        product. An adapter that is stored in float32 keeps its own cast of the inputs.
        """
        shape, number = self.shape, self.number
        kept = 2 * self.stream * shape.hidden
        kept += number * (2 * shape.hidden + 2 * shape.heads_width + 2 * shape.kv_width + 4 * shape.mlp)
        if self.config.model.lora_rank and number < FP32:
            kept += number * (5 * shape.hidden + shape.heads_width + shape.mlp)
        return kept

    @property
    def activations(self) -> int:
        """What each token keeps for the backward pass: in the layers (checkpointed: their inputs) and after them."""
        states = self.stream * self.shape.hidden
        return self.shape.layers * (states if self.config.model.gradient_checkpointing else self.layer) + 4 * states

    @property
    def passing(self) -> int:
        """What each token takes during one layer's backward pass: gradients, and the layer again if checkpointed."""
        gradients = self.number * 4 * self.shape.mlp + 4 * self.stream * self.shape.hidden
        return gradients + (self.layer if self.config.model.gradient_checkpointing else 0)

    @property
    def token(self) -> int:
        """What a forward and backward pass takes for each token; the memory of attention grows no faster."""
        return self.activations + self.passing

    @property
    def snapshot(self) -> int:
        """The copy that run.async_save writes a checkpoint from, on the rank that takes most.

        The trained weights and the optimizer's state, the critic's too, and a reference policy that is reset. Of a
        model in shards that is its part of the state, and all weights, gathered.
        """
        weights, state = self.trained_weights if self.shards == 1 else self.weights, self.state
        if self.critic is not None:
            weights, state = weights + self.critic.trained_weights, state + self.critic.state
        held = (self.reference if self.config.algo.reference_every else 0) + self.average
        return weights + held + state // self.shards

    def cache(self, row: int | None = None) -> int:
        """Return what the torch sampler takes beside what is held.

        Keys and values of all layers for sampler.batch_size completions, at most sampler.cache_gib, in one layer a copy
        for every head, and the logits of a step. row: the tokens of a rollout of several turns, whose rows share no
        prompt after the first.
        """
        shape, r = self.shape, self.config.rollout
        rows = min(self.config.sampler.batch_size, r.problems_per_step * r.group_size)
        cache = 2 * self.number * shape.layers * shape.kv_width * rows * (row or r.max_new_tokens)
        if self.config.sampler.cache_gib is not None:
            cache = min(cache, int(self.config.sampler.cache_gib * 2**30))
        repeated = 2 * self.number * shape.heads_width * rows * (row or r.max_new_tokens + PROMPT)
        return cache + repeated + SAMPLED_LOGITS * FP32 * rows * shape.vocabulary


def microbatch_tokens(policy: Trained, config: Config, teacher: int = 0) -> int:
    """Return the most tokens of a microbatch: `wanted_tokens`, or fewer where the GPU's memory is short.

    teacher: parameters of another model that teaches the policy.
    """
    tokens = wanted_tokens(config)
    return min(tokens, fitting_tokens(policy, config, teacher) or tokens)


def wanted_tokens(config: Config) -> int:
    """Return the most tokens of a microbatch where memory does not matter."""
    return config.optim.tokens_per_microbatch or MICROBATCH


def usable_share(config: Config) -> float:
    """Return the share of a GPU's memory that microbatches may fill: all of it where the settings say how large."""
    return 1.0 if config.optim.tokens_per_microbatch else 1 - MARGIN


def fitting_tokens(policy: Trained, config: Config, teacher: int = 0) -> int | None:
    """Return the tokens of a microbatch that the model's GPU has memory for, by the estimate; None: no bound is known.

    A function of the kind of GPU and of the settings, not of what happens to be free: a resumed run cuts the same
    microbatches. Raises no error where not even one token fits: the estimate may be wrong, and one row runs alone.
    """
    memory = gpu_memory(policy.device)
    if memory is None or (shape := shape_of(policy)) is None:
        return None
    share = engine_share(config, torch.cuda.device_count(), training=True)
    return tokens_that_fit(replace(shape, teacher=teacher), config, memory, usable_share(config) - share)


def gpu_memory(device: torch.device) -> int | None:
    """Return the bytes of a GPU; None for another device."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None


def peak_memory(device: torch.device) -> float:
    """Return the most memory in GiB since this process began: allocated on a GPU, else resident."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def engine_share(config: Config, gpus: int, *, training: bool) -> float:
    """Return the share of a trainer's GPU that the sampler's engine has while it samples, or during the training.

    0 for one that sleeps meanwhile, for servers that run elsewhere, and for those that the run starts where the machine
    has several GPUs.
    """
    sampler = config.sampler
    if isinstance(sampler, TorchSamplerConfig) or (training and sampler.sleep):
        return 0.0
    apart = isinstance(sampler, VLLMServerConfig) and (bool(sampler.url) or gpus > 1)
    return 0.0 if apart else sampler.share(apart=False)


def tokens_that_fit(shape: Shape, config: Config, memory: int, share: float = 1.0) -> int:
    """Return the tokens of a microbatch that fit into a share of a GPU's bytes, of which SPARE are left over."""
    estimate = Estimate(shape, config, config.model.shard)
    room = share * memory - SPARE - estimate.fixed_bytes(memory)
    return max(1, int(room / estimate.token))
