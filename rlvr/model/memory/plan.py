"""The memory that a run needs on each GPU, from its settings and the model's config, before anything is loaded.

The formulas are those of estimate.py. benchmarks/memory_plan.py compares them with measured peaks.
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

from rlvr.config import Config, ModelConfig, TorchSamplerConfig
from rlvr.config.settings import carry

from ..load.gguf import find_converted
from ..load.pretrained import check_decoder, load_errors_as_value_error
from .estimate import PROMPT, SPARE, Estimate, Shape, engine_share, shape_of, usable_share, wanted_tokens

STAGES = ("sampling", "training", "update")
CACHE_SHARE = 0.6  # of the free memory of a GPU, which the torch sampler's keys and values may take
MOST_GPUS = 1024
GIB = 2**30
ENOUGH = 8192  # tokens of a microbatch; more make a step little faster
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
    gpus: int = 1,
) -> Plan:
    """Return the plan of a run on GPUs of `memory` bytes, its weights and their state cut into `shards`.

    A microbatch has at most `wanted_tokens` tokens, fewer where memory is short, and at least one row.
    gpu False: a run on a CPU, whose microbatches are never cut by memory. turns: rollouts have several turns, and rows
    hold the replies; context: the model's context length, which bounds the rows. gpus: of the machine, some of which
    servers may have for themselves.
    """
    e = Estimate(shape, config, shards)
    items = [*held_items(e), *passing_items(e)]
    engine = engine_item(config, memory, gpus)
    items += [engine] if engine is not None else []
    items += [throughout("context, fragments", SPARE)] if gpu else []
    tokens, longest = wanted_tokens(config), longest_row(config, turns, context)
    if gpu:
        taken = max(e.chunk(memory), e.reduce_buffer) + sum(item.training for item in items)
        room = int(usable_share(config) * memory) - taken
        tokens = min(tokens, room // e.token)
    tokens = max(tokens, longest)
    kept = tokens * e.activations
    items.append(Item("activations", 0, kept, 0))
    # The logits are gone when the layers' backward passes begin, and the activations when these end.
    chunk = e.chunk(memory if gpu else None, tokens)
    layer, last = tokens * e.passing + e.reduce_buffer, e.last - kept
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


def choose_checkpointing(
    shape: Shape, config: Config, *, memory: int, gpus: int = 1, turns: bool = False, context: int | None = None
) -> Config:
    """Return the config with model.gradient_checkpointing as it says or, where it does not, as the plan has it.

    It is off where a GPU of `memory` bytes has room for microbatches of ENOUGH tokens and of one row without it.
    """
    if config.model.gradient_checkpointing is not None:
        return config
    kept, recomputed = (
        replace(config, model=replace(config.model, gradient_checkpointing=chosen)) for chosen in (False, True)
    )
    plan = make_plan(shape, kept, memory=memory, shards=config.model.shard, gpus=gpus, turns=turns, context=context)
    has_room = plan.total("training") <= usable_share(config) * memory
    return kept if has_room and plan.tokens >= min(ENOUGH, wanted_tokens(config)) else recomputed


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
        throughout("teacher", e.teacher // e.shards),
    ]
    if e.critic is not None:
        held = e.critic.trained_weights + here * e.critic.state
        items.append(throughout("critic, its optimizer", held // e.shards))
    return items


def passing_items(e: Estimate) -> list[Item]:
    """Return what a pass takes beside the tokens: copies of weights, those gathered from other GPUs, a bucket."""
    samples = isinstance(e.config.sampler, TorchSamplerConfig)
    copy = e.autocast_copy
    items = [Item("weights in bfloat16", samples * copy, copy, 0)] if copy else []
    if e.shards > 1:
        # The torch sampler has a whole copy beside the shards.
        items.append(Item("gathered weights", samples * e.whole + e.left, e.gather_buffer, e.left))
    if e.bucket:
        items.append(Item("bucket of the update", 0, 0, e.bucket))
    return items


def engine_item(config: Config, memory: int, gpus: int) -> Item | None:
    """Return vLLM's share of a trainer's GPU; None where it has none."""
    sampling, training = (int(engine_share(config, gpus, training=stage) * memory) for stage in (False, True))
    return Item("vLLM", sampling, training, training) if sampling else None


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
    stored_wide = not config.model.lora_rank and config.model.weights != "bfloat16" and shards == 1
    if stored_wide and config.model.dtype != "float32":
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
        return make_plan(shape, changed, memory=memory, shards=count, gpus=gpus, turns=turns, context=context).fits

    shardable = config.optim.name == "adamw" and not config.optim.offload and config.model.weights == "float32"
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


def warning_of_plan(
    shape: Shape, config: Config, *, memory: int, gpus: int, turns: bool = False, context: int | None = None
) -> str:
    """Return why a run may not do on GPUs of `memory` bytes what its settings say, and what to change; "" if it may.

    Either the plan does not fit, or its microbatches have a single row each. The estimate may be wrong, so the run is
    not refused. turns, context: see `make_plan`.
    """
    shards = config.model.shard
    plan = make_plan(shape, config, memory=memory, shards=shards, gpus=gpus, turns=turns, context=context)
    if not plan.fits:
        told = advice(shape, config, memory=memory, gpus=gpus, shards=shards, turns=turns, context=context)
        return f"by its plan the run needs {plan.peak / GIB:.1f} of the GPU's {memory / GIB:.1f} GiB: {told}"
    asked, row = wanted_tokens(config), longest_row(config, turns, context)
    if plan.tokens < min(asked, 2 * row):
        return (
            f"the GPU's {memory / GIB:.1f} GiB have room for microbatches of one row of up to {row} tokens, where "
            f"they would have {asked}; what saves memory: `rlvr doctor --plan`"
        )
    return ""


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


def with_teacher(shape: Shape, config: Config) -> Shape:
    """Return the shape of a policy with the parameters of another model that teaches it in its process.

    Raises ValueError as `model_settings`.
    """
    if config.teacher is None or config.teacher_kind != "model":
        return shape
    assert config.teacher.name is not None
    model, trust = config.teacher.model_beside(config.model), config.model.trust_remote_code
    return replace(shape, teacher=shape_of_config(known_or_read(model), trust_remote_code=trust).parameters)


def known_or_read(model: ModelConfig) -> Any:
    """Return the transformers config of a well-known model without a network; of others as `model_settings`."""
    known = None if Path(model.name).exists() else known_settings(model.name)
    return model_settings(model) if known is None else known


def model_settings(model: ModelConfig) -> Any:
    """Return the transformers config of a model; of an adapter, its base's.

    Raises ValueError where it does not exist or is no causal LM. Not for the built-in tiny model.
    """
    name, trust = model.name, model.trust_remote_code
    folder = Path(name).expanduser()
    with load_errors_as_value_error(name):
        if (folder / "config.json").is_file():  # it may have no weights, and no tokenizer
            settings = AutoConfig.from_pretrained(folder, trust_remote_code=trust)
        else:
            source = find_converted(name, model.revision)
            settings = AutoConfig.from_pretrained(
                source.weights.name, **source.weights.options(), trust_remote_code=trust
            )
    check_decoder(settings, name)
    return settings


# The shapes of well-known models: `rlvr doctor --plan` needs no network for them.
FAMILIES = Path(__file__).with_name("known_models.txt")
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def known_models() -> dict[str, dict[str, Any]]:
    """Return the settings of all known models by name."""
    known: dict[str, dict[str, Any]] = {}
    for line in FAMILIES.read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        if not line.startswith(" "):
            template, kind, context, tied = line.split()
            name, _, ending = template.partition("[")
            continue
        size, *numbers = line.split()
        settings = dict(zip((*SIZES, "vocab_size", "head_dim"), map(int, numbers), strict=True))
        settings |= {"tie_word_embeddings": size in tied.split(","), "max_position_embeddings": int(context)}
        for end in dict.fromkeys(("", ending.rstrip("]"))):
            known[name.format(size) + end] = {"model_type": kind, **settings}
    return known


def known_settings(name: str) -> Any | None:
    """Return transformers' config of a well-known model, with the sizes that memory depends on; None for another."""
    settings = known_models().get(name)
    if settings is None:
        return None
    special = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    return AutoConfig.for_model(settings.pop("model_type"), **settings, **special)
