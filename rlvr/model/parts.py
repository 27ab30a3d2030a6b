"""Models whose weights are read in parts: first an empty model, then from safetensors what this process holds of it."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file
from transformers.utils.hub import get_checkpoint_shard_files

from rlvr.config import ModelConfig
from rlvr.core.files.models import Place
from rlvr.model.optim.sharding import fill


def make_empty_model(place: Place, config: ModelConfig, dtype: torch.dtype) -> Any:
    """Return the causal LM of a folder or hub name with its weights on the meta device, as transformers makes it."""
    trust = {"trust_remote_code": config.trust_remote_code}
    attention = {} if config.attention == "auto" else {"attn_implementation": config.attention}
    settings = AutoConfig.from_pretrained(place.name, **place.options(), **trust)
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(settings, dtype=dtype, **trust, **attention)
    with suppress(OSError):  # there may be none
        model.generation_config = GenerationConfig.from_pretrained(place.name, **place.options())
    model.tie_weights()
    return model


def weight_files(place: Place) -> list[Path]:
    """Return the safetensors files of a folder or hub name; none where it has weights in another format."""
    options = {**place.options(), "_raise_exceptions_for_missing_entries": False}
    single = cached_file(place.name, SAFE_WEIGHTS_NAME, **options)
    if single is not None:
        return [Path(single)]
    index = cached_file(place.name, SAFE_WEIGHTS_INDEX_NAME, **options)
    if index is None:
        return []
    return [Path(file) for file in get_checkpoint_shard_files(place.name, index, **place.options())[0]]


def holds_every_weight(model: Any, files: list[Path]) -> bool:
    """Return whether files hold every weight of a model by its name and in its shape.

    They need not: transformers renames weights, and joins those of experts.
    """
    shapes: dict[str, list[int]] = {}
    for file in files:
        with safe_open(file, "pt") as stored:
            shapes |= {name: stored.get_slice(name).get_shape() for name in stored.keys()}  # noqa: SIM118
    persistent = [
        name for name in model.state_dict() if name not in dict(model.named_parameters(remove_duplicate=False))
    ]
    weights = {name: list(weight.shape) for name, weight in model.named_parameters()}
    return not persistent and all(shapes.get(name) == shape for name, shape in weights.items())


def read_weights(model: Any, files: list[Path]) -> None:
    """Fill the weights of a model that `fits` the files, reading of each what this process holds."""
    with ExitStack() as stack:
        opened = [stack.enter_context(safe_open(file, "pt")) for file in files]
        where = {name: stored for stored in opened for name in stored.keys()}  # noqa: SIM118
        for name, weight in model.named_parameters():
            fill(weight, where[name].get_slice(name))
