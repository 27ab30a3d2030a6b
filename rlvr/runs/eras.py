"""Which evaluations of a run can be compared: those between two changes of what they measure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.runs.folder import read_record

Evaluation = Mapping[str, Any]


def eras(out_dir: Path, evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Return the evaluations in groups that can be compared, oldest first: each made with the same settings eval.*.

    Raises ValueError for a config.json that cannot be read.
    """
    entries = (read_record(out_dir / "config.json") or {}).get("history", [])
    ends = sorted({e["step"] for e in entries if any(measures(name) for name in e["changed"])})
    cut: dict[int, list[Evaluation]] = {}
    for evaluation in evaluations:
        cut.setdefault(sum(evaluation["step"] > end for end in ends), []).append(evaluation)
    return [cut[number] for number in sorted(cut)]


def measures(setting: str) -> bool:
    """Return whether evaluations with different values of a setting cannot be compared."""
    return setting.startswith("eval.") and setting.removeprefix("eval.") not in ("every", "patience", "on_regression")
