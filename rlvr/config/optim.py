"""Settings of the group `optim`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlvr.config.group import ADVANCED, Group, Used
from rlvr.config.quantities import ADAM_DECAY, COUNT, COUNT_OR_NONE, LEARNING_RATE, POSITIVE, SHARE, WEIGHT

WITH_DECAY = Used(lambda config: config.optim.schedule != "constant", "with --optim.schedule linear or cosine")

EIGHT_BIT_EXTRA = (
    "optim.name adamw8bit needs bitsandbytes: pip install 'rlvr[bitsandbytes]', from a checkout pip install -e "
    "'.[bitsandbytes]'"
)


@dataclass(frozen=True)
class OptimConfig(Group):
    """AdamW and its learning rate."""

    name: Annotated[Literal["adamw", "adamw8bit"], ADVANCED] = "adamw"
    """adamw8bit: AdamW with both moments in 8 bits, 2 bytes a weight in place of 8 (needs bitsandbytes)."""
    offload: Annotated[bool, ADVANCED] = False
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
    and a warning is given, as where a single update moves it so far. 0: no bound."""
    tokens_per_microbatch: Annotated[int, COUNT] = 16384
    """Tokens per forward and backward pass (gradient accumulation): trades memory for speed, same result."""
