"""Which checkpoint measured best on held-out problems, read from eval.jsonl and the folder: a resume finds it again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.runs.records import graded
from rlvr.training.checkpoint import checkpoint_folder, list_checkpoints

Evaluation = Mapping[str, Any]


def measured_name(evaluation: Evaluation) -> str:
    """The pass@k of an evaluation that counts: that of its smallest k."""
    ks = [int(name[5:]) for name in evaluation if name.startswith("pass@") and name[5:].isdigit()]
    return f"pass@{min(ks)}"


def quality(evaluation: Evaluation) -> tuple[float, float]:
    """What evaluations are compared by: pass@1, and where that is equal (as 0 throughout) the mean score, if any."""
    return evaluation[measured_name(evaluation)], evaluation.get("score") or 0.0


def eras(out_dir: Path, evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Evaluations that can be compared with one another, oldest first: those made with the same settings eval.*."""
    path = out_dir / "config.json"
    entries = json.loads(path.read_text("utf-8")).get("history", []) if path.exists() else []
    ends = sorted({e["step"] for e in entries if any(measures(name) for name in e["changed"])})
    cut: dict[int, list[Evaluation]] = {}
    for evaluation in evaluations:
        cut.setdefault(sum(evaluation["step"] > end for end in ends), []).append(evaluation)
    return [cut[number] for number in sorted(cut)]


def measures(setting: str) -> bool:
    """Whether evaluations with another value of a setting are other measurements."""
    return setting.startswith("eval.") and setting != "eval.every"


def best_steps(out_dir: Path, evaluations: Sequence[Evaluation], steps: Collection[int]) -> list[int]:
    """The step of the best evaluation of each era, the earliest of equal ones, among those of `steps`."""
    found = [[e for e in era if e["step"] in steps] for era in eras(out_dir, evaluations)]
    return [max(era, key=quality)["step"] for era in found if era]


def kept_steps(out_dir: Path) -> set[int]:
    """The steps whose weights are there: of the checkpoints, and 0, the model that was started from."""
    return {0, *(step for step, _ in list_checkpoints(out_dir))}


def describe_checkpoints(out_dir: Path, evaluations: Sequence[Evaluation]) -> list[str]:
    """Lines for the end of a run: the last checkpoint, and the one that measured best where it is another."""
    steps = kept_steps(out_dir)
    last = max(steps)
    if last == 0:
        return []
    by_step = {e["step"]: e for e in evaluations}
    best = best_steps(out_dir, evaluations, steps)[-1:]
    name = "last checkpoint, and the best" if best == [last] else "last checkpoint"
    lines = [f"{name}: {checkpoint_folder(out_dir, last)}{measured(by_step.get(last))}"]
    if best and best != [last]:
        start = out_dir / "start"
        origin = start if start.exists() else "the model before the first step"
        where = checkpoint_folder(out_dir, best[0]) if best[0] else origin
        lines.append(f"best checkpoint: {where}{measured(by_step[best[0]])}")
    return lines


def measured(evaluation: Evaluation | None) -> str:
    """An evaluation's number, to follow a path."""
    if evaluation is None:
        return ""
    name = measured_name(evaluation)
    score = f", score {evaluation['score']:.3f}" if graded([evaluation]) else ""
    return f", held-out {name} {evaluation[name]:.3f}{score}"
