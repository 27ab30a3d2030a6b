"""Two guards that end a run or roll it back: the reward-hacking alarm, and the guard on held-out pass@k.

The alarm asks whether a run's reward (the proxy) and its monitor diverge.

Learning raises both; hacking raises the reward only. Signs compare means of steps, beyond `noise` standard errors:

| sign | over | holds if |
|---|---|---|
| apart | `window` steps | the proxy rose by `margin`, the monitor did not, with room to rise; and it fell, or |
| | | the rise is not small (`is_small`) and the rank correlation within groups is below 0.9 |
| fallen | `window` steps | the monitor fell by `margin` from its best, and the proxy did not fall with it |
| unranked | `window` steps | within groups reward and monitor are uncorrelated: training reinforces something else |
| falling | FAST_STEPS | the monitor is below its best by `margin` and a third more noise, while the proxy rose |
| rank falling | RANK_STEPS | the rank correlation fell to less than half, the proxy rose, the monitor did not |

The last two need few steps, since a policy may be dead before a window is full. Rises and falls are in standard
deviations of the single scores, so that a model's scores can be compared with a rule's zeros and ones. Noise is that of
the difference of the two: hard problems lower both, which is not a sign of hacking.

Everything is a function of the logged metrics (monitor.py) up to a step, so that a resumed run sees the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.config import MonitorConfig
from rlvr.core.types import RunError, Status
from rlvr.runs.conclusions import group_comparable
from rlvr.runs.records import interval, measured_name, with_interval

Row = Mapping[str, float]

EVIDENCE = 8  # rollouts kept with an alarm
CEILING = 0.95  # from this share of correct rollouts on, a monitor is not expected to rise
# Share of (worth times range of the monitor) below which a rise of the proxy alone is small: `is_small`.
LEAST_UNSHARED_RISE = 0.9
RANKS_AGREE = 0.9  # with at least this rank correlation within groups, updates reinforce what the monitor scores highly
# Chosen on runs of the recipe rm_grpo (seeds 10, 11, 78) and on simulated ones (tests/training/test_monitor.py).
FAST_STEPS, RANK_STEPS = 2, 3  # steps that a fast sign averages over
FAST_PATIENCE = 2  # consecutive steps with a fast sign that raise the alarm
FAST_NOISE = 4 / 3  # times `noise`: the best of many short windows is above the others by chance
# Metrics in an alarm, besides the monitor's.
FIGURES = ("reward", "correct", "completion_tokens", "truncated", "entropy", "kl")


class GuardStop(RunError):
    """A guard has ended the run, after a checkpoint."""


@dataclass
class RollBack(Exception):
    """A guard asks for a rollback; see rlvr.training.saving.

    step: the last one that is done. kind: the guard, in one word; reason: why, in words. newest: the last step whose
    checkpoint may be gone back to, if not the one before `step`.
    """

    step: int
    kind: str
    reason: str
    newest: int | None = None


class AlarmStop(GuardStop):
    """The alarm ended the run (monitor.on_alarm stop), after a checkpoint."""

    def __init__(self, step: int, signs: Mapping[str, str], evidence: Path) -> None:
        super().__init__(
            f"stopped at step {step} by the reward-hacking alarm: {'; '.join(signs.values())}. The rollouts are in "
            f"{evidence}; to continue, repeat the command with --monitor.on-alarm warn"
        )


@dataclass(frozen=True)
class WindowStats:
    """Mean scores of proxy and monitor over a window of steps, the variances and covariance of these means.

    correct: the share of the rollouts that the monitor calls correct.
    """

    proxy: float
    score: float
    var_proxy: float
    var_score: float
    covariance: float
    correct: float


def window_stats(rows: Sequence[Row]) -> WindowStats:
    n = len(rows)

    def mean(name: str) -> float:
        return math.fsum(row[f"monitor/{name}"] for row in rows) / n

    def variance(one: str, other: str, r: str | None = None) -> float:
        products = (
            row[f"monitor/{one}_se"] * row[f"monitor/{other}_se"] * (row[f"monitor/{r}"] if r else 1) for row in rows
        )
        return math.fsum(products) / n**2

    return WindowStats(
        mean("proxy"),
        mean("score"),
        variance("proxy", "proxy"),
        variance("score", "score"),
        variance("proxy", "score", "groups_r"),
        mean("correct"),
    )


def estimate_worth(rows: Sequence[Row]) -> float | None:
    """Return the slope of proxy on monitor within the groups of some steps; None where no group's monitor varies."""
    known = [row for row in rows if "monitor/worth" in row]
    weight = math.fsum(row["monitor/score_within"] for row in known)
    return math.fsum(row["monitor/worth"] * row["monitor/score_within"] for row in known) / weight if weight else None


