"""What a run is made of."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate import Accelerator

from rlvr.config import Config
from rlvr.model.critic import Critic
from rlvr.model.health import python_warning
from rlvr.model.policy import Policy
from rlvr.runs.log import RunLog
from rlvr.training.monitor import Monitor
from rlvr.training.signals import StopRequest
from rlvr.types import BatchVerifier, Problem, Sampler


@dataclass
class Run:
    """What a run is made of. `evaluate(step)` measures pass@k on held-out problems and logs it; it returns whether the
    weights are to be saved, as the best so far.

    `monitor` judges the rollouts that `verifier` rewards; `on_alarm` is told what is written to alarms.jsonl.
    `on_warning` is told, in a line, what a person should look at; without it Python's warnings are. `stop` is set by a
    signal; the run then ends after a checkpoint.
    """

    config: Config
    policy: Policy
    optimizer: torch.optim.Optimizer
    sampler: Sampler
    problems: Sequence[Problem]
    verifier: BatchVerifier
    log: RunLog
    accelerator: Accelerator
    reference: Policy | None = None
    critic: Critic | None = None
    monitor: Monitor | None = None
    evaluate: Callable[[int], bool] | None = None
    on_step: Callable[[int, dict[str, float], list[dict[str, Any]]], None] | None = None
    on_alarm: Callable[[dict[str, Any]], None] | None = None
    on_warning: Callable[[str], None] | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    seconds: dict[str, float] = field(default_factory=dict)

    def warn(self, text: str) -> None:
        """Tells a person, on the main process."""
        if not self.accelerator.is_main_process:
            return
        if self.on_warning:
            self.on_warning(text)
        else:
            python_warning(text)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Adds the time spent within to `seconds[phase]`."""
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
