"""What trackers get besides numbers: tables of answers, histograms and files, each in the tracker's own way.

wandb, trackio, mlflow and tensorboard take them. Another tracker of Accelerate gets numbers alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from rlvr.core.printable import cut_middle, printable

from .reading import answer_files, read_rollouts
from .records import is_number, mean_advantage

LONGEST = 2_000  # characters of a prompt or a completion in a table; the middle of longer ones is left out
MOST_ROWS = 32  # of a table of rollouts
SAMPLED = ("problem", "sample", "status", "reason", "reward", "advantage", "tokens", "prompt", "completion")
ANSWERED = ("problem", "sample", "status", "reason", "correct", "tokens", "prompt", "completion")


@dataclass(frozen=True)
class Table:
    """A table: the names of its columns, and its rows of texts, numbers, booleans and None."""

    columns: tuple[str, ...]
    rows: list[list[Any]]


def table_of_rollouts(rollouts: Sequence[Mapping[str, Any]]) -> Table:
    """Return at most MOST_ROWS rollouts of a step, evenly from all of its groups."""
    every = max(1, -(-len(rollouts) // MOST_ROWS))
    rows = [{**row, "advantage": mean_advantage(row)} for row in islice(rollouts, 0, None, every)]
    return Table(SAMPLED, [[as_cell(row.get(name)) for name in SAMPLED] for row in rows])


def table_of_answers(folder: Path, step: int) -> Table | None:
    """Return the first held-out answer to each problem that the evaluation after a step kept; None without any."""
    file = answer_files(folder).get(step)
    if file is None:
        return None
    rows = [{**row, **row["answers"][0]} for row in read_rollouts(file) if row["answers"]]
    return Table(ANSWERED, [[as_cell(row.get(name)) for name in ANSWERED] for row in rows])


def as_cell(value: Any) -> Any:
    """Return a value as a table holds it: chat messages as one text, texts without control characters and cut."""
    if value is None or is_number(value):
        return value
    if isinstance(value, list):
        messages = [f"{row.get('role')}: {row.get('content')}" for row in value if isinstance(row, dict)]
        value = "\n".join(messages)
    return cut_middle(printable(str(value)), LONGEST)


def histograms_of(rollouts: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the values whose distributions a step is seen by: lengths and rewards."""
    names = {"rollouts/lengths": "tokens", "rollouts/rewards": "reward"}
    found = {shown: [row[name] for row in rollouts if is_number(row.get(name))] for shown, name in names.items()}
    return {shown: values for shown, values in found.items() if values}


class Sender:
    """Sends tables, histograms and files to one tracker. tracker: what Accelerate holds (`unwrap=True`)."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker

    def table(self, name: str, table: Table, step: int) -> None:
        """Send a table."""

    def histogram(self, name: str, values: Sequence[float], step: int) -> None:
        """Send the distribution of values."""

    def file(self, path: Path, kind: str) -> None:
        """Send a file as an artifact; kind: a word, such as "report"."""


class RunSender(Sender):
    """wandb, and trackio, which has the same functions."""

    def __init__(self, tracker: Any, module: str) -> None:
        super().__init__(tracker)
        self.module = import_module(module)

    def table(self, name: str, table: Table, step: int) -> None:
        made = self.module.Table(columns=list(table.columns), data=table.rows)
        self.tracker.log({name: made}, step=step)

    def histogram(self, name: str, values: Sequence[float], step: int) -> None:
        self.tracker.log({name: self.module.Histogram(list(values))}, step=step)

    def file(self, path: Path, kind: str) -> None:
        name = re.sub(r"[^\w.-]", "-", path.name, flags=re.ASCII)
        self.tracker.log_artifact(str(path), name=name, type=kind)


class MLflowSender(Sender):
    """mlflow, where tables and histograms are artifacts in JSON."""

    def table(self, name: str, table: Table, step: int) -> None:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        self._write({"columns": list(table.columns), "rows": rows}, name, step)

    def histogram(self, name: str, values: Sequence[float], step: int) -> None:
        import numpy as np

        counts, edges = np.histogram(values, bins=64)
        self._write({"counts": counts.tolist(), "edges": edges.tolist()}, name, step)

    def _write(self, content: Any, name: str, step: int) -> None:
        import_module("mlflow").log_dict(content, f"{name}/step-{step:06d}.json")

    def file(self, path: Path, kind: str) -> None:
        import_module("mlflow").log_artifact(str(path))


class TensorboardSender(Sender):
    """tensorboard, where tables are texts in Markdown; it has no files."""

    def table(self, name: str, table: Table, step: int) -> None:
        lines = [table.columns, ["---"] * len(table.columns), *table.rows]
        self.tracker.add_text(name, "\n".join(f"| {' | '.join(map(as_markdown, line))} |" for line in lines), step)

    def histogram(self, name: str, values: Sequence[float], step: int) -> None:
        import numpy as np

        self.tracker.add_histogram(name, np.array(values, dtype=float), step)


def as_markdown(value: Any) -> str:
    """Return a cell of a table in Markdown: one line, in which no character has a meaning."""
    text = "" if value is None else str(value)
    return re.sub(r"([\\`*_{}\[\]<>()#+.!|~-])", r"\\\1", text).replace("\n", "⏎ ")


SENDERS: dict[str, Callable[[Any], Sender]] = {
    "wandb": partial(RunSender, module="wandb"),
    "trackio": partial(RunSender, module="trackio"),
    "mlflow": MLflowSender,
    "tensorboard": TensorboardSender,
}
