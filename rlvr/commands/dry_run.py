"""What a run would do (`--dry-run`, `rlvr show-prompt`), read from its tokenizer and settings."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

from rlvr.config import Config
from rlvr.core.types import Problem, Task


def show(config: Config, task: Task, problem: Problem, rendering: Any, limit: int | None) -> list[str]:
    """Return the lines about one problem: its prompt as the policy sees it, its verifier and its reference."""
    from rlvr.verifiers.runner.base import describe

    ids = rendering.render(problem.prompt)
    way = "through the chat template" if rendering.chat else "as plain text, without a chat template"
    room = "" if limit is None else f"; the model reads {limit}"
    return [
        f"problem {visible(problem.id)}, rendered {way}: {len(ids)} tokens, and at most "
        f"{config.rollout.max_new_tokens} new ones{room}",
        "--- prompt (special tokens and control characters shown)",
        visible(rendering.decode(ids, special=True)).replace("\\n", "\\n\n").rstrip("\n"),
        "--- end of the prompt: the completion follows here",
        f"verifier: {config.run.verifier or describe(task.verifier)}",
        f"reference (never shown to the model): {visible(clip(str(problem.reference)))}",
    ]


def visible(text: str) -> str:
    """Return a text with control and invisible characters escaped, newlines too."""
    return "".join(
        character.encode("unicode_escape", "surrogatepass").decode("ascii")
        if unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp")
        else character
        for character in text
    )


def clip(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else f"{text[:limit]} [... {len(text)} characters]"


def describe_algorithm(config: Config) -> str:
    """Return one line: algorithm, loss, learning rates, KL term, critic, teacher."""
    algo, critic = config.algo, config.critic
    parts = [f"algorithm: {algo.name}", f"loss {algo.policy_loss}", f"lr {config.optim.lr:g}"]
    if algo.kl_coef:
        parts.append(f"KL term {algo.kl_coef:g} x {algo.estimator} in the {algo.kl_place}")
    elif algo.needs_reference:
        parts.append("with a reference policy")
    if critic is not None:
        parts.append(f"critic {critic.kind}, lr {critic.lr:g}")
    if config.teacher is not None:
        name = f" {config.teacher.name}" if config.teacher.name else ""
        parts.append(f"teacher {config.teacher_kind}{name}, weight {config.teacher.weight:g}, {config.teacher.loss}")
    return ", ".join(parts)


def dry_run(config: Config, task: Task, say: Callable[[str], None]) -> None:
    """Say what a run with this config would do. Loads the tokenizer and the model's config, and writes nothing.

    Raises ValueError for what would stop the run and shows without weights, such as prompts that are too long.
    """
    from rlvr.model.load.policy import load_rendering
    from rlvr.model.text.context import fit_task, run_limit
    from rlvr.training.checkpoint.folders import list_checkpoints

    from .task import collect_corpus

    run, r, folder = config.run, config.rollout, config.run.out_dir
    rendering, settings = load_rendering(config.model, corpus=collect_corpus(task))
    rendering.announce(task.environment)
    limit = run_limit(config, settings)
    say(f"task {task.name}: {len(task.train)} problems to train on, {len(task.test)} held out")
    for line in (*task.split_notes, *task.notes):
        say(line)
    task = fit_task(config, task, rendering, limit, say)
    for line in show(config, task, task.train[0], rendering, limit):
        say(line)
    if config.sft.steps:
        say(f"fine-tuning: {config.sft.steps} steps on {len(task.demonstrations)} demonstrations")
    say(
        f"training: {config.model.name}, {run.steps} steps of {r.problems_per_step} problems x {r.group_size} "
        f"completions = {r.problems_per_step * r.group_size} rollouts, sampled by {config.sampler.name}"
    )
    say(describe_algorithm(config))
    saved = list_checkpoints(folder)
    held = (folder / "config.json").exists()
    if held and run.overwrite:
        state = "holds a run, which would be deleted"
    elif saved:
        state = f"holds this run; it would resume from step {saved[-1][0]}"
    else:
        state = "holds this run, not begun" if held else "would be made" if not folder.exists() else "exists"
    say(
        f"{folder} {state}; it would hold config.json, metrics.jsonl, rollouts.jsonl, eval.jsonl, report.html and "
        f"checkpoints/ (every {run.save_every or run.steps} steps, {run.keep_checkpoints} kept)"
    )
    say("dry run: nothing was written")
