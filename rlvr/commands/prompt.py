"""What a run would do, read from its tokenizer and settings: `--dry-run`, and `rlvr show-prompt RECIPE`."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlvr.config import Config
from rlvr.core.files.models import find_model
from rlvr.core.registry import did_you_mean
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import seal_task
from rlvr.training.sft.demonstrations import with_demonstrations
from rlvr.verifiers.runner.base import describe

from .arguments import take_option
from .task import build_task, check_names, collect_corpus
from .train import load_recipe, recipe_config, split_recipe
from .verifier_runners import open_runners

LONGEST = 400  # characters of a reference
HELP = """\
usage: rlvr show-prompt RECIPE [--id ID] [--teacher [--completion TEXT]] [--run.task NAME ...]
Shows a problem's prompt as the policy sees it. --teacher (with --algo sdpo): as its teacher sees it for a completion
that says TEXT (nothing unless given), verified as in a run, with the reference in place of a correct sibling."""


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] in ("-h", "--help"):
        print(HELP)
        return 0
    name, flags = split_recipe(argv, "show-prompt")
    wanted, flags = take_option(flags, "--id")
    completion, flags = take_option(flags, "--completion")
    teaches, flags = "--teacher" in flags, [flag for flag in flags if flag != "--teacher"]
    module = load_recipe(name)
    config = recipe_config(module, flags, f"rlvr show-prompt {name}")
    config.check()
    check_names(config)
    task = with_demonstrations(seal_task(build_task(config)), config.sft)
    problem = find_problem(task, wanted)
    if teaches or completion is not None:
        problem = told_problem(config, task, problem, completion or "", teaches)
    if config.model.name != "tiny":
        find_model(config.model.name, config.model.revision)
    from rlvr.model.load.policy import load_rendering
    from rlvr.model.text.context import run_limit  # torch takes seconds, for which a wrong name does not wait

    rendering, settings = load_rendering(config.model, corpus=collect_corpus(task))
    rendering.announce(task.environment)
    for line in show(config, task, problem, rendering, run_limit(config, settings)):
        print(line)
    return 0


def told_problem(config: Config, task: Task, problem: Problem, completion: str, teaches: bool) -> Problem:
    """Return the problem with the prompt that the teacher reads for a completion.

    ValueError where the algorithm tells its teacher nothing, or not of this completion.
    """
    if config.teacher is None or not config.algo.row.tells or not teaches:
        raise ValueError("--teacher and --completion show what a teacher is told; set --teacher, with --algo sdpo")
    from rlvr.training.step.distillation.feedback import Feedback

    r = config.rollout
    with open_runners(task.verifier, workers=1, timeout=r.timeout) as runners:
        (verdict,) = runners["verifier"].verify([(problem, completion)])
    feedback = Feedback(task.verifier, config.teacher.tells, config.teacher.template)
    prompt = feedback.prompt_of(problem, verdict, None if problem.reference is None else str(problem.reference))
    if prompt is None:
        raise ValueError(f"the teacher is told nothing of a completion that is {verdict.status}; see --teacher.tells")
    return replace(problem, prompt=prompt)


def find_problem(task: Task, wanted: str | None) -> Problem:
    """Return the problem with an id, of the training problems first; without an id the first.

    LookupError without one.
    """
    if wanted is None:
        return task.train[0]
    known: dict[str, Problem] = {}
    for problems in (task.train, task.test):
        for problem in problems:
            known.setdefault(problem.id, problem)
    if wanted not in known:
        shown = list(known) if len(known) <= 20 else [next(iter(known)), "..."]
        near = did_you_mean(wanted, known)
        raise LookupError(f"no problem {wanted!r}; {near if near.startswith('did') else 'known: ' + ', '.join(shown)}")
    return known[wanted]


def show(config: Config, task: Task, problem: Problem, rendering: Any, limit: int | None) -> list[str]:
    """Return the lines about one problem: its prompt as the policy sees it, its verifier and its reference."""
    ids, reference = rendering.render(problem.prompt), str(problem.reference)
    if len(reference) > LONGEST:
        reference = f"{reference[:LONGEST]} [... {len(reference)} characters]"
    way = "through the chat template" if rendering.chat else "as plain text, without a chat template"
    room = "" if limit is None else f"; the model reads {limit}"
    return [
        f"problem {escape_invisible(problem.id)}, rendered {way}: {len(ids)} tokens, and at most "
        f"{config.rollout.max_new_tokens} new ones{room}",
        "--- prompt (special tokens and control characters shown)",
        escape_invisible(rendering.decode(ids, special=True)).replace("\\n", "\\n\n").rstrip("\n"),
        "--- end of the prompt: the completion follows here",
        f"verifier: {config.run.verifier or describe(task.verifier)}",
        f"reference (never shown to the model): {escape_invisible(reference)}",
    ]


def escape_invisible(text: str) -> str:
    """Return a text with control and invisible characters escaped, newlines too."""
    return "".join(
        character.encode("unicode_escape", "surrogatepass").decode("ascii")
        if unicodedata.category(character)[0] == "C" or unicodedata.category(character) in ("Zl", "Zp")
        else character
        for character in text
    )


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
        form = config.teacher.token_loss
        parts.append(f"teacher {config.teacher_kind}{name}, weight {config.teacher.weight:g}, {form}")
    return ", ".join(parts)


def dry_run(config: Config, task: Task, say: Callable[[str], None]) -> None:
    """Say what a run with this config would do. Loads the tokenizer and the model's config, and writes nothing.

    Raises ValueError for what would stop the run and shows without weights, such as prompts that are too long.
    """
    from rlvr.model.load.policy import load_rendering
    from rlvr.model.text.context import fit_task, run_limit
    from rlvr.training.checkpoint.folders import list_checkpoints

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
