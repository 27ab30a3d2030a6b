"""Show what a run has logged in eval.jsonl and rollouts.jsonl: numbers, intervals, what shuffling did."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

Record = Mapping[str, Any]


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, which can be shown and plotted."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def pass_names(evaluations: Sequence[Record]) -> list[str]:
    """Return the names pass@k that were measured, in order of k."""
    names = {name for row in evaluations for name in row if name.startswith("pass@") and name[5:].isdigit()}
    return sorted(names, key=lambda name: int(name[5:]))


def graded(evaluations: Sequence[Record]) -> bool:
    """Return whether the mean score differs from pass@1: the verifier gives partial scores, or there is a threshold."""
    return any(_graded(row.get("score"), row.get("pass@1"), row.get("status", ())) for row in evaluations)


def _graded(score: float | None, passed: float | None, statuses: Container[str]) -> bool:
    if score is None:
        return False
    return "partial" in statuses if passed is None else abs(score - passed) > 1e-9


def measured_name(evaluation: Record) -> str:
    """Return the name of the pass@k that evaluations are compared by: that of the smallest k."""
    ks = [int(name[5:]) for name in evaluation if name.startswith("pass@") and name[5:].isdigit()]
    return f"pass@{min(ks)}"


def quality(evaluation: Record) -> tuple[float, float]:
    """Return what evaluations are compared by: pass@k of the smallest k; ties are broken by the mean score."""
    return evaluation[measured_name(evaluation)], evaluation.get("score") or 0.0


def number_since_best(evaluations: Sequence[Record]) -> int:
    """Return how many evaluations have been made since the best one, of equal ones the first; 0 without any."""
    if not evaluations:
        return 0
    return len(evaluations) - 1 - evaluations.index(max(evaluations, key=quality))


def interval(row: Record, name: str) -> tuple[float, float] | None:
    """Return the interval of a number; None without one."""
    found = row.get(f"{name}_ci")
    if isinstance(found, list | tuple) and len(found) == 2 and all(map(is_number, found)):
        return found[0], found[1]
    return None


def with_interval(row: Record, name: str, digits: int = 3) -> str:
    """Return a number with its interval, as far as known: "0.460 [0.404, 0.520]"; `digits` are the interval's."""
    if not is_number(row.get(name)):
        return ""
    ends = interval(row, name)
    return f"{row[name]:.3f}" + (f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else "")


def describe_shuffled(rollout: Record) -> str:
    """Return what a rollout was rewarded as where rewards are shuffled; "" where they are not."""
    if "shuffled_status" not in rollout:
        return ""
    given = "none" if rollout["reward"] is None else f"{rollout['reward']:+.3f}"
    return f"; shuffled: rewarded {given} as another completion that is {rollout['shuffled_status']}"


# Fields that runs of earlier versions wrote under another name, besides those that begin with "shadow/".
FORMER_NAMES = {
    "seconds/shadow": "seconds/monitor",
    "shadow/shadow_only": "monitor/monitor_only",
    "shadow_only": "monitor_only",
    "shadow_score": "monitor_score",
    "shadow_status": "monitor_status",
}


def present_names(record: Record) -> dict[str, Any]:
    """Return a record of any run with the monitor's fields under their present names."""
    return {_present_name(name): value for name, value in record.items()}


def _present_name(name: str) -> str:
    if name in FORMER_NAMES:
        return FORMER_NAMES[name]
    return f"monitor/{name.removeprefix('shadow/')}" if name.startswith("shadow/") else name
