"""Runs whose sampling goes on beside verification or training."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from rlvr.config import (
    Config,
    CurriculumConfig,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    RunConfig,
    TorchSamplerConfig,
    VLLMConfig,
)
from rlvr.core.types import Sampler
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.run import Run
from rlvr.verifiers.runner import Runner
from tests.helpers.runs import build_run
from tests.helpers.verifiers import odd_digits


class Plain(Sampler):
    """A user's own sampler, which knows `generate` alone."""

    def __init__(self, policy) -> None:
        self.inner = TorchSampler(policy)

    def generate(self, prompts, sampling, seeds):
        return self.inner.generate(prompts, sampling, seeds)

    def load_weights(self, policy) -> None:
        pass


def make_run(
    out_dir: Path,
    *,
    verifier=None,
    sampler=TorchSampler,
    steps: int = 3,
    max_staleness: int = 0,
    curriculum=None,
    **rollout,
) -> Run:
    """A run of a random tiny model in float32 on the CPU."""
    engine = TorchSamplerConfig(mismatch_alarm=10.0)
    if sampler not in (TorchSampler, Plain):
        engine = VLLMConfig(mismatch_alarm=10.0, max_staleness=max_staleness)
    settings = {"problems_per_step": 6, "group_size": 4, "max_new_tokens": 12, **rollout}
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=steps, sample_every=0),
        model=ModelConfig(name="tiny", device="cpu", dtype="float32"),
        rollout=RolloutConfig(**settings),
        optim=OptimConfig(lr=1e-3),
        sampler=engine,
        curriculum=curriculum or CurriculumConfig(),
    )
    config.check()
    return build_run(config, verifier or Runner(odd_digits), sampler=sampler)


def logs(run: Run) -> list[bytes]:
    """The rollouts, and what was logged of each step but durations, memory and the last bits of the sampler's logprobs.

    Those differ with the rows that are decoded at once.
    """
    left_out = ("second", "idle/", "memory/", "mismatch/")
    rows = run.reporter.log.read("metrics")
    metrics = [{k: v for k, v in row.items() if not any(x in k for x in left_out)} for row in rows]
    return [run.reporter.log.path("rollouts").read_bytes(), json.dumps(metrics).encode()]


def threads(prefix: str) -> list[threading.Thread]:
    """Threads of ours that still run, after a moment to end; not of sandboxes and verifiers, which other tests open."""
    others = ("rlvr-sandbox", "rlvr-verifier-pool")
    found = [t for t in threading.enumerate() if t.name.startswith(prefix) and not t.name.startswith(others)]
    for thread in found:
        thread.join(10)
    return [thread for thread in found if thread.is_alive()]
