"""A small stand-in for pytest: what test code imports of it. Which tests are run, and with what, see testing.py."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import re
import sys
import types
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

_NOTHING = object()


class Skipped(Exception):
    """A test that skips itself."""


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
    """As pytest's: equal to numbers within rel (1e-6) of the expected one or abs (1e-12).

    Also to arrays, sequences and dicts of such numbers, which must not be nested.
    """

    __hash__ = None  # type: ignore[assignment]
    # Arrays of numpy leave the comparison to this class.
    __array_ufunc__ = None

    def __init__(self, expected: Any, rel: Any = None, abs: Any = None, nan_ok: bool = False) -> None:
        self.expected, self.rel, self.abs, self.nan_ok = expected, rel, abs, nan_ok
        many = isinstance(expected, (Collection, Mapping)) and not isinstance(expected, (str, bytes))
        items = (
            () if not many or _is_array(expected) else expected.values() if isinstance(expected, Mapping) else expected
        )
        nested = (list, tuple, dict, set, frozenset)
        if isinstance(expected, (set, frozenset)) or any(isinstance(item, nested) for item in items):
            raise TypeError(f"pytest.approx() does not support sets and nested values: {expected!r:.80}")

    def __bool__(self) -> bool:
        raise AssertionError("approx() is not supported in a boolean context. Did you mean: `assert a == approx(b)`?")

    def __eq__(self, other: object) -> bool:
        expected, found = self.expected, cast("Any", other)
        if _is_array(expected):
            numpy = importlib.import_module("numpy")
            array = numpy.full(expected.shape, found) if numpy.isscalar(found) else numpy.asarray(found)
            return array.shape == expected.shape and all(map(self._is_close, array.flat, expected.flat))
        if isinstance(expected, Mapping):
            same = isinstance(found, Mapping) and set(found) == set(expected)
            return same and all(self._is_close(found[key], expected[key]) for key in expected)
        many = hasattr(expected, "__len__") and hasattr(expected, "__getitem__")
        if many and not isinstance(expected, (str, bytes)):
            same = hasattr(found, "__len__") and len(found) == len(expected)
            return same and all(map(self._is_close, found, expected))
        return all(self._is_close(item, expected) for item in (found.flat if _is_array(found) else (found,)))

    def _is_close(self, value: Any, expected: Any) -> bool:
        from decimal import Decimal
        from numbers import Complex

        booleans = [type(each).__name__ in ("bool", "bool_") for each in (value, expected)]
        if booleans == [False, True]:
            return False
        if value == expected:
            return True
        numbers = isinstance(value, (Complex, Decimal)) and isinstance(expected, (Complex, Decimal))
        if booleans[1] or not numbers:
            return False
        size: Any = abs(expected)
        if math.isnan(size):
            return self.nan_ok and math.isnan(abs(value))
        if math.isinf(size):
            return False
        number = Decimal if isinstance(expected, Decimal) else float
        allowed = number("1e-12" if self.abs is None else self.abs)
        if self.abs is None or self.rel is not None:
            allowed = max(allowed, size * number("1e-6" if self.rel is None else self.rel))
        return bool(abs(expected - value) <= allowed)


def _is_array(value: Any) -> bool:
    return any((kind.__module__, kind.__name__) == ("numpy", "ndarray") for kind in type(value).__mro__)


def raises(expected: Any, *call: Any, match: str | None = None, **kwargs: Any) -> Any:
    """Expect an exception in a block, or of a call."""
    context = Raises(expected, match)
    if not call:
        return context
    with context:
        call[0](*call[1:], **kwargs)
    return context


class Row(list[Any]):
    """One row of `parametrize`, with its marks."""

    def __init__(self, *values: Any, marks: Any = (), id: str | None = None) -> None:
        super().__init__(values)
        self.marks = list(marks) if isinstance(marks, (list, tuple)) else [marks]


class Mark:
    """`pytest.mark.name`, with or without arguments; remembered in `test_marks` of what it decorates."""

    def __init__(self, name: str, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> None:
        self.name, self.args, self.kwargs = name, args, kwargs or {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], (types.FunctionType, type)):
            decorated: Any = args[0]
            decorated.test_marks = [*vars(decorated).get("test_marks", ()), self]
            return decorated
        return Mark(self.name, args, kwargs)

    def leaves_out(self) -> bool:
        """Whether the tests with this mark are not run. Those that are expected to fail show nothing either."""
        conditions = [given for given in (*self.args, self.kwargs.get("condition", _NOTHING)) if given is not _NOTHING]
        if self.name == "skipif":
            return any(given for given in conditions if not isinstance(given, str))
        return self.name == "skip" or (self.name == "xfail" and (not conditions or any(conditions)))


class _Marks:
    def __getattr__(self, name: str) -> Mark:
        return Mark(name)


class Fixture:
    """A function decorated by `pytest.fixture`."""

    def __init__(self, function: Any, scope: str, params: Any, autouse: bool) -> None:
        self.function, self.scope, self.autouse = function, scope, autouse
        self.params = None if params is None else list(params)


def fixture(
    function: Any = None, *, scope: str = "function", params: Any = None, autouse: bool = False, **more: Any
) -> Any:
    """Make a fixture of a function, with or without arguments of the decorator."""

    def mark(function: Any) -> Any:
        function.test_fixture = Fixture(function, scope if isinstance(scope, str) else "function", params, autouse)
        function.test_fixture_name = more.get("name") or function.__name__
        return function

    return mark if function is None else mark(function)


class MonkeyPatch:
    """The fixture `monkeypatch`: changes that are undone after the test."""

    def __init__(self) -> None:
        self._changes = contextlib.ExitStack()

    def setattr(self, target: Any, name: Any, value: Any = _NOTHING, raising: bool = True) -> None:
        """Set an attribute of an object, or of what a dotted name names."""
        if value is _NOTHING:
            path, _, attribute = target.rpartition(".")
            target, name, value = importlib.import_module(path), attribute, name
        undone = (setattr, target, name, getattr(target, name)) if hasattr(target, name) else (delattr, target, name)
        self._changes.callback(*undone)
        setattr(target, name, value)

    def delattr(self, target: Any, name: str, raising: bool = True) -> None:
        """Delete an attribute."""
        if raising or hasattr(target, name):
            self._changes.callback(setattr, target, name, getattr(target, name))
            delattr(target, name)

    def setitem(self, target: Any, key: Any, value: Any) -> None:
        """Set an item of a dict."""
        undone = (target.__setitem__, key, target[key]) if key in target else (target.pop, key)
        self._changes.callback(*undone)
        target[key] = value

    def delitem(self, target: Any, key: Any, raising: bool = True) -> None:
        """Delete an item of a dict."""
        if raising or key in target:
            self._changes.callback(target.__setitem__, key, target.pop(key))

    def setenv(self, name: str, value: str, prepend: str | None = None) -> None:
        """Set an environment variable."""
        self.setitem(os.environ, name, str(value))

    def delenv(self, name: str, raising: bool = True) -> None:
        """Delete an environment variable."""
        self.delitem(os.environ, name, raising)

    def chdir(self, path: Any) -> None:
        """Change the directory."""
        self._changes.enter_context(contextlib.chdir(path))

    def undo(self) -> None:
        """Undo all changes, the last first."""
        self._changes.close()


class Captured:
    """The fixture `capsys`: what was printed."""

    def __init__(self, out: io.StringIO, err: io.StringIO) -> None:
        self._files = (out, err)

    def readouterr(self) -> Any:
        """Return what was printed since the last time, as (out, err)."""
        found = types.SimpleNamespace(**{name: file.getvalue() for name, file in zip(("out", "err"), self._files)})
        for file in self._files:
            file.seek(0)
            file.truncate()
        return found


def _monkeypatch() -> Iterator[MonkeyPatch]:
    made = MonkeyPatch()
    yield made
    made.undo()


def _capsys() -> Iterator[Captured]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        yield Captured(out, err)


def _tmp_path() -> Any:
    return importlib.import_module("pathlib").Path(importlib.import_module("tempfile").mkdtemp(dir="."))


# Fixtures that are always there.
FIXTURES: dict[str, Fixture] = {
    "monkeypatch": Fixture(_monkeypatch, "function", None, False),
    "capsys": Fixture(_capsys, "function", None, False),
    "tmp_path": Fixture(_tmp_path, "function", None, False),
}


@contextlib.contextmanager
def _warns(expected: Any = Warning, *, match: str | None = None) -> Iterator[list[Any]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found
    if not any(issubclass(w.category, expected) and re.search(match or "", str(w.message)) for w in found):
        raise AssertionError("DID NOT WARN")


def _skip(reason: str = "", **others: Any) -> Any:
    raise Skipped(reason)


def _fail(reason: str = "", **others: Any) -> Any:
    raise AssertionError(reason)


def _importorskip(name: str, *args: Any, **kwargs: Any) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        raise Skipped(name) from None


def provide_pytest() -> None:
    """Offer the stand-in as the module pytest."""
    module: Any = types.ModuleType("pytest")
    module.raises, module.approx, module.fixture, module.param = raises, Approx, fixture, Row
    module.fail, module.skip, module.xfail, module.importorskip = _fail, _skip, _skip, _importorskip
    module.mark, module.warns, module.MonkeyPatch = _Marks(), _warns, MonkeyPatch
    sys.modules["pytest"] = module
