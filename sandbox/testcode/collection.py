"""Run what test code defines and does not call: test functions and classes, found and run by pytest."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import pathlib
import types
from collections.abc import Callable
from typing import Any

# pytest writes no files, and its output goes where the program's goes.
_OPTIONS = (
    "--capture=no --assert=plain --quiet --tb=no -c /dev/null --rootdir=. -p no:cacheprovider -p no:faulthandler"
).split()


def run_defined(space: dict[str, Any], failed: Callable[[BaseException], None]) -> None:
    """Run the test functions and classes among these names, and call `failed` with the error of each that fails."""
    pytest = importlib.import_module("pytest")
    module = types.ModuleType("__main__")
    module.__dict__.update(space)

    class Module(pytest.Module):  # type: ignore[misc, name-defined]
        def _getobj(self) -> types.ModuleType:
            return module

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    code = pytest.main(_OPTIONS, plugins=[_Plugin(Module, failed)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        failed(AssertionError(code.name))


class _Plugin:
    """What pytest calls."""

    def __init__(self, module: Any, failed: Callable[[BaseException], None]) -> None:
        self.module = module
        self.failed = failed

    def pytest_collection(self, session: Any) -> bool:
        """Find the tests in a module that is loaded already, and not in files."""
        module = self.module.from_parent(session, path=pathlib.Path("test.py").absolute())
        session.items = list(session.genitems(module))
        session.testscollected = len(session.items)
        return True

    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
        """Run a test that is a coroutine function."""
        if not inspect.iscoroutinefunction(pyfuncitem.obj):
            return None
        names = inspect.signature(pyfuncitem.obj).parameters.keys() & pyfuncitem.funcargs
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """Note the error of a test, or of looking for tests."""
        self.failed(call.excinfo.value)
