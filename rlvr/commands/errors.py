"""Errors of the operating system in words: which file, why, and what to do. Standard library only."""

from __future__ import annotations

import errno
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from rlvr.core.files.write import advice

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT)
NEXT_TO_NOTHING = 1 << 20  # free bytes of a disk that is full
STANDARD_OUTPUT = "standard output"


def describe_os_error(error: OSError) -> str:
    """Return what an error says, with the file (or what else it is about), and what to do."""
    if error.errno is None:
        return str(error)
    reason = error.strerror or str(error)
    if error.filename is not None:
        subject = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else str(error.filename)
    elif error.errno in FULL and (places := full_places()):
        subject = " and ".join(places)
    else:
        subject = f"in {where(error)}" if error.__traceback__ else errno.errorcode.get(error.errno, str(error.errno))
    return "; ".join(filter(None, (f"{subject}: {reason}", advice(error))))


@contextmanager
def naming_output() -> Iterator[None]:
    """Let errors within name standard output, where it is that which cannot be written."""
    output = sys.stdout
    if not isinstance(output, io.TextIOWrapper):  # in memory, or of a notebook
        yield
        return

    def named(call: Callable[..., T]) -> Callable[..., T]:
        def write(*text: str) -> T:
            try:
                return call(*text)
            except OSError as error:
                error.filename = STANDARD_OUTPUT
                raise

        return write

    held = {name: getattr(output, name) for name in ("write", "flush")}
    for name, call in held.items():
        setattr(output, name, named(call))
    try:
        yield
    finally:
        for name, call in held.items():
            setattr(output, name, call)


def drop_output() -> None:
    """Let go of what cannot be printed: Python would try again at exit, and print a traceback."""
    try:
        sys.stdout.flush()
    except OSError:
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except ValueError:
        pass


def full_places() -> list[str]:
    """Return the folders whose disk is full: where a command runs, of temporary files, of the hub; each disk once."""
    cache = os.environ.get("HF_HOME", os.path.expanduser("~/.cache/huggingface"))
    found: dict[int, str] = {}
    for path in (os.getcwd(), tempfile.gettempdir(), cache):
        with suppress(OSError):
            disk = os.statvfs(path)
            if disk.f_bavail * disk.f_frsize < NEXT_TO_NOTHING or disk.f_favail == 0 < disk.f_files:
                found.setdefault(os.stat(path).st_dev, path)
    return list(found.values())


def where(error: BaseException) -> str:
    """Return the line of code that raised an error."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}, {frame.name}"
