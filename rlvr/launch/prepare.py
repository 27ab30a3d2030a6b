"""The part of a run before torch is imported: settings, names and data. What is wrong in them is told at once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from rlvr.commands.machine import check_device, check_optimizer_extra
from rlvr.commands.task import build_monitor, build_task, check_names, check_turns
from rlvr.config import Config, RunConfig
from rlvr.core.files.models import find_model
from rlvr.core.types import Task, Verifier
from rlvr.runs.trackers import check_trackers
from rlvr.sampling.samplers import check_sampler
from rlvr.tasks.base import judge_with, seal_task
from rlvr.training.checkpoint.resume import started_from
from rlvr.training.problems.pass_rates import choose_problems
from rlvr.training.sft.demonstrations import with_demonstrations
from rlvr.training.supervision.signals import StopRequest


@dataclass(frozen=True)
class Prepared:
    """A run whose settings, names and data are right.

    chosen: a line about the problems that were chosen by a profile, "" where all are trained on. named: the task and
    the verifier are those that the config names, so that another command can use them too.
    """

    config: Config
    task: Task
    monitor: Verifier | None
    chosen: str
    named: bool


def prepare(config: Config, task: Task | None, verifier: Verifier | None, stop: StopRequest) -> Prepared:
    """Check the settings, read the task and make its verifiers.

    `task` and `verifier` replace those that the config names. Raises ValueError, LookupError or OSError with one line
    for what is wrong.
    """
    stop.doing = "reading the task"
    config = started_from(config)
    config.check()
    check_device(config.model.device)
    check_sampler(config.sampler)
    check_optimizer_extra(config.optim)
    check_trackers(config.run)
    named = task is None and verifier is None
    check_names(config if task is None else dataclasses.replace(config, run=RunConfig()))
    task, chosen = choose_problems(seal_task(task or build_task(config)), config.curriculum)
    task = with_demonstrations(task, config.sft)
    task = task if verifier is None else judge_with(task, verifier)
    check_turns(task, config.rollout, "rollout.")
    monitor = build_monitor(config, task)
    check_demonstrations(config, task)
    check_turn_credit(config, task)
    if config.model.name != "tiny":
        stop.doing = "looking for the model"
        find_model(config.model.name, config.model.revision)
    return Prepared(config, task, monitor, chosen, named)


def check_demonstrations(config: Config, task: Task) -> None:
    """Raise ValueError where the fine-tuning or the pretraining mix has no demonstrations."""
    wanted = {"sft.steps": config.sft.steps, "algo.ptx_coef": config.algo.ptx_coef}
    for name, value in wanted.items():
        if value and not task.demonstrations:
            raise ValueError(
                f"{name} is {value} and task {task.name!r} has no demonstrations; set --{name.replace('_', '-')} 0, "
                "or --sft.data to a file with prompt and completion"
            )


def check_turn_credit(config: Config, task: Task) -> None:
    """Raise ValueError for credit per turn without an environment: a rollout is one turn then."""
    if config.algo.credit == "turn" and task.environment is None:
        raise ValueError(
            f"algo.credit turn, and task {task.name!r} has no environment: a rollout is one turn, so leave it out"
        )
