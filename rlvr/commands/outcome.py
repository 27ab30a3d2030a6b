"""The last lines of a finished run: the change on held-out problems, the models it saved, the next command to type."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rlvr.config import Config, RolloutConfig
from rlvr.config.shared import TurnSettings
from rlvr.runs.records import is_graded, pass_names, with_interval


def describe_outcome(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return one sentence on pass@k (the smallest k) before and after, with intervals; "" without evaluations.

    A graded score is named too.
    """
    if not evaluations:
        return ""
    first, last = evaluations[0], evaluations[-1]
    names = pass_names(evaluations)[:1] + (["score"] if is_graded(evaluations) else [])
    if len(evaluations) == 1:
        found = " and ".join(f"{name} is {with_interval(last, name)}" for name in names)
        return f"Held-out {found}, at step {last['step']}, on {last['num_problems']} problems."
    moves = " and ".join(
        f"{name} went from {with_interval(first, name)} to {with_interval(last, name)}" for name in names
    )
    return (
        f"Held-out {moves} over {last['step'] - first['step']} steps, on {last['num_problems']} problems "
        "(in brackets: 95 % intervals)."
    )


def list_saved_models(config: Config) -> list[tuple[str, Path]]:
    """Return the models that a run saved as (label, folder), the one to evaluate next first.

    That is the last checkpoint, or the fine-tuned policy where no step was trained.
    """
    from rlvr.training.checkpoint.folders import list_checkpoints

    saved = list_checkpoints(config.run.out_dir)
    if saved:
        return [("last checkpoint", saved[-1][1])]
    start = config.run.out_dir / "start"
    return [("fine-tuned model", start)] if (start / "state.json").exists() else []


def build_eval_command(config: Config, model: Path) -> str:
    """Return the shell command that evaluates a model on the whole test split with the run's evaluation settings."""
    run, e, m = config.run, config.eval, config.model
    sampling = config.eval_sampling()
    verifier = (run.verifier, run.verifier_option)
    if e.verifier == "monitor" and config.monitor is not None:
        verifier = (config.monitor.verifier, config.monitor.verifier_option)
    flags: list[tuple[str, Sequence[Any]]] = [
        ("--model", [model]),
        ("--task", [run.task]),
        ("--data", [] if run.data is None else [run.data]),
        ("--task-option", run.task_option),
        ("--verifier", [] if verifier[0] is None else [verifier[0]]),
        ("--verifier-option", verifier[1]),
        ("--k", e.k),
        ("--samples", [e.samples]),
        ("--threshold", [] if e.threshold is None else [e.threshold]),
        ("--max-new-tokens", [sampling.max_new_tokens]),
        ("--temperature", [] if e.temperature == 1 else [e.temperature]),
        ("--top-p", [] if e.top_p == 1 else [e.top_p]),
        ("--stop", sampling.stop),
        ("--system-prompt", [] if m.system_prompt is None else [m.system_prompt]),
        ("--chat", [] if m.chat == "auto" else [m.chat]),
        ("--dtype", [] if m.dtype == "auto" else [m.dtype]),
        ("--attention", [] if m.attention == "auto" else [m.attention]),
        ("--environment", [] if run.environment is None else [run.environment]),
        ("--environment-option", run.environment_option),
        *list_turn_flags(config.rollout),
        ("--device", [] if m.device == "auto" else [m.device]),
        ("--out-dir", [run.out_dir / f"eval-{model.name}"]),
    ]
    words = [word for name, values in flags if values for word in (name, *map(str, values))]
    words += ["--trust-remote-code"] * m.trust_remote_code
    return f"{find_program()} eval {shlex.join(words)}"


def list_turn_flags(settings: RolloutConfig) -> list[tuple[str, Sequence[Any]]]:
    """Return the flags of prompts' length and of turns that are not at their defaults."""
    defaults = RolloutConfig()
    names = ["max_prompt_tokens", *(field.name for field in fields(TurnSettings))]
    return [
        (f"--{name.replace('_', '-')}", [getattr(settings, name)])
        for name in names
        if getattr(settings, name) != getattr(defaults, name)
    ]


def find_program() -> str:
    """Return how a shell calls this installation: `rlvr` where PATH leads to it, else `PYTHON -m rlvr`."""
    found, here = shutil.which("rlvr"), Path(sys.executable).absolute()
    if found and Path(found).absolute().parent == here.parent:
        return "rlvr"
    python = os.path.relpath(here) if here.is_relative_to(Path.cwd()) else str(here)
    return f"{shlex.quote(python)} -m rlvr"
