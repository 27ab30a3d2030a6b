"""What is trained: the policy, its optimizer, and the models that training holds beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.config import AlgoSettings, Config
from rlvr.model.critic import Critic
from rlvr.model.policy import Policy
from rlvr.training.demonstrations import Demonstration
from rlvr.training.episodes import Play


@dataclass
class Learner:
    """The policy and its optimizer; the frozen reference policy and the critic, where the algorithm needs them.

    The critic brings its own optimizer. `accelerator` tells which process this is, and sums gradients over all.
    `kl_coef` is the present KL coefficient where it is adapted to a target. `demonstrations` are those of the
    pretraining mix, played by a `plan` in an environment.
    """

    config: Config
    policy: Policy
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    reference: Policy | None = None
    critic: Critic | None = None
    kl_coef: float | None = None
    demonstrations: Sequence[Demonstration] = ()
    plan: Play | None = None

    @property
    def algo(self) -> AlgoSettings:
        """The algorithm's settings as they hold now."""
        algo = self.config.algo
        changed: dict[str, Any] = {} if self.kl_coef is None else {"kl_coef": self.kl_coef}
        return replace(algo, **changed) if changed else algo
