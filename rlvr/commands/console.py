"""Terminal output of a run: progress bars, sample rollouts, the table of evaluations."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segments
from rich.table import Table
from rich.text import Text

from rlvr.config import Config
from rlvr.core.printable import printable
from rlvr.runs.records import describe_shuffled, is_graded, mean_advantage, pass_names, with_interval

LINES_WITHOUT_TERMINAL = 20  # progress lines for a whole phase where stdout is not a terminal
WIDEST_TABLE = 1000  # columns of text
SPEED_PERIOD = 3600  # seconds over which speed is averaged, so that evaluations count in the remaining time
STYLES = {"correct": "green", "incorrect": "red", "bad_reference": "magenta", "error": "magenta"}


@dataclass
class Phase:
    """A phase of the run: its name, its number of steps, and its progress bar where there is a terminal."""

    name: str
    total: int
    bar: TaskID | None = None


class PipedConsole(Console):
    """A console whose reader may close the pipe, as `| head` does; the command line handles that in one place."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, where rich would exit with code 1."""
        raise BrokenPipeError("the reader of standard output has closed it")


class Bars(Progress):
    """Progress bars, and below them the innermost phase's text on one line, cut at the terminal's width."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yield the bars, and the text where there is one (called by rich)."""
        yield self.make_tasks_table(self.tasks)
        if self.text:
            yield Text(self.text, no_wrap=True, overflow="ellipsis")

    @property
    def text(self) -> str:
        """Return the text of the innermost phase that has one, else ""."""
        return next((str(task.fields["text"]) for task in reversed(self.tasks) if task.fields["text"]), "")


class Display:
    """Progress of nested phases: fine-tuning, training, and evaluation within training.

    The clock of the outer phase runs on meanwhile. `enabled=False` shows nothing (all processes but the first).
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.console = PipedConsole(quiet=not enabled, highlight=False, soft_wrap=True)
        self.live = enabled and sys.stdout.isatty()
        self._progress: Bars | None = None
        self._phases: list[Phase] = []

    def start(self, name: str, total: int, completed: int = 0) -> None:
        """Begin a phase of `total` steps, nested in the current one."""
        phase = Phase(name, total)
        self._phases.append(phase)
        if not self.live:
            return
        if self._progress is None:
            columns = [TextColumn("{task.description}"), BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn()]
            left = [TextColumn("[dim]left"), TimeRemainingColumn()]
            self._progress = Bars(*columns, *left, console=self.console, speed_estimate_period=SPEED_PERIOD)
            self._progress.start()
        phase.bar = self._progress.add_task(name, total=total, completed=completed, text="")

    def step(self, completed: int, text: str) -> None:
        """Show that `completed` steps of the innermost phase are done, with a text."""
        phase = self._phases[-1]
        if self._progress and phase.bar is not None:
            self._progress.update(phase.bar, completed=completed, text=text)
        elif completed == phase.total or completed % max(phase.total // LINES_WITHOUT_TERMINAL, 1) == 0:
            self.console.print(f"{phase.name} {completed}/{phase.total}  {escape_text(text)}")

    def finish(self) -> None:
        """End the innermost phase. The bar of an outermost phase stays on the screen."""
        phase = self._phases.pop()
        if self._progress is None or phase.bar is None:
            return
        if self._phases:
            self._progress.remove_task(phase.bar)
        else:
            self._progress.stop()
            self._progress = None

    def height(self) -> int:
        """Return the number of terminal lines that the bars occupy now."""
        return 0 if self._progress is None else len(self._progress.tasks) + bool(self._progress.text)

    def close(self) -> None:
        """End all phases and restore the terminal."""
        while self._phases:
            self.finish()

    def say(self, text: str, *, wrap: bool = False) -> None:
        """Print a line of plain text. `wrap`: break it between words on a terminal (not for paths and commands)."""
        self.console.print(escape_text(text), soft_wrap=not (wrap and self.live))

    def print_table(self, table: Table) -> None:
        """Print a table at its full width: no number is cut; a narrower terminal wraps the lines."""
        options = self.console.options.update(max_width=WIDEST_TABLE)
        width = Measurement.get(self.console, options, table).maximum
        # Rendered here: Console.print accepts no width above the console's own.
        whole = Segments(self.console.render(table, options.update(width=width)))
        self.console.print(whole, soft_wrap=True, end="")

    def sample(self, record: Mapping[str, Any]) -> None:
        """Print one rollout (a record of rollouts.jsonl): prompt, completion or turns, verdict and advantage."""
        prompt = record["prompt"]
        asked = prompt if isinstance(prompt, str) else "\n".join(f"[{m['role']}] {m['content']}" for m in prompt)
        reason = f" ({escape_text(record['reason'])})" if record["reason"] else ""
        head = f"step {record['step']}, problem {escape_text(record['problem'])}, sample {record['sample']}"
        self.console.print(f"[dim]{head}[/dim]")
        turns = "".join(f"\n[{turn['role']}] {turn['text']}" for turn in record.get("turns", ()))
        said = turns or record["completion"]
        self.console.print(f"[cyan]{escape_text(_clip(asked))}[/cyan]{escape_text(_clip(said))}")
        paid = escape_text(describe_shuffled(record))
        advantage = mean_advantage(record) if record.get("kept", True) else None
        trained = "not trained on" if advantage is None else f"advantage {advantage:+.3f}"
        self.console.print(f"{color_status(record['status'])}{reason}{paid}, {trained}")


def color_status(status: str, text: str = "") -> str:
    """Return a verdict's status (or a text in its place) as rich markup in the color of the status."""
    style = STYLES.get(status, "yellow")
    return f"[bold {style}]{escape_text(text or status)}[/]"


