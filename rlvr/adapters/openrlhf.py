"""Verdicts as `reward_func` of OpenRLHF 0.11 (`--remote_rm_url reward.py`).

    # reward.py
    from rlvr.adapters import judge
    from rlvr.adapters.openrlhf import reward_func as of

    reward_func = of(judge("math"))

Labels are references; with judge(task=...), ids of problems. Nothing of OpenRLHF is imported, and torch when it is
called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlvr.adapters.judging import Judge, Unscored


def reward_func(pack: Judge) -> Callable[..., dict[str, Any]]:
    """Return `reward_func(queries, prompts, labels)`: rewards, scores and extra_logs, tensors of shape (n,).

    A query is prompt and response as one text. OpenRLHF has no value for a sample without score, and 0 would be a wrong
    one: a verdict without score raises Unscored, which ends the run. Raise ValueError for a query that does not begin
    with its prompt.
    """
    by_id = any(pack.parts.values())

    def score(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **unused: Any) -> dict[str, Any]:
        import torch

        pairs = []
        for query, prompt, label in zip(queries, prompts, labels, strict=True):
            if not query.startswith(prompt):
                raise ValueError(f"the query {query[:60]!r} does not begin with its prompt {prompt[:60]!r}")
            pairs.append((pack.problem(label if by_id else None, prompt, label), query[len(prompt) :]))
        verdicts = pack.verdicts(pairs)
        failed = next((verdict for verdict in verdicts if verdict.score is None), None)
        if failed is not None:
            raise Unscored(f"{failed.status}: {failed.reason}")
        rewards = torch.tensor([verdict.score for verdict in verdicts], dtype=torch.float32)
        correct = torch.tensor([float(verdict.correct) for verdict in verdicts], dtype=torch.float32)
        return {"rewards": rewards, "scores": rewards, "extra_logs": {"correct": correct}}

    return score
