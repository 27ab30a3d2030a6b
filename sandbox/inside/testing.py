"""Run what test code defines and does not call: test functions and classes; a small stand-in for pytest."""

from __future__ import annotations

import contextlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any


class Skipped(Exception):
    """A test that skips itself: it has not passed."""


class Raises:
    """The context of `pytest.raises`: an exception of these types, whose text `match` is found in."""

    def __init__(self, expected: Any, match: str | None = None) -> None:
        self.expected = expected
        self.match = match
        self.value: Any = None

    def __enter__(self) -> Raises:
        return self

    def __exit__(self, kind: Any, value: Any, where: Any) -> bool:
        if kind is None:
            raise AssertionError("DID NOT RAISE")
        self.value, self.type = value, kind
        if not issubclass(kind, self.expected):
            return False
        if self.match is not None and not re.search(self.match, str(value)):
            raise AssertionError("another message")
        return True


class Approx:
    """Equal to numbers within rel (1e-6) of the expected one or abs (1e-12), and to lists and dicts of such."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, other: object) -> bool:
        return self._same(other, self.expected)

    def _same(self, value: Any, expected: Any) -> bool:
        if isinstance(expected, (list, tuple)):
            return (
                type(value) in (list, tuple) and len(value) == len(expected) and all(map(self._same, value, expected))
            )
        if isinstance(expected, dict):
            return (
                type(value) is dict
                and value.keys() == expected.keys()
                and all(self._same(value[key], expected[key]) for key in expected)
            )
        if type(value) not in (int, float, complex) or not isinstance(expected, (int, float, complex)):
            return type(value) is type(expected) and bool(value == expected)
        least = 1e-12 if self.abs is None else self.abs
        relative = 1e-6 if self.rel is None and self.abs is None else self.rel or 0.0
        return bool(value == expected or abs(value - expected) <= max(least, relative * abs(expected)))


def raises(expected: Any, *call: Any, match: str | None = None, **kwargs: Any) -> Any:
    """Expect an exception in a block, or of a call."""
    context = Raises(expected, match)
    if not call:
        return context
    with context:
        call[0](*call[1:], **kwargs)
    return context


def parametrize(names: Any, rows: Any, **others: Any) -> Callable[[Any], Any]:
    """Run a test once for each row; several marks multiply."""
    listed = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def mark(test: Any) -> Any:
        cases = [dict(zip(listed, row if len(listed) > 1 else [row], strict=True)) for row in rows]
        known = getattr(test, "test_cases", [{}])
        test.test_cases = [{**case, **more} for case in cases for more in known]
        return test

    return mark


def _skip(*args: Any, **kwargs: Any) -> Any:
    raise Skipped


def _fail(reason: str = "", **others: Any) -> Any:
    raise AssertionError(reason)


def provide_pytest() -> None:
    """Offer the stand-in as the module pytest."""
    module = types.ModuleType("pytest")
    module.raises, module.approx = raises, Approx  # type: ignore[attr-defined]
    module.fail, module.skip = _fail, _skip  # type: ignore[attr-defined]
    module.mark = types.SimpleNamespace(parametrize=parametrize)  # type: ignore[attr-defined]
    sys.modules["pytest"] = module


def run_defined(space: dict[str, Any], started: set[str]) -> None:
    """Run the test functions and classes of a module that have not started yet. Raise what a test raises."""
    for name, found in list(space.items()):
        if isinstance(found, types.FunctionType):
            if name.startswith("test") and (name not in started or _has_cases(found)):
                _run_function(found)
        elif isinstance(found, type) and found.__module__ == space["__name__"]:
            _run_class(name, found)


def _has_cases(test: types.FunctionType) -> bool:
    """Whether a test has cases of its own, whatever the code itself has called it with."""
    defaults = test.__defaults__ or ()
    return hasattr(test, "test_cases") or (bool(defaults) and len(defaults) == test.__code__.co_argcount)


def _run_class(name: str, found: type) -> None:
    unittest = sys.modules.get("unittest")
    if unittest is not None and issubclass(found, unittest.TestCase):
        _run_case(found)
    elif name.startswith("Test"):
        for method in _methods(found):
            made = found()
            with _around(made):
                _run_function(getattr(made, method))
        for inner, nested in list(vars(found).items()):
            if isinstance(nested, type) and nested.__module__ == found.__module__:
                _run_class(inner, nested)


def _methods(found: type) -> list[str]:
    return [name for name in dir(found) if name.startswith("test") and callable(getattr(found, name))]


@contextlib.contextmanager
def _around(made: Any) -> Iterator[None]:
    getattr(made, "setup_method", lambda *args: None)(*[None] * _wants(made, "setup_method"))
    yield
    getattr(made, "teardown_method", lambda *args: None)(*[None] * _wants(made, "teardown_method"))


def _wants(made: Any, name: str) -> int:
    return getattr(made, name).__code__.co_argcount - 1 if hasattr(made, name) else 0


def _run_function(test: Any) -> None:
    for case in getattr(test, "test_cases", [{}]):
        found = test(**case)
        if isinstance(found, types.CoroutineType):
            import asyncio

            asyncio.run(found)


def _run_case(found: Any) -> None:
    """Run a TestCase with unittest. Raise the first error, and AssertionError for skipped and expected failures."""
    import unittest

    class First(unittest.TestResult):
        """Keeps the exceptions."""

        raised: BaseException | None = None

        def _keep(self, error: Any) -> None:
            self.raised = self.raised or error[1]

        def addError(self, test: Any, err: Any) -> None:
            self._keep(err)

        def addFailure(self, test: Any, err: Any) -> None:
            self._keep(err)

        def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
            if err is not None:
                self._keep(err)

        def addSkip(self, test: Any, reason: str) -> None:
            self.raised = self.raised or Skipped(reason)

        def addExpectedFailure(self, test: Any, err: Any) -> None:
            self.raised = self.raised or Skipped("an expected failure")

        def addUnexpectedSuccess(self, test: Any) -> None:
            self.raised = self.raised or Skipped("an unexpected success")

    result = First()
    unittest.defaultTestLoader.loadTestsFromTestCase(found).run(result)
    if result.raised is not None:
        raise result.raised
