"""A run's logs. A resume truncates metrics, rollouts, eval and alarms.jsonl; events.jsonl only grows."""

from __future__ import annotations

import gzip
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlvr.core.files.write import PARTIAL, name_in_errors, write_whole
from rlvr.core.types import Completion, Group

from .reading import answer_files, read_lines

STREAMS = ("metrics", "rollouts", "eval", "alarms")
ROTATE_BYTES = 64 * 2**20
SAFE = "the checkpoints are safe: free some space and run the same command (without --run.overwrite) to resume"


class RunLog:
    """The JSON Lines files of a run that a resume truncates, called streams: metrics, rollouts, eval, alarms.

    When rollouts.jsonl exceeds `rotate_bytes` it is compressed to rollouts-0000.jsonl.gz (and so on) and begins anew.
    This happens only between steps, so that the files do not depend on when a run was interrupted.
    """

    def __init__(self, out_dir: Path, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.out_dir = out_dir
        self.rotate_bytes = rotate_bytes
        out_dir.mkdir(parents=True, exist_ok=True)

    def path(self, stream: str) -> Path:
        return self.out_dir / f"{stream}.jsonl"

    def append(self, stream: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Append a line for each record. NaN and infinity become null, because JSON has neither.

        Raises RunError with one line where the disk is full or the like.
        """
        path = self.path(stream)
        with name_in_errors(path, SAFE), path.open("a", encoding="utf-8") as file:
            for record in records:
                file.write(line_of(record))
        if stream == "rollouts" and path.stat().st_size > self.rotate_bytes:
            self._rotate()

    def write_answers(self, step: int, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the held-out answers of the evaluation after a step: a compressed file of its own, a line for each
        problem. Raises RunError with one line where the disk is full or the like.
        """
        lines = "".join(map(line_of, records))
        packed = gzip.compress(lines.encode("utf-8", "surrogatepass"), 6, mtime=0)
        write_whole(self.out_dir / f"answers-{step:06d}.jsonl.gz", packed, SAFE)

    def position(self) -> dict[str, int]:
        """Flush the streams to disk. Return their sizes and the number of rotated parts, for `truncate_to`."""
        lengths = {}
        for name in STREAMS:
            lengths[name] = 0
            if self.path(name).exists():
                with name_in_errors(self.path(name), SAFE), self.path(name).open("rb") as file:
                    os.fsync(file.fileno())
                    lengths[name] = os.fstat(file.fileno()).st_size
        return {**lengths, "parts": len(self._parts())}

    def truncate_to(self, position: Mapping[str, int], step: int) -> None:
        """Drop every line that was written after `position` was taken.

        Evaluations of steps up to `step` stay, with their answers.

        Each file is replaced or truncated in one operation, and a rotated part is deleted after its lines were copied
        back. So after an interruption the same call completes the work.
        """
        for name in ("rollouts*.jsonl*", "eval.jsonl", "answers-*"):
            for partial in self.out_dir.glob(f"{name}{PARTIAL}"):
                partial.unlink()
        for part in reversed(self._parts()[position["parts"] :]):
            if part == self._part(position["parts"]):
                lines = gzip.decompress(part.read_bytes())
                write_whole(self.path("rollouts"), lines[: position["rollouts"]])
            part.unlink()
        for name in STREAMS:
            path = self.path(name)
            if name != "eval" and path.exists():
                os.truncate(path, min(position.get(name, 0), path.stat().st_size))
        self.keep("eval", lambda record: record["step"] <= step)
        for evaluated, file in answer_files(self.out_dir).items():
            if evaluated > step:
                file.unlink()

    def keep(self, stream: str, wanted: Callable[[Mapping[str, Any]], bool]) -> None:
        """Drop the records of a stream that are not wanted, and a last line that a crash cut off."""
        if self.path(stream).exists():
            kept = [line + "\n" for line, record in self._lines(stream) if wanted(record)]
            write_whole(self.path(stream), "".join(kept))

    def read(self, stream: str) -> list[dict[str, Any]]:
        """Return the records of a stream's file (not of rotated parts). A last line cut off by a crash is left out."""
        return [record for _, record in self._lines(stream)]

    def _lines(self, stream: str) -> list[tuple[str, dict[str, Any]]]:
        """Return a stream's complete lines with their records. ValueError names a line that is no object."""
        path = self.path(stream)
        found = []
        for number, line in enumerate(path.read_bytes().split(b"\n")[:-1] if path.exists() else (), 1):
            try:
                found.append((line.decode(), dict(json.loads(line))))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {number}: not a line of a run's log ({error})") from error
        return found

    def _part(self, number: int) -> Path:
        return self.out_dir / f"rollouts-{number:04d}.jsonl.gz"

    def _parts(self) -> list[Path]:
        return sorted(self.out_dir.glob("rollouts-????.jsonl.gz"))

    def _rotate(self) -> None:
        """Compress rollouts.jsonl to the next part, then delete it.

        A kill in between leaves the lines in both; `truncate_to` then takes them from the part.
        """
        part = self._part(len(self._parts()))
        write_whole(part, gzip.compress(self.path("rollouts").read_bytes(), mtime=0), SAFE)
        self.path("rollouts").unlink()


def line_of(record: Mapping[str, Any], default: Callable[[Any], str] | None = None) -> str:
    """Return a record as a line of JSON, with null for NaN and infinity. default: writes what JSON has no form for."""
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False, default=default) + "\n"
    except ValueError:  # seldom: to look for such numbers first takes twice as long
        return json.dumps(with_nulls(record), ensure_ascii=False, allow_nan=False, default=default) + "\n"


def with_nulls(value: Any) -> Any:
    """Return a record with None in place of every number that is NaN or infinite, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: with_nulls(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [with_nulls(item) for item in value]
    return value


def turn_records(completion: Completion) -> dict[str, Any]:
    """Return the turns of a completion as a field of its line; none where it has no turns."""
    turns = [
        {
            "role": turn.role,
            "text": turn.text,
            "tokens": turn.length,
            **({"reward": turn.reward} if turn.reward else {}),
            **({"void": True} if turn.void else {}),
            **({"calls": turn.calls, "failed": turn.failed} if turn.calls else {}),
        }
        for turn in completion.turns
    ]
    return {"turns": turns} if turns else {}


def rollout_records(
    step: int,
    groups: Sequence[Group],
    rewards: Iterable[Any],
    advantages: Iterable[Any],
    monitored: Sequence[Group] | None = None,
    *,
    marked: bool = False,
) -> list[dict[str, Any]]:
    """Return a line for each rollout. It has no durations, so that a repeated run writes the same bytes.

    rewards, advantages: of all groups (P x G); an advantage is None where the group is not trained on. monitored: the
    same groups with the monitor's verdicts. marked: each line gets "kept" (the group is trained on) and "round" (of
    dynamic sampling). Status, score, reason and parts are the verifier's, or the environment's where "judged_by" says
    so. With shuffled rewards, "reward" comes from another completion's verdict, whose status is "shuffled_status".
    """
    records = [
        {
            "step": step,
            "problem": group.problem.id,
            "sample": i,
            "prompt": group.problem.prompt,
            "completion": completion.text,
            "status": str(verdict.status),
            "score": verdict.score,
            "reward": reward,
            "advantage": advantage,
            "reason": verdict.reason,
            "extracted": verdict.extracted,
            "parts": dict(verdict.parts),
            **({"steps": [list(step) for step in verdict.steps]} if verdict.steps else {}),
            "finish_reason": completion.finish_reason,
            "tokens": len(completion.sampled_ids),
            **turn_records(completion),
            **({"versions": [list(run) for run in completion.versions]} if completion.versions else {}),
            **({"judged_by": "environment"} if completion.verdict is not None else {}),
            **({"kept": group.kept, "round": group.round} if marked else {}),
        }
        for group, group_rewards, group_advantages in zip(groups, rewards, advantages, strict=True)
        for i, (completion, verdict, reward, advantage) in enumerate(
            zip(group.completions, group.unshuffled_verdicts, group_rewards, group_advantages, strict=True)
        )
    ]
    given = [verdict for group in groups if group.own_verdicts for verdict in group.verdicts]
    for record, verdict in zip(records, given):
        record["shuffled_status"] = str(verdict.status)
    second = [verdict for group in monitored or () for verdict in group.verdicts]
    for record, verdict in zip(records, second):
        record |= {"monitor_status": str(verdict.status), "monitor_score": verdict.score}
    return records


EVENTS = "events.jsonl"


def append_event(folder: Path, step: int, kind: str, message: str, **details: Any) -> None:
    """Append an event to events.jsonl: {"time" (UTC, ISO 8601), "step" (the last one done), "kind", "message", ...}.

    kind: one word, such as "resume". No resume or rollback truncates this file, so that it also tells of steps that
    were undone; training does not read it. Raises RunError with one line where the disk is full or the like.
    """
    path = folder / EVENTS
    row: Mapping[str, Any] = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "step": step,
        "kind": kind,
        "message": message,
        **details,
    }
    with name_in_errors(path, SAFE), path.open("a+b") as file:
        drop_cut_line(file)
        file.write(line_of(row, str).encode())


def drop_cut_line(file: Any) -> None:
    """Truncate a file to its last line end, because a crash may have cut off what follows."""
    end = file.seek(0, os.SEEK_END)
    file.seek(max(end - 1, 0))
    if not end or file.read(1) == b"\n":
        return
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return the events of a run, oldest first; an empty list where there are none."""
    return read_lines(folder / EVENTS)
