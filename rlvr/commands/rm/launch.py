"""Run the training of reward models: check settings, names and files, then sample and train.

The checks need no torch; rlvr.commands.rm.training does the rest.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rlvr.config.reward_model import PairsConfig, RewardConfig
from rlvr.core.types import Task, Verifier
from rlvr.reward_model.preferences import read_pairs, split_by_prompt
from rlvr.training.supervision.signals import StopRequest
from rlvr.verifiers.runner.base import check_references

from ..machine import check_device, check_optimizer_extra
from ..task import apply_verifier, check_names, make_pack
from .folder import reward_folder


def launch_reward_model(config: RewardConfig) -> dict[str, Any]:
    """Run a config from start to end, or from its last checkpoint on. Return the line of eval.jsonl.

    It has the model's metrics on held-out pairs. Raises Stopped, a KeyboardInterrupt, where a signal ended it: after a
    checkpoint (the message says how to resume), or at once.
    """
    with StopRequest().handling_signals() as stop:
        stop.doing = "reading the pairs"
        stop.left = lambda: "nothing was written; run the same command again"
        config.check()
        sampled = prepare(config)
        given = read_pairs(config.pairs.file) if config.pairs.file is not None else []
        also = [pair for path in config.pairs.also for pair in read_pairs(path)]
        if sampled is None:
            split_by_prompt([*given, *also], config.pairs.held_out, seed=config.run.seed)  # raises where it cannot
        from .training import execute  # torch takes seconds, for which a wrong name does not wait

        return execute(config, sampled, [*given, *also], stop)


def prepare(config: RewardConfig) -> tuple[Task, Verifier] | None:
    """Return the pack that is sampled, and the verifier that tells its completions apart; None for pairs from a file.

    Raises ValueError or LookupError for names, options and a folder that cannot be used, and what the machine lacks.
    """
    check_device(config.model.device)
    check_optimizer_extra(config.optim)
    reward_folder(config).check()
    return make_sampled_pack(config.pairs) if config.pairs.file is None else None


def make_sampled_pack(config: PairsConfig) -> tuple[Task, Verifier]:
    """Return the pack that is sampled, and the verifier that tells its completions apart."""
    check_names(config, "--pairs.")
    task = apply_verifier(make_pack(config, "--pairs."), config, "--pairs.")
    if task.environment is not None:
        raise ValueError(f"task {config.task!r} has an environment; pairs are made of completions of one turn")
    if len(task.train) < 2:
        raise ValueError(f"task {config.task!r} has {len(task.train)} problems to train on; pairs need at least 2")
    if config.verifier is not None or config.verifier_option:
        check_references(task.verifier, task.train)
    return task, task.verifier


def with_policy(config: RewardConfig, policy: Path) -> RewardConfig:
    """Return the config with a policy to sample from, which is also the reward model's base unless one is named."""
    return dataclasses.replace(config, pairs=dataclasses.replace(config.pairs, policy=str(policy)))
