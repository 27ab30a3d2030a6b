"""Stop a run in good order: a first SIGINT or SIGTERM lets the current work finish, a second one ends at once; and what
is said of it.
"""

from __future__ import annotations

import _thread
import os
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from rlvr.config import Config
from rlvr.config.reward_model import RewardConfig

from ..checkpoint.folders import folder_of_unfinished, is_fine_tuned, kept_steps, list_checkpoints

if TYPE_CHECKING:
    from rlvr.distributed import Processes


SECONDS_TO_CLEAN_UP = 5.0  # for workers and engines to end, once nothing else is waited for
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it
CLEAR_LINE = "\r\x1b[K"


class Stopped(KeyboardInterrupt):
    """A signal ended the run. The text is the line that is left to print, if any."""

    def __init__(self, text: str = "", number: int = signal.SIGINT) -> None:
        super().__init__(text)
        self.exit_code = 128 + number


class StopRequest:
    """Whether a stop was requested, and by which signal; `elsewhere`: by another process of the run.

    work: what would be lost if the run ended at once ("step 13"); the first signal waits for it. "": nothing, and the
    first signal ends the run. `unsaved()`: what would be lost where that is more ("steps 6 to 13"). doing: the current
    activity where nothing would be lost ("loading the model"). `left()` says what a later call finds. quiet: print
    nothing (on other processes than the main one). `bars()`: the terminal lines that progress bars redraw.
    """

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self.elsewhere = False
        self.work = ""
        self.unsaved: Callable[[], str] = lambda: ""
        self.doing = "starting"
        self.left: Callable[[], str] = lambda: "run the same command to start again"
        self.quiet = False
        self.bars: Callable[[], int] = lambda: 0
        self._answers = False
        self._ends = False

    def __bool__(self) -> bool:
        return self.signal is not None or self.elsewhere

    def answer(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal. Raises Stopped where there is nothing to wait for, or on a second signal."""
        if self._ends:
            leave(128 + number)
        asked, self.signal = self.signal is not None, signal.Signals(number)
        if self.work and not asked:
            again = "press Ctrl-C again" if number == signal.SIGINT else "send a second signal"
            self._say(f"finishing {self.work}, then stopping; {again} to stop now and lose {self.unsaved() or 'it'}")
            return
        self._ends = True
        lost = self.unsaved() or self.work
        verb = "are" if lost.startswith("steps") else "is"
        what = f"stopped now: {lost} {verb} lost" if self.work else f"stopped while {self.doing}"
        self._say(f"{what}; {self.left()}")
        # Not by threading: the interrupted code may hold its locks.
        _thread.start_new_thread(self._leave_later, (128 + number,))
        raise Stopped(number=number)

    @contextmanager
    def handling_signals(self) -> Iterator[StopRequest]:
        """Handle SIGINT and SIGTERM within; nesting is harmless. Does nothing outside the main thread."""
        if self._answers or threading.current_thread() is not threading.main_thread():
            yield self
            return
        self._answers = True
        held = {number: signal.signal(number, self.answer) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            for number, handler in held.items():
                signal.signal(number, handler)
            self._answers = self._ends = False  # cleanup is done

    def lose_nothing(self) -> None:
        """From now on nothing would be lost if the run ended at once."""
        self.work, self.unsaved = "", lambda: ""

    @contextmanager
    def busy(self, work: str) -> Iterator[None]:
        """Let a stop wait for `work` within."""
        held, self.work = self.work, work
        yield
        self.work = held

    def _leave_later(self, code: int) -> None:
        time.sleep(SECONDS_TO_CLEAN_UP)
        if self._ends:
            leave(code)

    def _say(self, text: str) -> None:
        """Write to the terminal's descriptor, over the last line of the bars: what prints may hold its locks right now.

        The bars clear as many lines as they had before they are redrawn; the text stays above.
        """
        if self.quiet:
            return
        text = fit_to_terminal(text)
        if sys.stderr.isatty():
            text = CLEAR_LINE + text + "\n" * (self.bars() - 1)
        os.write(2, f"{text}\n".encode())


def fit_to_terminal(text: str) -> str:
    """Return a line for stderr, broken between words if that is a terminal."""
    if not sys.stderr.isatty():
        return text
    return textwrap.fill(text, shutil.get_terminal_size().columns, break_long_words=False, break_on_hyphens=False)


def leave(code: int) -> None:
    """End the process without any cleanup."""
    if sys.stdout.isatty():
        os.write(1, SHOW_CURSOR.encode())
    os._exit(code)


def stop_requested(stop: StopRequest, processes: Processes) -> bool:
    """Return whether any process was asked to stop. All get the same answer, and so stop after the same step."""
    if processes.num_processes > 1:
        from rlvr.distributed import gather  # torch, which a command that only waits for Ctrl-C does not load

        stop.elsewhere = any(gather([bool(stop)], processes))
        return stop.elsewhere
    return bool(stop)


def describe_unsaved(out_dir: Path, step: int) -> str:
    """Return what is lost where the run is killed during a step: all steps since the last checkpoint."""
    return describe_steps(max(kept_steps(out_dir)), step)


def describe_steps(saved: int, step: int) -> str:
    """Return in words the steps after `saved` up to `step`."""
    return f"step {step}" if step == saved + 1 else f"steps {saved + 1} to {step}"


def make_stopped(stop: StopRequest, config: Config | RewardConfig, when: str) -> Stopped:
    """Return what to raise where a run has ended in good order because a signal asked for it."""
    by = stop.signal.name if stop.signal else "another process"
    return Stopped(f"stopped by {by} {when}; run {same_command(config)} to resume", stop.signal or signal.SIGINT)


def same_command(config: Config | RewardConfig) -> str:
    """Return what to run again: with --run.overwrite it would delete what has been done."""
    return f"the same command{' without --run.overwrite' if config.run.overwrite else ''}"


def describe_what_is_left(config: Config) -> str:
    """Return where the same command would begin if the run were killed now."""
    saved = list_checkpoints(config.run.out_dir)
    if saved:
        return f"run {same_command(config)} to resume from step {saved[-1][0]} ({saved[-1][1]})"
    tuned, again = list_checkpoints(folder_of_unfinished(config.run.out_dir / "start")), "start again"
    if is_fine_tuned(config.run.out_dir):
        again = "resume after the fine-tuning"
    elif tuned:
        again = f"resume the fine-tuning from step {tuned[-1][0]} ({tuned[-1][1]})"
    return f"run {same_command(config)} to {again}"
