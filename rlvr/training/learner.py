"""What is trained: the policy, its optimizer, and the models that training holds beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from accelerate import Accelerator

from rlvr.config import Config
from rlvr.model.critic import Critic
from rlvr.model.policy import Policy


@dataclass
class Learner:
    """The policy and its optimizer; the frozen reference policy and the critic, where the algorithm needs them.

    The critic brings its own optimizer. `accelerator` tells which process this is, and sums gradients over all.
    """

    config: Config
    policy: Policy
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    reference: Policy | None = None
    critic: Critic | None = None
