"""What to say at the end of a run: that it got worse, or learned nothing. Read from its logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from .folder import read_record
from .reading import read_lines
from .records import Record, interval, is_number, measured_name, with_interval

Evaluation = Mapping[str, Any]
LAST_STEPS = 5
NO_SIGNAL, SOLVED = 0.95, 0.9  # shares of groups without signal, and of correct rollouts
FALLEN = 0.1  # share of correct rollouts by which the last steps are below the best ones
MEASURES_NOTHING = ("every", "patience", "on_regression", "keep_answers")  # settings of the group eval


def group_comparable(out_dir: Path, evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Return the evaluations in groups, oldest first; those of one group were made with the same settings eval.*.

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
    return setting.startswith("eval.") and setting.removeprefix("eval.") not in MEASURES_NOTHING


def conclusions_of(folder: Path) -> list[str]:
    """Return the `conclusions` of the run in a folder. Raise ValueError for damaged logs."""
    comparable = group_comparable(folder, read_lines(folder / "eval.jsonl"))
    return conclusions(read_lines(folder / "metrics.jsonl"), comparable[-1] if comparable else [])


def conclusions(metrics: Sequence[Record], evaluations: Sequence[Record]) -> list[str]:
    """Return one sentence for each thing that went wrong in a run.

    evaluations: those that can be compared with the last one, oldest first.
    """
    return [text for text in (ended_below(evaluations), learned_nothing(metrics) or ran_out_of_signal(metrics)) if text]


def ended_below(evaluations: Sequence[Record], what: str = "The run ended") -> str:
    """Return a sentence where the last evaluation is below the first by pass@k of the smallest k, or below the interval
    of the best; else "". It says whether a difference from the first may be noise.
    """
    if len(evaluations) < 2:
        return ""
    first, last = evaluations[0], evaluations[-1]
    name = measured_name(first)
    if not is_number(last.get(name)):
        return ""
    best = max((row for row in evaluations if is_number(row.get(name))), key=lambda row: row[name])
    other, word = (first, "start") if last[name] < first[name] else (best, "best")
    ends = interval(other, name)
    noise = ends is not None and last[name] >= ends[0]
    if word == "best" and (noise or ends is None):
        return ""
    return (
        f"{what} below its {word}: held-out {name} {with_interval(last, name)} at step {last['step']}, and "
        f"{with_interval(other, name)} at step {other['step']}{', which may be noise' if noise else ''}."
    )


def learned_nothing(metrics: Sequence[Record]) -> str:
    """Return a sentence that says why no step had a signal; "" where one had, and without steps."""
    scoreless = all(row.get("reward") == 0 and row.get("correct") == 0 for row in metrics)
    if any("teacher/loss" in row for row in metrics):  # a teacher needs no reward
        return ""
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


def ran_out_of_signal(metrics: Sequence[Record]) -> str:
    """Return a sentence where hardly a group of the last fifth of the steps had a signal, though many rollouts failed.

    It gives advice where no earlier steps were better. "" with a teacher, and with fewer than LAST_STEPS steps.
    """
    last = [row for row in metrics[-max(LAST_STEPS, len(metrics) // 5) :] if is_number(row.get("no_signal"))]
    if len(last) < LAST_STEPS or any("teacher/loss" in row for row in last):
        return ""
    without, right = (fmean(row.get(name, 0.0) for row in last) for name in ("no_signal", "correct"))
    if without < NO_SIGNAL or right > SOLVED:
        return ""
    found = (
        f"in the last {len(last)} steps {without:.0%} of the groups had no signal, since all rollouts of a problem "
        f"scored the same, and {right:.0%} of the rollouts were correct"
    )
    shares = [row.get("correct", 0.0) for row in metrics]
    best = max(fmean(shares[end - len(last) : end]) for end in range(len(last), len(shares) + 1))
    if best - right > FALLEN:
        return f"Problems fail as a whole: {found}, after {best:.0%} in earlier ones. `rlvr view` shows what changed."
    return (
        f"Little was left to learn from: {found}. More completions of each problem, a higher temperature, or other "
        "problems may bring a signal back."
    )


def rollouts_of(row: Record) -> int:
    """Return the number of rollouts of a step: all tokens divided by the mean length."""
    length = row.get("completion_tokens")
    return round(row.get("rollout_tokens", 0) / length) if length else 0
