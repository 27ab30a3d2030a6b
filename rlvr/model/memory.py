"""An estimate of the GPU memory of a run, from the model's size and the config: the source of the recipes' figures.

What is held throughout is exact, the rest is an estimate that no GPU has confirmed: allocator, CUDA context and
fragmentation come on top, some 2 to 4 GB. GB = 10^9 bytes; a GPU "of 80 GB" has 85 of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from rlvr.config import Config
from rlvr.model.logprobs import MAX_LOGITS

FP32, BF16 = 4, 2
# Tensors of a layer's inner work that its recomputed backward pass holds, in widths of the hidden and of the MLP's
# states: norms, queries, attention, residuals; gate, up, their product, and gradients of these.
HIDDEN_TENSORS, MLP_TENSORS = 8, 6
LOGIT_TENSORS = 6  # logits, log-probabilities, probabilities, their product for the entropy, and two gradients
PROMPT = 150  # tokens of a prompt, where it matters little


@dataclass(frozen=True)
class Shape:
    """A decoder-only model: parameters in all, layers, width of the hidden and MLP states, and of all (key) heads."""

    parameters: int
    layers: int
    hidden: int
    mlp: int
    heads_width: int
    kv_width: int

    def adapters(self, rank: int) -> int:
        """Return the parameters of LoRA adapters of this rank on all linear layers but the LM head."""
        attention = 2 * (self.hidden + self.heads_width) + 2 * (self.hidden + self.kv_width)
        return self.layers * rank * (attention + 3 * (self.hidden + self.mlp))


QWEN_15B = Shape(1_543_714_304, layers=28, hidden=1536, mlp=8960, heads_width=1536, kv_width=256)
QWEN_3B = Shape(3_085_938_688, layers=36, hidden=2048, mlp=11008, heads_width=2048, kv_width=256)


def held_bytes(shape: Shape, config: Config) -> int:
    """Return the bytes that are held through an optimizer step, whatever the batch.

    Full training: fp32 weights, gradients and AdamW's two moments, 16 bytes a parameter; 4 more with a reference
    policy, 16 more with a separate critic. LoRA: bf16 weights, and 16 bytes per parameter of the adapters; the
    reference is the model without them.
    """
    rank = config.model.lora_rank
    critic = config.algo.row.critic and config.critic.kind == "separate"
    trained = shape.adapters(rank) if rank else shape.parameters
    frozen = shape.parameters * BF16 if rank else 0
    reference = shape.parameters * FP32 if config.algo.needs_reference and not rank else 0
    return 4 * FP32 * trained * (1 + critic) + frozen * (1 + critic) + reference


def training_bytes(shape: Shape, config: Config) -> int:
    """Return the peak while a microbatch is trained on, in bf16 with gradient checkpointing.

    What is held; autocast's bf16 copy of the fp32 weights; each layer's input for each token; what one layer's backward
    pass recomputes; the logits of a chunk of tokens.
    """
    tokens, lora = config.optim.tokens_per_microbatch, bool(config.model.lora_rank)
    copy = 0 if lora else shape.parameters * BF16
    inputs = shape.layers * tokens * shape.hidden * (BF16 if lora else FP32)
    layer = tokens * (HIDDEN_TENSORS * shape.hidden * FP32 + MLP_TENSORS * shape.mlp * BF16)
    return held_bytes(shape, config) + copy + inputs + layer + LOGIT_TENSORS * MAX_LOGITS * FP32


def sampling_bytes(shape: Shape, config: Config) -> int:
    """Return the peak while the torch sampler runs, with completions of full length: no gradients, but a cache.

    Keys and values of all layers for rollout.batch_size completions, in bf16, and in one layer a copy for every head.
    """
    rank, r = config.model.lora_rank, config.rollout
    rows = min(r.batch_size, r.problems_per_step * r.group_size)
    gradients = FP32 * (shape.adapters(rank) if rank else shape.parameters)
    copy = 0 if rank else shape.parameters * BF16
    cache = 2 * BF16 * shape.layers * shape.kv_width * rows * r.max_new_tokens
    repeated = 2 * BF16 * shape.heads_width * rows * (r.max_new_tokens + PROMPT)
    return held_bytes(shape, config) - gradients + copy + cache + repeated


def peak_bytes(shape: Shape, config: Config) -> int:
    """Return the larger of the two peaks."""
    return max(training_bytes(shape, config), sampling_bytes(shape, config))
