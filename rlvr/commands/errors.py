"""Expected errors of a command: one line on stderr and exit code 2; those of the operating system in words."""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress

from rlvr.core.files.write import advise
from rlvr.core.printable import in_one_line
from rlvr.core.types import RunError
from rlvr.training.supervision.signals import Stopped, fit_to_terminal

# What a user can cause (bad input, a missing file, a name that does not exist), and what ends a run.
EXPECTED_ERRORS = (ValueError, LookupError, OSError, RunError)
BAD_INPUT = 2
LONGEST_LINE = 2000  # characters of an error line: it may quote a whole line of a file
FULL = (errno.ENOSPC, errno.EDQUOT)
NEXT_TO_NOTHING = 1 << 20  # free bytes of a disk that is full


def run_guarded(command: Callable[[], int]) -> int:
    """Run a command. An expected error becomes one line on stderr and exit code 2, a signal 128 plus its number."""
    open_standard_streams()
    try:
        try:
            return command()
        finally:
            sys.stdout.flush()  # here, where an error in it is still answered; also after help, which exits
    except BrokenPipeError:  # the reader closed the pipe, as `| head` does
        drop_output()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt as error:
        if text := str(error) or ("" if isinstance(error, Stopped) else "interrupted"):
            print(fit_to_terminal(text), file=sys.stderr)
        return error.exit_code if isinstance(error, Stopped) else 128 + signal.SIGINT
    except EXPECTED_ERRORS as error:
        print(error_line(error), file=sys.stderr)
        drop_output()
        return BAD_INPUT


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


def describe_os_error(error: OSError) -> str:
    """Return what an error says, with the file (or what else it is about), and what to do."""
    if error.errno is None:
        return str(error)
    reason = error.strerror or str(error)
    if error.filename is not None:
        subject = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    elif error.errno in FULL and (places := find_full_places()):
        subject = " and ".join(places)
    else:
        subject = errno.errorcode.get(error.errno, str(error.errno))
    return "; ".join(filter(None, (f"{subject}: {reason}", advise(error))))


def drop_output() -> None:
    """Let go of what cannot be printed: Python would try again at exit, and print a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ValueError:
        pass


def find_full_places() -> list[str]:
    """Return the folders whose disk is full: where a command runs, of temporary files, of the hub; each disk once."""
    cache = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    found: dict[int, str] = {}
    for path in (os.getcwd(), tempfile.gettempdir(), cache):
        with suppress(OSError):
            disk = os.statvfs(path)
            if disk.f_bavail * disk.f_frsize < NEXT_TO_NOTHING or disk.f_favail == 0 < disk.f_files:
                found.setdefault(os.stat(path).st_dev, path)
    return list(found.values())
