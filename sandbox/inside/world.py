"""What tests and program share beside values: files, environment, seeds, patched modules, log records, warnings.

Only what the test code mentions is shared. The tests' side trusts nothing of it: names and texts are checked, and files
are written below its own directory alone.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib.machinery
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

_MENTIONED = {
    "environ": ("environ", "getenv", "setenv", "putenv"),
    "argv": ("argv",),
    "digits": ("int_max_str_digits",),
    "seeds": ("seed(",),
    "patches": ("patch",),
    "files": ("open(", "path", "tempfile", "tmp_path", "temporary"),
    "logs": ("logg", "assertlogs"),
    "warnings": ("warn",),
}
_MAX_FILES, _MAX_BYTES, _MAX_RECORDS = 200, 1 << 20, 1000
_OWN = ("__main__", "solution", "candidate", "main")
_SEEDED = ("random", "numpy.random")
_MAX_NAME = 200
# What test code could import.
_MODULES = (*importlib.machinery.all_suffixes(), ".pth", ".zip")


def mentioned(code: str) -> frozenset[str]:
    """Return what test code may share with the program."""
    code = code.lower()
    return frozenset(name for name, words in _MENTIONED.items() if any(word in code for word in words))


class Shared:
    """The tests' side. `write` encodes a value for the program."""

    def __init__(self, code: str, write: Callable[[Any], Any]) -> None:
        self.kinds = mentioned(code)
        self._write = write
        self._environ = dict(os.environ)
        self._seeds: list[Any] = []
        self._patches: dict[tuple[str, str], Any] = {}
        self._folder = os.getcwd()
        self._files: dict[str, Any] = {}

    def watch(self, patches: dict[str, Callable[[Any], None]]) -> None:
        """Take note of seeds and of patched modules from now on."""
        wanted = [(name, self._watch_seed) for name in _SEEDED if "seeds" in self.kinds]
        wanted += [("unittest.mock", self._watch_mock)] if "patches" in self.kinds else []
        for name, change in wanted:
            if name in sys.modules:
                change(sys.modules[name])
            else:
                patches[name] = change

    def _watch_seed(self, module: Any) -> None:
        original, name = module.seed, module.__name__

        def seed(*args: Any) -> Any:
            self._seeds.append([name, self._write(list(args))])
            return original(*args)

        module.seed = seed

    def _watch_mock(self, module: Any) -> None:
        shared, enter, leave = self, module._patch.__enter__, module._patch.__exit__

        def entered(self: Any) -> Any:
            found = enter(self)
            shared.patched(self.target, self.attribute, getattr(self.target, self.attribute, None))
            return found

        def left(self: Any, *error: Any) -> Any:
            if isinstance(self.target, types.ModuleType):
                shared._patches.pop((self.target.__name__, self.attribute), None)
            return leave(self, *error)

        module._patch.__enter__, module._patch.__exit__ = entered, left

    def patched(self, target: Any, name: str, value: Any) -> None:
        """Take note of an attribute of a module that the tests have replaced; print and input are known otherwise."""
        if isinstance(target, types.ModuleType) and target is not sys and (target is not builtins or name == "open"):
            self._patches[(target.__name__, name)] = value

    def unpatched(self, target: Any, name: str) -> None:
        """Take note that it is as it was again."""
        if isinstance(target, types.ModuleType):
            self._patches.pop((target.__name__, name), None)

    def told(self) -> dict[str, Any]:
        """Return what the next request has to tell the program."""
        found: dict[str, Any] = dict.fromkeys(self.kinds & {"logs", "warnings"}, True)
        if "environ" in self.kinds:
            found["environ"] = _changes(self._environ, dict(os.environ))
            self._environ = dict(os.environ)
        if "argv" in self.kinds:
            found["argv"] = [str(text) for text in sys.argv]
        if "digits" in self.kinds:
            found["digits"] = sys.get_int_max_str_digits()
        if self._seeds:
            found["seeds"], self._seeds = self._seeds, []
        if self._patches:
            found["patches"] = [[*names, self._write(value)] for names, value in self._patches.items()]
        if "files" in self.kinds:
            found["files"], self._files = changed_files(self._folder, self._files)
        return found

    def hear(self, told: Any) -> None:
        """Repeat what the program has changed."""
        if type(told) is not dict:
            return
        if "environ" in self.kinds and type(told.get("environ")) is dict:
            _set_environ(told["environ"])
            self._environ = dict(os.environ)
        if "files" in self.kinds and type(told.get("files")) is list:
            write_files(self._folder, told["files"])
            self._files = changed_files(self._folder, self._files)[1]
        for name, level, text in _records(told.get("logs") if "logs" in self.kinds else None, (str, int, str)):
            logger = importlib.import_module("logging").getLogger(name)
            if logger.isEnabledFor(level):
                logger.handle(logger.makeRecord(name, level, "", 0, "%s", (text,), None))
        for name, text in _records(told.get("warnings") if "warnings" in self.kinds else None, (str, str)):
            kind = getattr(builtins, name, None)
            known = isinstance(kind, type) and issubclass(kind, Warning)
            importlib.import_module("warnings").warn(text, kind if known else UserWarning, stacklevel=2)


