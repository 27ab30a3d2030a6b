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


def reward_func(pack: Judge, *, ends: Sequence[str] = ()) -> Callable[..., dict[str, Any]]:
    """Return `reward_func(queries, prompts, labels)`: rewards, scores and extra_logs, tensors of shape (n,).

    A query is prompt and response as one text, special tokens included: `ends` are those that are cut off its end,
    such as "<|im_end|>". A verdict without score raises Unscored, which OpenRLHF logs: the reward of that sample is
    then None. Raise ValueError for a query without its prompt.
    """
    by_id = any(pack.parts.values())

    def score(queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any], **unused: Any) -> dict[str, Any]:
        import torch

        pairs = []
        for query, prompt, label in zip(queries, prompts, labels, strict=True):
            _, found, response = query.partition(prompt)
            if not found:
                raise ValueError(f"the query {query[:60]!r} does not hold its prompt {prompt[:60]!r}")
            pairs.append((pack.problem(label if by_id else None, prompt, label), _without(response, ends)))
        verdicts = pack.verdicts(pairs)
        failed = next((verdict for verdict in verdicts if verdict.score is None), None)
        if failed is not None:
            raise Unscored(f"{failed.status}: {failed.reason}")
        rewards = torch.tensor([verdict.score for verdict in verdicts], dtype=torch.float32)
        correct = torch.tensor([float(verdict.correct) for verdict in verdicts], dtype=torch.float32)
        return {"rewards": rewards, "scores": rewards, "extra_logs": {"correct": correct}}

    return score


def _without(response: str, ends: Sequence[str]) -> str:
    """Return a response without special tokens at its end."""
    while end := next((end for end in ends if end and response.endswith(end)), ""):
        response = response[: -len(end)]
    return response
