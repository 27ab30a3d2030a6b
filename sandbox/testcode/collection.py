"""Run what test code defines and does not call: test functions and classes, with their fixtures and parameters."""

from __future__ import annotations

import contextlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from ..jail import interpreter
from .pytest_stub import FIXTURES, Fixture, Mark, Row, Skipped


def run_defined(space: dict[str, Any]) -> None:
    """Run the test functions and classes of a module. Raise what a test raises."""
    if any(mark.leaves_out() for mark in _marks_in(space.get("pytestmark", ()))):
        raise Skipped
    runner = _Runner(space)
    with runner.around(space, "setup_module", "teardown_module", sys.modules["__main__"]):
        for name, found in list(space.items()):
            if isinstance(found, types.FunctionType):
                if name.startswith("test") and not hasattr(found, "test_fixture"):
                    runner.function(found)
            elif isinstance(found, type) and found.__module__ == space["__name__"]:
                runner.test_class(name, found)
        runner.end("module")


def _marks_in(value: Any) -> list[Mark]:
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    return [mark for mark in found if isinstance(mark, Mark)]


def _marks(test: Any) -> list[Mark]:
    own = _marks_in(vars(test).get("pytestmark", ())) if isinstance(test, type) else []
    return [*own, *getattr(test, "test_marks", ())]


def _cases(marks: list[Mark]) -> list[dict[str, Any]]:
    """Return the parameters of each run of a test; several marks multiply."""
    found: list[dict[str, Any]] = [{}]
    for mark in marks:
        if mark.name == "parametrize":
            given = {**dict(zip(("argnames", "argvalues"), mark.args)), **mark.kwargs}
            names = given["argnames"]
            listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
            rows = [row for row in given["argvalues"] if not any(m.leaves_out() for m in getattr(row, "marks", ()))]
            cases = [
                dict(zip(listed, row if len(listed) > 1 or isinstance(row, Row) else [row], strict=True))
                for row in rows
            ]
            found = [{**case, **more} for case in cases for more in found]
    return found


class _Runner:
    def __init__(self, space: dict[str, Any]) -> None:
        self.space = space
        self.fixtures = {**FIXTURES, **_fixtures(space)}
        # Values of fixtures by name and parameter, and what ends them, for each scope.
        self.values: dict[tuple[str, Any], Any] = {}
        self.ends: list[tuple[str, Any, Any]] = []

    @contextlib.contextmanager
    def around(self, owner: Any, before: str, after: str, *args: Any) -> Iterator[None]:
        """Call functions of these names, where there are any, before and after."""
        _call_hook(owner, before, args)
        yield
        _call_hook(owner, after, args)

    def function(self, test: Any, made: Any = None, above: list[Mark] | None = None) -> None:
        """Run a test function or method with each case."""
        marks = [*(above or []), *_marks(test)]
        if any(mark.leaves_out() for mark in marks):
            return
        known = {**self.fixtures, **({} if made is None else _fixtures_of(made))}
        for case in _cases(marks):
            names = [name for name in _parameters(test, made) if name not in case]
            asked = [mark.args for mark in marks if mark.name == "usefixtures"]
            wanted = [*(name for name, each in known.items() if each.autouse), *itertools.chain(*asked), *names]
            for params in self._choices(known, wanted):
                self._once(test, made, case, (known, wanted, names, params))

    def _once(self, test: Any, made: Any, case: dict[str, Any], fixtures: Any) -> None:
        known, wanted, names, params = fixtures
        hooks = ("setup_function", "teardown_function") if made is None else ("setup_method", "teardown_method")
        try:
            with self.around(self.space if made is None else made, *hooks, test):
                values = {name: self._value(name, known, params, made) for name in wanted}
                found = test(*([] if made is None else [made]), **case, **{n: values[n] for n in names if n in values})
                if isinstance(found, types.CoroutineType):
                    import asyncio

                    asyncio.run(found)
                self.end("function")
        except Skipped:
            self.end("function")

    def _choices(self, known: dict[str, Fixture], wanted: list[str]) -> list[dict[str, Any]]:
        """Return all parameters of the fixtures that a test needs, directly or through others."""
        needed: list[str] = []
        left = list(wanted)
        while left:
            name = left.pop()
            if name in known and name not in needed:
                needed.append(name)
                left += _parameters(known[name].function, None)
        named = [name for name in needed if known[name].params is not None]
        rows = itertools.product(*(known[name].params or () for name in named))
        return [dict(zip(named, row)) for row in rows]

    def _value(self, name: str, known: dict[str, Fixture], params: dict[str, Any], made: Any) -> Any:
        """Return the value of a fixture, made once for its scope."""
        if name not in known:
            # A parameter with a default value, or one that the test then misses.
            raise TypeError(f"no fixture {name!r}")
        key = (name, repr(params.get(name)))
        if key in self.values:
            return self.values[key]
        found = known[name]
        given = {}
        for parameter in _parameters(found.function, made):
            if parameter == "request":
                given[parameter] = types.SimpleNamespace(
                    param=params.get(name), instance=made, addfinalizer=self._finalizer(found)
                )
            else:
                given[parameter] = self._value(parameter, known, params, made)
        owned = made is not None and getattr(type(made), found.function.__name__, None) is found.function
        value = found.function(*([made] if owned else []), **given)
        ends = None
        if isinstance(value, types.GeneratorType):
            ends, value = value, next(value)
        self.values[key] = value
        self.ends.append((found.scope, key, ends))
        return value

    def _finalizer(self, found: Fixture) -> Callable[[Callable[[], Any]], None]:
        return lambda function: self.ends.append((found.scope, None, (call() for call in [function])))

    def end(self, scope: str) -> None:
        """End the fixtures of a scope, the last first; at the end of the module all."""
        for each in [each for each in reversed(self.ends) if scope in ("module", each[0])]:
            self.ends.remove(each)
            self.values.pop(each[1], None)
            if each[2] is not None:
                next(each[2], None)

    def test_class(self, name: str, found: type) -> None:
        """Run the tests of a class, if it is one for tests."""
        unittest = sys.modules.get("unittest")
        if unittest is not None and issubclass(found, unittest.TestCase):
            run_case(found)
        elif name.startswith("Test") and "__init__" not in vars(found):
            marks = _marks(found)
            with self.around(found, "setup_class", "teardown_class", found):
                for method in [m for m in dir(found) if m.startswith("test") and callable(getattr(found, m))]:
                    self.function(getattr(found, method), found(), marks)
                self.end("class")
            for inner, nested in list(vars(found).items()):
                if isinstance(nested, type) and nested.__module__ == found.__module__:
                    self.test_class(inner, nested)