def _records(found: Any, kinds: tuple[type, ...]) -> list[Any]:
    rows = found[:_MAX_RECORDS] if type(found) is list else []
    return [row for row in rows if type(row) is list and tuple(map(type, row)) == kinds]


def _changes(before: dict[str, str], after: dict[str, str]) -> dict[str, str | None]:
    changed: dict[str, str | None] = {name: value for name, value in after.items() if before.get(name) != value}
    return changed | dict.fromkeys(before.keys() - after.keys())


def _set_environ(changes: dict[str, Any]) -> None:
    for name, value in list(changes.items())[:_MAX_FILES]:
        with contextlib.suppress(ValueError, OSError):
            if value is None:
                os.environ.pop(name, None)
            elif type(value) is str and type(name) is str:
                os.environ[name] = value


def changed_files(folder: str, known: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Return the files and directories below a folder that have changed, and all that are there now.

    A file is [path, hexadecimal bytes], a directory [path, True], one that is gone [path, None].
    """
    found: dict[str, Any] = {}
    changed: list[Any] = []
    left = _MAX_BYTES
    for above, folders, names in os.walk(folder):
        for name in folders:
            found[os.path.relpath(os.path.join(above, name), folder)] = True
        for name in names:
            path = os.path.join(above, name)
            with contextlib.suppress(OSError):
                state = os.lstat(path)
                found[os.path.relpath(path, folder)] = (state.st_mtime_ns, state.st_size)
        if len(found) > _MAX_FILES:
            return [], known
    for name, state in found.items():
        if known.get(name) == state:
            continue
        if state is True:
            changed.append([name, True])
        elif state[1] <= left:
            left -= state[1]
            with contextlib.suppress(OSError), open(os.path.join(folder, name), "rb") as file:
                changed.append([name, file.read().hex()])
    return [*changed, *([name, None] for name in known.keys() - found.keys())], found


def write_files(folder: str, changed: list[Any]) -> None:
    """Write files below a folder, as `changed_files` tells them. Whatever else is asked for is left out."""
    for row in changed[:_MAX_FILES]:
        if type(row) is not list or len(row) != 2 or type(row[0]) is not str or len(row[0]) > _MAX_NAME:
            continue
        name, held = row
        path = os.path.join(folder, name)
        outside = not name or os.path.isabs(name) or ".." in name.split("/") or os.path.realpath(path) != path
        if outside or name.endswith(_MODULES):
            continue
        with contextlib.suppress(OSError, ValueError):
            if held is True:
                os.makedirs(path, exist_ok=True)
            elif held is None:
                (os.rmdir if os.path.isdir(path) else os.unlink)(path)
            elif type(held) is str and len(held) <= 2 * _MAX_BYTES:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "wb") as file:
                    file.write(bytes.fromhex(held))


@contextlib.contextmanager
def applied(asked: Any, names: dict[str, Any], read: Callable[[Any], Any], told: dict[str, Any]) -> Iterator[None]:
    """The program's side: do for a request what the tests have told, and add to `told` what the program changes."""
    if not asked:
        yield
        return
    found: dict[str, Any] = {}
    told["world"] = found
    folder, before = _FOLDER.setdefault("path", os.getcwd()), {}
    _set_environ(asked.get("environ", {}))
    environ = dict(os.environ)
    if "argv" in asked:
        sys.argv = list(asked["argv"])
    if "digits" in asked:
        sys.set_int_max_str_digits(asked["digits"])
    if "files" in asked:
        write_files(folder, asked["files"])
        before = changed_files(folder, {})[1]
    for name, args in asked.get("seeds", ()):
        importlib.import_module(name).seed(*read(args))
    with contextlib.ExitStack() as stack:
        for module, attribute, value in asked.get("patches", ()):
            stack.enter_context(_patched(module, attribute, read(value), names))
        if "logs" in asked:
            stack.enter_context(_logs(found.setdefault("logs", [])))
        if "warnings" in asked:
            stack.enter_context(_warnings(found.setdefault("warnings", [])))
        try:
            yield
        finally:
            if "environ" in asked:
                found["environ"] = _changes(environ, dict(os.environ))
            if "files" in asked:
                found["files"] = changed_files(folder, before)[0]


# Where the program was started.
_FOLDER: dict[str, str] = {}


@contextlib.contextmanager
def _patched(module: str, name: str, value: Any, names: dict[str, Any]) -> Iterator[None]:
    space = names if module in _OWN else vars(importlib.import_module(module))
    missing = object()
    before = space.get(name, missing)
    space[name] = value
    try:
        yield
    finally:
        if before is missing:
            del space[name]
        else:
            space[name] = before


@contextlib.contextmanager
def _logs(found: list[Any]) -> Iterator[None]:
    logging = importlib.import_module("logging")

    class Kept(logging.Handler):  # type: ignore[misc, name-defined]
        def emit(self, record: Any) -> None:
            if len(found) < _MAX_RECORDS:
                found.append([record.name, record.levelno, record.getMessage()])

    handler, root = Kept(1), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(1)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@contextlib.contextmanager
def _warnings(found: list[Any]) -> Iterator[None]:
    warnings = importlib.import_module("warnings")
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always")
        yield
    found += [[warning.category.__name__, str(warning.message)] for warning in raised[:_MAX_RECORDS]]
