"""Run test code and report the verdict: beside a program in another sandbox, or after it in its own process."""

from __future__ import annotations

import ast
import os
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from rlvr.sandbox.inside import arrays, instrument, interpreter, pytest_names, service, testing
from rlvr.sandbox.inside.link import After, Link, Named, ProgramEnded


def run_tests(job: dict[str, Any], *, requests: int, replies: int, verdict: int) -> None:
    """Execute trusted test code that calls into a program, and report the verdict. Ends by `os._exit`.

    Only code that runs to its end passes, with its test functions, if a check was executed after an answer.
    """
    link = Link(requests, replies)
    arrays.compare_all(interpreter.PATCHES)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    pytest_names.provide_pytest()
    checks: list[bool] = []
    space = module.__dict__
    space.update({name: Named(link, name, "new" if name in job["classes"] else "call") for name in job["names"]})
    space.update({instrument.CHECKED: lambda: checks.append(link.answered > 0), "_after": After})
    try:
        _execute(job["test"], space)
        for name, found in list(space.items()):
            if isinstance(found, types.FunctionType) and testing.is_test_name(name):
                found()
        failure = ("ProgramEnded", 0) if link.ended else None if any(checks) else ("NoAssertExecuted", 0)
    except (Exception, ProgramEnded, SystemExit) as error:
        failure = type(error).__name__, _line_of(error)
    _report(verdict, failure, link.too_large)
    os._exit(0)


def run_together(names: dict[str, Any], job: dict[str, Any], verdict: int, end_copies: Callable[[], None]) -> None:
    """Execute test code in the namespace of a program that has been loaded, and report the verdict.

    Nothing here is safe from the program: a pass of such tests is weak.
    """
    sys.modules["__main__"] = sys.modules["solution"]
    names["__name__"] = "__main__"
    pytest_names.provide_pytest()
    checks: list[bool] = []
    before = dict(names)
    names[instrument.CHECKED] = lambda: checks.append(True)
    failures: list[bool] = []
    testing.watch_suites(lambda: failures.append(True))
    try:
        _execute(job["test"], names)
        own = {name: found for name, found in names.items() if before.get(name) is not found or name[:2] == "__"}
        testing.run_defined(own)
        failure = ("AssertionError", 0) if failures else None if checks else ("NoAssertExecuted", 0)
    except (Exception, SystemExit) as error:
        failure = type(error).__name__, _line_of(error)
    end_copies()
    _report(verdict, failure, False)


def _execute(test: str, space: dict[str, Any]) -> None:
    tree = instrument.instrument(ast.parse(test))
    exec(compile(tree, "test.py", "exec", dont_inherit=True), space)


def _report(verdict: int, failure: tuple[str, int] | None, too_large: bool) -> None:
    error, line = failure or ("", 0)
    service.send(verdict, {"passed": failure is None, "error": error, "line": line, "too_large": too_large})


def _line_of(error: BaseException) -> int:
    """Return the last line of the test code in the traceback, 0 for none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"]
    return (lines[-1] or 0) if lines else 0
