"""LoRA adapters on policies and reward models: made, loaded, merged and saved."""

from __future__ import annotations

import copy
import json
import os
import warnings
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from rlvr.core.files.models import ADAPTER_CONFIG, OWN_BASE, Source

# Lists that peft makes from sets, whose order differs from process to process.
SETS = ("target_modules", "modules_to_save", "exclude_modules", "layers_to_transform")


class LoraSettings(Protocol):
    """The settings of an adapter, as the config groups of both kinds of models hold them."""

    @property
    def lora_rank(self) -> int: ...

    @property
    def lora_alpha(self) -> float: ...

    @property
    def lora_targets(self) -> str: ...


def with_adapter(
    model: Any, config: LoraSettings, *, seed: int, task_type: str, trained_whole: list[str] | None = None
) -> Any:
    """Return the model with LoRA adapters; all else is frozen, except the modules named in `trained_whole`.

    The adapter's initial weights depend only on the seed. task_type: peft's, CAUSAL_LM or SEQ_CLS.
    """
    from peft import LoraConfig, get_peft_model

    names = target_names(config.lora_targets)
    targets: str | list[str] = "all-linear" if names == ["all-linear"] else names
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=targets,
        modules_to_save=trained_whole,
        task_type=task_type,
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from transformers, about how peft calls it
        torch.manual_seed(seed)
        return get_peft_model(model, lora)


def target_names(targets: str) -> list[str]:
    """Return the names in lora_targets."""
    return [name.strip() for name in targets.split(",") if name.strip()]


def check_settings(source: Source, config: LoraSettings) -> None:
    """Raise ValueError where an adapter that is to be trained further differs from `config`.

    Targets are compared where they are named; with all-linear the adapter keeps its own.
    """
    assert source.adapter is not None
    held, name = source.adapter_config, source.adapter.name
    if held.get("peft_type") != "LORA":
        raise ValueError(
            f"adapter {name!r} is of the type {held.get('peft_type')!r} and only LORA is trained further; "
            "set --model.lora-rank 0 to merge it and train all weights"
        )
    settings = {"rank": (held.get("r"), config.lora_rank), "alpha": (held.get("lora_alpha"), config.lora_alpha)}
    for setting, (theirs, ours) in settings.items():
        if theirs != ours:
            raise ValueError(
                f"adapter {name!r} has {setting} {theirs:g} and model.lora_{setting} is {ours:g}; set --model.lora-"
                f"{setting} {theirs:g} to train it further, or --model.lora-rank 0 to merge it and train all weights"
            )
    names, own = target_names(config.lora_targets), held.get("target_modules")
    if names != ["all-linear"] and (not isinstance(own, list) or set(names) != set(own)):
        raise ValueError(f"adapter {name!r} is on {own} and model.lora_targets names {names}; leave lora_targets out")


def load_adapter(model: Any, source: Source, *, trained: bool) -> Any:
    """Return the base model with the adapter of `source`, trainable or frozen.

    Raises ValueError where adapter and base do not fit. Leaves torch's global random state as it is.
    """
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict, load_peft_weights

    assert source.adapter is not None
    place = source.adapter
    config = PeftConfig.from_pretrained(place.name, **place.options())
    if not hasattr(model, "prepare_inputs_for_generation"):
        config.task_type = None  # a policy's adapter on the trunk of a classifier
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)  # from peft, about missing keys and tied weights: handled here
        adapted = PeftModel.from_pretrained(model, place.name, is_trainable=trained, config=config, **place.options())
        held = load_peft_weights(place.name, device="cpu", **place.options()).keys()
        wanted = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
    missing, left = sorted(wanted - held), sorted(key for key in held - wanted if "lora_" in key)
    if missing or left:
        raise ValueError(
            f"adapter {place.name!r} does not fit its base {source.weights.name!r}: {len(missing)} tensors are missing "
            f"and {len(left)} have no place, such as {(missing or left)[0]}"
        )
    if source.own_base:
        model.name_or_path = ""  # the base cannot be found by it again: `save_adapter` writes it beside the adapter
    return adapted


def merge_adapter(adapted: Any) -> Any:
    """Return the base model with its adapter merged into the weights.

    Tied embeddings and LM head are untied where the adapter changes one of them.
    """
    base = adapted.get_base_model()
    head, embedding = base.get_output_embeddings(), base.get_input_embeddings()
    inner = [getattr(layer, "base_layer", layer) for layer in (head, embedding)]
    tied = head is not None and inner[0].weight is inner[1].weight
    if tied and (inner[0] is not head or inner[1] is not embedding):
        inner[0].weight = nn.Parameter(inner[0].weight.detach().clone(), requires_grad=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", UserWarning)  # from peft, about tied weights
        merged = adapted.merge_and_unload()
    head, embedding = merged.get_output_embeddings(), merged.get_input_embeddings()
    if head is not None and head.weight is not embedding.weight:
        merged.config.get_text_config().tie_word_embeddings = False
    return merged.requires_grad_(True)


def save_adapter(adapted: Any, folder: Path | str) -> None:
    """Write an adapter as peft loads it, with the same bytes from every process.

    A base in a folder or file is named by its absolute path. A base without a name (the built-in tiny model) is written
    into the folder `base` beside the adapter.
    """
    base = adapted.get_base_model()
    name = getattr(base, "name_or_path", "")
    place = OWN_BASE if not name else os.path.abspath(name) if Path(name).exists() else name
    for config in adapted.peft_config.values():
        config.base_model_name_or_path = place
    # Embeddings are never trained whole; unless told so, peft asks the hub for the base's vocabulary at each save.
    adapted.save_pretrained(folder, save_embedding_layers=False)
    path = Path(folder) / ADAPTER_CONFIG
    written = json.loads(path.read_text())
    for key in SETS:
        if isinstance(written.get(key), list):
            written[key] = sorted(written[key])
    path.write_text(json.dumps(written, indent=2, sort_keys=True))
    if not name:
        copy.deepcopy(adapted).unload().save_pretrained(Path(folder) / OWN_BASE)
