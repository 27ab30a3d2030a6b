"""What samples and verifies: the problems, the sampler, the verifier, and the monitor beside it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rlvr.config import Config
from rlvr.distributed import Processes
from rlvr.model.policy import Policy
from rlvr.model.progress import enter
from rlvr.training.draws import Draws
from rlvr.training.episodes import Play
from rlvr.training.monitor import Monitor
from rlvr.traits import BatchVerifier
from rlvr.types import Problem, Sampler

# What a process is at in each phase, in words.
PHASES = {"sample": "sampling", "verify": "verification", "train": "update", "wait": "sampling", "monitor": "monitor"}


class Timer:
    """Seconds of a step by phase (PHASES). Without `noted`, for work beside the training, no phase is entered."""

    def __init__(self, *, noted: bool = True) -> None:
        self.seconds: dict[str, float] = {}
        self.noted = noted

    def clear(self) -> None:
        """Forget all phases: a step begins."""
        self.seconds.clear()

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Add the time spent within to `seconds[phase]`."""
        if self.noted:
            enter(PHASES[phase])
        start = time.perf_counter()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


@dataclass
class RolloutWorker:
    """Makes the rollouts: renders problems with the policy's tokenizer, samples completions, verifies them.

    With a `plan` they have several turns, in its environment. `shares`: of the packs of a mixture. `draws` chooses the
    problems of a step; one is made of the settings unless it is given. `verifier` gives the rewards. `monitor` scores
    the same rollouts and never enters the reward. `timer` measures the phases of the present step.
    """

    config: Config
    policy: Policy
    sampler: Sampler
    problems: Sequence[Problem]
    verifier: BatchVerifier
    accelerator: Processes
    monitor: Monitor | None = None
    timer: Timer = field(default_factory=Timer)
    plan: Play | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    draws: Draws = None  # type: ignore[assignment]  # made of the settings below

    def __post_init__(self) -> None:
        if self.draws is None:
            self.draws = Draws(self.config, self.problems, self.shares)
