"""Run test code and report the verdict: beside a program in another sandbox, or after it in its own process."""

from __future__ import annotations

import ast
import builtins
import os
import random
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

from ..wire import service
from ..wire.proxies import BuiltinRedefined, Link, Named
from . import collection, instrument

_BUILTINS = frozenset(name for name in dir(builtins) if name[0] != "_")


class _Checks:
    """The checks of test code that were executed, by their numbers.

    A check is written once and may be executed many times: it holds if it held each time. If a loop ends by an
    exception, the program decides how often its checks are executed: then they do not hold. (`with` is a loop.)
    """

    def __init__(self, written: list[int]) -> None:
        self.written = written
        self.executed: list[int] = []
        self.failed = set[int]()
        self._loops: list[int] = []

    def __enter__(self) -> None:
        self._loops.append(len(self.executed))

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        begin = self._loops.pop()
        if kind is not None:
            self.failed.update(self.executed[begin:])

    def number_all(self) -> list[int]:
        """Return the checks that are written, in order."""
        return sorted({*self.written, *self.executed, *self.failed})

    def find_next(self) -> int:
        """Return the first check that does not hold, or was not executed; the last one if there is none."""
        held = {*self.executed} - self.failed
        return next((number for number in self.number_all() if number not in held), [0, *self.number_all()][-1])


def run_tests(job: dict[str, Any], *, requests: int, replies: int, verdict: int) -> None:
    """Execute trusted test code that calls into a program, and report the verdict. Ends by `os._exit`.

    Only code that runs to its end passes, with its test functions, if a check was executed after an answer.
    """
    link = Link(requests, replies, keeps=job["keeps"])
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    tree = ast.parse(job["test"])
    checks = _Checks(instrument.number_checks(tree))
    failures: list[tuple[str, int, str, int]] = []
    answered = False

    def note_check(number: int) -> None:
        nonlocal answered
        answered = answered or link.answered > 0
        checks.executed.append(number)

    def note_failure(number: int, text: str) -> None:
        error = sys.exc_info()[1]
        assert error is not None
        checks.failed.add(number)
        failures.append((type(error).__name__, _line_of(error), text, number))

    space = module.__dict__
    space.update({name: Named(link, name, "new" if name in job["classes"] else "call") for name in job["names"]})
    space.update({instrument.CHECKED: note_check, instrument.LOOP: checks, instrument.AFTER: link.after})
    space.update({instrument.FAILED: note_failure, instrument.ERROR: Exception})
    read, bound, imported = instrument.find_names(tree)
    random.seed(job["seed"])
    try:
        link.ask("watch", "", *sorted((read - bound - imported) & _BUILTINS - set(job["names"])))
        link.answered = 0
        _execute(tree, space, job["names"])
        for name, found in list(space.items()):
            if type(found) is types.FunctionType and name.startswith("test"):
                found()
        if link.ended or not (failures or answered):
            failures.insert(0, ("ProgramEnded" if link.ended else "NoAssertExecuted", 0, "", 0))
    except BaseException as error:
        text = str(error) if isinstance(error, BuiltinRedefined) else ""
        failures.append((type(error).__name__, _line_of(error), text, checks.find_next()))
    _report(verdict, failures, link.too_large, checks, altered=link.altered)
    os._exit(0)


def run_together(names: dict[str, Any], job: dict[str, Any], verdict: int, end_copies: Callable[[], None]) -> None:
    """Execute test code in the namespace of a program that has been loaded, and report the verdict.

    Nothing here is safe from the program: a pass of such tests is weak.
    """
    sys.modules["__main__"] = sys.modules["solution"]
    names["__name__"] = "__main__"
    checks = _Checks([])
    names[instrument.CHECKED] = checks.executed.append
    before = dict(names)
    failures: list[BaseException] = []
    try:
        _execute(ast.parse(job["test"]), names)
        own = {name: found for name, found in names.items() if before.get(name) is not found}
        if job["pytest"] and any(isinstance(found, (types.FunctionType, type)) for found in own.values()):
            collection.run_defined(own, failures.append)
    except BaseException as error:
        failures.append(error)
    found = [(type(error).__name__, _line_of(error), "", 0) for error in failures]
    found = found if found or checks.executed else [("NoAssertExecuted", 0, "", 0)]
    end_copies()
    _report(verdict, found, False, _Checks([]))


def _execute(tree: ast.Module, space: dict[str, Any], names: list[str] | None = None) -> None:
    instrumented = instrument.instrument(tree, names)
    exec(compile(instrumented, "test.py", "exec", dont_inherit=True), space)


def _report(
    verdict: int, failures: list[tuple[str, int, str, int]], too_large: bool, checks: _Checks, *, altered: bool = False
) -> None:
    """Report the first failure, if any: an exception's type, a line, the calls in the assert and its number."""
    error, line, text, number = (*failures, ("", 0, "", 0))[0]
    every = checks.number_all()
    held = len({*checks.executed} - checks.failed)
    place = sum(other < number for other in every) + 1
    found = {"error": error, "line": line, "text": text, "number": place, "checks": (held, max(1, len(every)))}
    found |= {"passed": not failures, "too_large": too_large, "altered": altered}
    service.send(verdict, {**found, "trace": str(hash(tuple(checks.executed)))})


def _line_of(error: BaseException) -> int:
    """Return the last line of the test code in the traceback, 0 for none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"]
    return (lines[-1] or 0) if lines else 0
