"""Runs with the weights in shards, and what tests compare of them."""

from __future__ import annotations

import types
from collections.abc import Mapping
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor

from rlvr.config import Config, CriticConfig, ModelConfig, OptimConfig, RolloutConfig, RunConfig
from rlvr.model.load.policy import Policy, load_policy
from rlvr.model.logprobs.critic import Critic
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.model.optim.sharding import full, make_mesh
from rlvr.training.checkpoint.checkpoint import load_checkpoint
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.run import Run
from tests.helpers.runs import CHARACTERS, build_run, with_settings

CPU = torch.device("cpu")
ALONE = types.SimpleNamespace(num_processes=1, process_index=0, is_main_process=True)


def tiny_policy(shard: int = 1, **settings) -> Policy:
    """Return the tiny model in so many shards; keyword arguments are ModelConfig's."""
    config = ModelConfig(**{"device": "cpu", "dtype": "float32", **settings})
    return load_policy(config, corpus=[CHARACTERS], seed=0, mesh=make_mesh(shard, CPU))


def make_config(out_dir: Path, shard: int = 1, *, model: Mapping | None = None, **groups) -> Config:
    """Return the settings of a run of three steps; keyword arguments replace them."""
    config = Config(
        run=RunConfig(out_dir=out_dir, steps=3, sample_every=0, save_every=0),
        model=ModelConfig(**{"device": "cpu", "dtype": "float32", "shard": shard, **(model or {})}),
        rollout=RolloutConfig(problems_per_step=5, group_size=4, max_new_tokens=12),
        optim=OptimConfig(lr=1e-3, max_grad_norm=1e6, tokens_per_microbatch=60),
    )
    return with_settings(config, **groups)


def make_run(out_dir: Path, shard: int = 1, *, model: Mapping | None = None, **groups) -> Run:
    """Return a run of this process's group, with what the algorithm needs; keyword arguments replace settings."""
    config = make_config(out_dir, shard, model=model, **groups)
    run = build_run(config, policy=tiny_policy(shard, **(model or {})))
    learner = run.learner
    if config.algo.needs_reference:
        learner.reference = learner.policy.reference()
    if config.algo.row.critic:
        learner.critic = Critic(learner.policy, config.critic or CriticConfig(), config.optim)
    return run


def renew_optimizer(run: Run) -> None:
    """Give a run an optimizer without a state."""
    run.learner.optimizer = make_optimizer(run.learner.policy.parameters(), run.config.optim)


def weights(policy: Policy) -> dict[str, Tensor]:
    """Return all weights by name, gathered; all processes must call it."""
    return {name: full(weight).detach().clone() for name, weight in policy.model.named_parameters()}


def gradients(policy: Policy) -> dict[str, Tensor]:
    """Return the gradients of the trained weights by name, gathered."""
    named = policy.model.named_parameters()
    return {name: full(weight.grad).clone() for name, weight in named if weight.grad is not None}


def state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return what the optimizer holds of each weight, gathered."""
    held = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": full(held[number][name]).clone() for number in sorted(held) for name in sorted(held[number])
    }


def trained_parts(run: Run) -> dict:
    """What a run trains, and its optimizers' states, gathered."""
    learner = run.learner
    found = {**weights(learner.policy), **state(learner.optimizer)}
    if learner.critic is not None:
        found |= {f"critic {name}": value.clone() for name, value in learner.critic.tensors().items()}
        found |= {f"critic {name}": value for name, value in state(learner.critic.optimizer).items()}
    return found


def load(run: Run, step: int) -> None:
    """Put a run where its checkpoint after a step is, as the command line does."""
    out_dir = run.config.run.out_dir
    held = load_checkpoint(
        checkpoint_folder(out_dir, step), run.learner.policy, run.learner.optimizer, run.learner.critic
    )
    accelerator = Accelerator(cpu=True)
    if accelerator.is_main_process:
        run.reporter.log.truncate_to(held["log"], step)
    accelerator.wait_for_everyone()
    run.worker.sampler.load_weights(run.learner.policy)


def are_equal(some: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> bool:
    """Check that tensors have the same names and bits."""
    return some.keys() == others.keys() and all(torch.equal(value, others[name]) for name, value in some.items())


def largest_difference(some: Mapping[str, Tensor], others: Mapping[str, Tensor], *, relative: bool = False) -> float:
    """Return the largest difference of an entry, or as a share of the largest entry of its tensor."""
    assert some.keys() == others.keys()
    found = [(value - others[n]).abs().max() / (others[n].abs().max() if relative else 1) for n, value in some.items()]
    return float(torch.stack(found).max())
