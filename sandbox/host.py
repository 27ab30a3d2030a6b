"""Facts of the machine that a fork server needs: interpreter, library paths, user ids, task counts."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from functools import cache

# Which installed packages a program sees: their files, found from the names of packages or modules.

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


_SYSTEM_PATHS = (
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local/lib",
    "/etc/ld.so.cache",
    # Where Debian's libblas.so leads.
    "/etc/alternatives",
    "/usr/share/zoneinfo",
)
# Names of directories of other Pythons and their packages start with these.
_PYTHONS = ("python", "pypy")
_MEMORY_FILES, _ROOM = "/dev/shm", 1 << 30
_FIRST_UID = 0x40000000
_CONTAINER_UID = 61000
_SERVERS_EACH = 128
_server_numbers = itertools.count()

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "HOME": "/tmp",
    "LANG": "C.UTF-8",
    # Same string hashes, hence the same order of sets, in every run.
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # Each of malloc's arenas, by default one a thread, reserves 64 MB of the address space.
    "MALLOC_ARENA_MAX": "2",
    # Functions of libraries are looked up once, not by every child in pages of its own.
    "LD_BIND_NOW": "1",
}


@cache
def interpreter() -> str:
    """Return the resolved path of the interpreter: a virtual environment's link may be unreadable for other users."""
    return os.path.realpath("/proc/self/exe")


@cache
def library_paths() -> tuple[str, ...]:
    """Return the directories of the standard library, resolved."""
    standard = os.path.realpath(sysconfig.get_path("stdlib"))
    paths = [standard, *(os.path.realpath(path) for path in sys.path if os.path.basename(path) == "lib-dynload")]
    return tuple(dict.fromkeys(path for path in paths if os.path.isdir(path)))


@cache
def readable_paths() -> tuple[str, ...]:
    """Return what a program may read, but for `hidden_paths`: standard library, libraries of interpreter and system."""
    paths = [*library_paths(), os.path.realpath(os.path.join(sys.base_prefix, "lib")), *_SYSTEM_PATHS]
    kept: list[str] = []
    for path in sorted(dict.fromkeys(paths), key=len):
        if not any(path.startswith(above + "/") and not os.path.islink(above) for above in kept):
            kept.append(path)
    return tuple(kept)


@cache
def hidden_paths() -> tuple[str, ...]:
    """Return the directories below `readable_paths` that hold packages, and other Pythons; resolved, none within
    another. What a program sees of them is named by `files`."""
    found = list(sites())
    standard = library_paths()[0]
    found += [os.path.join(standard, name) for name in SITES]
    for directory in {os.path.realpath(path) for path in readable_paths()}:
        for name in os.listdir(directory) if os.path.isdir(directory) else ():
            path = os.path.join(directory, name)
            if name.startswith(_PYTHONS) and not (standard + "/").startswith(path + "/"):
                found.append(path)
    within = {os.path.realpath(path) for path in readable_paths()}
    there = sorted({path for path in found if os.path.isdir(path) and not os.path.islink(path)}, key=len)
    kept: list[str] = []
    for path in there:
        if any(path.startswith(above + "/") for above in within) and not any(
            path.startswith(above + "/") for above in kept
        ):
            kept.append(path)
    return tuple(kept)


def boot_code(module: str) -> str:
    """Return the code that calls `main` of a module of `jail`, with the package root and its argument in sys.argv.

    Stub packages keep rlvr/__init__ and rlvr/sandbox/__init__ from being executed there.
    """
    return f"""
import sys
for name in ("rlvr", "rlvr.sandbox"):
    package = type(sys)(name)
    package.__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
    sys.modules[name] = package
from rlvr.sandbox.jail.{module} import main
main(sys.argv[2])
"""


@cache
def package_root() -> str:
    """Return the directory that holds the package rlvr."""
    import rlvr

    return os.path.dirname(os.path.dirname(os.path.abspath(rlvr.__file__)))


def new_uid() -> int | None:
    """Return an unprivileged user id for another server, for callers that are root; None if none is mapped.

    With all ids mapped, no other user has it. A rootless container may map only a few ids, or only root. An id that a
    process has is not given out again: limits of processes and signals hold for all processes of a user.
    """
    number = next(_server_numbers)
    numbers = [(number + more) % _SERVERS_EACH for more in range(_SERVERS_EACH)]
    for first in (_FIRST_UID + (os.getpid() & 0x3FFFFF) * _SERVERS_EACH, _CONTAINER_UID):
        mapped = [first + n for n in numbers if _is_mapped(first + n, "uid_map") and _is_mapped(first + n, "gid_map")]
        if mapped:
            taken = _users()
            return next((uid for uid in mapped if uid not in taken), mapped[0])
    return None


def _users() -> set[int]:
    """Return the ids of all users that have a process."""
    found = set()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/status", "rb") as file:
                    found |= {int(uid) for line in file if line.startswith(b"Uid:") for uid in line.split()[1:]}
            except OSError:
                # The process has just ended.
                continue
    return found


def _is_mapped(number: int, name: str) -> bool:
    with open(f"/proc/self/{name}") as file:
        rows = [[int(field) for field in line.split()] for line in file]
    return any(first <= number < first + count for first, _, count in rows)


def scratch_parent() -> str | None:
    """Return where to create scratch directories below level 3: /dev/shm if it has room, else None (the default).

    Removing thousands of files is fast in memory; on a disk it may take longer than the run that left them.
    """
    if not os.access(_MEMORY_FILES, os.W_OK | os.X_OK):
        return None
    found = os.statvfs(_MEMORY_FILES)
    return _MEMORY_FILES if found.f_bavail * found.f_frsize > _ROOM else None


def tasks_of_user() -> int:
    """Count this user's threads on the whole machine, as RLIMIT_NPROC does without a user namespace."""
    user, count = os.getuid(), 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
            except OSError:
                # The process has just ended.
                continue
    return count
