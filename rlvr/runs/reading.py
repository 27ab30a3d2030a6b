"""Read the logs of a run that has ended, was killed, or is still writing. Nothing here writes."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rlvr.core.files.jsonl import check_file, parse_object
from rlvr.core.printable import KINDS

from .folder import is_locked
from .records import is_number

Record = dict[str, Any]
STEP = re.compile(rb'\{"step": (\d+)[,}]')
# Bytes before the current place. Where they have changed, the file was truncated and written again.
COMPARED_BYTES = 256


def check_run(folder: Path, names: Sequence[str] = ("metrics.jsonl", "eval.jsonl")) -> None:
    """Raise FileNotFoundError where a path is not the folder of a run: it has none of the files `names`."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: no such folder{', but a file' if folder.exists() else ''}")
    if not any((folder / name).exists() for name in names):
        raise FileNotFoundError(f"{folder}: neither {' nor '.join(names)}; expected the folder of a run")


def read_rollouts(path: Path) -> Iterator[Record]:
    """Yield the records of one file of rollouts. Raise ValueError where a compressed file is damaged."""
    if path.suffix != ".gz":
        yield from read_lines(path)
        return
    try:
        with gzip.open(path) as lines:
            yield from whole_lines(lines, path)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); restore or remove it") from None


def all_rollouts(folder: Path) -> Iterator[Record]:
    """Yield every rollout of a run in the log's order. Raise ValueError for a damaged line or part."""
    for path in (*parts_of(folder), folder / "rollouts.jsonl"):
        if path.exists():
            yield from read_rollouts(path)


def read_lines(path: Path) -> list[Record]:
    """Return the records of a run's file, an empty list where it does not exist."""
    if not path.exists():
        return []
    check_file(path)
    with path.open("rb") as lines:
        return list(whole_lines(lines, path))


def read_alarms(folder: Path) -> list[Record]:
    """Return the records of alarms.jsonl. Raise ValueError naming a line that lacks a field of an alarm."""
    path = folder / "alarms.jsonl"
    alarms = read_lines(path)
    for number, alarm in enumerate(alarms, 1):
        for name, kind in (("step", int), ("signs", dict), ("figures", dict), ("rollouts", list)):
            if not isinstance(alarm.get(name), kind):
                raise ValueError(f"{path}, line {number}: {name} is {alarm.get(name)!r:.80}; expected {KINDS[kind]}")
    return alarms


def whole_lines(lines: Iterable[bytes], path: Path) -> Iterator[Record]:
    """Yield each line as a record. NaN is accepted.

    A last line without a line end was cut off by a crash and is skipped. Raise ValueError naming any other line that is
    not a JSON object.
    """
    for number, line in enumerate(lines, 1):
        if line.endswith(b"\n"):
            yield parse_object(line, f"{path}, line {number}", finite=False)


def step_of(line: bytes) -> int | None:
    """Return the step of a line of rollouts.jsonl, without parsing the whole line; None where it has none."""
    if match := STEP.match(line):
        return int(match[1])
    step = (read_object(line) or {}).get("step")
    return step if isinstance(step, int) else None


def read_object(line: bytes) -> Record | None:
    """Return a line of a log as a record; None where it is damaged."""
    try:
        return parse_object(line, "", finite=False)
    except ValueError:
        return None


