"""Tasksets of the package `verifiers` 0.4 (Prime Intellect, prime-rl) as task packs: `verifiers:MODULE`."""

from __future__ import annotations

import json
from dataclasses import replace

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import build_task, hold_out
from rlvr.verifiers.verifiers_task import hash_of, load_tasks, prompt_of

MOST = 1_000_000


@register_task("verifiers", member="taskset")
def verifiers(
    *, taskset: str, config: str = "{}", most: int = 10_000, test_share: float = 0.1, seed: int = 0, full: float = 1.0
) -> Task:
    """Tasks of one turn of the package `verifiers`: verifiers:MODULE is the taskset that a module exports.

    config: settings of the taskset, as JSON. most: tasks that are read. A hash of the prompt decides which share is
    held out. full: the sum of rewards that is correct (the verifier `verifiers_task`). Needs the extra verifiers.
    """
    name = f"verifiers:{taskset}"
    if not 0 <= test_share <= 1 or not 1 <= most <= MOST:
        raise ValueError(f"task {name!r}: test_share {test_share}, most {most}; expected a share, and 1 to {MOST:,}")
    try:
        settings = json.loads(config)
    except ValueError as error:
        raise ValueError(f"task {name!r}, config {config!r:.80}: {error}; expected JSON, as in {{}}") from None
    if not isinstance(settings, dict):
        raise ValueError(f"task {name!r}, config {config!r:.80}: expected a JSON object, as in {{}}")
    problems = []
    for index, task in enumerate(load_tasks(taskset, settings, most)):
        reference = {"taskset": taskset, "config": settings, "most": most, "hash": hash_of(task)}
        problems.append(Problem(f"{name}/{index}", prompt_of(task), reference))
    train, test, notes = hold_out("verifiers", problems, test_share, seed)
    task = build_task(
        name,
        train=train,
        test=test,
        verifier="verifiers_task",
        verifier_options={"full": full},
        check_references=False,
    )
    return replace(task, split_notes=notes)
