"""Settings of the group `critic`, which exists with algorithms that train one (PPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlvr.config.group import ADVANCED, Group, Used
from rlvr.config.quantities import COUNT_OR_NONE, LEARNING_RATE, POSITIVE

WITH_HEAD = Used(lambda config: config.critic is not None and config.critic.kind == "head", "with --critic.kind head")


@dataclass(frozen=True)
class CriticConfig(Group):
    """The critic (value function): predicts from each token the reward that is still to come."""

    kind: Literal["separate", "head"] = "separate"
    """separate: a second model, initialised from the policy. head: a value head on the policy itself."""
    lr: Annotated[float, LEARNING_RATE] = 1e-5
    """Peak learning rate of the critic's own weights; it follows the policy's schedule."""
    warmup: Annotated[int, COUNT_OR_NONE, ADVANCED] = 0
    """First steps in which only the critic learns (with kind head: only the head)."""
    value_clip: Annotated[float | None, POSITIVE, ADVANCED] = 0.2
    """Value clipping range around the old value (PPO). None: no clipping."""
    value_coef: Annotated[float, POSITIVE, WITH_HEAD] = 0.1
    """Weight of the value loss next to the policy loss (0.1 is TRL's default)."""
