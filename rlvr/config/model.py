"""The groups model, optim and critic."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from rlvr.core.files.models import check_path

from .settings import (
    ADAM_DECAY,
    ADVANCED,
    COUNT,
    COUNT_OR_NONE,
    LEARNING_RATE,
    POSITIVE,
    RESUMABLE,
    SHARE,
    WEIGHT,
    Group,
    Rules,
    Used,
)
from .shared import AttentionSetting, LoadSettings, LoRASettings, ShardSetting

WITH_ALL_WEIGHTS = Used(lambda config: config.model.lora_rank == 0, "with --model.lora-rank 0")
FORM = "expected name=value, such as enable_thinking=false"
WITH_TINY = Used(lambda config: config.model.name == "tiny", "with --model.name tiny")


@dataclass(frozen=True)
class ModelConfig(LoRASettings, ShardSetting, AttentionSetting, LoadSettings):
    """The policy: the model that is trained."""

    name: str = "tiny"
    """Model to train: a GGUF file, or the hub name or folder of a causal LM or LoRA adapter. An adapter is merged into
    its base, or with lora_rank trained further. tiny: a small randomly initialised model for the task's alphabet."""
    weights: Annotated[Literal["float32", "bfloat16"], ADVANCED, WITH_ALL_WEIGHTS] = "float32"
    """Dtype that trained weights are stored in. bfloat16 alone saves no memory; with optim.offload it does. Bytes per
    weight for weight, gradient and optimizer: 2 + 4 + 12 with bfloat16, whose optimizer keeps a float32 copy in which
    small updates add up; 2 + 4 on the GPU with bfloat16 and offload; 4 + 4 + 8 with float32, and 2 for autocast's
    copy."""
    gradient_checkpointing: Annotated[bool | None, RESUMABLE] = None
    """Recompute activations in the backward pass: less memory, about a third slower. None: on a GPU it is on if
    microbatches of 8,192 tokens would not fit without it (see `rlvr doctor --plan`)."""
    chat_template: Annotated[Path | None, ADVANCED] = None
    """File with a chat template (Jinja) in place of the tokenizer's, saved with the model. Rollouts of several turns
    need one that leaves earlier turns as they are."""
    chat_option: Annotated[tuple[str, ...], ADVANCED] = ()
    """Variables of the chat template, as name=value with a value in JSON: enable_thinking=false. Saved with the
    model, as a line at the start of its template."""
    tiny_tokens: Annotated[str, ADVANCED, WITH_TINY] = "."
    """Regular expression of the tiny model's tokens. The default makes each character a token."""
    tiny_layers: Annotated[int, COUNT, ADVANCED, WITH_TINY] = 4
    """Layers of the tiny model."""
    tiny_width: Annotated[int, COUNT, ADVANCED, WITH_TINY] = 128
    """Width of the tiny model's hidden states, a multiple of 32 (the size of an attention head)."""

    def rules(self, at: str) -> Rules:
        check_path(self.name)
        return [
            (bool(self.name.strip()), f"{at}name is empty; expected a hub name, a folder, or tiny"),
            *super().rules(at),
            (
                self.chat_template is None or self.chat != "never",
                f"{at}chat_template {self.chat_template}, and {at}chat never applies none; leave one of them out",
            ),
            (
                not self.chat_option or self.chat != "never",
                f"{at}chat_option, and {at}chat never applies no template; leave one of them out",
            ),
            *(
                (re.fullmatch(r"[A-Za-z_]\w*=.+", option, re.DOTALL) is not None, f"{at}chat_option {option!r}: {FORM}")
                for option in self.chat_option
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
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


# Settings of the group `optim`.

WITH_DECAY = Used(lambda config: config.optim.schedule != "constant", "with --optim.schedule linear or cosine")

EIGHT_BIT_EXTRA = "optim.name adamw8bit needs bitsandbytes: pip install -e '.[bitsandbytes]'"


@dataclass(frozen=True)
class OptimConfig(Group):
    """AdamW and its learning rate."""

    name: Annotated[Literal["adamw", "adamw8bit"], ADVANCED] = "adamw"
    """adamw8bit: AdamW with both moments in 8 bits, 2 bytes a weight in place of 8 (needs bitsandbytes)."""
    offload: Annotated[bool, ADVANCED, RESUMABLE] = False
    """Keep the optimizer's state in pinned CPU memory and update the weights on the GPU bucket by bucket: the same
    numbers, slower."""
    lr: Annotated[float, LEARNING_RATE] = 1e-6
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Learning rate schedule after the warm-up; linear and cosine decay to min_lr_ratio at the last step."""
    decay_steps: Annotated[int, COUNT_OR_NONE, ADVANCED, WITH_DECAY] = 0
    """Step at which the decay ends. 0: the last step. Set it if the run may be extended later."""
    warmup_steps: Annotated[int, COUNT_OR_NONE] = 0
    """Steps of linear warm-up."""
    min_lr_ratio: Annotated[float, SHARE, ADVANCED, WITH_DECAY] = 0.1
    """Final learning rate as a fraction of lr."""
    betas: Annotated[tuple[float, float], ADAM_DECAY, ADVANCED] = (0.9, 0.99)
    """AdamW's beta1 and beta2."""
    weight_decay: Annotated[float, WEIGHT] = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Annotated[float, POSITIVE] = 1.0
    """Gradients are clipped to this norm."""
    max_update_kl: Annotated[float, WEIGHT, ADVANCED] = 0.05
    """Bound on how far the updates of one step may move the policy: the KL divergence per token between the policies
    before and after, on the step's own tokens. Beyond it the rest of the step's updates are left out (PPO's target_kl),
    with a warning; a single update that moves the policy so far gives the warning too. 0: no bound."""
    tokens_per_microbatch: Annotated[int | None, COUNT, RESUMABLE] = None
    """Tokens per forward and backward pass (gradient accumulation): trades memory for speed, same result. If a GPU's
    memory is short, fewer are taken. None: 16,384, or on a GPU as many as leave a tenth of its memory free."""


# Settings of the group `critic`, which exists with algorithms that train one (PPO).

WITH_HEAD = Used(lambda config: config.critic is not None and config.critic.kind == "head", "with --critic.kind head")


@dataclass(frozen=True)
class CriticConfig(Group):
    """The critic (value function): predicts from each token the reward that is still to come."""

    kind: Literal["separate", "head"] = "separate"
    """separate: a second model, initialised from the policy. head: a value head on the policy itself."""
    lr: Annotated[float, LEARNING_RATE] = 1e-5
    """Peak learning rate of the critic's own weights; it follows the policy's schedule."""
    warmup: Annotated[int, COUNT_OR_NONE, ADVANCED] = 0
    """Number of steps at the start in which only the critic learns (with kind head: only the head)."""
    value_clip: Annotated[float | None, POSITIVE, ADVANCED] = 0.2
    """Value clipping range around the old value (PPO). None: no clipping."""
    value_coef: Annotated[float, POSITIVE, WITH_HEAD] = 0.1
    """Weight of the value loss next to the policy loss (0.1 is TRL's default)."""
