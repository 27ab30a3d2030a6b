"""events.jsonl of a run: what happened to it, and when: resumes, lost servers, alarms, regressions, rollbacks, the end.

A resume or a rollback does not truncate it, unlike the other logs: it also tells of steps that were undone. Training
does not read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr.files.write import writing
from rlvr.runs.log import SAFE, with_nulls
from rlvr.runs.reading import read_lines

EVENTS = "events.jsonl"


def append_event(folder: Path, step: int, kind: str, message: str, **details: Any) -> None:
    """Append an event to events.jsonl of a run's folder: {"time", "step", "kind", "message", ...}.

    time: UTC, ISO 8601. step: the last one that is done. kind: one word, such as "resume"; message: one line. Raises
    RunError, in one line, where the disk is full or the like.
    """
    path = folder / EVENTS
    row: Mapping[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "kind": kind,
        "message": message,
        **details,
    }
    line = json.dumps(with_nulls(row), ensure_ascii=False, allow_nan=False, default=str) + "\n"
    with writing(path, SAFE), path.open("a+b") as file:
        drop_cut_line(file)
        file.write(line.encode())


def drop_cut_line(file: Any) -> None:
    """Truncate a file to its last line end: a crash may have cut off what follows."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 1, 0))
    if not end or file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run, oldest first; an empty list where there are none."""
    return read_lines(folder / EVENTS)
