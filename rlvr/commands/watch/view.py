"""How `rlvr watch` shows a run: figures, warnings and rollouts as text for a terminal of any width."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from rlvr.config.settings import COUNT, COUNT_OR_NONE, SECONDS
from rlvr.core.printable import in_one_line, printable
from rlvr.core.registry import did_you_mean
from rlvr.core.types import Status
from rlvr.runs.reading import check_run
from rlvr.runs.records import (
    Masks,
    Part,
    describe_shuffled,
    is_number,
    parts_of_rollout,
    pass_names,
    series,
    verdict_line,
    with_interval,
)

from ..arguments import Positional, parse
from ..console import STYLES, PipedConsole
from .state import Choice, WatchedRun, phases

Record = Mapping[str, Any]
BLOCKS = "▁▂▃▄▅▆▇█"
SPARK = 24  # columns
# Name shown, metric, format. One that was not logged is left out.
FIGURES = (
    ("reward", "reward", ".3f"),
    ("monitor", "monitor/score", ".3f"),
    ("KL", "kl", ".4f"),
    ("entropy", "entropy", ".3f"),
    ("length", "completion_tokens", ".1f"),
)
SHARES = (
    ("no signal", "no_signal"),
    ("truncated", "truncated"),
    ("unscored", "unscored"),
    ("errors", "status/error"),
    ("void turns", "turns/void"),
    ("failed calls", "tools/failed"),
)


def overview(run: WatchedRun, *, blocks: bool) -> list[Text]:
    """Return the lines on a run's progress and figures. blocks: the terminal can show curves of block characters."""
    lines = [title(run), pace(run)]
    lines += [figure(run, *row, blocks=blocks) for row in FIGURES if series(run.metrics, row[1])[0]]
    lines += [*held_out(run), shares(run), *warnings(run)]
    return [line for line in lines if line.plain]


def title(run: WatchedRun) -> Text:
    """Return the run's name, whether it runs, and how far it is."""
    count = f"step {run.step}" + (f" of {run.steps}" if run.steps is not None else "")
    line = Text(in_one_line(run.folder.resolve().name), style="bold")
    if run.running:
        line.append(f"  running ({in_one_line(run.process) or 'process not known'})", style="green")
    elif run.ended_early:
        line.append("  ended early: evaluations got no better")
    elif run.steps is not None and run.step < run.steps:
        line.append("  not running, not finished", style="yellow")
    else:
        line.append("  finished")
    line.append(f"  {count}")
    if run.running and not run.metrics:
        line.append(", before the first step: it loads, fine-tunes or evaluates")
    return line


def pace(run: WatchedRun) -> Text:
    """Return the time of a step, its parts, and the time left."""
    seconds, left = run.step_seconds(), run.seconds_left()
    if seconds is None:
        return Text()
    parts = ", ".join(f"{name} {value:.3g}" for name, value in phases(run.metrics[-1]).items())
    line = f"{seconds:.3g} s a step" + (f" ({parts})" if parts else "")
    if run.running and left:
        line += f"; about {duration(left)} left"
    speed = run.metrics[-1].get("tokens_per_second")
    return Text(line + (f"; {speed:,.0f} tokens/s" if is_number(speed) else ""))


def duration(seconds: float) -> str:
    """Return a time as h:mm:ss, or m:ss."""
    whole = int(seconds)
    minutes = f"{whole // 60 % 60}:{whole % 60:02d}"
    return f"{whole // 3600}:{minutes.zfill(5)}" if whole >= 3600 else minutes


def figure(run: WatchedRun, name: str, metric: str, form: str, *, blocks: bool) -> Text:
    """Return the last value of a metric, the first, and its course."""
    values = series(run.metrics, metric)[1]
    line = Text(f"{name:10}{values[-1]:>9{form}}")
    line.append(f"  from {values[0]:{form}}", style="dim")
    if blocks and len(values) > 1:
        line.append(f"  {spark(values)}", style="cyan")
    return line


