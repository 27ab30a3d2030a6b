"""The streams that test code has put in place of its own: a program's calls use them too."""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Callable
from typing import Any


class Streams:
    """Remembers the streams, `input` and `print` that test code begins with."""

    def __init__(self) -> None:
        self._streams = (sys.stdin, sys.stdout, sys.stderr, builtins.input, builtins.print)

    def replaced(self, write: Callable[[Any], Any]) -> dict[str, Any]:
        """Return what the program's calls shall use in place of its own streams: those the tests have replaced."""
        stdin, stdout, stderr, *functions = self._streams
        found: dict[str, Any] = {}
        if sys.stdout is not stdout:
            found["stdout"] = True
        if sys.stderr is not stderr:
            found["stderr"] = True
        if isinstance(sys.stdin, io.StringIO) and sys.stdin is not stdin:
            found["stdin"] = sys.stdin.getvalue()[sys.stdin.tell() :]
        for name, function in zip(("input", "print"), functions):
            if getattr(builtins, name) is not function:
                found[name] = write(getattr(builtins, name))
        return found

    @staticmethod
    def hear(answer: dict[str, Any], streams: dict[str, Any]) -> None:
        """Write to the tests' streams what the program has written, and read from them what it has read."""
        for name in ("stdout", "stderr"):
            if name in streams and type(answer.get(name)) is str:
                getattr(sys, name).write(answer[name])
        if "stdin" in streams and type(answer.get("stdin")) is int:
            sys.stdin.seek(sys.stdin.tell() + max(answer["stdin"], 0))
