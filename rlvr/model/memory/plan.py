"""The memory that a run needs on each GPU, from its settings and the model's config, before anything is loaded.

The formulas are those of estimate.py. tests/bench/memory_plan.py compares them with measured peaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rlvr.config import Config, TorchSamplerConfig
from rlvr.config.settings import carry
from rlvr.core.files.models import find_model

from ..load.pretrained import check_decoder, load_errors_as_value_error
from .estimate import PROMPT, SPARE, Estimate, Shape, engine_share, shape_of

STAGES = ("sampling", "training", "update")
CACHE_SHARE = 0.6  # of the free memory of a GPU, which the torch sampler's keys and values may take
MOST_GPUS = 1024
LORA_RANK = 32  # of the adapters that are advised


@dataclass(frozen=True)
class Item:
    """Bytes of one kind on a GPU: while completions are sampled, a microbatch is trained on, weights are updated."""

    name: str
    sampling: int
    training: int
    update: int


@dataclass(frozen=True)
class Plan:
    """What each GPU holds, by kind; memory: the bytes it has. tokens: of a microbatch.

    host: bytes of CPU memory, of the rank that takes most.
    """

    items: tuple[Item, ...]
    memory: int
    tokens: int
    host: int

    def total(self, stage: str) -> int:
        """Return the bytes of a stage."""
        return sum(getattr(item, stage) for item in self.items)

    @property
    def peak(self) -> int:
        """The bytes of the largest stage."""
        return max(self.total(stage) for stage in STAGES)

    @property
    def fits(self) -> bool:
        """Whether every stage fits."""
        return self.peak <= self.memory


def make_plan(
    shape: Shape,
    config: Config,
    *,
    memory: int,
    shards: int = 1,
    gpu: bool = True,
    turns: bool = False,
    context: int | None = None,
) -> Plan:
    """Return the plan of a run on GPUs of `memory` bytes, its weights and their state cut into `shards`.

    A microbatch has at most optim.tokens_per_microbatch tokens, fewer where memory is short, and at least one row.
    gpu False: a run on a CPU, whose microbatches are never cut by memory. turns: rollouts have several turns, and rows
    hold the replies; context: the model's context length, which bounds the rows.
    """
    e = Estimate(shape, config, shards)
    items = [*held_items(e), *passing_items(e)]
    engine = engine_item(config, memory)
    items += [engine] if engine is not None else []
    items += [throughout("context, fragments", SPARE)] if gpu else []
    tokens, longest = config.optim.tokens_per_microbatch, longest_row(config, turns, context)
    if gpu:
        room = memory - max(e.chunk(memory), e.summed) - sum(item.training for item in items)
        tokens = min(tokens, room // e.token)
    tokens = max(tokens, longest)
    kept = tokens * e.kept
    items.append(Item("activations", 0, kept, 0))
    # The logits are gone when the layers' backward passes begin, and the activations when these end.
    chunk = e.chunk(memory if gpu else None, tokens)
    layer, last = tokens * e.passing + e.summed, e.last - kept
    items.append(Item("logits, or a layer's gradients", 0, max(chunk, layer, last), 0))
    if isinstance(config.sampler, TorchSamplerConfig):
        cache = e.cache(longest if turns else None)
        if gpu and config.sampler.cache_gib is None:
            free = memory - sum(item.sampling for item in items)
            cache = min(cache, max(0, int(CACHE_SHARE * free)))
        items.append(Item("sampler's cache, logits", cache, 0, 0))
    state = e.state + (0 if e.critic is None else e.critic.state)
    host = state // shards if config.optim.offload else 0
    if config.run.async_save:
        items += [] if gpu else [throughout("copy of a checkpoint", e.snapshot)]
        host += e.snapshot if gpu else 0
    return Plan(tuple(items), memory, tokens, host)


def longest_row(config: Config, turns: bool, context: int | None) -> int:
    """Return the tokens of the longest row, its prompt of PROMPT tokens; with `turns` replies are counted."""
    sampled = config.rollout.max_new_tokens
    return config.rollout.longest_row(PROMPT, sampled, context) if turns else PROMPT + sampled


def held_items(e: Estimate) -> list[Item]:
    """Return what is held throughout a step: weights, gradients, optimizer, reference, critic, in shards."""
    here = 0 if e.config.optim.offload else 1
    gradients = e.gradients // e.shards
    items = [
        throughout("weights", e.weights // e.shards),
        Item("gradients", 0, gradients, gradients),
        throughout("optimizer", here * e.state // e.shards),
        throughout("reference", e.reference // e.shards),
    ]
    if e.critic is not None:
        items.append(throughout("critic, its optimizer", (e.critic.gradients + here * e.critic.state) // e.shards))
    return items


def passing_items(e: Estimate) -> list[Item]:
    """Return what a pass takes beside the tokens: copies of weights, those gathered from other GPUs, a bucket."""
    samples = isinstance(e.config.sampler, TorchSamplerConfig)
    copy = e.autocast_copy
    items = [Item("weights in bfloat16", samples * copy, copy, 0)] if copy else []
    if e.shards > 1:
        # The torch sampler has a whole copy beside the shards.
        items.append(Item("gathered weights", samples * e.weights + e.left, e.gathered, e.left))
    if e.bucket:
        items.append(Item("bucket of the update", 0, 0, e.bucket))
    return items


def engine_item(config: Config, memory: int) -> Item | None:
    """Return vLLM's share of a GPU; None where it has none."""
    sampler = config.sampler
    if isinstance(sampler, TorchSamplerConfig) or getattr(sampler, "url", None):
        return None
    while_training = int(engine_share(config) * memory)
    return Item("vLLM", int(sampler.gpu_memory_utilization * memory), while_training, while_training)


