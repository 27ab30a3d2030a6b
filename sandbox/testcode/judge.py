"""Run test code and report the verdict: beside a program in another sandbox, or after it in its own process."""

from __future__ import annotations

import ast
import builtins
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from ..wire import service
from ..wire.proxies import BuiltinRedefined, Link, Named
from . import collection, instrument

_BUILTINS = frozenset(name for name in dir(builtins) if name[0] != "_")


def run_tests(job: dict[str, Any], *, requests: int, replies: int, verdict: int) -> None:
    """Execute trusted test code that calls into a program, and report the verdict. Ends by `os._exit`.

    Only code that runs to its end passes, with its test functions, if a check was executed after an answer.
    """
    link = Link(requests, replies, keeps=job["keeps"])
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    checks: list[bool] = []
    failures: list[tuple[str, int, str, int]] = []

    def note_failure(text: str) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        failures.append((type(error).__name__, _line_of(error), text, len(checks) + len(failures) + 1))

    space = module.__dict__
    space.update({name: Named(link, name, "new" if name in job["classes"] else "call") for name in job["names"]})
    space.update({instrument.CHECKED: lambda: checks.append(link.answered > 0), instrument.AFTER: link.after})
    space.update({instrument.FAILED: note_failure, instrument.ERROR: Exception})
    tree = ast.parse(job["test"])
    written = sum(isinstance(node, ast.Assert) for node in ast.walk(tree))
    read, bound, imported = instrument.find_names(tree)
    try:
        link.ask("watch", "", *sorted((read - bound - imported) & _BUILTINS - set(job["names"])))
        link.answered = 0
        _execute(tree, space, job["names"])
        for name, found in list(space.items()):
            if type(found) is types.FunctionType and name.startswith("test"):
                found()
        if link.ended or not (failures or any(checks)):
            failures.insert(0, ("ProgramEnded" if link.ended else "NoAssertExecuted", 0, "", 1))
    except BaseException as error:
        text = str(error) if isinstance(error, BuiltinRedefined) else ""
        failures.append((type(error).__name__, _line_of(error), text, len(checks) + len(failures) + 1))
    counts = len(checks), max(len(checks) + len(failures), written)
    _report(verdict, failures[0] if failures else None, link.too_large, counts, altered=link.altered)
    os._exit(0)


def run_together(names: dict[str, Any], job: dict[str, Any], verdict: int, end_copies: Callable[[], None]) -> None:
    """Execute test code in the namespace of a program that has been loaded, and report the verdict.

    Nothing here is safe from the program: a pass of such tests is weak.
    """
    sys.modules["__main__"] = sys.modules["solution"]
    names["__name__"] = "__main__"
    checks: list[bool] = []
    names[instrument.CHECKED] = lambda: checks.append(True)
    before = dict(names)
    failures: list[BaseException] = []
    try:
        _execute(ast.parse(job["test"]), names)
        own = {name: found for name, found in names.items() if before.get(name) is not found}
        if job["pytest"] and any(isinstance(found, (types.FunctionType, type)) for found in own.values()):
            collection.run_defined(own, failures.append)
    except BaseException as error:
        failures.append(error)
    failure = (type(failures[0]).__name__, _line_of(failures[0])) if failures else None
    failure = failure if failures or checks else ("NoAssertExecuted", 0)
    end_copies()
    _report(verdict, failure, False)


def _execute(tree: ast.Module, space: dict[str, Any], names: list[str] | None = None) -> None:
    instrumented = instrument.instrument(tree, names)
    exec(compile(instrumented, "test.py", "exec", dont_inherit=True), space)


def _report(
    verdict: int,
    failure: tuple[Any, ...] | None,
    too_large: bool,
    counts: tuple[int, int] = (0, 1),
    *,
    altered: bool = False,
) -> None:
    """Report the first failure, if any: an exception's type, a line, calls in the assert and its number."""
    error, line, text, number = (*failure, "", 1)[:4] if failure else ("", 0, "", 0)
    found = {"error": error, "line": line, "text": text, "number": number, "checks": counts, "altered": altered}
    service.send(verdict, {"passed": failure is None, "too_large": too_large, **found})


def _line_of(error: BaseException) -> int:
    """Return the last line of the test code in the traceback, 0 for none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"]
    return (lines[-1] or 0) if lines else 0
