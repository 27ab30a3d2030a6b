"""The Learner: policy, optimizer, reference policy and critic; adaptive coefficients, resets of the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor

from rlvr.config import AlgoConfig, Config
from rlvr.core.types import Group
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.critic import Critic
from rlvr.model.optim.sharding import fill, full, local

from ..checkpoint.checkpoint import REFERENCE, TEACHER
from .distillation.teacher import Teacher
from .token_values import TokenValues


@dataclass
class Learner:
    """The policy and its optimizer, and the frozen reference policy, the critic and the teacher where the algorithm
    needs them.

    The critic has its own optimizer. adapted: present values of the coefficients that adapt. mix: `mix(n)` adds the
    gradient of the pretraining mix for update n, and returns its loss. rollbacks: see rlvr.training.saving.
    token_values: of a few rollouts of the step.
    """

    config: Config
    policy: Policy
    optimizer: torch.optim.Optimizer
    accelerator: Accelerator
    reference: Policy | None = None
    critic: Critic | None = None
    teacher: Teacher | None = None
    adapted: dict[str, float] = field(default_factory=dict)
    mix: Callable[[int], float] | None = None
    rollbacks: list[dict[str, Any]] = field(default_factory=list)
    token_values: TokenValues = field(init=False)

    def __post_init__(self) -> None:
        self.token_values = TokenValues(self.config.run.token_values)

    @property
    def lr_scale(self) -> float:
        """The factor on the policy's learning rate: the product of those of all rollbacks so far."""
        return prod(rollback["lr"] for rollback in self.rollbacks)

    @property
    def algo(self) -> AlgoConfig:
        """The algorithm's settings as they hold now."""
        algo = self.config.algo
        changed: dict[str, Any] = {name: value for name, value in self.adapted.items() if hasattr(algo, name)}
        return replace(algo, **changed) if changed else algo


LARGEST_ERROR = 0.2
BONUS = "entropy_bonus"  # the adapted weight of the bonus, kept also while entropy is above the target


def adapt_coefficient(coef: float, kl: float, target: float, horizon: int, completions: int) -> float:
    """Return coef (1 + e n / horizon), at least 0 (arXiv:1909.08593, section 2.2).

    n: completions. e: kl / target - 1, clipped to [-.2, .2]. verl's AdaptiveKLController and TRL's former one agree.
    """
    error = min(max(kl / target - 1, -LARGEST_ERROR), LARGEST_ERROR)
    return max(coef * (1 + error * completions / horizon), 0.0)


def adapt_coefficients(
    learner: Learner, step: int, stats: Mapping[str, float], groups: Sequence[Group]
) -> dict[str, float]:
    """Adapt the coefficients, reset the reference policy and let the teacher follow after a step's update (from 1).

    stats: metrics of the step. Returns the adaptive coefficients that this step had, as metrics.
    """
    algo, found, state = learner.algo, dict[str, float](), learner.adapted
    if algo.kl_target is not None and learner.reference is not None:
        found["kl_coef"] = algo.kl_coef
        if "kl" in stats:
            scored = sum(verdict.score is not None for group in groups for verdict in group.verdicts)
            state["kl_coef"] = adapt_coefficient(algo.kl_coef, stats["kl"], algo.kl_target, algo.kl_horizon, scored)
    if algo.entropy_target is not None:
        found["entropy_coef"] = algo.entropy_coef
        if "entropy" in stats:
            low = stats["entropy"] <= algo.entropy_target
            weight = state.get(BONUS, learner.config.algo.entropy_coef)
            change = algo.entropy_coef_delta if low else -algo.entropy_coef_delta
            state[BONUS] = min(max(weight + change, 0.0), algo.entropy_coef_max)
            state["entropy_coef"] = state[BONUS] if low else 0.0
    if algo.reference_every and step % algo.reference_every == 0:
        reset_reference(learner, algo.reference_mix)
    if learner.teacher is not None:
        learner.teacher.follow(learner.policy)
    return found


@torch.no_grad()
def reset_reference(learner: Learner, mix: float) -> None:
    """Set the reference policy's weights to mix x the policy's + (1 - mix) x its own, each in its own dtype."""
    assert learner.reference is not None
    present = dict(learner.policy.model.named_parameters())
    for name, weight in learner.reference.model.named_parameters():
        own, new = local(weight), local(present[name].detach()).to(local(weight).device)
        own.copy_(new if mix == 1 else torch.lerp(own.float(), new.float(), mix))


def was_reset(learner: Learner, step: int) -> bool:
    """Return whether the reference policy has been reset by the end of a step (from 1): a checkpoint must hold it."""
    every = learner.algo.reference_every
    return learner.reference is not None and 0 < every <= step


def held_tensors(learner: Learner, step: int) -> dict[str, dict[str, Tensor]]:
    """Return the weights that a checkpoint holds beside the trained ones, by file: of a reference that was reset, and
    of a teacher that follows the policy. On the CPU; not copied. All processes must call it.
    """
    found = {REFERENCE: reference_tensors(learner)} if was_reset(learner, step) else {}
    if learner.teacher is not None and (tensors := learner.teacher.tensors(learner.policy)):
        found[TEACHER] = tensors
    return found


def reference_tensors(learner: Learner) -> dict[str, Tensor]:
    """Return the reference policy's full weights on the CPU, not copied if on it. Every rank must call this."""
    assert learner.reference is not None
    named = learner.reference.model.named_parameters()
    return {name: full(weight.detach()).contiguous().cpu() for name, weight in named}


@torch.no_grad()
def restore_reference(learner: Learner, folder: Path, state: Mapping[str, Any]) -> None:
    """Restore coefficients, reference policy and teacher from a checkpoint if it has them. state: its state.json."""
    learner.adapted = dict(state.get("adapted", {}))
    if learner.teacher is not None and (folder / TEACHER).exists():
        learner.teacher.load(load_file(folder / TEACHER))
    if learner.reference is None or not (folder / REFERENCE).exists():
        return
    tensors = load_file(folder / REFERENCE)
    for name, weight in learner.reference.model.named_parameters():
        fill(weight, tensors[name])
