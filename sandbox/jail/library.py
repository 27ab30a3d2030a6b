"""What a program may import: standard library and allowed packages, from directories that hold more than that.

With a root directory of its own a program finds nothing else there. Without one, Landlock opens what is allowed; a
directory that holds more cannot be listed then, so that modules in it are looked up one by one.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

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
