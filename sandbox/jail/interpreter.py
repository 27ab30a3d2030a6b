"""What a program finds under `python main.py`, in a process that was forked instead: streams, `exit`, /dev/stdin, /tmp.

Nothing here protects anything. The kernel's layers are applied without it, and a program may undo all of it.
"""

from __future__ import annotations

import _sitebuiltins
import _thread
import builtins
import contextlib
import gc
import importlib.machinery
import io
import os
import resource
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import shared_memory

# Of a thread, in bytes: the kernel counts all of it as the process's memory.
_THREAD_STACK = 4 << 20
_TEMPORARY = "/tmp"
_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
_DESCRIPTORS = ("/dev/fd/", "/proc/self/fd/")
_ONE_PATH = "stat lstat listdir scandir mkdir rmdir remove unlink access chdir statvfs truncate"
_TWO_PATHS = "rename replace"


def prepare(scratch: str) -> None:
    """Set up a fork server for all of its children, before it imports anything on their behalf."""
    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    for name in ("copyright", "credits", "license"):
        setattr(builtins, name, _sitebuiltins._Printer(name, name))
    builtins.help = _sitebuiltins._Helper()
    _open_streams()
    sys.meta_path.insert(0, _Patcher(PATCHES))
    _thread.stack_size(_THREAD_STACK)
    _redirect(scratch)
    _ignore_attributes(scratch)
    resource.setrlimit = _clip_limits(resource.setrlimit)


def _clip_limits(original: Callable[..., None]) -> Callable[..., None]:
    """Let a program ask for more than its hard limits, as programs that recurse deeply do: it gets what it may have."""

    def setrlimit(what: int, limits: Sequence[int], /) -> None:
        try:
            original(what, limits)
        except (ValueError, PermissionError):
            hard = resource.getrlimit(what)[1]
            soft, asked = (hard if _beyond(int(value), hard) else int(value) for value in limits)
            original(what, (soft, asked))

    return setrlimit


def _beyond(value: int, hard: int) -> bool:
    return hard != resource.RLIM_INFINITY and (value == resource.RLIM_INFINITY or value > hard)


def _open_streams() -> None:
    """Open stdin, stdout and stderr as a child will find them: outputs are pipes, which have no position."""
    reading, writing = os.pipe()
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(reading)
    os.close(writing)
    for name, number, mode, errors in (
        ("stdin", 0, "r", "surrogateescape"),
        ("stdout", 1, "w", "surrogateescape"),
        ("stderr", 2, "w", "backslashreplace"),
    ):
        buffer: Any = open(number, mode + "b", closefd=False)  # noqa: SIM115
        buffer.raw.name = f"<{name}>"
        text: Any = io.TextIOWrapper(buffer, "utf-8", errors, "\n", line_buffering=number == 2)
        text.mode = mode
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)


def flush_streams() -> None:
    """Flush stdout, stderr and every other file that the program has left open, as the interpreter does."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    # The first ones are unknown to the collector, which the server has told to forget what it knew.
    others = [sys.__stdout__, sys.__stderr__, *gc.get_objects()]
    for kinds in ((io.TextIOWrapper,), (io.BufferedWriter, io.BufferedRandom)):
        for found in others:
            if issubclass(type(found), kinds):
                # Closed or detached, or nothing reads any longer.
                with contextlib.suppress(ValueError, OSError):
                    found.flush()


class _Patcher:
    """Change some modules of the standard library after their import, whenever that is."""

    def __init__(self, patches: dict[str, Callable[[Any], None]]) -> None:
        self.patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module to patch, with a loader that does so; None for any other module."""
        if name not in self.patches:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None), None)
        if spec is not None and spec.loader is not None:
            patching: Any = _PatchingLoader(spec.loader, self.patches[name])
            spec.loader = patching
        return spec


class _PatchingLoader:
    def __init__(self, loader: Any, patch: Callable[[Any], None]) -> None:
        self.loader = loader
        self.patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        made: types.ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        self.loader.exec_module(module)
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.patch(module)