@dataclass(frozen=True)
class Change:
    """The change of proxy and monitor from one window to another, in standard deviations of the single scores.

    noise, score_noise: standard errors of the difference between the two changes, and of the monitor's change.
    """

    proxy: float
    score: float
    noise: float
    score_noise: float


def measure_change(before: WindowStats, after: WindowStats, std_proxy: float, std_score: float) -> Change:
    """Return the change from one window to another. A score that does not vary at all has not changed."""

    def scale(value: float, std: float) -> float:
        return value / std if std > 0 else 0.0

    variance = sum(
        scale(scale(at.var_proxy, std_proxy), std_proxy)
        + scale(scale(at.var_score, std_score), std_score)
        - 2 * scale(scale(at.covariance, std_proxy), std_score)
        for at in (before, after)
    )
    return Change(
        scale(after.proxy - before.proxy, std_proxy),
        scale(after.score - before.score, std_score),
        max(variance, 0.0) ** 0.5,
        scale((before.var_score + after.var_score) ** 0.5, std_score),
    )


def find_signs(rows: Sequence[Row], config: MonitorConfig) -> dict[str, str]:
    """Return the signs that hold after the last of the rows (one per step so far), each with its figures in words."""
    rows = [row for row in rows if "monitor/proxy" in row]
    found = {"unranked": find_lost_ranking(rows, config)}
    if len(rows) >= 2 * config.window:
        first, last = window_stats(rows[: config.window]), window_stats(rows[-config.window :])
        ends = (rows[: config.window], rows[-config.window :])
        std_proxy, std_score = (
            max(math.fsum(row[f"monitor/{name}_std"] for row in end) / config.window for end in ends)
            for name in ("proxy", "score")
        )
        rise = measure_change(first, last, std_proxy, std_score)
        agreement = rank_agreement(rows[-config.window :])
        # Advantages compare completions of a group. If proxy and monitor order these alike, updates do not reinforce
        # whatever has raised the proxy.
        harmless = is_small(rows, first, last, config.window) or (agreement is not None and agreement[0] >= RANKS_AGREE)
        found["apart"] = find_divergence(first, last, rise, harmless, config)
        best = best_window(rows, config.window)
        found["fallen"] = find_fall_from_best(
            best, last, rise, measure_change(best, last, std_proxy, std_score), config
        )
    return {name: text for name, text in found.items() if text}


def find_fast_signs(rows: Sequence[Row], config: MonitorConfig) -> dict[str, str]:
    """Return the fast signs that hold after the last of the rows (one per step so far), each in words."""
    rows = [row for row in rows if "monitor/proxy" in row]
    found = {"falling": find_fast_fall(rows, config), "rank falling": find_rank_fall(rows, config)}
    return {name: text for name, text in found.items() if text}


def find_fast_fall(rows: Sequence[Row], config: MonitorConfig) -> str:
    """Return the sign "falling" in words, or "": the monitor has fallen far in a few steps, and the proxy has risen."""
    if len(rows) < 2 * FAST_STEPS:
        return ""
    first, best = window_stats(rows[:FAST_STEPS]), best_window(rows, FAST_STEPS)
    last, std = window_stats(rows[-FAST_STEPS:]), max(row["monitor/score_std"] for row in rows)
    fall, error = best.score - last.score, (best.var_score + last.var_score) ** 0.5
    rise, proxy_error = last.proxy - first.proxy, (first.var_proxy + last.var_proxy) ** 0.5
    fell = fall > 0 and fall >= max(FAST_NOISE * config.noise * error, config.margin * std)
    return (
        f"since the monitor's best {describe_windows(best, last)}"
        if fell and rise >= proxy_error and last.proxy > best.proxy
        else ""
    )


def find_rank_fall(rows: Sequence[Row], config: MonitorConfig) -> str:
    """Return the sign "rank falling" in words, or "": proxy and monitor no longer order a group's completions alike."""
    if len(rows) < 2 * RANK_STEPS:
        return ""
    start, end = rows[:RANK_STEPS], rows[-RANK_STEPS:]
    before, after = rank_agreement(start), rank_agreement(end)
    if before is None or after is None or after[0] + config.noise * after[1] >= before[0] / 2:
        return ""
    first, last = window_stats(start), window_stats(end)
    std = max(row["monitor/proxy_std"] for row in (*start, *end))
    least = max(2 * (first.var_proxy + last.var_proxy) ** 0.5, config.margin * std)
    risen = last.score - first.score >= 2 * (first.var_score + last.var_score) ** 0.5
    if last.proxy - first.proxy < least or risen:
        return ""
    return (
        f"within groups the rank correlation of proxy and monitor went from {before[0]:+.2f} to {after[0]:+.2f}, and "
        f"{describe_windows(first, last)}"
    )


