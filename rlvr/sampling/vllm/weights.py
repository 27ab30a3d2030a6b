"""The policy's weights on their way to an engine, one tensor after the other."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, revert_weight_conversion

from rlvr.core.files.cache import cache_root, make_by_content
from rlvr.model.load.policy import Policy
from rlvr.model.optim.sharding import full

LAYER = re.compile(r"(?:.*?\.)?\d+\.")  # up to the number of the decoder layer


def engine_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Yield the policy's weights by their names in a checkpoint, a tied output head under its own name too.

    Adapters are merged. Merged and sharded weights are made one at a time, as they are asked for, and not kept; if the
    weights are sharded, every rank must ask for them. Other weights are not copied. The tensors of a decoder layer
    follow one another.
    """
    causal = policy.causal
    head, embedding = causal.get_output_embeddings(), causal.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    held = {_strip_wrappers(name): value for name, value in causal.state_dict().items() if ".lora_" not in name}
    adapters = _adapters(causal)
    for names in _convert_groups(causal, held):
        for name, value in _convert(
            causal,
            {name: gather_whole(_add_adapters(held[name], adapters.get(name, ())), policy.dtype) for name in names},
        ):
            if not (tied and name == "lm_head.weight"):
                yield name, value
            del value  # otherwise it would be held while the next is made
    if tied:
        # Engines hold a separate copy of the head, which a push without it would leave unchanged.
        yield "lm_head.weight", gather_whole(embedding.weight.detach(), policy.dtype)


def gather_whole(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Gather a sharded tensor in a dtype, and wait until it is there; return any other as it is.

    Every rank must call this for the same tensor. It waits because the reader may run on another stream.
    """
    if not isinstance(value, DTensor):
        return value
    gathered = full(value.to(dtype))
    if gathered.is_cuda:
        torch.cuda.synchronize(gathered.device)
    return gathered


def _strip_wrappers(name: str) -> str:
    """Return the name of a weight without peft's wrappers."""
    return name.replace("base_layer.", "")


def _adapters(causal: Any) -> dict[str, list[Any]]:
    """Return peft's modules by the name of the weight that they change."""
    modules: dict[str, list[Any]] = {}
    for name, module in causal.named_modules():
        if hasattr(module, "get_delta_weight"):
            # Adapters on experts name their parameter; they may be wrapped around one another.
            target = f"{_strip_wrappers(name + '.')}{getattr(module, 'parameter_name', 'weight')}"
            modules.setdefault(target, []).append(module)
    return modules


@torch.no_grad()
def _add_adapters(value: Tensor, modules: Sequence[Any]) -> Tensor:
    """Return a weight with the changes of its adapters added, as a tensor of its own where there are any."""
    for module in modules:
        change = reduce(torch.add, (module.get_delta_weight(adapter) for adapter in module.active_adapters))
        value = change.to(torch.result_type(value, change)).add_(value)
    return value


def _convert_groups(causal: Any, names: Iterable[str]) -> list[list[str]]:
    """Return the names in groups that transformers converts to a checkpoint's names together; most are alone.

    In memory transformers fuses experts and other parts of a layer, so one tensor may be several of a checkpoint.
    """
    conversions = getattr(causal, "_weight_conversions", None)
    if conversions is None:
        conversions = get_model_conversion_mapping(causal, add_legacy=False)
    converters = [c.reverse_transform() for c in reversed(conversions) if isinstance(c, WeightConverter)]
    groups: dict[str, list[str]] = {}
    for name in names:
        found = (converter.rename_source_key(name) for converter in converters)
        target = next((renamed for renamed, pattern in found if pattern is not None), name)
        groups.setdefault(target, []).append(name)
    return list(groups.values())


def _convert(causal: Any, weights: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights that are converted together by their names in a checkpoint, as `save_pretrained` does."""
    found = dict(revert_weight_conversion(causal, weights))
    weights.clear()
    while found:
        name = next(iter(found))
        yield name, found.pop(name)


def layers(weights: Iterable[tuple[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of one decoder layer after the other. A tensor outside of the layers is alone."""
    layer: dict[str, Tensor] = {}
    key = ""
    for name, value in weights:
        found = LAYER.match(name)
        here = found[0] if found else name
        if layer and here != key:
            yield layer
            layer = {}
        layer[name], key = value, here
    if layer:
        yield layer


def parts(weights: Iterable[tuple[str, Tensor]], size: int) -> Iterator[dict[str, Tensor]]:
    """Yield weights in parts of whole layers (see `layers`), of at most `size` bytes or of one layer."""
    part: dict[str, Tensor] = {}
    for layer in layers(weights):
        if part and _bytes(part) + _bytes(layer) > size:
            yield part
            part = {}
        part |= layer
    if part:
        yield part


def _bytes(weights: dict[str, Tensor]) -> int:
    return sum(value.nbytes for value in weights.values())


def engine_folder(policy: Policy) -> Path:
    """Return a folder with config and tokenizer, from which engines start without weights.

    It is kept, since vLLM finds what it has compiled for a model by the model's path.
    """
    return make_by_content(cache_root() / "vllm", partial(write_config, policy))


def write_config(policy: Policy, folder: Path) -> None:
    """Write config and tokenizer as vLLM reads them, without weights."""
    config = copy.deepcopy(policy.causal.config)
    config.architectures = [policy.architecture]
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
