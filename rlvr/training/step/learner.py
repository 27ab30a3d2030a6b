"""What is trained: the policy, its optimizer, and the models that training holds beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.config import AlgoConfig, Config
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.critic import Critic


@dataclass
class Learner:
    """The policy and its optimizer, and the frozen reference policy and the critic where the algorithm needs them.

    The critic has its own optimizer. adapted: the coefficients that adapt, as they are now. mix: adds the gradient of
    the pretraining mix for an update's number, and returns its loss. rollbacks: see rlvr.training.saving.
    """

    config: Config
    policy: Policy
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    reference: Policy | None = None
    critic: Critic | None = None
    adapted: dict[str, float] = field(default_factory=dict)
    mix: Callable[[int], float] | None = None
    rollbacks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def lr_scale(self) -> float:
        """What the rollbacks so far have multiplied the policy's learning rate by."""
        return prod(rollback["lr"] for rollback in self.rollbacks)

    @property
    def algo(self) -> AlgoConfig:
        """The algorithm's settings as they hold now."""
        algo = self.config.algo
        changed: dict[str, Any] = {name: value for name, value in self.adapted.items() if hasattr(algo, name)}
        return replace(algo, **changed) if changed else algo
