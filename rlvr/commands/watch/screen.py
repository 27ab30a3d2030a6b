"""`rlvr watch RUN`: a run's figures and rollouts in the terminal, while it runs or afterwards. Only reads."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rich.console import RenderableType
from rich.live import Live

from rlvr.config.settings import COUNT, COUNT_OR_NONE, SECONDS
from rlvr.core.registry import did_you_mean
from rlvr.core.types import Status
from rlvr.runs.reading import check_run

from ..arguments import Positional, parse
from ..console import PipedConsole
from .state import Choice, WatchedRun
from .view import snapshot


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
