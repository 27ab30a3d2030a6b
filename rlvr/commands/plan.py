"""`rlvr doctor --plan RECIPE`: the memory that a run needs on each GPU, and what to change where it does not fit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlvr.config import Config
from rlvr.core.registry import TASKS
from rlvr.core.types import Task

from .arguments import take_option
from .train import check_model_flag, load_recipe, recipe_config

GIB = 2**30
DEFAULT_GIB = 80.0


@dataclass(frozen=True)
class Machine:
    """The GPUs of a plan: how many, and the GiB of each."""

    gpus: int
    gib: float


def plan_run(argv: Sequence[str]) -> int:
    """Run `rlvr doctor --plan RECIPE` with --gpus, --gib and the flags of `rlvr train`; return 0 if it fits, else 1."""
    recipe, flags = take_option(argv, "--plan")
    assert recipe is not None
    gpus, flags = take_option(flags, "--gpus")
    gib, flags = take_option(flags, "--gib")
    machine = Machine(parse_count("--gpus", gpus or "1"), parse_positive("--gib", gib or f"{DEFAULT_GIB:g}"))
    check_model_flag(flags)
    config = recipe_config(load_recipe(recipe), flags, "rlvr doctor --plan")
    config.check()
    return show_plan(config, machine)


def parse_count(flag: str, text: str) -> int:
    """Return a whole number of at least 1. Raises ValueError, naming the flag, for anything else."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise ValueError(f"{flag} {text}: expected a whole number of at least 1")
    return int(text)


def parse_positive(flag: str, text: str) -> float:
    """Return a number above 0. Raises ValueError, naming the flag, for anything else."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{flag} {text}: expected a number above 0")
    return value


def shards_of(config: Config, machine: Machine) -> int:
    """Return the number of shards of the weights. Raises ValueError where the GPUs are no multiple of it."""
    shards: int = config.model.shard
    if machine.gpus % shards:
        raise ValueError(f"model.shard {shards} on --gpus {machine.gpus}; expected a multiple of the shards")
    return shards


def show_plan(config: Config, machine: Machine) -> int:
    """Print the table and what to change; return the exit code."""
    from rich.console import Console
    from rich.table import Table

    shards, memory = shards_of(config, machine), int(machine.gib * GIB)
    task = task_of(config)
    from rlvr.model.memory.plan import (
        STAGES,
        advice,
        choose_checkpointing,
        longest_row,
        make_plan,
        shape_of_config,
        with_teacher,
    )
    from rlvr.model.text.context import run_limit  # torch takes seconds, for which a wrong name does not wait

    settings, trust = settings_for(config, task), config.model.trust_remote_code
    shape = with_teacher(shape_of_config(settings, trust_remote_code=trust), config)
    gpu = config.model.device not in ("cpu", "mps")
    rows: dict[str, Any] = {
        "turns": config.run.environment is not None or (task is not None and task.environment is not None),
        "context": run_limit(config, settings),
    }
    machine_has: dict[str, Any] = {"memory": memory, "gpus": machine.gpus}
    if not gpu and config.model.dtype == "auto":
        config = replace(config, model=replace(config.model, dtype="float32"))
    if gpu:
        config = choose_checkpointing(shape, config, **machine_has, **rows)
    plan = make_plan(shape, config, **machine_has, shards=shards, gpu=gpu, **rows)
    each = f"GiB on each of {machine.gpus} GPUs" if machine.gpus > 1 else "GiB"
    table = Table(f"{each}, {shards} shards" if shards > 1 else each, *STAGES)
    for column in table.columns[1:]:
        column.justify = "right"
    for item in plan.items:
        if any(getattr(item, stage) for stage in STAGES):
            table.add_row(item.name, *(f"{getattr(item, stage) / GIB:.2f}" for stage in STAGES))
    table.add_section()
    table.add_row("total", *(f"{plan.total(stage) / GIB:.2f}" for stage in STAGES))
    console = Console()
    console.print(table)
    say = f"{shape.parameters / 1e9:.2f}B weights, microbatches of {plan.tokens} tokens"
    say += f", those of the teacher {shape.teacher / 1e9:.2f}B" if shape.teacher else ""
    say += ", gradient checkpointing" if config.model.gradient_checkpointing else ""
    if rows["turns"]:
        say += f", rows of up to {longest_row(config, **rows)} with replies"
    if plan.host:
        say += f", {plan.host / GIB:.1f} GiB of CPU memory for each process: {held_by_host(config)}"
    console.print(say, highlight=False, soft_wrap=True)
    verdict = f"{plan.peak / GIB:.1f} of {machine.gib:g} GiB"
    if plan.fits:
        console.print(f"fits: {verdict}", highlight=False)
        return 0
    console.print(f"does not fit: {verdict}", highlight=False)
    if gpu:
        told = advice(shape, config, **machine_has, shards=shards, **rows)
        console.print(told, highlight=False, soft_wrap=True)
    return 1


def held_by_host(config: Config) -> str:
    """Return what a run on a GPU keeps in the CPU's memory."""
    kinds = [(config.optim.offload, "optimizer state"), (config.run.async_save, "the copy of a checkpoint")]
    return ", ".join(name for there, name in kinds if there)


def task_of(config: Config) -> Task | None:
    """Return the run's task. It may have an environment, and gives a tiny model its vocabulary.

    None for a task whose problems come from the hub, because a plan downloads nothing.
    """
    from .task import build_task

    downloads = config.run.data is None and "data" in TASKS.options(config.run.task)
    return None if downloads and config.model.name != "tiny" else build_task(config)


def settings_for(config: Config, task: Task | None) -> Any:
    """Return transformers' config of a run's model. That of a well-known model needs no network."""
    from rlvr.model.load.policy import load_rendering
    from rlvr.model.memory.plan import known_or_read

    from .task import collect_corpus

    if config.model.name != "tiny":
        return known_or_read(config.model)
    assert task is not None
    return load_rendering(config.model, corpus=collect_corpus(task))[1]
