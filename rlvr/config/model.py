"""Settings of the group `model`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rlvr.config.group import ADVANCED, Rules, Used
from rlvr.config.quantities import COUNT
from rlvr.config.shared import AttentionSetting, LoadSettings, LoRASettings, ShardSetting
from rlvr.files.models import check_path

WITH_ALL_WEIGHTS = Used(lambda config: config.model.lora_rank == 0, "with --model.lora-rank 0")
WITH_TINY = Used(lambda config: config.model.name == "tiny", "with --model.name tiny")


@dataclass(frozen=True)
class ModelConfig(LoRASettings, ShardSetting, AttentionSetting, LoadSettings):
    """The policy: the model that is trained."""

    name: str = "tiny"
    """Model to train: hub name or folder of a causal LM or of a LoRA adapter (merged into its base; with lora_rank
    trained further). tiny: a small randomly initialised model for the task's alphabet."""
    weights: Annotated[Literal["float32", "bfloat16"], ADVANCED, WITH_ALL_WEIGHTS] = "float32"
    """What trained weights and their gradients are stored in. bfloat16: half of their memory, and a float32 copy in
    the optimizer's state, in which small updates add up."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third slower."""
    chat_template: Annotated[Path | None, ADVANCED] = None
    """File with a chat template (Jinja) in place of the tokenizer's, saved with the model. Rollouts of several turns
    need one that leaves earlier turns as they are."""
    tiny_tokens: Annotated[str, ADVANCED, WITH_TINY] = "."
    """Regular expression of the tiny model's tokens. The default makes each character a token."""
    tiny_layers: Annotated[int, COUNT, ADVANCED, WITH_TINY] = 4
    """Layers of the tiny model."""
    tiny_width: Annotated[int, COUNT, ADVANCED, WITH_TINY] = 128
    """Width of the tiny model's hidden states, a multiple of 32 (the size of an attention head)."""

    def rules(self, at: str) -> Rules:
        """Return rules about the model's name and the tiny model's tokens."""
        check_path(self.name)
        return [
            (bool(self.name.strip()), f"{at}name is empty; expected a hub name, a folder, or tiny"),
            *super().rules(at),
            (
                self.chat_template is None or self.chat != "never",
                f"{at}chat_template {self.chat_template}, and {at}chat never applies none; leave one of them out",
            ),
            (compiles(self.tiny_tokens), f"{at}tiny_tokens {self.tiny_tokens!r}: expected a regular expression"),
            (self.tiny_width % 32 == 0, f"{at}tiny_width {self.tiny_width}: expected a multiple of 32"),
            (
                self.name != "tiny" or self.revision is None,
                f"{at}revision with the built-in tiny model, which is on no hub; leave it out",
            ),
            (
                self.weights == "float32" or self.dtype != "float32",
                f"{at}dtype float32 with weights stored in bfloat16; set {at}dtype to auto or bfloat16",
            ),
        ]


def compiles(pattern: str) -> bool:
    """Return whether a text is a regular expression."""
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
