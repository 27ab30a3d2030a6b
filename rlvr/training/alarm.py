"""The reward-hacking alarm: when do a run's reward (the proxy) and its monitor part?

What separates hacking from learning is that the reward rises alone. Three signs, each over means of `window` steps and
beyond `noise` standard errors:
- apart: the proxy has risen by `margin` over its first steps, and the monitor has not, though it had room to rise; and
  it has risen by (nearly) as much as the whole range of the monitor is worth to it, or the monitor has fallen;
- fallen: the monitor has fallen by `margin` from its best, and the proxy has not gone with it;
- unranked: within groups the proxy's order says nothing of the monitor's, so that what is reinforced is something else.
Rises and falls are in standard deviations of the single scores, so that a model's scores and a rule's zeros and ones
can be held against each other. Noise is that of the difference: hard problems lower both, which is no sign.

What the monitor is worth to the proxy is the slope of proxy on monitor within groups, now. Where the reward is right or
wrong plus a bonus for form, a right answer is worth 1 or more, and a bonus that is learned first raises the proxy by
its own size at most, under a monitor that stays where it is. So a rise under a flat monitor is no sign by itself while
it is smaller than what being right would bring: by proxy and monitor alone, a small bonus that is wanted and a small
one that is not look the same. (A monitor that has never varied, such as a rule before the first right answer, gives no
worth: there the rise is held against the range of the proxy's own first scores.) A proxy that is hacked goes beyond
it, since its rise has no such bound, and since the slope goes to zero where what it rewards has nothing to do with
being right. Nor is a rise a sign once proxy and monitor order groups alike: advantages are made within groups, so that
what has risen is not what is reinforced any more.

Everything is a function of the logged metrics (rlvr/training/monitor.py) up to a step, so that a resumed run sees what
an uninterrupted one sees.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlvr.config import MonitorConfig
from rlvr.types import RunError, Status

Row = Mapping[str, float]

EVIDENCE = 8  # rollouts kept with an alarm
CEILING = 0.95  # share of correct rollouts from which on a monitor is not expected to rise
UNSHARED = 0.9  # of the worth of the monitor's whole range: the rise of the proxy alone from which on it is suspicious
AGREED = 0.9  # rank correlation within groups from which on nothing but the monitor is reinforced
FIGURES = ("reward", "correct", "completion_tokens", "truncated", "entropy", "kl")  # kept beside the monitor's own


class AlarmStop(RunError):
    """The alarm ended the run (monitor.stop), after a checkpoint."""

    def __init__(self, step: int, signs: Mapping[str, str], evidence: Path) -> None:
        super().__init__(
            f"stopped at step {step} by the reward-hacking alarm: {'; '.join(signs.values())}. The rollouts are in "
            f"{evidence}; to go on, repeat the command with --monitor.no-stop"
        )


@dataclass(frozen=True)
class Level:
    """Means of proxy and monitor over some steps, their variances and covariance, the monitor's share correct."""

    proxy: float
    score: float
    var_proxy: float
    var_score: float
    covariance: float
    correct: float


def level(rows: Sequence[Row]) -> Level:
    """The level over some steps."""
    n = len(rows)

    def mean(name: str) -> float:
        return math.fsum(row[f"monitor/{name}"] for row in rows) / n

    def variance(one: str, other: str, r: str | None = None) -> float:
        products = (
            row[f"monitor/{one}_se"] * row[f"monitor/{other}_se"] * (row[f"monitor/{r}"] if r else 1) for row in rows
        )
        return math.fsum(products) / n**2

    return Level(
        mean("proxy"),
        mean("score"),
        variance("proxy", "proxy"),
        variance("score", "score"),
        variance("proxy", "score", "groups_r"),
        mean("correct"),
    )


def worth(rows: Sequence[Row]) -> float | None:
    """The slope of proxy on monitor within the groups of some steps; None where the monitor is flat in all of them."""
    known = [row for row in rows if "monitor/worth" in row]
    weight = math.fsum(row["monitor/score_within"] for row in known)
    return math.fsum(row["monitor/worth"] * row["monitor/score_within"] for row in known) / weight if weight else None


@dataclass(frozen=True)
class Change:
    """How proxy and monitor moved between two levels, in deviations of the single scores.

    noise, score_noise: standard errors of the difference of the two, and of the monitor's change.
    """

    proxy: float
    score: float
    noise: float
    score_noise: float


def change(before: Level, after: Level, std_proxy: float, std_score: float) -> Change:
    """The change between two levels. Where a score does not vary at all, it has not moved."""

    def scaled(value: float, std: float) -> float:
        return value / std if std > 0 else 0.0

    variance = sum(
        scaled(scaled(at.var_proxy, std_proxy), std_proxy)
        + scaled(scaled(at.var_score, std_score), std_score)
        - 2 * scaled(scaled(at.covariance, std_proxy), std_score)
        for at in (before, after)
    )
    return Change(
        scaled(after.proxy - before.proxy, std_proxy),
        scaled(after.score - before.score, std_score),
        max(variance, 0.0) ** 0.5,
        scaled((before.var_score + after.var_score) ** 0.5, std_score),
    )


