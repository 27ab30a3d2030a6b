"""`rlvr show-prompt RECIPE`: a problem's prompt as the policy sees it, its verifier and its reference."""

from __future__ import annotations

from collections.abc import Sequence

from rlvr.core.files.models import find_model
from rlvr.core.registry import did_you_mean
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import seal_task
from rlvr.training.sft.demonstrations import with_demonstrations

from .arguments import take_option
from .dry_run import show
from .task import build_task, check_names, collect_corpus
from .train import load_recipe, recipe_config, split_recipe

HELP = "usage: rlvr show-prompt RECIPE [--id ID] [--run.task NAME ...]\nShows a problem's prompt as the policy sees it."


def main(argv: Sequence[str]) -> int:
    """Run `rlvr show-prompt RECIPE [--id ID] [flags]`."""
    if argv and argv[0] in ("-h", "--help"):
        print(HELP)
        return 0
    name, flags = split_recipe(argv, "show-prompt")
    wanted, flags = take_option(flags, "--id")
    module = load_recipe(name)
    config = recipe_config(module, flags, f"rlvr show-prompt {name}")
    config.check()
    check_names(config)
    task = with_demonstrations(seal_task(build_task(config)), config.sft)
    problem = find_problem(task, wanted)
    if config.model.name != "tiny":
        find_model(config.model.name, config.model.revision)
    from rlvr.model.load.policy import load_rendering
    from rlvr.model.text.context import run_limit  # torch takes seconds, for which a wrong name does not wait

    rendering, settings = load_rendering(config.model, corpus=collect_corpus(task))
    rendering.announce(task.environment)
    for line in show(config, task, problem, rendering, run_limit(config, settings)):
        print(line)
    return 0


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
