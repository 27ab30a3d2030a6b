"""Which installed packages a program sees: their files, found from the names of packages or modules."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache

# What programs of the usual code problems import beside the standard library.
DEFAULT = ("numpy",)
# This project holds answers.
_OWN = "rlvr"
# Of the files in *.dist-info: direct_url.json and RECORD name paths of this machine.
_METADATA = ("METADATA", "entry_points.txt", "top_level.txt")
SITES = ("site-packages", "dist-packages")
_SUFFIXES = (".py", ".so", ".pyd")


@cache
def sites() -> tuple[str, ...]:
    """Return the directories of installed packages of this process, resolved."""
    paths = [os.path.realpath(path) for path in sys.path if os.path.basename(path) in SITES]
    return tuple(dict.fromkeys(path for path in paths if os.path.isdir(path)))


@cache
def files(packages: tuple[str, ...], preload: tuple[str, ...] = ()) -> dict[str, tuple[str, ...]]:
    """Return the files and directories of packages and of all that they depend on, {site: names below it}.

    A package is named as for pip or as it is imported; modules in `preload` name theirs. Raise ValueError for one that
    is not installed, and for this project.
    """
    wanted = [*packages, *(module.split(".")[0] for module in preload)]
    found: dict[str, dict[str, None]] = {}
    for name in wanted:
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise ValueError(f"package {name!r}: expected the name of a package or of a module")
        if _normal(name).split("-")[0] == _OWN:
            raise ValueError(f"package {name!r} cannot be visible to programs: it holds answers")
        if name not in sys.stdlib_module_names and not _add(name, found, set()):
            raise ValueError(f"package {name!r} is not in site-packages of this environment")
    for name in DEFAULT:
        _add(name, found, set())
    return {site: tuple(names) for site, names in found.items()}


@cache
def absent() -> tuple[str, ...]:
    """Return those packages that programs may expect, and that are not installed beside this project."""
    found: dict[str, dict[str, None]] = {}
    return tuple(name for name in DEFAULT if not _add(name, found, set()))


def _add(name: str, found: dict[str, dict[str, None]], seen: set[str]) -> bool:
    """Add a package and its dependencies to `found`. Returns whether there is one."""
    distributions = _distributions(name)
    for distribution in distributions:
        known = _normal(distribution.metadata["Name"])
        if known in seen or known == _OWN:
            continue
        seen.add(known)
        for site, path in _files_of(distribution):
            found.setdefault(site, {})[path] = None
        for needed in distribution.requires or ():
            # Extras are for those who ask for them; what a marker excludes is mostly not installed.
            if "extra ==" not in needed.replace("extra==", "extra =="):
                _add(re.split(r"[^\w.-]", needed, maxsplit=1)[0], found, seen)
    if distributions:
        return True
    bare = [(site, path) for site in sites() for path in _module_files(site, name)]
    for site, path in bare:
        found.setdefault(site, {})[path] = None
    return bool(bare)


def _distributions(name: str) -> list[importlib.metadata.Distribution]:
    """Return the installed distributions of that name, or else those that hold the module of that name."""
    found = list(importlib.metadata.Distribution.discover(name=name, path=list(sites())))
    if found:
        return found[:1]
    holders = _holders().get(name, [])
    return [d for holder in dict.fromkeys(holders) for d in _distributions(holder)] if name not in holders else []


@cache
def _holders() -> dict[str, list[str]]:
    return dict(importlib.metadata.packages_distributions())


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _files_of(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, str]]:
    """Yield (site, path below it) of what a distribution installed: whole directories where they are its own."""
    if distribution.files is None:
        # Installed by the system's packages, which keep no list.
        names = (distribution.read_text("top_level.txt") or distribution.metadata["Name"]).split()
        yield from ((site, path) for site in sites() for name in names for path in _module_files(site, name))
        return
    packages = {str(file.parent) for file in distribution.files if file.name == "__init__.py"}
    site = os.path.realpath(str(distribution.locate_file("")))
    for path in dict.fromkeys(_visible_part(file.parts, packages) for file in distribution.files):
        if path and os.path.exists(os.path.join(site, path)):
            yield site, path


def _visible_part(parts: tuple[str, ...], packages: set[str]) -> str:
    """Return what to show for an installed file: its top directory, or, of a namespace package, the one below."""
    if (
        ".." in parts
        or parts[0] == _OWN
        or parts[0].startswith("__editable__")
        or parts[0].endswith((".pth", ".egg-link"))
    ):
        return ""
    if parts[0].endswith((".dist-info", ".egg-info")):
        return "/".join(parts) if len(parts) == 2 and parts[1] in _METADATA else ""
    if parts[0] == "__pycache__" or len(parts) == 1:
        return "/".join(parts)
    whole = parts[0] in packages or not parts[0].isidentifier()
    return parts[0] if whole else "/".join(parts[:2])


def _module_files(site: str, name: str) -> Iterable[str]:
    """Return the names of a module's own files in a directory that no list tells of."""
    if os.path.isdir(os.path.join(site, name)):
        yield name
    for entry in os.listdir(site):
        if entry.split(".")[0] == name and entry.endswith(_SUFFIXES):
            yield entry
