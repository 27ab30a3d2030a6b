"""Verdicts: what each status means and scores, from `rlvr.core.types`."""

from __future__ import annotations

from rlvr.core import types
from rlvr.core.types import UNSCORED, Status, Verdict

from .markdown import first_line, page, plain, table

INTRODUCTION = """
A verifier returns a `rlvr.core.types.Verdict`, or a bool or a number that becomes one
(`rlvr.core.types.Verdict.of`). Its status says what was found; pass@k counts `correct` alone, whatever the score.
"""
UNSCORED_TEXT = """
A verdict without a score is no zero: the rollout leaves its group before the advantages are computed, and is
counted as `unscored` in metrics.jsonl. Where more than `--rollout.error-budget` of a step's rollouts have none, the
run ends with one line.
"""


def pages() -> dict[str, str]:
    """Return the page of the verdicts."""
    rows = [
        [f"`{status}`", meaning(status), score(status), "yes" if status is Status.CORRECT else "no"]
        for status in Status
    ]
    fields = [[f"`{name}`", f"`{hint}`"] for name, hint in Verdict.__annotations__.items()]
    return {
        "verdicts.md": page(
            "Verdicts", INTRODUCTION, table(["status", "means", "score", "right for pass@k"], rows), UNSCORED_TEXT,
            "## Fields", plain(" ".join((Verdict.__doc__ or "").split())), table(["field", "type"], fields),
        )
    }  # fmt: skip


def meaning(status: Status) -> str:
    """Return what a status means, as the function that makes such a verdict says."""
    if status is Status.PARTIAL:
        return "partly right"
    return plain(first_line(getattr(types, status.value)).rpartition(": ")[2].removesuffix("."))


def score(status: Status) -> str:
    """Return which score a verdict of a status has."""
    if status is Status.PARTIAL:
        return "between 0 and 1, or what the verifier says"
    return "none" if status in UNSCORED else f"{getattr(types, status.value)('').score:g}"