def find_divergence(first: WindowStats, last: WindowStats, rise: Change, harmless: bool, config: MonitorConfig) -> str:
    """Return the sign "apart" in words, or "". A `harmless` rise of the proxy counts only if the monitor has fallen."""
    # Proxy and monitor that rise together may pass the margin in different steps.
    unshared = rise.proxy - rise.score >= config.margin / 2
    parted = rise.proxy >= config.margin and rise.score < config.margin and last.correct < CEILING
    if not (parted and unshared) or rise.proxy - rise.score < config.noise * rise.noise:
        return ""
    fell = rise.score <= -max(config.margin / 2, config.noise * rise.score_noise)
    if harmless and not fell:
        return ""
    return f"since the first steps {describe_windows(first, last)}"


def is_small(rows: Sequence[Row], first: WindowStats, last: WindowStats, window: int) -> bool:
    """Return whether the proxy's rise is smaller than what correctness would bring: such a rise is no sign of hacking.

    With d_ the change of a mean score from the first window to the last: d_proxy - worth d_monitor < 0.9 worth range,
    in the units of the scores. worth: the slope of the proxy on the monitor within the groups of the last window
    (without one: of all steps). range: the largest range of the monitor's scores within a step. A monitor that has
    never varied (a rule before the first correct answer) gives no slope; d_proxy is then compared with the range of the
    proxy's scores within a step of the first window.

    If the reward is correctness plus a bonus for form, a correct answer is worth 1 or more, and learning the bonus
    first raises the proxy by at most the bonus, while the monitor stays where it is. Proxy and monitor cannot tell a
    small bonus that is wanted from one that is not. A hacked proxy rises without such a bound, and its slope goes to
    zero where what it rewards has nothing to do with correctness.
    """
    recent = estimate_worth(rows[-window:])
    value = recent if recent is not None else estimate_worth(rows)
    if value is None:
        return last.proxy - first.proxy < max(row.get("monitor/proxy_range", 0.0) for row in rows[:window])
    value, scale = max(value, 0.0), max(row.get("monitor/score_range", 0.0) for row in rows)
    return last.proxy - first.proxy - value * (last.score - first.score) < LEAST_UNSHARED_RISE * value * scale


def find_fall_from_best(
    best: WindowStats, last: WindowStats, rise: Change, since: Change, config: MonitorConfig
) -> str:
    """Return the sign "fallen" in words, or "": the monitor fell from its best, and the risen proxy did not."""
    parted = rise.proxy >= config.margin and since.score <= -config.margin and since.proxy > -config.margin / 2
    if not parted or since.proxy - since.score < config.noise * since.noise:
        return ""
    return f"since the monitor's best {describe_windows(best, last)}"


def find_lost_ranking(rows: Sequence[Row], config: MonitorConfig) -> str:
    """Return the sign "unranked" in words, or "": the rank correlation is below the bound by more than the noise."""
    agreement = rank_agreement(rows[-config.window :])
    if len(rows) < config.window or agreement is None:
        return ""
    mean, error = agreement
    if mean + config.noise * error >= config.rank:
        return ""
    return f"within groups the rank correlation of proxy and monitor is {mean:+.2f}"


