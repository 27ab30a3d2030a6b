"""Where in a user's code an exception was raised, for messages."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sysconfig
import traceback
from types import FrameType, TracebackType

_PACKAGE = __name__.partition(".")[0]
_LIBRARY = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib"))
# Frames of these, and of the registry, import a user's module and are not part of it.
_IMPORTERS = {importlib.__file__, importlib.metadata.__file__}
_REGISTRY = f"{_PACKAGE}.core.registry"
_LONGEST = 200  # characters of an exception's message


def raised_at(error: BaseException) -> tuple[str, int] | None:
    """Return file and line of the last line of the user's code before an exception.

    If no such code was running: of the last line of all that did not import a module; None without any.
    """
    frames = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if not _imports(frame)]
    places = [(_file_of(frame), line) for frame, line in frames if _is_users(frame)]
    places = places or [(_file_of(frame), line) for frame, line in frames]
    return places[-1] if places else None


def _file_of(frame: FrameType) -> str:
    """Return the file of a frame. Functions of a script that cloudpickle sent to a worker have lost its name."""
    name = frame.f_code.co_filename
    return str(frame.f_globals.get("__file__", name)) if name == "<dynamic-code>" else name


def describe_raised(error: BaseException, place: tuple[str, int] | None) -> str:
    """Return an exception in one line: file, line, type and the first line of its message."""
    text = error.msg if isinstance(error, SyntaxError) else str(error).strip().split("\n")[0][:_LONGEST]
    file, line = place or ("", 0)
    at = f"{file}, line {line}: " if line else f"{file}: " if file else ""
    return f"{at}{type(error).__name__}: {text}".rstrip(": ")


def users_traceback(error: BaseException) -> str:
    """Return the traceback from the user's code on, or the whole one."""
    return "".join(traceback.format_exception(type(error), error, _from_user(error.__traceback__))).rstrip()


def raised_by_user(error: BaseException) -> bool:
    """Return whether a user's code was running when an exception was raised."""
    return any(_is_users(frame) for frame, _ in traceback.walk_tb(error.__traceback__))


def _from_user(trace: TracebackType | None) -> TracebackType | None:
    first = trace
    while first is not None and not _is_users(first.tb_frame):
        first = first.tb_next
    return first or trace


def _is_users(frame: FrameType) -> bool:
    """Return whether a frame runs code that is neither rlvr's nor a library's."""
    ours = str(frame.f_globals.get("__name__", "")).partition(".")[0] == _PACKAGE
    return not (ours or _imports(frame) or frame.f_code.co_filename.startswith((*_LIBRARY, "<frozen ")))


def _imports(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith("<frozen importlib") or name in _IMPORTERS or frame.f_globals.get("__name__") == _REGISTRY
