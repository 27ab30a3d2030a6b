"""Packs as problems of tinker-cookbook 0.6 (`ProblemEnv`).

from rlvr.adapters import judge
from rlvr.adapters.tinker import group_builders

builders = group_builders(judge(task="gsm8k"), renderer, group_size=16)   # of a data set, one for each problem
"""

from __future__ import annotations

from typing import Any

from rlvr.adapters.judging import Judge
from rlvr.types import Problem

MISSING = "this needs the package tinker-cookbook, version 0.6: pip install tinker-cookbook"


def problem_env(pack: Judge) -> Any:
    """Return a ProblemEnv class of a pack: `PackEnv(renderer, problem, **options)`, with the options of ProblemEnv.

    The answer's reward is the verdict's score; a verdict without score raises Unscored. check_format accepts any text,
    so that only a missing stop sequence costs format_coef. Raise ValueError where tinker-cookbook is not installed,
    and for a pack with an environment, whose rollouts have several turns.
    """
    if pack.environment is not None:
        raise ValueError("this pack has an environment: a ProblemEnv has one turn; use a pack without")
    try:
        from tinker_cookbook.rl.problem_env import ProblemEnv
    except ModuleNotFoundError as error:
        raise ValueError(f"{MISSING} ({error})") from error

    class PackEnv(ProblemEnv):  # type: ignore[misc]
        def __init__(self, renderer: Any, problem: Problem, **options: Any) -> None:
            if not isinstance(problem.prompt, str):
                *before, last = problem.prompt
                options["convo_prefix"] = [*(options.get("convo_prefix") or []), *map(dict, before)]
                self.question = last["content"]
            else:
                self.question = problem.prompt
            super().__init__(renderer, **options)
            self.problem = problem

        def get_question(self) -> str:
            return self.question

        def check_answer(self, sample_str: str) -> float:
            return pack.score(self.problem, sample_str)

        def check_format(self, sample_str: str) -> bool:
            return True

        def get_reference_answer(self) -> str:
            return str(self.problem.reference)

    return PackEnv


def group_builders(pack: Judge, renderer: Any, *, group_size: int, part: str = "train", **options: Any) -> list[Any]:
    """Return a ProblemGroupBuilder for each problem of a part of the pack, in order: groups of `group_size`."""
    from functools import partial

    made = problem_env(pack)
    from tinker_cookbook.rl.problem_env import ProblemGroupBuilder

    return [
        ProblemGroupBuilder(partial(made, renderer, problem, **options), group_size, "rlvr")
        for problem in pack.part(part)
    ]