def _fixtures(space: dict[str, Any]) -> dict[str, Fixture]:
    functions = [found for found in list(space.values()) if isinstance(found, types.FunctionType)]
    return {f.test_fixture_name: f.test_fixture for f in functions if hasattr(f, "test_fixture")}  # type: ignore[attr-defined]


def _fixtures_of(made: Any) -> dict[str, Fixture]:
    return _fixtures({name: getattr(type(made), name) for name in dir(type(made))})


def _parameters(function: Any, made: Any) -> list[str]:
    """Return the names of parameters without a default value; without that of the object of a method."""
    code = getattr(function, "__code__", None)
    if code is None:
        return []
    names = list(code.co_varnames[: code.co_argcount - len(function.__defaults__ or ())])
    of_keywords = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount]
    names += [name for name in of_keywords if name not in (function.__kwdefaults__ or {})]
    return [name for number, name in enumerate(names) if number or name != "self"]


def _call_hook(owner: Any, name: str, args: tuple[Any, ...]) -> None:
    hook = owner.get(name) if isinstance(owner, dict) else getattr(owner, name, None)
    if callable(hook):
        function: Any = getattr(hook, "__func__", hook)
        code = function.__code__
        hook(*args[: max(code.co_argcount - hasattr(hook, "__func__"), 0)])


EXPECTED = "__unittest_expecting_failure__"


def run_case(found: Any) -> None:
    """Run a TestCase with unittest; `watch_suites` sees what fails. Tests that are expected to fail are left out."""
    import unittest

    suite = unittest.TestSuite()
    for test in unittest.defaultTestLoader.loadTestsFromTestCase(found):
        method = getattr(test, getattr(test, "_testMethodName", ""), None)
        if not (getattr(found, EXPECTED, False) or getattr(method, EXPECTED, False)):
            suite.addTest(test)
    suite.run(unittest.TestResult())


# The methods by which a TestResult is told of failures, and the error among their arguments, None for none.
_REPORTS: dict[str, Callable[..., BaseException | None]] = {
    "addError": lambda test, err: err[1],
    "addFailure": lambda test, err: err[1],
    "addSubTest": lambda test, subtest, err: err and err[1],
    "addUnexpectedSuccess": lambda test: AssertionError("an unexpected success"),
}


def watch_suites(failed: Callable[[BaseException], None]) -> None:
    """Call `failed` with each failure of unittest, also in suites whose results the test code does not look at."""

    def watch(unittest_result: Any) -> None:
        for name, error_of in _REPORTS.items():
            _tell(unittest_result.TestResult, name, failed, error_of)

    if "unittest.result" in sys.modules:
        watch(sys.modules["unittest.result"])
    else:
        interpreter.PATCHES["unittest.result"] = watch


def _tell(kind: Any, name: str, failed: Callable[[BaseException], None], error_of: Callable[..., Any]) -> None:
    original = getattr(kind, name)

    def report(self: Any, *args: Any) -> Any:
        if (error := error_of(*args)) is not None:
            failed(error)
        return original(self, *args)

    setattr(kind, name, report)
