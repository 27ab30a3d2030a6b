"""The curves of a run, drawn with matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rlvr.core.files.tables import read_sections
from rlvr.runs.records import Record, interval, is_graded, is_number, pass_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARK = "rlvr report"  # in the picture's metadata: a file that carries it may be overwritten

# Panels: a title, and numbers of metrics.jsonl with their labels. A panel whose numbers were not logged is left out.
_LINES = read_sections(Path(__file__).with_name("panels.txt"))["panels"]
PANELS: tuple[tuple[str, dict[str, str]], ...] = tuple(
    (title, dict(number.split(" = ") for number in numbers))
    for title, *numbers in (line.split(" | ") for line in _LINES)
)
COLUMNS = 3
WIDTH, HEIGHT = 5.0, 3.0  # inches of a panel
COLORS = ("#1f6feb", "#d1495b", "#2e933c", "#8957e5", "#bf8700")
ALARM = "#b35900"
LINES = ("-", "--", ":", "-.", "-")  # so that series with equal values stay visible


def draw_curves(
    metrics: Sequence[Record], evaluations: Sequence[Record], alarms: Sequence[Record] = ()
) -> bytes | None:
    """Return the curves as a PNG, or None where there is nothing to draw.

    Points that are missing or not finite are left out. Alarms are vertical lines in the panels of the monitor.
    """
    from matplotlib.figure import Figure  # a second to import

    panels = [(title, names) for title, names in PANELS if any(series(metrics, name)[0] for name in names)]
    shows_score = is_graded(evaluations)
    count = len(panels) + bool(evaluations) + shows_score
    if not count:
        return None
    rows = math.ceil(count / COLUMNS)
    width, height = WIDTH * COLUMNS, HEIGHT * rows
    figure = Figure(figsize=(width, height), dpi=90)
    # Set by hand: a layout engine draws everything several times.
    figure.subplots_adjust(
        left=0.55 / width, right=1 - 0.2 / width, bottom=0.5 / height, top=1 - 0.35 / height, wspace=0.2, hspace=0.45
    )
    axes = figure.subplots(rows, COLUMNS, squeeze=False).ravel().tolist()
    for axis in axes[count:]:
        axis.set_visible(False)
    if evaluations:
        draw_pass_at_k(axes.pop(0), evaluations)
    if shows_score:
        draw_with_band(axes[0], "score", COLORS[0], evaluations)
        finish(axes.pop(0), "held-out score, 95 % intervals")
    for axis, (title, names) in zip(axes, panels):
        draw_panel(axis, title, names, metrics)
        if any(name.startswith("monitor/") for name in names):
            draw_alarms(axis, alarms)
    picture = io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": MARK})
    return picture.getvalue()


def draw_pass_at_k(axis: Axes, evaluations: Sequence[Record]) -> None:
    """Draw pass@k of held-out problems with its intervals."""
    for name, color in zip(pass_names(evaluations), COLORS):
        draw_with_band(axis, name, color, evaluations)
    axis.set_ylim(-0.02, 1.02)
    finish(axis, "held-out problems, 95 % intervals")


def draw_with_band(axis: Axes, name: str, color: str, evaluations: Sequence[Record]) -> None:
    """Draw one number of the evaluations, with its interval where it has one."""
    steps, values = series(evaluations, name)
    axis.plot(steps, values, color=color, marker="o", markersize=4, label=name)
    bands = {row["step"]: band for row in evaluations if (band := interval(row, name)) and "step" in row}
    known = [step for step in steps if step in bands]
    axis.fill_between(known, [bands[s][0] for s in known], [bands[s][1] for s in known], color=color, alpha=0.15)


def draw_panel(axis: Axes, title: str, names: Mapping[str, str], metrics: Sequence[Record]) -> None:
    """Draw one panel: each series faintly, and its running mean over a twentieth of the run."""
    for (name, label), color, line in zip(names.items(), COLORS, LINES):
        steps, values = series(metrics, name)
        if steps:
            axis.plot(steps, values, color=color, alpha=0.3, linewidth=1)
            smooth = running_mean(values, max(1, len(values) // 20))
            axis.plot(steps, smooth, color=color, linestyle=line, linewidth=1.8, label=label)
    finish(axis, title)


def draw_alarms(axis: Axes, alarms: Sequence[Record]) -> None:
    """Draw a vertical line at the step of each alarm."""
    for alarm in alarms:
        axis.axvline(alarm["step"], color=ALARM, linewidth=1, linestyle="--", label="alarm")
    if alarms:
        handles, labels = axis.get_legend_handles_labels()
        once = dict(zip(labels, handles))
        axis.legend(once.values(), once.keys(), fontsize=8, frameon=False)


def finish(axis: Axes, title: str) -> None:
    """Set title, grid, ticks and legend of a panel."""
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("step", fontsize=8)
    axis.locator_params(axis="x", integer=True)
    axis.tick_params(labelsize=8)
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, frameon=False)


def series(records: Sequence[Record], name: str) -> tuple[list[float], list[float]]:
    """Return the steps and values of a number, without records in which it is missing or not finite."""
    points = [(row["step"], row[name]) for row in records if is_number(row.get(name)) and is_number(row.get("step"))]
    return [step for step, _ in points], [value for _, value in points]


def running_mean(values: Sequence[float], width: int) -> list[float]:
    """Return the mean of each value and the `width - 1` before it (fewer at the start)."""
    return [math.fsum(values[max(0, i + 1 - width) : i + 1]) / min(width, i + 1) for i in range(len(values))]
