"""`rlvr show-prompt RECIPE`: a problem's prompt as the policy sees it, or its self-teacher; verifier and reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rlvr.config import Config
from rlvr.core.files.models import find_model
from rlvr.core.registry import did_you_mean
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import seal_task
from rlvr.training.sft.demonstrations import with_demonstrations

from .arguments import take_option
from .dry_run import show
from .task import build_task, check_names, collect_corpus
from .train import load_recipe, recipe_config, split_recipe
from .verifier_runners import open_runners

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
