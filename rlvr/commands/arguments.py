"""Command lines: dataclasses parsed by tyro, and expected errors as one line with exit code 2."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from rlvr.commands.errors import describe_os_error, drop_output, naming_output
from rlvr.commands.flags import check_flags, check_renamed, explain, flags_of, spell_switches
from rlvr.core.printable import in_one_line
from rlvr.core.types import RunError
from rlvr.training.supervision.signals import Stopped, fitted

if TYPE_CHECKING:
    from rlvr.commands.choices import Variants
    from rlvr.commands.settings import Settings

T = TypeVar("T")

# What a user can cause (bad input, a missing file, a name that does not exist), and what ends a run.
EXPECTED_ERRORS = (ValueError, LookupError, OSError, RunError)
BAD_INPUT = 2
LONGEST_LINE = 2000  # characters of an error line: it may quote a whole line of a file


HELP = {"-h", "--help", "--help-all"}


def parse(kind: type[T], argv: Sequence[str], *, prog: str, description: str = "", default: T | None = None) -> T:
    """Return `kind` filled from the command line. A flag that does not fit raises ValueError; --help exits."""
    known = flags_of(kind)
    check_renamed(argv, known, prog)
    check_flags(known, argv, prog)
    argv = spell_switches(argv, known)
    return filled(kind, known, argv, prog=prog, description=description, default=default)


def parse_settings(
    kind: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    description: str = "",
    default: T | None = None,
    variants: Variants | None = None,
) -> T:
    """Return a config filled from the command line, its groups' classes chosen by `--algo` and the like.

    A setting that nothing would read raises ValueError, as a flag that does not fit does. --help and --help-all exit.
    """
    # Here, since commands without groups of settings start faster without them.
    from rlvr.commands.choices import check_kl_place, selected
    from rlvr.commands.settings import (
        Settings,
        check_absent,
        check_earlier_names,
        check_effect,
        check_not_read,
        values_of,
    )
    from rlvr.config.settings import check_classes, check_values

    if default is not None:
        check_classes(default)
    check_not_read(kind, argv, prog)
    before = values_of(kind, default)
    values, left = selected(before, argv, variants)
    settings = Settings(kind, values)
    known = settings.flags()
    if asked := HELP & set(left):
        others = [token for token in left if token not in HELP]
        with contextlib.suppress(ValueError):  # help comes also where a flag is missing or does not fit
            others = spell_switches(others, known)
            view, start = settings.view()
            read = settings.config(filled(view, known, others, prog=prog, default=start, required=kind))
            settings = Settings(kind, values_of(kind, read))
        show_help(settings, prog=prog, description=description, everything="--help-all" in asked)
        raise SystemExit(0)
    check_kl_place(before, values, left)
    check_earlier_names(left, settings, prog)
    check_absent(left, settings, prog)
    check_flags(known, left, prog)
    left = spell_switches(left, known)
    view, start = settings.view()
    config = settings.config(filled(view, known, left, prog=prog, default=start, required=kind))
    check_values(config)
    check_effect(config, values)
    return config


def show_help(settings: Settings, *, prog: str, description: str, everything: bool) -> None:
    """Print the settings that are read, grouped; with `everything` also advanced ones and those that are not read."""
    import tyro

    shown = settings.shown(everything=everything)
    view, start = settings.view(shown)
    more = len(settings.shown(everything=True)) - len(shown)
    defaults = {} if start is None else {"default": start}
    printed = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(printed):
        tyro.cli(view, args=["--help"], prog=prog, description=description or None, **defaults)
    sys.stdout.write(printed.getvalue().replace("(default: )", "(default: none)"))
    if more:
        print(f"{more} settings are not shown, advanced ones and those that nothing reads: --help-all shows them too.")


def filled(
    kind: Any,
    known: Mapping[str, Any],
    argv: Sequence[str],
    *,
    prog: str,
    description: str = "",
    default: Any = None,
    required: Any = None,
) -> Any:
    """Return a dataclass filled by tyro, whose complaints become a ValueError of one line.

    `required`: the dataclass that says what must be given, where it is another.
    """
    import tyro

    # An instance that leaves out required fields does not exist, so a missing default must not be passed on.
    defaults = {} if default is None else {"default": default}
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            return tyro.cli(kind, args=list(argv), prog=prog, description=description or None, **defaults)
    except SystemExit as error:
        if not error.code:
            sys.stdout.write(printed.getvalue())
            raise
        message = one_line(printed.getvalue())
        raise ValueError(f"{prog}: {explain(message, required or kind, known, argv) or message}") from None


def one_line(box: str) -> str:
    """Return the message of tyro's framed error, without the frame."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", box)
    lines = [re.sub(r"[╭╮╰╯│─]+", " ", line).strip() for line in text.splitlines()]
    message = re.sub(r"\s+", " ", " ".join(line for line in lines if line))
    return re.sub(r"^(Parsing error|Unrecognized options?|Required options?|Invalid choice)\s*:?\s*", "", message)


def key_values(items: Sequence[str], flag: str) -> dict[str, str]:
    """Return `key=value` strings as a dictionary. ValueError for one without key or `=`, or a key given twice."""
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ValueError(f"{flag} {item!r}: expected key=value")
        if key in pairs:
            raise ValueError(f"{flag} {item!r}: {key} is given twice (before as {pairs[key]!r})")
        pairs[key] = value
    return pairs


def guarded(command: Callable[[], int]) -> int:
    """Run a command. An expected error becomes one line on stderr and exit code 2, a signal 128 plus its number."""
    open_standard_streams()
    try:
        with naming_output():
            return printed(command)
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        drop_output()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as error:
        if text := str(error) or ("" if isinstance(error, Stopped) else "interrupted"):
            print(fitted(text), file=sys.stderr)
        return error.exit_code if isinstance(error, Stopped) else 128 + signal.SIGINT
    except EXPECTED_ERRORS as error:
        print(error_line(error), file=sys.stderr)
        drop_output()
        return BAD_INPUT


def printed(command: Callable[[], int]) -> int:
    """Run a command, and see that what it printed is written."""
    try:
        code = command()
    except SystemExit:  # after help
        sys.stdout.flush()
        raise
    sys.stdout.flush()
    return code


def open_standard_streams() -> None:
    """Open the null device for each of stdin, stdout and stderr that the caller has closed.

    Otherwise the next file that is opened takes its number, and printed text goes into that file.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def error_line(error: BaseException) -> str:
    """Return the line that is printed for an expected error: `error: ` and its text, control characters escaped."""
    text = str(error)
    if isinstance(error, KeyError) and error.args:
        text = str(error.args[0])
    elif isinstance(error, OSError):
        text = describe_os_error(error)
    line = f"error: {in_one_line(text) or type(error).__name__}"
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]} [...]"
