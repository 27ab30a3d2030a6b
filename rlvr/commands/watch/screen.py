"""`rlvr watch RUN`: a run's figures and rollouts in the terminal, while it runs or afterwards. Only reads."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console, Group
from rich.live import Live
from rich.segment import Segments
from rich.text import Text

from rlvr.config.settings import COUNT, COUNT_OR_NONE, SECONDS
from rlvr.core.registry import did_you_mean
from rlvr.core.types import Status
from rlvr.runs.reading import check_run

from ..arguments import Positional, parse
from ..console import PipedConsole
from .state import Choice, WatchedRun
from .view import chosen, describe_choice, overview, rollout, snapshot

KEYS = "q quit  \u2190 \u2192 step  l last step  n p rollout  v verdict  o only this problem  \u2191 \u2193 scroll"
ESCAPES = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left"}
ESCAPES |= {b"\x1bO" + code[2:]: name for code, name in ESCAPES.items()}


@dataclass(frozen=True)
class WatchArgs:
    """Show a run in the terminal while it runs, or one that has ended: figures, warnings, rollouts. In a pipe or on a
    terminal without cursor control, print the present state as with --once."""

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
    """Number of rollouts to print with --once."""
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
    live = console.is_terminal and not console.is_dumb_terminal and sys.stdin.isatty()
    if live and not args.once:
        Screen(run, choice, console, args).show()
    else:
        console.print(snapshot(run, choice, count=args.rollouts, characters=args.characters, blocks=blocks(console)))
    return 0


def blocks(console: Console) -> bool:
    """Return whether the output can hold block characters."""
    return console.encoding.startswith("utf")


class Screen:
    """The whole terminal: figures above, one rollout below, and keys to choose another."""

    def __init__(self, run: WatchedRun, choice: Choice, console: Console, args: WatchArgs) -> None:
        self.run, self.choice, self.console = run, choice, console
        self.interval, self.characters = args.interval, args.characters
        self.number = self.scrolled = 0

    def show(self) -> None:
        """Draw until `q` is pressed or the terminal is closed."""
        with read_keys() as read, Live(console=self.console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(self.page(), refresh=True)
                for key in read(self.interval):
                    if key == "q":
                        return
                    self.press(key)
                self.run.refresh()

    def press(self, key: str) -> None:
        """Do what a key asks for."""
        step, records = chosen(self.run, self.choice)
        if key in ("down", "j", "up", "k"):
            self.scrolled = max(0, self.scrolled + (3 if key in ("down", "j") else -3))
            return
        self.scrolled = 0
        if key in ("n", "p"):
            self.number = max(0, min(self.number + (1 if key == "n" else -1), len(records) - 1))
            return
        changes: dict[str, Any] = {}
        if key in ("left", "right") and step is not None:
            other = step + (1 if key == "right" else -1)
            changes = {"step": other} if self.run.rollouts.has(other) else {}
        elif key == "l":
            changes = {"step": None}
        elif key == "v" and step is not None:
            changes = {"verdicts": self.next_verdict(step)}
        elif key == "o" and records:
            own = str(records[min(self.number, len(records) - 1)].get("problem"))
            changes = {"problem": None if self.choice.problem else own}
        if changes:
            self.choice, self.number = replace(self.choice, **changes), 0

    def next_verdict(self, step: int) -> tuple[str, ...]:
        """Return the verdict to show after the present one, of those in the step; () after the last: all."""
        held = sorted({str(record.get("status")) for record in self.run.rollouts.rollouts(step)})
        later = [name for name in held if not self.choice.verdicts or name > self.choice.verdicts[0]]
        return (later[0],) if later else ()

    def page(self) -> Segments:
        """Return what fills the terminal: the overview, the chosen rollout as far as it fits, the keys."""
        step, records = chosen(self.run, self.choice)
        self.number = max(0, min(self.number, len(records) - 1))
        head: list[Text] = [*overview(self.run, blocks=blocks(self.console)), Text()]
        line = describe_choice(step, self.choice, len(records))
        if records:
            line.append(f", number {self.number + 1}")
        width, height = self.console.size
        options = self.console.options.update(width=width, height=None)
        top = self.console.render_lines(Group(*head, line), options)
        body = []
        if records:
            text = rollout(records[self.number], self.run.masks, characters=self.characters)
            body = self.console.render_lines(text, options)
        room = max(height - len(top) - 1, 1)
        self.scrolled = max(0, min(self.scrolled, len(body) - room))
        lines = [*top[: height - 2], *body[self.scrolled : self.scrolled + room]]
        keys = self.console.render_lines(Text(KEYS, style="reverse", no_wrap=True, overflow="crop"), options)[:1]
        blank = [self.console.render_lines(Text(""), options)[0]] * max(height - len(lines) - 1, 0)
        segments = []
        for number, row in enumerate([*lines, *blank, *keys][:height]):
            segments += [*([] if number == 0 else Text("\n").render(self.console)), *row]
        return Segments(segments)


@contextmanager
def read_keys() -> Iterator[Callable[[float], list[str]]]:
    """Yield a function that waits some seconds for keys and returns them. The terminal is restored at the end."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def read(seconds: float) -> list[str]:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return []
        typed = os.read(descriptor, 64)
        return keys_of(typed) if typed else ["q"]  # nothing to read: the terminal is gone

    try:
        tty.setcbreak(descriptor)
        yield read
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def keys_of(typed: bytes) -> list[str]:
    """Return the keys in what a terminal sent; unknown ones are left out."""
    keys = []
    while typed:
        code = next((code for code in ESCAPES if typed.startswith(code)), None)
        if code is not None:
            keys.append(ESCAPES[code])
        elif 32 < typed[0] < 127:
            keys.append(chr(typed[0]))
        typed = typed[len(code or b"x") :]
    return keys
