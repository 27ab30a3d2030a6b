"""Reading what a run has logged (eval.jsonl, rollouts.jsonl): what to show of it, and how."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def present_names(record: Record) -> dict[str, Any]:
    """Return a log's line with the names that its columns have now: earlier versions called the monitor `shadow`."""
    return {name.replace("shadow", "monitor"): value for name, value in record.items()}


def is_number(value: Any) -> bool:
    """Whether a value can be shown and drawn."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def pass_names(evaluations: Sequence[Record]) -> list[str]:
    """The pass@k that were measured, by rising k."""
    names = {name for row in evaluations for name in row if name.startswith("pass@") and name[5:].isdigit()}
    return sorted(names, key=lambda name: int(name[5:]))


def graded(evaluations: Sequence[Record]) -> bool:
    """Whether the mean score says something that pass@1 does not: the verifier grades, or a threshold was named."""
    return any(_graded(row.get("score"), row.get("pass@1"), row.get("status", ())) for row in evaluations)


def _graded(score: float | None, passed: float | None, statuses: Container[str]) -> bool:
    if score is None:
        return False
    return "partial" in statuses if passed is None else abs(score - passed) > 1e-9


def interval(row: Record, name: str) -> tuple[float, float] | None:
    """The interval that stands beside a number; None where there is none."""
    found = row.get(f"{name}_ci")
    if isinstance(found, list | tuple) and len(found) == 2 and all(map(is_number, found)):
        return found[0], found[1]
    return None


def with_interval(row: Record, name: str, digits: int = 3) -> str:
    """A number with its interval, as far as they are there: "0.460 [0.404, 0.520]"; `digits` of the interval."""
    if not is_number(row.get(name)):
        return ""
    ends = interval(row, name)
    return f"{row[name]:.3f}" + (f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else "")


def describe_shuffled(rollout: Record) -> str:
    """What a rollout was rewarded as where rewards are shuffled; "" where they are its own."""
    if "shuffled_status" not in rollout:
        return ""
    given = "none" if rollout["reward"] is None else f"{rollout['reward']:+.3f}"
    return f"; shuffled: rewarded {given} as another completion that is {rollout['shuffled_status']}"