def throughout(name: str, count: int) -> Item:
    """Return an item that is held in every stage."""
    return Item(name, count, count, count)


Change = tuple[str, Callable[[Config], Config]]


def changes(config: Config, shards: int) -> list[Change]:
    """Return the changes of settings that save memory, those that cost least first, as flags and functions."""

    def model(**values: Any) -> Callable[[Config], Config]:
        return lambda c: replace(c, model=replace(c.model, **values))

    def optim(**values: Any) -> Callable[[Config], Config]:
        return lambda c: replace(c, optim=replace(c.optim, **values))

    found: list[Change] = []
    if not config.model.gradient_checkpointing:
        found.append(("--model.gradient-checkpointing", model(gradient_checkpointing=True)))
    if getattr(config.sampler, "sleep", 1) == 0 and config.sampler.name == "vllm" and not config.sampler.max_staleness:
        found.append(("--sampler.sleep 1", lambda c: replace(c, sampler=carry(c.sampler, type(c.sampler), sleep=1))))
    if not config.model.lora_rank and config.model.weights != "bfloat16" and config.model.dtype != "float32":
        found.append(("--model.weights bfloat16", model(weights="bfloat16")))
    if config.optim.name == "adamw" and shards == 1:
        found.append(("--optim.name adamw8bit", optim(name="adamw8bit")))
    if not config.optim.offload and shards == 1:
        found.append(("--optim.offload", optim(offload=True)))
    return found


def advice(
    shape: Shape,
    config: Config,
    *,
    memory: int,
    gpus: int,
    shards: int,
    turns: bool = False,
    context: int | None = None,
) -> str:
    """Return the fewest changes with which a run fits on GPUs of `memory` bytes, as flags; or how many GPUs it needs.

    Shards over all GPUs are tried where there are more GPUs than shards, then LoRA, then more GPUs. turns, context: see
    `make_plan`.
    """

    def fits(changed: Config, count: int = 1) -> bool:
        return make_plan(shape, changed, memory=memory, shards=count, turns=turns, context=context).fits

    shardable = config.optim.name == "adamw" and not config.optim.offload
    counts = [shards, *([gpus] if shardable and gpus > shards else [])]
    for flags, changed, count in combinations(config, counts):
        if fits(changed, count):
            flags += [f"--model.shard {count}"] * (count != shards)
            return f"it fits with {' '.join(flags)}" if flags else "it fits as it is"
    adapted = replace(config.model, lora_rank=LORA_RANK, weights="float32", gradient_checkpointing=True)
    if not config.model.lora_rank and fits(replace(config, model=adapted)):
        recomputed = "" if config.model.gradient_checkpointing else " --model.gradient-checkpointing"
        return f"all weights cannot be trained; it fits with --model.lora-rank {LORA_RANK}{recomputed}"
    for count in more_gpus(gpus) if shardable else []:
        for flags, changed, _ in combinations(config, [count]):
            if fits(changed, count):
                return f"it fits on {count} GPUs with {' '.join([*flags, f'--model.shard {count}'])}"
    return "no setting makes it fit: take a smaller model, or GPUs with more memory"


def combinations(config: Config, counts: Sequence[int]) -> Iterator[tuple[list[str], Config, int]]:
    """Yield changed settings with their flags and numbers of shards: fewer changes first."""
    for number in range(len(changes(config, 1)) + 1):
        for count in counts:
            for chosen in itertools.combinations(changes(config, count), number):
                changed = config
                for _, change in chosen:
                    changed = change(changed)
                yield [flag for flag, _ in chosen], changed, count


def more_gpus(gpus: int) -> Iterator[int]:
    """Yield numbers of GPUs, twice as many each time."""
    while gpus < MOST_GPUS:
        gpus *= 2
        yield gpus


def shape_of_config(settings: Any, *, trust_remote_code: bool = False) -> Shape:
    """Return the shape of the model of a transformers config, which is made without memory for its weights.

    Raises ValueError for a model whose sizes have other names in its config.
    """
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings, trust_remote_code=trust_remote_code)
    empty = SimpleNamespace(model=model, causal=model, device=torch.device("meta"), parameters=list)
    shape = shape_of(empty)
    if shape is None:
        raise ValueError(f"{type(model).__name__}: its config has other names for its sizes, and no plan can be made")
    return shape


def model_settings(config: Config) -> Any:
    """Return the transformers config of the model that a run trains; of an adapter, its base's.

    Raises ValueError where it does not exist or is no causal LM. Not for the built-in tiny model.
    """
    name, trust = config.model.name, config.model.trust_remote_code
    folder = Path(name).expanduser()
    with load_errors_as_value_error(name):
        if (folder / "config.json").is_file():  # it may have no weights, and no tokenizer
            settings = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
        else:
            source = find_model(name, config.model.revision)
            settings = AutoConfig.from_pretrained(
                source.weights.name, **source.weights.options(), trust_remote_code=trust
            )
    check_decoder(settings, name)
    return settings