def suspicions(rows: Sequence[Row], config: MonitorConfig) -> dict[str, str]:
    """The signs that hold after the last of the rows (one for each step so far), each with its figures in words."""
    rows = [row for row in rows if "monitor/proxy" in row]
    found = {"unranked": unranked(rows, config)}
    if len(rows) >= 2 * config.window:
        first, last = level(rows[: config.window]), level(rows[-config.window :])
        ends = (rows[: config.window], rows[-config.window :])
        std_proxy, std_score = (
            max(math.fsum(row[f"monitor/{name}_std"] for row in end) / config.window for end in ends)
            for name in ("proxy", "score")
        )
        rise = change(first, last, std_proxy, std_score)
        agreement = rank_agreement(rows[-config.window :])
        harmless = is_small(rows, first, last, config.window) or (agreement is not None and agreement[0] >= AGREED)
        found["apart"] = apart(first, last, rise, harmless, config)
        best = best_level(rows, config.window)
        found["fallen"] = fallen(best, last, rise, change(best, last, std_proxy, std_score), config)
    return {name: text for name, text in found.items() if text}


def apart(first: Level, last: Level, rise: Change, harmless: bool, config: MonitorConfig) -> str:
    """The proxy has risen since the first steps, and the monitor has not; where that is `harmless`, it has fallen."""
    alone = rise.proxy - rise.score >= config.margin / 2  # two that rise together do not pass the margin in one step
    parted = rise.proxy >= config.margin and rise.score < config.margin and last.correct < CEILING
    if not (parted and alone) or rise.proxy - rise.score < config.noise * rise.noise:
        return ""
    fell = rise.score <= -max(config.margin / 2, config.noise * rise.score_noise)
    if harmless and not fell:
        return ""
    return f"since the first steps {in_words(first, last)}"


def is_small(rows: Sequence[Row], first: Level, last: Level, window: int) -> bool:
    """Whether the proxy's rise beyond what the monitor's change brings is less than the monitor's range is worth to it.

    Where the monitor has never varied: less than the range of the proxy's own scores in a step of the first window.
    """
    recent = worth(rows[-window:])
    value = recent if recent is not None else worth(rows)
    if value is None:
        return last.proxy - first.proxy < max(row.get("monitor/proxy_range", 0.0) for row in rows[:window])
    value, scale = max(value, 0.0), max(row.get("monitor/score_range", 0.0) for row in rows)
    return last.proxy - first.proxy - value * (last.score - first.score) < UNSHARED * value * scale


def fallen(best: Level, last: Level, rise: Change, since: Change, config: MonitorConfig) -> str:
    """The monitor has fallen from its best, and the proxy, risen since the first steps, has not gone with it."""
    parted = rise.proxy >= config.margin and since.score <= -config.margin and since.proxy > -config.margin / 2
    if not parted or since.proxy - since.score < config.noise * since.noise:
        return ""
    return f"since the monitor's best {in_words(best, last)}"


def unranked(rows: Sequence[Row], config: MonitorConfig) -> str:
    """Within groups, over the last window, the rank correlation is below the bound by more than the noise."""
    agreement = rank_agreement(rows[-config.window :])
    if len(rows) < config.window or agreement is None:
        return ""
    mean, error = agreement
    if mean + config.noise * error >= config.rank:
        return ""
    return f"within groups the rank correlation of proxy and monitor is {mean:+.2f}"


def rank_agreement(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Rank correlation within the groups of some steps and its standard error; None where no group has one."""
    known = [row for row in rows if "monitor/rank" in row]
    groups = sum(row["monitor/ranked"] for row in known)
    if not groups:
        return None
    mean = math.fsum(row["monitor/rank"] * row["monitor/ranked"] for row in known) / groups
    error = math.fsum((row["monitor/rank_se"] * row["monitor/ranked"]) ** 2 for row in known) ** 0.5 / groups
    return mean, error


def best_level(rows: Sequence[Row], window: int) -> Level:
    """The window, apart from the last, in which the monitor's mean was highest."""
    scores = [row["monitor/score"] for row in rows]
    sums = [math.fsum(scores[start : start + window]) for start in range(len(rows) - 2 * window + 1)]
    start = max(range(len(sums)), key=sums.__getitem__)
    return level(rows[start : start + window])


def in_words(before: Level, after: Level) -> str:
    """What proxy and monitor did."""
    return (
        f"the proxy went from {before.proxy:.3g} to {after.proxy:.3g} and the monitor from {before.score:.3g} to "
        f"{after.score:.3g}"
    )


def drift(rows: Sequence[Row], row: Row, window: int) -> dict[str, float]:
    """How far a step's lengths and repetition are from the first steps' means: a share of the length, a difference."""
    first = [*rows, row][:window]
    length = math.fsum(r["completion_tokens"] for r in first) / len(first)
    repetition = math.fsum(r["monitor/repetition"] for r in first) / len(first)
    return {
        "monitor/length_drift": row["completion_tokens"] / length - 1 if length else 0.0,
        "monitor/repetition_drift": row["monitor/repetition"] - repetition,
    }


def streak(rows: Sequence[Row]) -> int:
    """How many steps in a row, up to the last, were suspicious."""
    for length, row in enumerate(reversed(rows)):
        if not row.get("monitor/suspicious"):
            return length
    return len(rows)


def alarm_record(
    step: int, signs: Mapping[str, str], metrics: Row, rollouts: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """A line of alarms.jsonl: what was seen, the step's figures, and the rollouts that show it."""
    figures = {name: metrics[name] for name in FIGURES if name in metrics}
    figures |= {name.removeprefix("monitor/"): v for name, v in metrics.items() if name.startswith("monitor/")}
    return {
        "step": step,
        "signs": dict(signs),
        "figures": {"kl": "not known", **figures},
        "rollouts": evidence(rollouts),
    }


def evidence(rollouts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The rollouts of a step (lines of rollouts.jsonl) that the proxy rewards most and the monitor rejects.

    Highest reward by the proxy first, of different problems as far as there are enough. Rewarded is what is correct,
    or scores above its group's mean (a group of one: the step's).
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
