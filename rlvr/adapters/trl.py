"""Verdicts as reward functions of TRL 1.16 (GRPOTrainer, RLOOTrainer), and environments as its `environment_factory`.

    from rlvr.adapters import judge
    from rlvr.adapters.trl import reward, rows

    pack = judge(task="gsm8k")
    GRPOTrainer(..., reward_funcs=reward(pack), train_dataset=Dataset.from_list(rows(pack, "train")))

Nothing of TRL is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlvr.adapters.judging import Judge, said

Reward = Callable[..., list[float | None]]


def rows(pack: Judge, part: str = "train") -> list[dict[str, Any]]:
    """Return a part of a pack as rows of a data set: `prompt`, and `problem`, its id. References stay here."""
    return [{"prompt": problem.prompt, "problem": problem.id} for problem in pack.part(part)]


def reward(pack: Judge, *, problem: str = "problem", reference: str = "reference", name: str = "rlvr") -> Reward:
    """Return a reward function: the score of each completion, None for a verdict without one.

    TRL leaves None out of the reward of that sample. A row is the pack's problem whose id is in the column `problem`;
    without that column its reference is in the column `reference`. Raise LookupError where there is neither.
    name: of the reward in TRL's logs.
    """

    def score(
        prompts: Sequence[Any], completions: Sequence[Any], completion_ids: Any = None, **columns: Any
    ) -> list[float | None]:
        if problem not in columns and reference not in columns:
            raise LookupError(f"the data set has no column {problem!r} and no column {reference!r}")
        keys = columns.get(problem, [None] * len(prompts))
        references = columns.get(reference, [None] * len(prompts))
        pairs = [
            (pack.problem(key, prompt, wanted), said(completion))
            for key, prompt, wanted, completion in zip(keys, prompts, references, completions, strict=True)
        ]
        return pack.scores(pairs)

    score.__name__ = name
    return score
