"""The results of `rlvr regrade` on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.table import Table

from rlvr.types import Status


def confusion_table(result: Mapping[str, Any]) -> Table:
    """Return how many rollouts of each stored verdict have which new one."""
    confusion = result["confusion"]
    seen = {name for row in confusion.values() for name in row}
    columns = [str(status) for status in Status if str(status) in seen]
    title = f"{result['rollouts']:,} rollouts: stored verdict (rows), new verdict (columns)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("stored", *columns):
        table.add_column(name, justify="left" if name == "stored" else "right", no_wrap=True)
    for status in map(str, Status):
        if status in confusion:
            table.add_row(status, *(f"{confusion[status].get(name, 0):,}" for name in columns))
    return table


def summary(result: Mapping[str, Any]) -> list[str]:
    """Return what changes, in a few lines."""
    count, rollouts = result["disagreements"], result["rollouts"]
    lines = [f"agreement {result['agreement']:.2%}: {count:,} of {rollouts:,} rollouts have another verdict or score"]
    if words := result["same_verdict_in_other_words"]:
        lines.append(f"{words:,} more have the same verdict with another reason or extracted answer")
    if kept := result["kept_verdicts"]:
        lines.append(f"{kept:,} keep their stored verdict: their environment judged or failed, and no verifier")
    reward = result["reward"]
    means = [("none" if value is None else f"{value:.4f}") for value in (reward["stored"], reward["new"])]
    lines.append(f"mean reward {means[0]} stored, {means[1]} new; {reward['changed']:,} rewards differ")
    found = result["advantage"]
    if found is None:
        lines.append(f"advantages are not compared: {result['no_advantages_because']}")
        return lines
    signal = found["groups_with_signal"]
    lines.append(
        f"{found['changed']:,} of {found['of']:,} advantages would differ, by {found['mean_change']:.4f} on average "
        f"over all, and {found['other_sign']:,} would have the other sign"
    )
    stored, new = (f"{signal[name]:,}" for name in ("stored", "new"))
    lines.append(f"groups with signal: {stored} of {found['groups']:,} stored, {new} new")
    return lines
