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

from .judges import Judge, Unscored, messages, reward_of

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

    The ground truth is the reference, or with a pack the id of a problem, which may also be `extra_info["problem"]`.
    verl passes no prompt: a verifier that reads it needs `extra_info["prompt"]`. verl has no value for a sample without
    score, and 0 would be wrong. So a verdict without score raises Unscored and ends the run, except with verl's reward
    manager `rate_limited`, which turns every exception into 0. Raises LookupError for a missing prompt, and ValueError
    for a verifier of whole batches.
    """
    pack.refuse_whole_batches("verl")

    def score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Mapping[str, Any] | None = None,
        **unused: Any,
    ) -> Score:
        extra = extra_info or {}
        prompt = extra.get("prompt")
        if prompt is None and not pack.has_problems and pack.reads_prompt:
            raise LookupError(f"{data_source}: this verifier reads the prompt; put it into extra_info as 'prompt'")
        key = extra.get("problem") or ground_truth if pack.has_problems else None
        verdict = pack.verdict(pack.problem(key, "" if prompt is None else prompt, ground_truth), solution_str)
        reward = reward_of(verdict)
        if reward is None:
            raise Unscored(f"{data_source}: {verdict.status}: {verdict.reason}")
        return {
            "score": reward,
            "acc": float(verdict.correct),
            "status": str(verdict.status),
            "reason": verdict.reason,
        }

    return score
