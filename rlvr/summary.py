"""What is logged of a step's rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rlvr.config import RolloutConfig
from rlvr.rollout import has_signal, penalties
from rlvr.types import Group


def summarize(
    groups: Sequence[Group], advantages: Sequence[Sequence[float]], config: RolloutConfig | None = None
) -> dict[str, float]:
    """What a step's rollouts were like: scores, verdicts, lengths. With `config` also the penalties it switches on.

    All of it by what the verifier said of the completions themselves, also where rewards are shuffled.

    Under "parts/": the mean of each named component, over the rollouts that have it.
    """
    verdicts = [verdict for group in groups for verdict in group.judged]
    completions = [completion for group in groups for completion in group.completions]
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    tokens = sum(len(c.token_ids) for c in completions)
    parts: dict[str, list[float]] = {}
    for verdict in verdicts:
        for name, value in verdict.parts.items():
            parts.setdefault(name, []).append(value)
    if config is not None:
        for completion in completions:
            for name, value in penalties(completion, config).items():
                parts.setdefault(name, []).append(value)
    return {
        "reward": sum(scores) / max(len(scores), 1),
        "correct": sum(v.correct for v in verdicts) / len(verdicts),
        "no_signal": sum(not has_signal(row) for row in advantages) / len(advantages),
        "truncated": sum(c.finish_reason == "length" for c in completions) / len(completions),
        "unscored": sum(v.score is None for v in verdicts) / len(verdicts),
        "completion_tokens": tokens / len(completions),
        "rollout_tokens": float(tokens),
        **{f"status/{s}": n / len(verdicts) for s, n in sorted(Counter(str(v.status) for v in verdicts).items())},
        **{f"parts/{name}": sum(values) / len(values) for name, values in sorted(parts.items())},
    }
