"""Packs as problems of tinker-cookbook 0.6 (`ProblemEnv`).

from rlvr.adapters import judge
from rlvr.adapters.tinker import group_builders

builders = group_builders(judge(task="gsm8k"), renderer, group_size=16)   # of a data set, one for each problem
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlvr.core.types import Problem

from .judges import Judge, completion_text, import_program


def problem_env(pack: Judge) -> Any:
    """Return a ProblemEnv class of a pack: `PackEnv(renderer, problem, **options)`, with the options of ProblemEnv.

    The answer is judged with its thinking; a verdict without score raises Unscored. check_format accepts any text, so
    that only a missing stop sequence costs format_coef. Logs name the problem in place of its reference. Raises
    ValueError if tinker-cookbook is not installed, for a pack with an environment, for a verifier of whole batches, and
    for a prompt that does not end with a message of the user.
    """
    if pack.environment is not None:
        raise ValueError("this pack has an environment: a ProblemEnv has one turn; use a pack without")
    pack.refuse_whole_batches("tinker-cookbook")
    base = import_program("tinker_cookbook.rl.problem_env", "tinker-cookbook, version 0.6").ProblemEnv

    class PackEnv(base):  # type: ignore[misc, valid-type]
        def __init__(self, renderer: Any, problem: Problem, **options: Any) -> None:
            if isinstance(problem.prompt, str):
                self.question = problem.prompt
            else:
                *before, last = map(dict, problem.prompt)
                if last["role"] != "user":
                    raise ValueError(f"problem {problem.id!r}: its prompt ends with {last['role']}; expected user")
                # The system prompt comes before the examples that the caller gives.
                given = list(options.get("convo_prefix") or [])
                system = [message for message in before if message["role"] == "system"]
                if system and any(message["role"] == "system" for message in given):
                    raise ValueError(f"problem {problem.id!r} has a system prompt, and so has convo_prefix")
                options["convo_prefix"] = [*system, *given, *(one for one in before if one["role"] != "system")]
                self.question = last["content"]
            super().__init__(renderer, **options)
            self.problem = problem
            self._judged: tuple[str, float] | None = None

        def get_question(self) -> str:
            return self.question

        async def step(self, action: Any, *, extra: Any = None) -> Any:
            from tinker_cookbook.renderers import get_text_content

            # Not in check_answer: a verdict there would block the other rollouts.
            message, _ = self.renderer.parse_response(action)
            reward = await asyncio.to_thread(pack.score, self.problem, completion_text(message))
            self._judged = get_text_content(message), reward
            try:
                return await super().step(action, extra=extra)
            finally:
                self._judged = None

        def check_answer(self, sample_str: str) -> float:
            if self._judged is not None and self._judged[0] == sample_str:
                return self._judged[1]
            return pack.score(self.problem, sample_str)

        def check_format(self, sample_str: str) -> bool:
            return True

        def get_reference_answer(self) -> str:
            return f"of problem {self.problem.id}"

    return PackEnv


@dataclass(frozen=True)
class _Maker:
    """Makes an environment. Pickled, as tinker-cookbook asks, it holds one problem and not the pack."""

    pack: Judge
    renderer: Any
    problem: Problem
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        return problem_env(self.pack)(self.renderer, self.problem, **self.options)


def group_builders(pack: Judge, renderer: Any, *, group_size: int, part: str = "train", **options: Any) -> list[Any]:
    """Return a ProblemGroupBuilder with `group_size` for each problem of a part of the pack, in order.

    They can be pickled for rollouts in other processes, which start their own workers. Raises ValueError as problem_env
    does, and for a group_size below 1.
    """
    if group_size < 1:
        raise ValueError(f"group_size {group_size}: expected at least 1")
    problem_env(pack)
    from tinker_cookbook.rl.problem_env import ProblemGroupBuilder

    alone = pack.without_problems()
    return [
        ProblemGroupBuilder(_Maker(alone, renderer, problem, options), group_size, "rlvr")
        for problem in pack.part(part)
    ]
