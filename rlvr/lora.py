"""LoRA adapters on a model, for policies and for reward models."""

from __future__ import annotations

from typing import Any, Protocol

import torch


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
    """The model with LoRA adapters, all else frozen but the modules named in `trained_whole`.

    The adapter's initial weights depend on the seed alone. `task_type`: peft's, CAUSAL_LM or SEQ_CLS.
    """
    from peft import LoraConfig, get_peft_model

    names = [name.strip() for name in config.lora_targets.split(",") if name.strip()]
    targets: str | list[str] = "all-linear" if names == ["all-linear"] else names
    lora = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        target_modules=targets,
        modules_to_save=trained_whole,
        task_type=task_type,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return get_peft_model(model, lora)