class Tail:
    """New lines of a file that another process may write to, truncate or replace."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place, self._last = 0, b""

    def read(self) -> tuple[bool, list[bytes], int]:
        """Return (starts again, new lines, their offset). Starts again: lines returned before no longer count."""
        try:
            with self.path.open("rb") as file:
                again = self._starts_again(file)
                if again:
                    self._place, self._last = 0, b""
                file.seek(self._place)
                new = file.read()
        except FileNotFoundError:
            again, self._place, self._last = self._place > 0, 0, b""
            return again, [], 0
        start, whole = self._place, new[: new.rfind(b"\n") + 1]
        self._place += len(whole)
        self._last = (self._last + whole)[-COMPARED_BYTES:]
        return again, lines_of(whole), start

    def records(self) -> tuple[bool, list[Record]]:
        """Return (starts again, the records of the new lines), without damaged lines."""
        again, lines, _ = self.read()
        return again, [record for line in lines if (record := read_object(line)) is not None]

    def _starts_again(self, file: Any) -> bool:
        if not self._place:
            return False
        file.seek(max(0, self._place - len(self._last)))
        return bool(file.read(len(self._last)) != self._last)


def lines_of(text: bytes) -> list[bytes]:
    """Return the lines of a text that ends with a line end; only line feeds end lines."""
    return [line + b"\n" for line in text.split(b"\n")[:-1]]


class RolloutReader:
    """The rollouts of a run by step, as far as they are written. A compressed part is read when a step needs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tail = Tail(folder / "rollouts.jsonl")
        self._places: dict[int, tuple[int, int]] = {}  # of each step: where its lines begin and end in rollouts.jsonl
        self._in_parts: dict[int, Path] = {}
        self._parts_read: set[Path] = set()
        self._unpacked: tuple[Path | None, dict[int | None, list[bytes]]] = (None, {})  # the part that was read last

    def _refresh(self) -> None:
        """Read what has been written since the last call."""
        again, lines, place = self._tail.read()
        if again:
            self._places.clear()
        for line in lines:
            step = step_of(line)
            if step is not None:
                self._places[step] = (self._places.get(step, (place, 0))[0], place + len(line))
            place += len(line)

    def has(self, step: int) -> bool:
        """Return whether there are rollouts of a step."""
        self._refresh()
        if step not in self._places:
            for part in reversed(parts_of(self.folder)):
                if step in self._in_parts:
                    break
                self._scan(part)
        return step in self._places or step in self._in_parts

    def rollouts(self, step: int) -> list[Record]:
        """Return the rollouts of a step in their order; an empty list where there are none."""
        if not self.has(step):
            return []
        if step in self._places:
            start, end = self._places[step]
            try:
                with self._tail.path.open("rb") as file:
                    file.seek(start)
                    lines = lines_of(file.read(end - start))
            except FileNotFoundError:  # compressed meanwhile
                lines = []
        else:
            lines = self._lines_of_part(self._in_parts[step]).get(step, [])
        records = [record for line in lines if (record := read_object(line)) is not None]
        return [record for record in records if record.get("step") == step]

    def _lines_of_part(self, part: Path) -> dict[int | None, list[bytes]]:
        """Return a part's lines by step. The last part stays unpacked: 64 MB, where its steps are read in turn."""
        if self._unpacked[0] != part:
            lines: dict[int | None, list[bytes]] = {}
            for line in part_lines(part):
                lines.setdefault(step_of(line), []).append(line)
            self._unpacked = part, lines
        return self._unpacked[1]

    def _scan(self, part: Path) -> None:
        if part in self._parts_read:
            return
        self._parts_read.add(part)
        for line in part_lines(part):
            step = step_of(line)
            if step is not None:
                self._in_parts.setdefault(step, part)


class LiveLogs:
    """The logs of a run as far as they are written. `refresh` reads what is new, also after a resume that cut lines.

    generation: how often lines that were read before were taken back.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics: list[Record] = []
        self.evaluations: list[Record] = []
        self.alarms: list[Record] = []
        self.rollouts = RolloutReader(folder)
        self.running = False
        self.generation = 0
        self._tails = [
            (Tail(folder / "metrics.jsonl"), self.metrics),
            (Tail(folder / "eval.jsonl"), self.evaluations),
            (Tail(folder / "alarms.jsonl"), self.alarms),
        ]
        self.refresh()

    def refresh(self) -> None:
        """Read what has been written since the last call."""
        for tail, held in self._tails:
            again, new = tail.records()
            self.generation += again
            if again:
                held.clear()
            held.extend(row for row in new if is_number(row.get("step")))
        self.running = is_locked(self.folder)


def answer_files(folder: Path) -> dict[int, Path]:
    """Return the files of held-out answers that a run kept, by the step after which they were given."""
    found = (
        (re.fullmatch(r"answers-(\d{6,})\.jsonl\.gz", path.name), path) for path in sorted(folder.glob("answers-*"))
    )
    return {int(match[1]): path for match, path in found if match}


def parts_of(folder: Path) -> list[Path]:
    """Return the compressed earlier parts of a run's rollouts, oldest first."""
    return sorted(folder.glob("rollouts-????.jsonl.gz"))


def part_lines(part: Path) -> Iterator[bytes]:
    """Yield the lines of a compressed part as far as it can be read; none where it is gone."""
    try:
        with gzip.open(part) as lines:
            yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile, FileNotFoundError):
        return
