"""A training run: its parts, put together."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from typing import Protocol

import torch
from accelerate import Accelerator

from rlvr.config import Config
from rlvr.core.traits import BatchVerifier
from rlvr.core.types import Problem, Sampler
from rlvr.model.load.policy import Policy
from rlvr.model.logprobs.critic import Critic
from rlvr.runs.log import RunLog
from rlvr.training.callbacks import Reporter, TrainerCallback
from rlvr.training.monitor.monitor import Monitor
from rlvr.training.rollout.worker import RolloutWorker
from rlvr.training.step.learner import Learner
from rlvr.training.supervision.signals import StopRequest


class HeldOut(Protocol):
    """The evaluations of a run: see rlvr.training.evaluation.held_out.HeldOutEvaluation."""

    def __call__(self, step: int) -> bool: ...

    def enough(self, step: int) -> bool: ...

    def reload(self) -> None: ...


@dataclass
class Run:
    """What is trained (`learner`), what samples and verifies (`worker`), and what is told to whom (`reporter`).

    `held_out` measures pass@k on held-out problems. `stop` is set by a signal; the run then ends after a checkpoint.
    `being_saved`: the steps whose checkpoint is being written beside the training.
    """

    learner: Learner
    worker: RolloutWorker
    reporter: Reporter
    held_out: HeldOut | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    being_saved: Set[int] = frozenset()

    def evaluate(self, step: int) -> bool:
        """Measure and log pass@k after `step` steps. Return whether the weights are to be saved, as the best so far."""
        return self.held_out is not None and self.held_out(step)

    def enough(self, step: int) -> bool:
        """Return whether the run ends after `step` steps, since evaluations no longer get better."""
        return self.held_out is not None and self.held_out.enough(step)

    @property
    def config(self) -> Config:
        """The settings of the run; its parts hold the same."""
        return self.learner.config

    @config.setter
    def config(self, config: Config) -> None:
        self.learner.config = self.worker.config = config


def assemble(
    config: Config,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    sampler: Sampler,
    problems: Sequence[Problem],
    verifier: BatchVerifier,
    log: RunLog,
    accelerator: Accelerator,
    *,
    reference: Policy | None = None,
    critic: Critic | None = None,
    monitor: Monitor | None = None,
    callbacks: Sequence[TrainerCallback] = (),
) -> Run:
    """Return the run of these parts."""
    return Run(
        Learner(config, policy, optimizer, accelerator, reference, critic),
        RolloutWorker(config, policy, sampler, problems, verifier, accelerator, monitor),
        Reporter(log, accelerator, callbacks),
    )
