"""Runs that vLLM samples one step ahead of the training."""

from __future__ import annotations

from pathlib import Path

from accelerate import Accelerator

from rlvr.config import Config, OptimConfig, RolloutConfig, RunConfig, VLLMConfig
from rlvr.core.types import Environment, Problem, Sampler
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.runs.log import RunLog
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import load_checkpoint
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.rollout.episodes import Play
from rlvr.training.run import Run, assemble
from rlvr.verifiers.runner import Runner
from tests.helpers.vllm_policies import make_policy


def run_ahead(
    sampler: Sampler, out_dir: Path, steps: int, *, start: int = 0, environment: Environment | None = None
) -> Run:
    """Train the policy of `make_policy()` until a step, from step `start` of an earlier run where it is given."""
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=steps, sample_every=0),
        rollout=RolloutConfig(problems_per_step=6, group_size=4, max_new_tokens=12),
        sampler=VLLMConfig(max_staleness=1),
        optim=OptimConfig(lr=1e-3),
    )
    config.check()
    policy, log = make_policy(), RunLog(out_dir)
    optimizer = make_optimizer(policy.parameters(), config.optim)
    if start:
        log.truncate_to(load_checkpoint(checkpoint_folder(log.out_dir, start), policy, optimizer)["log"], start)
    sampler.load_weights(policy)
    verifier = Runner(lambda problem, text: sum(c.isdigit() for c in text) % 2 == 1)
    problems = [Problem(str(i), f"{i}+{i}=", str(2 * i)) for i in range(40)]
    run = assemble(config, policy, optimizer, sampler, problems, verifier, log, Accelerator(cpu=True))
    run.worker.plan = environment and Play(environment, RolloutConfig(max_turns=3, turn_tokens=4))
    train(run, start)
    return run