def escape_text(text: str) -> str:
    """Return text of a model or a file for rich, with markup and control characters escaped."""
    return escape(printable(text))


def _clip(text: str, limit: int = 1200) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]} [...] {text[-limit // 2 :]}"


def describe_step(metrics: Mapping[str, float]) -> str:
    monitor = f"monitor {metrics['monitor/score']:.3f}  " if "monitor/score" in metrics else ""
    kept = f"kept {metrics['groups_kept']:.0f}/{metrics['groups_sampled']:.0f}  " if "groups_kept" in metrics else ""
    unscored = f"UNSCORED {metrics['unscored']:.2f}  " if metrics.get("unscored") else ""
    return (
        f"reward {metrics['reward']:.3f}  {unscored}{monitor}no signal {metrics['no_signal']:.2f}  {kept}"
        f"truncated {metrics['truncated']:.2f}  grad {metrics['grad_norm']:.2f}  "
        f"{metrics['tokens_per_second']:.0f} tok/s"
    )


def describe_alarm(record: Mapping[str, Any]) -> str:
    signs = "; ".join(f"{name}: {text}" for name, text in record["signs"].items())
    return f"ALARM at step {record['step']}, the reward may be hacked: {signs} (example rollouts: alarms.jsonl)"


def describe_evaluation(result: Mapping[str, Any], ks: Sequence[int]) -> str:
    names = [f"pass@{k}" for k in ks] + (["score"] if is_graded([result]) else [])
    return "  ".join(f"{name} {result[name]:.3f}" for name in names)


def make_evaluation_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of every evaluation: pass@k with 95 % intervals over problems, and the share truncated.

    The smallest k also by strict and lenient extraction; the mean score where the verifier grades.
    """
    ks = pass_names(evaluations)
    forms = [f"{form}_{ks[0]}" for form in ("strict", "lenient") if any(f"{form}_{ks[0]}" in e for e in evaluations)]
    shown = [*ks, *(["score"] if is_graded(evaluations) else [])]
    counts = sorted({record["num_problems"] for record in evaluations})
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    title = f"{count} held-out problems, 95 % intervals"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("step", *shown, *forms, "truncated"):
        table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for record in evaluations:
        # A run resumed with other eval.* settings may lack a number in some evaluations.
        cells = [with_interval(record, name, 2) for name in shown]
        cells += [f"{record[form]:.3f}" if form in record else "" for form in (*forms, "truncated")]
        table.add_row(str(record["step"]), *map(escape, cells))
    return table


# The last lines of a finished run: the change on held-out problems, the models it saved, the next command to type.


def describe_outcome(evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Return one sentence on pass@k (the smallest k) before and after, with intervals; "" without evaluations.

    A graded score is named too.
    """
    if not evaluations:
        return ""
    first, last = evaluations[0], evaluations[-1]
    names = pass_names(evaluations)[:1] + (["score"] if is_graded(evaluations) else [])
    if len(evaluations) == 1:
        found = " and ".join(f"{name} is {with_interval(last, name)}" for name in names)
        return f"Held-out {found}, at step {last['step']}, on {last['num_problems']} problems."
    moves = " and ".join(
        f"{name} went from {with_interval(first, name)} to {with_interval(last, name)}" for name in names
    )
    return (
        f"Held-out {moves} over {last['step'] - first['step']} steps, on {last['num_problems']} problems "
        "(in brackets: 95 % intervals)."
    )


def list_saved_models(config: Config) -> list[tuple[str, Path]]:
    """Return the models that a run saved as (label, folder), the one to evaluate next first.

    That is the last checkpoint, or the fine-tuned policy where no step was trained.
    """
    from rlvr.training.checkpoint.folders import list_checkpoints

    saved = list_checkpoints(config.run.out_dir)
    if saved:
        return [("last checkpoint", saved[-1][1])]
    start = config.run.out_dir / "start"
    return [("fine-tuned model", start)] if (start / "state.json").exists() else []


def find_program() -> str:
    """Return how a shell calls this installation: `rlvr` where PATH leads to it, else `PYTHON -m rlvr`."""
    found, here = shutil.which("rlvr"), Path(sys.executable).absolute()
    if found and Path(found).absolute().parent == here.parent:
        return "rlvr"
    python = os.path.relpath(here) if here.is_relative_to(Path.cwd()) else str(here)
    return f"{shlex.quote(python)} -m rlvr"
