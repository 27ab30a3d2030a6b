"""Verdicts as `compute_score` of verl 0.9, and packs as rows of its parquet files.

    # reward.py, named by custom_reward_function.path
    from rlvr.adapters import judge
    from rlvr.adapters.verl import compute_score as of

    compute_score = of(judge("math"))

Nothing of verl is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rlvr.adapters.judging import Judge, Unscored, messages

Score = dict[str, Any]


def rows(pack: Judge, name: str, part: str = "train") -> list[dict[str, Any]]:
    """Return a part of a pack as rows for verl. name: `data_source`. The ground truth is the problem's id."""
    return [
        {
            "data_source": name,
            "prompt": messages(problem.prompt),
            "ability": name,
            "reward_model": {"style": "rule", "ground_truth": problem.id},
            "extra_info": {"split": part, "index": index, "problem": problem.id},
        }
        for index, problem in enumerate(pack.part(part))
    ]


def compute_score(pack: Judge) -> Callable[..., Score]:
    """Return `compute_score`: {"score", "acc", "status", "reason"} of a completion.

    A row of `rows` names its problem in `extra_info`; for others the ground truth is the reference. verl has no value
    for a sample without score, and 0 would be a wrong one: a verdict without score raises Unscored, which ends the run.
    """

    def score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **unused: Any,
    ) -> Score:
        problem = pack.problem((extra_info or {}).get("problem"), "", ground_truth)
        verdict = pack.verdict(problem, solution_str)
        if verdict.score is None:
            raise Unscored(f"{data_source}: {verdict.status}: {verdict.reason}")
        return {
            "score": verdict.score,
            "acc": float(verdict.correct),
            "status": str(verdict.status),
            "reason": verdict.reason,
        }

    return score
