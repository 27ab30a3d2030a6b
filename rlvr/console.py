"""What a person sees while a run goes on: a progress bar, sample rollouts, the table at the end."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from rlvr.printable import printable

LINES_WITHOUT_TERMINAL = 20  # progress lines of a whole phase where there is no terminal to redraw


class Display:
    """Progress of one phase at a time (fine-tuning, training, evaluation). On other processes it shows nothing."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.console = Console(quiet=not enabled, highlight=False, soft_wrap=True)
        self.live = enabled and sys.stdout.isatty()
        self._progress: Progress | None = None
        self._task: Any = None
        self._total = 0
        self._name = ""

    def start(self, name: str, total: int, completed: int = 0) -> None:
        """Begins a phase of `total` steps."""
        self.finish()
        self._name, self._total = name, total
        if self.live:
            columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
            self._progress = Progress(
                *columns, TimeRemainingColumn(), TextColumn("{task.fields[text]}"), console=self.console
            )
            self._task = self._progress.add_task(name, total=total, completed=completed, text="")
            self._progress.start()

    def step(self, completed: int, text: str) -> None:
        """Shows that `completed` steps are done."""
        if self._progress:
            self._progress.update(self._task, completed=completed, text=text)
        elif completed == self._total or completed % max(self._total // LINES_WITHOUT_TERMINAL, 1) == 0:
            self.console.print(f"{self._name} {completed}/{self._total}  {shown(text)}")

    def finish(self) -> None:
        """Ends the phase."""
        if self._progress:
            self._progress.stop()
            self._progress = None

    def say(self, text: str) -> None:
        """A line of plain text."""
        self.console.print(shown(text))

    def sample(self, record: Mapping[str, Any]) -> None:
        """One rollout (a line of rollouts.jsonl), as the policy saw and wrote it."""
        prompt = record["prompt"]
        asked = prompt if isinstance(prompt, str) else "\n".join(f"[{m['role']}] {m['content']}" for m in prompt)
        reason = f" ({shown(record['reason'])})" if record["reason"] else ""
        head = f"step {record['step']}, problem {shown(record['problem'])}, sample {record['sample']}"
        self.console.print(f"[dim]{head}[/dim]")
        self.console.print(f"[cyan]{shown(_clip(asked))}[/cyan]{shown(_clip(record['completion']))}")
        trained = f"advantage {record['advantage']:+.3f}" if record.get("kept", True) else "not trained on"
        self.console.print(f"[bold]{record['status']}[/bold]{reason}, {trained}")


def shown(text: str) -> str:
    """Text of a model or a file for rich: its brackets are no markup, and its control characters are escaped."""
    return escape(printable(text))


def _clip(text: str, limit: int = 1200) -> str:
    return text if len(text) <= limit else f"{text[: limit // 2]} [...] {text[-limit // 2 :]}"


def describe_step(metrics: Mapping[str, float]) -> str:
    """A step's numbers in one line."""
    shadow = f"shadow {metrics['shadow/score']:.3f}  " if "shadow/score" in metrics else ""
    kept = f"kept {metrics['groups_kept']:.0f}/{metrics['groups_sampled']:.0f}  " if "groups_kept" in metrics else ""
    unscored = f"UNSCORED {metrics['unscored']:.2f}  " if metrics.get("unscored") else ""
    return (
        f"reward {metrics['reward']:.3f}  {unscored}{shadow}no signal {metrics['no_signal']:.2f}  {kept}"
        f"truncated {metrics['truncated']:.2f}  grad {metrics['grad_norm']:.2f}  "
        f"{metrics['tokens_per_second']:.0f} tok/s"
    )


def describe_alarm(record: Mapping[str, Any]) -> str:
    """An alarm in one line."""
    signs = "; ".join(f"{name}: {text}" for name, text in record["signs"].items())
    return f"ALARM at step {record['step']}, the reward may be hacked: {signs} (rollouts that show it: alarms.jsonl)"


def evaluation_table(evaluations: Sequence[Mapping[str, Any]]) -> Table:
    """pass@k of every evaluation with 95 % intervals over problems; the first k by strict and lenient extraction."""
    ks = [name for name in evaluations[0] if name.startswith("pass@") and name[5:].isdigit()]
    forms = [f"{form}_{ks[0]}" for form in ("strict", "lenient") if f"{form}_{ks[0]}" in evaluations[0]]
    table = Table(title=f"held-out problems: {evaluations[0]['num_problems']}")
    for name in ("step", *ks, *forms, "cut_off"):
        table.add_column(name.replace("_", "\n"), justify="right", no_wrap=True)
    for record in evaluations:
        # With other settings eval.* an evaluation of a resumed run may lack a number.
        cells = [
            escape("{:.3f} [{:.2f}, {:.2f}]".format(record[name], *record[f"{name}_ci"])) if name in record else ""
            for name in ks
        ]
        shown = (f"{record[form]:.3f}" if form in record else "" for form in (*forms, "truncated"))
        table.add_row(str(record["step"]), *cells, *shown)
    return table
