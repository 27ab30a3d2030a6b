"""Folders that are made once and kept in the user's cache: $XDG_CACHE_HOME/rlvr, or ~/.cache/rlvr."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_root() -> Path:
    """Return where all such folders are."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlvr"


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return the folder; unless it is there, `make(path)` writes its files. Several processes may call this at once."""
    if not folder.exists():
        with _beside(folder) as made:
            make(made)
            _move(made, folder)
    return folder


def make_by_content(parent: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder below `parent` with the files that `make(path)` writes: for equal files always the same one."""
    with _beside(parent / "any") as made:
        make(made)
        digest = hashlib.sha256()
        for file in sorted(made.rglob("*")):
            if file.is_file():
                content = file.read_bytes()
                digest.update(f"{file.relative_to(made)}\0{len(content)}\0".encode() + content)
        return _move(made, parent / digest.hexdigest()[:16])


@contextmanager
def _beside(folder: Path) -> Iterator[Path]:
    """Context with a new folder beside another one; what is left of it at the end is deleted."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _move(made: Path, folder: Path) -> Path:
    """Rename `made` to `folder`, unless another process was faster. Return `folder`."""
    if not folder.exists():
        try:
            made.replace(folder)
        except OSError:
            if not folder.exists():
                raise
    return folder
