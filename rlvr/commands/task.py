"""The task of a run and the verifiers that its config names. Part of the command line."""

from __future__ import annotations

import dataclasses
from typing import Any

from rlvr.commands.arguments import key_values
from rlvr.config import Config
from rlvr.registry import make_task, make_verifier
from rlvr.types import Task, Verifier
from rlvr.verifiers.runner.base import check_references


def build_task(config: Config) -> Task:
    """Return the run's pack, with the verifier that was asked for; its references are checked."""
    run = config.run
    options: dict[str, Any] = key_values(run.task_option, "--run.task-option")
    if run.data is not None:
        options["data"] = run.data
    task: Task = make_task(run.task, **options)
    if run.verifier is not None:
        verifier = make_verifier(run.verifier, **key_values(run.verifier_option, "--run.verifier-option"))
        check_references(verifier, [*task.train, *task.test])
        task = dataclasses.replace(task, verifier=verifier)
    if not task.train:
        raise ValueError(f"task {run.task!r} has no problems to train on; it is for evaluation (`rlvr eval`)")
    return task


def build_monitor(config: Config, task: Task) -> Verifier | None:
    """Return the monitor's verifier, its references checked; None without a monitor."""
    settings = config.monitor
    if settings is None:
        return None
    options = key_values(settings.verifier_option, "--monitor.verifier-option")
    monitor: Verifier = make_verifier(settings.verifier, **options)
    check_references(monitor, [*task.train, *task.test])
    return monitor


def corpus(task: Task) -> list[str]:
    """Return the texts that give a tiny model its alphabet: demonstrations and held-out prompts."""
    texts = [completion for _, completion in task.demonstrations]
    prompts = [p.prompt for p in (*(p for p, _ in task.demonstrations), *task.test)]
    return texts + [p if isinstance(p, str) else "\n".join(m["content"] for m in p) for p in prompts]
