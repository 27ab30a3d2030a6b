"""What a person sees while a run goes on: progress bars, sample rollouts, the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

from rlvr.printable import printable
from rlvr.runs.records import describe_shuffled, graded, pass_names, with_interval

LINES_WITHOUT_TERMINAL = 20  # progress lines of a whole phase where there is no terminal to redraw
WIDEST_TABLE = 1000  # columns of text
SPEED_PERIOD = 3600  # seconds by which the remaining time is estimated: evaluations between steps are part of it
STYLES = {"correct": "green", "incorrect": "red", "bad_reference": "magenta", "error": "magenta"}


@dataclass
class Phase:
    """What goes on, how many steps it has, and its bar where there is a terminal."""

    name: str
    total: int
    bar: TaskID | None = None


class PipedConsole(Console):
    """A console whose reader may go away, as `| head` does: that is told by the exit code of any command."""

    def on_broken_pipe(self) -> None:
        """Raises BrokenPipeError, where rich would exit with code 1."""
        raise BrokenPipeError("nobody reads standard output any more")


class Bars(Progress):
    """Bars, and below them the innermost phase's last text on a line of its own, cut at the terminal's width."""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.text:
            yield Text(self.text, no_wrap=True, overflow="ellipsis")

    @property
    def text(self) -> str:
        """The text of the innermost phase that has one."""
        return next((str(task.fields["text"]) for task in reversed(self.tasks) if task.fields["text"]), "")


class Display:
    """Progress of phases: fine-tuning, training, and evaluation within training, whose clock goes on meanwhile.

    On other processes it shows nothing.
    """

    def __init__(self, *, enabled: bool = True) -> None:
        self.console = PipedConsole(quiet=not enabled, highlight=False, soft_wrap=True)
        self.live = enabled and sys.stdout.isatty()
        self._progress: Bars | None = None
        self._phases: list[Phase] = []

    def start(self, name: str, total: int, completed: int = 0) -> None:
        """Begins a phase of `total` steps, within the one that goes on."""
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
        """Shows that `completed` steps of the innermost phase are done."""
        phase = self._phases[-1]
        if self._progress and phase.bar is not None:
            self._progress.update(phase.bar, completed=completed, text=text)
        elif completed == phase.total or completed % max(phase.total // LINES_WITHOUT_TERMINAL, 1) == 0:
            self.console.print(f"{phase.name} {completed}/{phase.total}  {shown(text)}")

    def finish(self) -> None:
        """Ends the innermost phase. Its bar stays where it was the only one."""
        phase = self._phases.pop()
        if self._progress is None or phase.bar is None:
            return
        if self._phases:
            self._progress.remove_task(phase.bar)
        else:
            self._progress.stop()
            self._progress = None

    def height(self) -> int:
        """Lines of the terminal that the bars take at present."""
        return 0 if self._progress is None else len(self._progress.tasks) + bool(self._progress.text)

    def close(self) -> None:
        """Ends whatever goes on, so that the terminal is as it was."""
        while self._phases:
            self.finish()

    def say(self, text: str, *, wrap: bool = False) -> None:
        """A line of plain text; with `wrap` a terminal breaks it between words (a path or command it must not)."""
        self.console.print(shown(text), soft_wrap=not (wrap and self.live))

    def print_table(self, table: Table) -> None:
        """A table, as wide as its numbers are: none is cut, where a terminal is narrower it breaks the lines."""
        options = self.console.options.update(max_width=WIDEST_TABLE)
        width = Measurement.get(self.console, options, table).maximum
        # Rendered here: the console's own print takes no width above its own.
        whole = Segments(self.console.render(table, options.update(width=width)))
        self.console.print(whole, soft_wrap=True, end="")

    def sample(self, record: Mapping[str, Any]) -> None:
        """One rollout (a line of rollouts.jsonl), as the policy saw and wrote it."""
        prompt = record["prompt"]
        asked = prompt if isinstance(prompt, str) else "\n".join(f"[{m['role']}] {m['content']}" for m in prompt)
        reason = f" ({shown(record['reason'])})" if record["reason"] else ""
        head = f"step {record['step']}, problem {shown(record['problem'])}, sample {record['sample']}"
        self.console.print(f"[dim]{head}[/dim]")
        self.console.print(f"[cyan]{shown(_clip(asked))}[/cyan]{shown(_clip(record['completion']))}")
        paid = shown(describe_shuffled(record))
        trained = f"advantage {record['advantage']:+.3f}" if record.get("kept", True) else "not trained on"
        self.console.print(f"{colored(record['status'])}{reason}{paid}, {trained}")


def colored(status: str, text: str = "") -> str:
    """A verdict's status, or a text that names it, as rich markup: correct and incorrect differ in colour too."""
    style = STYLES.get(status, "yellow")
    return f"[bold {style}]{shown(text or status)}[/]"


def shown(text: str) -> str:
    """Text of a model or a file for rich: its brackets are no markup, and its control characters are escaped."""
    return escape(printable(text))


def _clip(text: str, limit: int = 1200) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]} [...] {text[-limit // 2 :]}"


def describe_step(metrics: Mapping[str, float]) -> str:
    """A step's numbers in one line."""
    monitor = f"monitor {metrics['monitor/score']:.3f}  " if "monitor/score" in metrics else ""
    kept = f"kept {metrics['groups_kept']:.0f}/{metrics['groups_sampled']:.0f}  " if "groups_kept" in metrics else ""
    unscored = f"UNSCORED {metrics['unscored']:.2f}  " if metrics.get("unscored") else ""
    return (
        f"reward {metrics['reward']:.3f}  {unscored}{monitor}no signal {metrics['no_signal']:.2f}  {kept}"
        f"truncated {metrics['truncated']:.2f}  grad {metrics['grad_norm']:.2f}  "
        f"{metrics['tokens_per_second']:.0f} tok/s"
    )


def describe_alarm(record: Mapping[str, Any]) -> str:
    """An alarm in one line."""
    signs = "; ".join(f"{name}: {text}" for name, text in record["signs"].items())
    return f"ALARM at step {record['step']}, the reward may be hacked: {signs} (rollouts that show it: alarms.jsonl)"


def describe_evaluation(result: Mapping[str, Any], ks: Sequence[int]) -> str:
    """An evaluation in one line."""
    names = [f"pass@{k}" for k in ks] + (["score"] if graded([result]) else [])
    return "  ".join(f"{name} {result[name]:.3f}" for name in names)


def evaluation_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    """pass@k of every evaluation with 95 % intervals over problems; the first k by strict and lenient extraction.

    Also the score where it says more than pass@k.
    """
    ks = pass_names(evaluations)
    forms = [f"{form}_{ks[0]}" for form in ("strict", "lenient") if any(f"{form}_{ks[0]}" in e for e in evaluations)]
    shown = [*ks, *(["score"] if graded(evaluations) else [])]
    counts = sorted({record["num_problems"] for record in evaluations})
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    title = f"{count} held-out problems, 95 % intervals"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("step", *shown, *forms, "truncated"):
        table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for record in evaluations:
        # With other settings eval.* an evaluation of a resumed run may lack a number.
        cells = [with_interval(record, name, 2) for name in shown]
        cells += [f"{record[form]:.3f}" if form in record else "" for form in (*forms, "truncated")]
        table.add_row(str(record["step"]), *map(escape, cells))
    return table
