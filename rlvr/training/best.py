"""The checkpoint that measured best on held-out problems, found from eval.jsonl and the folder."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from rlvr.runs.eras import Evaluation, eras
from rlvr.runs.records import graded, measured_name, number_since_best, quality
from rlvr.training.checkpoint import checkpoint_folder, list_checkpoints


def best_steps(out_dir: Path, evaluations: Sequence[Evaluation], steps: Collection[int]) -> list[int]:
    """Return the step of each era's best evaluation among `steps`; of equal ones the earliest."""
    found = [[e for e in era if e["step"] in steps] for era in eras(out_dir, evaluations)]
    return [max(era, key=quality)["step"] for era in found if era]


def since_best(out_dir: Path, evaluations: Sequence[Evaluation]) -> int:
    """Return how many evaluations have been made since the best one, of those that can be compared with the last."""
    return next((number_since_best(era) for era in eras(out_dir, evaluations)[-1:]), 0)


def kept_steps(out_dir: Path) -> set[int]:
    """Return the steps whose weights exist: those of the checkpoints, and 0 for the model before training."""
    return {0, *(step for step, _ in list_checkpoints(out_dir))}


def describe_checkpoints(out_dir: Path, evaluations: Sequence[Evaluation]) -> list[str]:
    """Return lines for the end of a run: the last checkpoint, and the best one where that is another."""
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
    """Return an evaluation's result in words that follow a path."""
    if evaluation is None:
        return ""
    name = measured_name(evaluation)
    score = f", score {evaluation['score']:.3f}" if graded([evaluation]) else ""
    return f", held-out {name} {evaluation[name]:.3f}{score}"
