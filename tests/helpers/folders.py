"""Folders of runs, without a run."""

from __future__ import annotations

from pathlib import Path

from rlvr.runs.folder import TRAINING, RunFolder

RECORD = {"run": {}, "rollout": {}, "algo": {}, "fingerprint": "f", "versions": {}}


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def run_folder(path: Path, kind=TRAINING, *, overwrite: bool | None = False, **settings) -> RunFolder:
    """Return a RunFolder for RECORD; keyword arguments replace what it is told of the run."""
    given = {
        "record": lambda held: RECORD,
        "difference": lambda held: None if held == RECORD else "a run with other settings: x is 1 there and 2 here",
        "loses": lambda held: (path / "checkpoints").exists(),
    }
    return RunFolder(path, kind, flag="--run.out-dir", overwrite=overwrite, **{**given, **settings})


def claim(folder: RunFolder) -> list[str]:
    """Lock and claim a folder, and return the lines that say what was done."""
    with folder.lock() as lines:
        return [*lines, *folder.claim()]