def _redirect(scratch: str) -> None:
    """Lead to the scratch directory what fails in /tmp, and to the open descriptors what fails for /dev/stdin."""

    def elsewhere(path: Any) -> Any:
        """The path or descriptor to try instead; None for most paths."""
        if not isinstance(path, (str, bytes, os.PathLike)):
            return None
        path = os.fspath(path)
        text = os.fsdecode(path)
        if not text.startswith("/"):
            return None
        prefix, _, number = text.rpartition("/")
        if text in _STREAMS or (prefix + "/" in _DESCRIPTORS and number.isdecimal()):
            return _STREAMS.get(text, -1) if text in _STREAMS else int(number)
        within = text == _TEMPORARY or text.startswith(_TEMPORARY + "/")
        if not within or scratch == _TEMPORARY or text.startswith(scratch):
            return None
        moved = scratch + text[len(_TEMPORARY) :]
        return os.fsencode(moved) if isinstance(path, bytes) else moved

    builtins.open = io.open = _Redirected(open, elsewhere, os.dup)
    for name in _ONE_PATH.split():
        _replace(name, _Redirected(getattr(os, name), elsewhere, int))
    _replace("open", _Redirected(os.open, elsewhere, os.dup, descriptor=True))
    for name in _TWO_PATHS.split():
        _replace(name, _Redirected(getattr(os, name), elsewhere, int, paths=2))