def spark(values: Sequence[float], width: int = SPARK) -> str:
    """Return values as at most `width` block characters. Each stands for the mean of an equal share of the values."""
    count = min(width, len(values))
    ends = [round(i * len(values) / count) for i in range(count + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in pairwise(ends)]
    low, high = min(means), max(means)
    return "".join(BLOCKS[int((v - low) / (high - low) * 7.999) if high > low else 3] for v in means)


def held_out(run: WatchedRun) -> list[Text]:
    """Return pass@k of the first evaluation and of the last, with intervals."""
    if not run.evaluations:
        return []
    first, last = run.evaluations[0], run.evaluations[-1]
    lines = []
    for name in pass_names(run.evaluations):
        line = Text(f"{name:10}")
        line.append(with_interval(last, name) or "not measured", style="bold")
        line.append(f" after step {last['step']}")
        if first is not last and is_number(first.get(name)):
            line.append(f", from {with_interval(first, name)} after step {first['step']}", style="dim")
        lines.append(line)
    return lines


def shares(run: WatchedRun) -> Text:
    """Return which shares of the last step's groups, rollouts and turns call for attention; errors in red."""
    line = Text()
    for name, metric in SHARES:
        value = run.metrics[-1].get(metric) if run.metrics else None
        if is_number(value):
            bad = metric in ("unscored", "status/error") and value
            line.append(f"{'  ' if line.plain else ''}{name} {value:.2f}", style="bold red" if bad else "")
    return line


def warnings(run: WatchedRun) -> list[Text]:
    """Return alarms, a stall, and damaged lines, one line each."""
    lines = []
    if run.alarms:
        last = run.alarms[-1]
        signs = last.get("signs")
        text = "; ".join(f"{k}: {v}" for k, v in signs.items()) if isinstance(signs, Mapping) else ""
        count = "ALARM" if len(run.alarms) == 1 else f"{len(run.alarms)} ALARMS, the last"
        lines.append(f"{count} at step {last['step']}: {text}")
    lines += [line for line in (run.stall(),) if line]
    if run.num_damaged:
        lines.append(f"{run.num_damaged} damaged lines are left out")
    return [Text(in_one_line(line), style="bold red") for line in lines]


def rollout(record: Record, masks: Masks, *, characters: int) -> Text:
    """Return a rollout as text. What is not trained on is dim, void turns are marked, long parts are cut."""
    head = f"step {record.get('step')}, problem {record.get('problem')}, sample {record.get('sample')}: "
    text = Text(in_one_line(head) + " ", style="bold")
    text.append(
        in_one_line(verdict_line(record) + describe_shuffled(record)),
        style=STYLES.get(str(record.get("status")), "yellow"),
    )
    for part in parts_of_rollout(record, masks):
        text.append("\n")
        text.append_text(part_text(part, characters))
    return text


def part_text(part: Part, characters: int) -> Text:
    """Return a part with its label, cut in the middle to at most `characters`."""
    text = Text(f"[{in_one_line(part.label)}]", style="bold magenta" if part.void else "cyan")
    shown = part.text if len(part.text) <= characters else f"{part.text[: characters // 2]} [...] "
    if shown is not part.text:
        shown += part.text[len(part.text) - characters // 2 :]
    style = " ".join(filter(None, ("" if part.trained else "dim", "italic" if part.void else "")))
    return text.append("\n").append(printable(shown), style=style)


def choose_rollouts(run: WatchedRun, choice: Choice) -> tuple[int | None, list[Record]]:
    """Return the step whose rollouts are shown, and those of its rollouts that were chosen."""
    step = run.rollouts.latest() if choice.step is None else choice.step
    if step is None:
        return None, []
    return step, [record for record in run.rollouts.rollouts(step) if choice.takes(record)]


def describe_choice(step: int | None, choice: Choice, count: int) -> Text:
    """Return one line: which rollouts there are to look at."""
    if step is None:
        return Text("no rollouts yet", style="dim")
    of = "" if choice.problem is None else f" of problem {choice.problem}"
    verdicts = f" with verdict {' or '.join(choice.verdicts)}" if choice.verdicts else ""
    return Text(in_one_line(f"{count} rollouts of step {step}{of}{verdicts}"), style="underline")


def snapshot(run: WatchedRun, choice: Choice, *, count: int, characters: int, blocks: bool) -> RenderableType:
    """Return the run and `count` of the chosen rollouts, one after the other."""
    step, records = choose_rollouts(run, choice)
    shown = [rollout(record, run.masks, characters=characters) for record in records[:count]]
    return Group(*overview(run, blocks=blocks), Text(), describe_choice(step, choice, len(records)), *shown)


@dataclass(frozen=True)
class WatchArgs:
    """Show a run in the terminal while it runs: figures, warnings, its last rollouts. Ctrl-C ends it. Of a run that has
    ended, in a pipe, or on a terminal without cursor control, print the present state as with --once."""

    run: Positional[Path]
    """The run's folder."""
    once: bool = False
    """Print the present state and exit."""
    interval: Annotated[float, SECONDS] = 1.0
    """Seconds between looks at the files."""
    step: Annotated[int | None, COUNT] = None
    """Step whose rollouts are shown. None: the last."""
    problem: str | None = None
    """Show only rollouts of the problem with this id."""
    verdict: tuple[str, ...] = ()
    """Show only rollouts with one of these verdicts, e.g. incorrect error."""
    rollouts: Annotated[int, COUNT_OR_NONE] = 3
    """Number of rollouts that are shown."""
    characters: Annotated[int, COUNT] = 2000
    """Characters shown of a prompt, a completion or a turn; the middle of longer ones is left out."""


def main(argv: Sequence[str]) -> int:
    """Run `rlvr watch RUN` and return its exit code."""
    args = parse(WatchArgs, argv, prog="rlvr watch")
    for name in args.verdict:
        if name not in list(Status):
            raise LookupError(f"--verdict {name!r}: no such verdict; {did_you_mean(name, [str(s) for s in Status])}")
    check_run(args.run, ("metrics.jsonl", "eval.jsonl", "config.json"))
    run = WatchedRun(args.run)
    choice = Choice(args.step, args.problem, args.verdict)
    console = PipedConsole(highlight=False)
    if args.step is not None and not run.rollouts.has(args.step):
        last = run.rollouts.latest()
        there = "there are none yet" if last is None else f"the last is {last}"
        raise LookupError(f"--step {args.step}: {args.run} has no rollouts of it; {there}")

    def show() -> RenderableType:
        blocks = console.encoding.startswith("utf")
        return snapshot(run, choice, count=args.rollouts, characters=args.characters, blocks=blocks)

    if not args.once and run.running and console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty():
        with suppress(KeyboardInterrupt), Live(show(), console=console, screen=True, auto_refresh=False) as live:
            while run.running:
                time.sleep(args.interval)
                run.refresh()
                live.update(show(), refresh=True)
    console.print(show())
    return 0
