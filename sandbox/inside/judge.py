"""Run test code beside a program in another sandbox, count its asserts, and report the verdict."""

from __future__ import annotations

import ast
import os
import sys
import traceback
import types
from typing import Any

from rlvr.sandbox.inside import (
    arrays,
    awaiting,
    chains,
    coroutines,
    exceptions,
    instrument,
    interpreter,
    records,
    service,
    testing,
)
from rlvr.sandbox.inside.held import Held, changes
from rlvr.sandbox.inside.lent import compares_identities, shown
from rlvr.sandbox.inside.link import Link
from rlvr.sandbox.inside.mail import ProgramEnded
from rlvr.sandbox.inside.maker import Maker
from rlvr.sandbox.inside.proxies import Named
from rlvr.sandbox.inside.standins import METHODS_OF_VALUES


def _exceptions(link: Link, names: list[str]) -> dict[str, type[Exception]]:
    """Return types for the exceptions of the program that the tests catch."""

    def bases(name: str) -> list[str]:
        try:
            found = link.ask("bases", {"name": name})
        except Exception:
            # There is no such name, or it is no type.
            return []
        return [base for base in found if type(base) is str] if type(found) is list else []

    found = exceptions.types(names, bases, lambda name, *args, **kwargs: Named(link, {"name": name})(*args, **kwargs))
    # That was no answer to the tests.
    link.answered = 0
    return found


def _of_program(link: Link, name: str, code: str) -> Named:
    if not any(f".{name}{quote}" in code for quote in "'\""):
        raise AttributeError(name)
    return Named(link, {"name": name})


class _Counter:
    """Counts the asserts that were executed after the program had answered."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.checked: set[int] = set()
        self.started: set[str] = set()
        self.loops: dict[int, tuple[int, ...]] = {}
        self.failed = False

    def functions(self) -> dict[str, Any]:
        """Return what instrumented code calls."""
        return {
            instrument.CHECKED: self._checked,
            instrument.CAUGHT: self._caught,
            instrument.ENTERED: self._entered,
            instrument.STARTED: self.started.add,
            instrument.BEFORE: lambda value: self.link.lent.before(self.link.originals.before(value)),
            instrument.SETTLED: self.link.originals.settle,
            instrument.STAYS: self.link.originals.stay,
            instrument.ALL_STAY: self.link.originals.stay_all,
            instrument.TAKEN: self.link.originals.take,
        }

    def fail(self) -> None:
        """Take note of a failure in a suite that the test code runs itself."""
        self.failed = True

    def failure(self) -> tuple[str, int] | None:
        """Return why the tests have not passed although none failed, and the line; None where they have."""
        if self.failed or self.link.hidden:
            return "AssertionError", 0
        if not self.checked:
            return "NoAssertExecuted", 0
        empty = [line for line, sites in self.loops.items() if not self.checked.intersection(sites)]
        return ("NothingToLoopOver", min(empty)) if empty else None

    def _checked(self, site: int) -> None:
        if self.link.answered:
            self.checked.add(site)

    def _caught(self, site: int) -> None:
        """Count an expected exception if the program raised it; the test may have caught its own AssertionError."""
        caught = sys.exc_info()[1]
        # What `asyncio.wait_for` raises for a coroutine of the program that it has cancelled.
        found = caught.__cause__ if isinstance(caught, TimeoutError) and caught.__cause__ is not None else caught
        if self.link.raised is not None and (self.link.raised is caught or self.link.raised is found):
            self.checked.add(site)

    def _entered(self, line: int, *sites: int) -> None:
        self.loops[line] = sites


def run_tests(job: dict[str, Any], *, requests: int, replies: int, verdict: int) -> None:
    """Execute the test code and report the verdict. Ends by `os._exit`.

    Only code that runs to its end passes, with its test functions and classes, if an assert that depends on the
    program was executed.
    """
    link = Link(job, requests, replies, Maker)
    counter = _Counter(link)
    coroutines.patch(link, interpreter.PATCHES, counter.fail)
    records.patch(interpreter.PATCHES)
    if link.world is not None:
        link.world.watch(interpreter.PATCHES)
    interpreter.PATCHES["unittest.result"] = lambda module: testing.watch(module, counter.fail)
    arrays.compare_all(interpreter.PATCHES)
    module = types.ModuleType("__main__")
    # Tests patch names of the program by that of its module.
    sys.modules["__main__"] = sys.modules["solution"] = module
    space = module.__dict__
    # For `patch("solution.name")`, which looks a name of the program up that the tests do not use.
    space["__getattr__"] = lambda name: _of_program(link, name, job["test"])
    space.update({name: Named(link, {"name": name}) for name in job["names"]})
    space.update(counter.functions())
    testing.provide_pytest(link.world)
    try:
        link.exceptions = _exceptions(link, job["exceptions"])
        space.update({name: kind for name, kind in link.exceptions.items() if name in job["names"]})
        tree = ast.parse(job["test"])
        link.lent.whole = compares_identities(tree)
        link.space, link.shown = space, set(shown(tree))
        if "asyncio" in job["test"]:
            # Before a test counts the time.
            link.ask("fresh", awaiting.NOBODY)
        link.held = Held() if changes(tree) else None
        link.chained = chains.chained(tree, link.classes, METHODS_OF_VALUES)
        tree = instrument.instrument(tree, job["names"])
        exec(compile(tree, "test.py", "exec", dont_inherit=True), space)
        testing.run_defined(space, counter.started, lambda: link.answered)
    except (Exception, ProgramEnded, SystemExit) as error:
        failed = {"error": type(error).__name__, "line": _line_of(error), "too_large": link.too_large}
        service.send(verdict, {"passed": False, **failed})
    else:
        failure = ("ProgramEnded", 0) if link.ended else counter.failure()
        service.send(verdict, {"passed": failure is None, **dict(zip(("error", "line"), failure or ()))})
    os._exit(0)


def _line_of(error: BaseException) -> int:
    """Return the last line of the test code in the traceback, 0 for none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"]
    return (lines[-1] or 0) if lines else 0
