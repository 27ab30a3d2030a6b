"""What a reader of a run must not overlook at its end: that it got worse, or learned nothing. Read from its logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rlvr.runs.eras import eras
from rlvr.runs.reading import read_lines
from rlvr.runs.records import Record, interval, is_number, measured_name, with_interval


def conclusions_of(folder: Path) -> list[str]:
    """Return the `conclusions` of the run in a folder. Raise ValueError for damaged logs."""
    comparable = eras(folder, read_lines(folder / "eval.jsonl"))
    return conclusions(read_lines(folder / "metrics.jsonl"), comparable[-1] if comparable else [])


def conclusions(metrics: Sequence[Record], evaluations: Sequence[Record]) -> list[str]:
    """Return what is to be said of a run, one sentence each; none where it is well.

    metrics: of its steps. evaluations: those that can be compared with the last one, oldest first.
    """
    return [text for text in (ended_below(evaluations), learned_nothing(metrics)) if text]


def ended_below(evaluations: Sequence[Record], what: str = "The run ended") -> str:
    """Return in a sentence that the last evaluation is below the first; "" where it is not, or there are less than two.

    By pass@k of the smallest k. The sentence says whether the difference may be noise.
    """
    if len(evaluations) < 2:
        return ""
    first, last = evaluations[0], evaluations[-1]
    name = measured_name(first)
    if not is_number(last.get(name)) or last[name] >= first[name]:
        return ""
    ends = interval(first, name)
    noise = ", which may be noise" if ends is not None and last[name] >= ends[0] else ""
    return (
        f"{what} below its start: held-out {name} {with_interval(last, name)} at step {last['step']}, and "
        f"{with_interval(first, name)} at step {first['step']}{noise}."
    )


def learned_nothing(metrics: Sequence[Record]) -> str:
    """Return in a sentence that no step had a signal, and why; "" where one had, and without steps."""
    scoreless = all(row.get("reward") == 0 and row.get("correct") == 0 for row in metrics)
    if not metrics or not (scoreless or all(row.get("no_signal") == 1 for row in metrics)):
        return ""
    count = sum(rollouts_of(row) for row in metrics)
    if all(row.get("unscored") == 1 for row in metrics):
        why = f"none of {count:,} rollouts has a score"
    elif scoreless:
        why = f"there is no correct sample in {count:,} rollouts"
    elif all(row.get("correct") == 1 for row in metrics):
        why = f"all {count:,} rollouts were correct"
    else:
        why = "all rollouts of a problem scored the same"
    shares = Counter[str]()
    for row in metrics:
        for name, share in row.items():
            if name.startswith("status/"):
                shares[name.removeprefix("status/")] += share * rollouts_of(row)
    verdicts = ", ".join(f"{name} {found / max(count, 1):.0%}" for name, found in shares.most_common(3))
    return f"Nothing was learned: no step had a signal, since {why}{f' ({verdicts})' if verdicts else ''}."


def rollouts_of(row: Record) -> int:
    """Return the number of rollouts of a step: their tokens by their mean length."""
    length = row.get("completion_tokens")
    return round(row.get("rollout_tokens", 0) / length) if length else 0