def _ignore_attributes(scratch: str) -> None:
    """Let the scratch directory's files have no modes, dates and attributes but those of new files.

    The system calls that set them are refused; shutil.copy and others need them to succeed.
    """

    def ignoring(original: Any, answer: Any) -> Any:
        def attempt(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return original(path, *args, **kwargs)
            except PermissionError:
                real = scratch if isinstance(path, int) else os.path.realpath(os.fsdecode(path))
                if real != scratch and not real.startswith((scratch + "/", _TEMPORARY + "/")):
                    raise
                return answer()

        return attempt

    for name, answer in (("chmod", _nothing), ("fchmod", _nothing), ("utime", _nothing), ("listxattr", list)):
        _replace(name, ignoring(getattr(os, name), answer))


def _nothing() -> None:
    """Return None."""


class _Redirected:
    """A function with a second attempt elsewhere. `use` prepares a descriptor that stands for a path.

    Not a function itself: as an attribute of a class it must not become a method, as built-in functions do not.
    """

    def __init__(
        self, function: Any, elsewhere: Any, use: Callable[[int], int], *, descriptor: bool = False, paths: int = 1
    ) -> None:
        self._function, self._elsewhere, self._use = function, elsewhere, use
        self._descriptor, self._paths = descriptor, paths
        self.__name__ = self.__qualname__ = function.__name__
        self.__doc__ = function.__doc__
        self.__module__ = function.__module__
        self.__wrapped__ = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._function(*args, **kwargs)
        except OSError:
            others = [self._elsewhere(path) for path in args[: self._paths]]
            if not any(other is not None for other in others):
                raise
        if self._descriptor and isinstance(others[0], int):
            return self._use(others[0])
        moved = [path if other is None else other for path, other in zip(args, others)]
        moved = [self._use(path) if isinstance(path, int) else path for path in moved]
        return self._function(*moved, *args[self._paths :], **kwargs)


def _replace(name: str, replacement: Any) -> None:
    """Put the replacement into `os`, where it is known for the same abilities as the original."""
    original = getattr(os, name)
    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in able:
            able.add(replacement)
    setattr(os, name, replacement)


def _connect_to_scratch(sqlite3: Any) -> None:
    """A database below /tmp is a file of the scratch directory."""
    original = sqlite3.connect

    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(database, (str, bytes, os.PathLike)) and os.fsdecode(database).startswith(_TEMPORARY + "/"):
            # Created here, where a path that cannot be opened is looked for elsewhere.
            with open(database, "ab") as file:
                database = file.name
        return original(database, *args, **kwargs)

    sqlite3.connect = sqlite3.dbapi2.connect = connect


PATCHES: dict[str, Callable[[Any], None]] = {"sqlite3": _connect_to_scratch, **shared_memory.PATCHES}


# What a program may import: standard library and allowed packages, from directories that hold more than that.
#
# With a root directory of its own a program finds nothing else there. Without one, Landlock opens what is allowed; a
# directory that holds more cannot be listed then, so that modules in it are looked up one by one.

_KINDS: tuple[tuple[list[str], Any], ...] = (
    (importlib.machinery.EXTENSION_SUFFIXES, importlib.machinery.ExtensionFileLoader),
    (importlib.machinery.SOURCE_SUFFIXES, importlib.machinery.SourceFileLoader),
    (importlib.machinery.BYTECODE_SUFFIXES, importlib.machinery.SourcelessFileLoader),
)


def find_granted_paths(read: Iterable[str], hidden: Sequence[str], packages: Mapping[str, Sequence[str]]) -> list[str]:
    """Return paths that together hold what is in `read` and not in `hidden`, and the packages."""
    found = [part for path in read for part in _without(os.path.realpath(path), hidden)]
    return found + [os.path.realpath(os.path.join(site, name)) for site, names in packages.items() for name in names]


def _without(path: str, hidden: Sequence[str]) -> Iterator[str]:
    if path in hidden:
        return
    if not any(within.startswith(path + "/") for within in hidden):
        yield path
        return
    with os.scandir(path) as entries:
        for entry in entries:
            # What a link leads to is granted where it lies, or not at all.
            if not entry.is_symlink():
                yield from _without(entry.path, hidden)


def find_in(directories: Iterable[str], packages: Mapping[str, Sequence[str]]) -> None:
    """Make imports from directories that cannot be listed work: any module of `directories`, and the packages'."""
    known: dict[str, set[str] | None] = dict.fromkeys(directories)
    known |= {site: {name.split("/")[0].split(".")[0] for name in names} for site, names in packages.items()}

    def hook(path: str) -> _Finder:
        if path not in known:
            raise ImportError(path)
        return _Finder(path, known[path])

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
    finder: Any = _Distributions(packages)
    sys.meta_path.append(finder)


class _Finder:
    """Find modules in one directory without listing it; `names` are the modules it may find, None for all."""

    def __init__(self, directory: str, names: set[str] | None) -> None:
        self.directory = directory
        self.names = names

    def find_spec(self, name: str, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module, or None."""
        tail = name.rpartition(".")[2]
        if self.names is not None and tail not in self.names:
            return None
        path = os.path.join(self.directory, tail)
        spec = importlib.machinery.ModuleSpec
        for location, inside in ((os.path.join(path, "__init__"), [path]), (path, None)):
            for suffixes, loader in _KINDS:
                for suffix in suffixes:
                    if os.path.isfile(location + suffix):
                        made = loader(name, location + suffix)
                        found = spec(name, made, origin=location + suffix, is_package=inside is not None)
                        found.has_location = True
                        if inside is not None:
                            found.submodule_search_locations = inside
                        return found
        if not os.path.isdir(path):
            return None
        portion = spec(name, None, is_package=True)
        portion.submodule_search_locations = [path]
        return portion


class _Distributions:
    """What importlib.metadata finds where it cannot list."""

    def __init__(self, packages: Mapping[str, Sequence[str]]) -> None:
        folders = (os.path.join(site, os.path.dirname(name)) for site, names in packages.items() for name in names)
        self.folders = list(dict.fromkeys(path for path in folders if path.endswith((".dist-info", ".egg-info"))))

    def find_spec(self, name: str, path: Any, target: Any = None) -> None:
        """Find no module."""

    def find_distributions(self, context: Any) -> Iterator[Any]:
        """Yield the allowed distributions, or the one that is asked for."""
        import importlib.metadata
        import pathlib

        wanted = context.name and context.name.replace("-", "_").replace(".", "_").lower()
        for folder in self.folders:
            if wanted in (None, os.path.basename(folder).split("-")[0].lower()):
                yield importlib.metadata.PathDistribution(pathlib.Path(folder))
