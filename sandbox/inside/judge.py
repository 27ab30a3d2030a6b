"""Run test code beside a program in another sandbox, count its asserts, and report the verdict."""

from __future__ import annotations

import ast
import os
import sys
import traceback
import types
from typing import Any

from rlvr.sandbox.inside import arrays, chains, instrument, interpreter, service, testing
from rlvr.sandbox.inside.link import Link, ProgramEnded
from rlvr.sandbox.inside.proxies import Handle, Maker, Named
from rlvr.sandbox.inside.standins import METHODS_OF_VALUES


def _run_handles(runners: Any) -> None:
    """Let asyncio.run take a coroutine of the program."""
    original = runners.Runner.run

    async def result(handle: Handle) -> Any:
        return await handle

    def run(self: Any, coro: Any, **kwargs: Any) -> Any:
        return original(self, result(coro) if isinstance(coro, Handle) else coro, **kwargs)

    runners.Runner.run = run


class _Counter:
    """Counts the asserts that were executed after the program had answered."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self.checked: set[int] = set()
        self.started: set[str] = set()
        self.loops: dict[int, tuple[int, ...]] = {}

    def functions(self) -> dict[str, Any]:
        """Return what instrumented code calls."""
        return {
            instrument.CHECKED: self._checked,
            instrument.CAUGHT: self._caught,
            instrument.ENTERED: self._entered,
            instrument.STARTED: self.started.add,
            instrument.BEFORE: self.link.originals.before,
            instrument.SETTLED: self.link.originals.settle,
        }

    def failure(self) -> tuple[str, int] | None:
        """Return why the tests have not passed although none failed, and the line; None where they have."""
        if not self.checked:
            return "NoAssertExecuted", 0
        empty = [line for line, sites in self.loops.items() if not self.checked.intersection(sites)]
        return ("NothingToLoopOver", min(empty)) if empty else None

    def _checked(self, site: int) -> None:
        if self.link.answered:
            self.checked.add(site)

    def _caught(self, site: int) -> None:
        """Count an expected exception if the program raised it; the test may have caught its own AssertionError."""
        if self.link.raised is not None and sys.exc_info()[1] is self.link.raised:
            self.checked.add(site)

    def _entered(self, line: int, *sites: int) -> None:
        self.loops[line] = sites


def run_tests(job: dict[str, Any], *, requests: int, replies: int, verdict: int) -> None:
    """Execute the test code and report the verdict. Ends by `os._exit`.

    Only code that runs to its end passes, with its test functions and classes, if an assert that depends on the
    program was executed.
    """
    link = Link(job, requests, replies, Maker)
    interpreter.PATCHES["asyncio.runners"] = _run_handles
    arrays.compare_all(interpreter.PATCHES)
    counter = _Counter(link)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    space = module.__dict__
    space.update({name: Named(link, {"name": name}) for name in job["names"]})
    space.update(link.exceptions)
    space.update(counter.functions())
    testing.provide_pytest()
    try:
        tree = ast.parse(job["test"])
        link.chained = chains.chained(tree, link.classes, METHODS_OF_VALUES)
        tree = instrument.instrument(tree, job["names"])
        exec(compile(tree, "test.py", "exec", dont_inherit=True), space)
        testing.run_defined(space, counter.started)
    except (Exception, ProgramEnded, SystemExit) as error:
        line = _line_of(error)
        service.send(verdict, {"passed": False, "error": type(error).__name__, "line": line})
    else:
        failure = ("ProgramEnded", 0) if link.ended else counter.failure()
        service.send(verdict, {"passed": failure is None, **dict(zip(("error", "line"), failure or ()))})
    os._exit(0)


def _line_of(error: BaseException) -> int:
    """Return the last line of the test code in the traceback, 0 for none."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "test.py"]
    return (lines[-1] or 0) if lines else 0
