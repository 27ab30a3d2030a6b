"""Command lines: dataclasses parsed by tyro, and expected errors as one line with exit code 2."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from rlvr.signals import Stopped, fitted
from rlvr.types import RunError

T = TypeVar("T")

# What a user can cause (bad input, a missing file, a name that does not exist), and what a run cannot go on after.
EXPECTED_ERRORS = (ValueError, LookupError, OSError, RunError)
BAD_INPUT = 2


def parse(kind: type[T], argv: Sequence[str], *, prog: str, description: str = "", default: Any = None) -> T:
    """`kind` filled from the command line. A flag that does not fit raises ValueError; --help prints and exits."""
    import tyro

    # An instance that leaves out required fields does not exist, so a missing default must not be passed on.
    defaults = {} if default is None else {"default": default}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return tyro.cli(kind, args=list(argv), prog=prog, description=description or None, **defaults)
    except SystemExit as end:
        if not end.code:
            sys.stdout.write(printed.getvalue())
            raise
        raise ValueError(f"{prog}: {one_line(printed.getvalue())}") from None


def one_line(box: str) -> str:
    """The message of tyro's framed error, without the frame."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [re.sub(r"[╭╮╰╯│─]+", " ", line).strip() for line in text.splitlines()]
    message = re.sub(r"\s+", " ", " ".join(line for line in lines if line))
    return re.sub(r"^(Parsing error|Unrecognized options?|Required options?|Invalid choice)\s*:?\s*", "", message)


def key_values(items: Sequence[str], flag: str) -> dict[str, str]:
    """`key=value` strings as a dictionary; ValueError where one has no key or no equals sign."""
    pairs = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ValueError(f"{flag} {item!r}: expected key=value")
        pairs[key] = value
    return pairs


def guarded(command: Callable[[], int]) -> int:
    """Runs a command; an expected error becomes one line on stderr and exit code 2, a signal 128 and its number."""
    try:
        return command()
    except BrokenPipeError:  # the reader of our output has seen enough, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as stop:
        if text := str(stop) or ("" if isinstance(stop, Stopped) else "interrupted"):
            print(fitted(text), file=sys.stderr)
        return stop.exit_code if isinstance(stop, Stopped) else 128 + signal.SIGINT
    except EXPECTED_ERRORS as problem:
        text = re.sub(r"\s+", " ", str(problem.args[0] if isinstance(problem, KeyError) and problem.args else problem))
        print(f"error: {text.strip() or type(problem).__name__}", file=sys.stderr)
        return BAD_INPUT