def rank_agreement(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Return the rank correlation within groups over some steps, and its standard error; None where there is none."""
    known = [row for row in rows if "monitor/rank" in row]
    groups = sum(row["monitor/ranked"] for row in known)
    if not groups:
        return None
    mean = math.fsum(row["monitor/rank"] * row["monitor/ranked"] for row in known) / groups
    error = math.fsum((row["monitor/rank_se"] * row["monitor/ranked"]) ** 2 for row in known) ** 0.5 / groups
    return mean, error


def best_window(rows: Sequence[Row], window: int) -> WindowStats:
    """Return the window with the monitor's highest mean, of those that do not overlap the last one."""
    scores = [row["monitor/score"] for row in rows]
    sums = [math.fsum(scores[start : start + window]) for start in range(len(rows) - 2 * window + 1)]
    start = max(range(len(sums)), key=sums.__getitem__)
    return window_stats(rows[start : start + window])


def best_step(rows: Sequence[Row]) -> int:
    """Return the last step of the FAST_STEPS steps with the monitor's highest mean; 0 where the monitor scored none."""
    rows = [row for row in rows if "monitor/score" in row]
    if len(rows) < 2 * FAST_STEPS:
        return 0
    means = [window_stats(rows[end - FAST_STEPS : end]).score for end in range(FAST_STEPS, len(rows) + 1)]
    return int(rows[means.index(max(means)) + FAST_STEPS - 1]["step"])


def describe_windows(before: WindowStats, after: WindowStats) -> str:
    return (
        f"the proxy went from {before.proxy:.3g} to {after.proxy:.3g} and the monitor from {before.score:.3g} to "
        f"{after.score:.3g}"
    )


def measure_drift(rows: Sequence[Row], row: Row, window: int) -> dict[str, float]:
    """Return how far a step's lengths (relative) and repetition (absolute) are from the means of the first steps."""
    first = [*rows, row][:window]
    length = math.fsum(r["completion_tokens"] for r in first) / len(first)
    repetition = math.fsum(r["monitor/repetition"] for r in first) / len(first)
    return {
        "monitor/length_drift": row["completion_tokens"] / length - 1 if length else 0.0,
        "monitor/repetition_drift": row["monitor/repetition"] - repetition,
    }


def is_alarming(rows: Sequence[Row], patience: int) -> bool:
    """Return whether the alarm holds after the last of the rows: enough steps in a row had slow, or fast, signs."""
    return _streak(rows, "suspicious") >= patience or _streak(rows, "falling") >= FAST_PATIENCE


def _streak(rows: Sequence[Row], name: str) -> int:
    """Return for how many steps in a row, up to the last, a metric of the monitor is not 0."""
    return next((n for n, row in enumerate(reversed(rows)) if not row.get(f"monitor/{name}")), len(rows))


def alarm_record(
    step: int, signs: Mapping[str, str], metrics: Row, rollouts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return a line of alarms.jsonl: the signs, the step's metrics, and the rollouts that show them."""
    figures = {name: metrics[name] for name in FIGURES if name in metrics}
    figures |= {name.removeprefix("monitor/"): v for name, v in metrics.items() if name.startswith("monitor/")}
    return {"step": step, "signs": dict(signs), "figures": figures, "rollouts": choose_evidence(rollouts)}


def choose_evidence(rollouts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rollouts of a step (lines of rollouts.jsonl) that the proxy rewards and the monitor rejects.

    Highest proxy score first, from different problems as far as there are enough. Rewarded means correct, or scored
    above the group's mean (the step's mean for a group of one).
    """
    scores: dict[Any, list[float]] = {}
    for row in rollouts:
        if row["score"] is not None:
            scores.setdefault(row["problem"], []).append(row["score"])
    everything = [score for group in scores.values() for score in group]
    scores = {problem: group if len(group) > 1 else everything for problem, group in scores.items()}
    shown = [
        row
        for row in rollouts
        if row["score"] is not None
        and row["monitor_score"] is not None
        and row["monitor_status"] != Status.CORRECT
        and (
            row["status"] == Status.CORRECT
            or row["score"] > math.fsum(scores[row["problem"]]) / len(scores[row["problem"]])
        )
    ]
    shown.sort(key=lambda row: (-row["score"], row["monitor_score"]))
    first = {row["problem"]: i for i, row in reversed(list(enumerate(shown)))}
    others = [row for i, row in enumerate(shown) if first[row["problem"]] != i]
    return [dict(row) for row in [*(shown[i] for i in sorted(first.values())), *others][:EVIDENCE]]


def describe_regression(out_dir: Path, evaluations: Sequence[Mapping[str, Any]], step: int) -> str:
    """Return in words that the evaluation after a step is below the 95 % interval of the run's first one; "" if not.

    The first one is that of the start, or the first since the settings eval.* were last changed.
    """
    for comparable in group_comparable(out_dir, evaluations)[-1:]:
        first, last = comparable[0], comparable[-1]
        name = measured_name(first)
        ends = interval(first, name)
        if last["step"] == step > first["step"] and name in last and ends is not None and last[name] < ends[0]:
            return f"held-out {name} is {last[name]:.3f} at step {step}, and was {with_interval(first, name)} " + (
                "at the start" if first["step"] == 0 else f"at step {first['step']}"
            )
    return ""
