"""A run's logs: metrics, rollouts, eval and alarms.jsonl. Lines are appended; a resume cuts them back."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.types import Group

STREAMS = ("metrics", "rollouts", "eval", "alarms")
ROTATE_BYTES = 64 * 2**20


class RunLog:
    """The jsonl streams of a run.

    Past `rotate_bytes` rollouts.jsonl is compressed to rollouts-0000.jsonl.gz (and so on) and begun anew; this happens
    between steps only, so that the files are a function of the run and not of when it was interrupted.
    """

    def __init__(self, out_dir: Path, *, rotate_bytes: int = ROTATE_BYTES) -> None:
        self.out_dir = out_dir
        self.rotate_bytes = rotate_bytes
        out_dir.mkdir(parents=True, exist_ok=True)

    def path(self, stream: str) -> Path:
        """The file that a stream is written to at present."""
        return self.out_dir / f"{stream}.jsonl"

    def append(self, stream: str, records: Iterable[Mapping[str, Any]]) -> None:
        """Adds a line for each record."""
        with self.path(stream).open("a", encoding="utf-8") as file:
            for record in records:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
        if stream == "rollouts" and self.path(stream).stat().st_size > self.rotate_bytes:
            self._rotate()

    def position(self) -> dict[str, int]:
        """Length of each stream in bytes, and the number of rotated parts: what `cut_back` takes."""
        lengths = {name: self.path(name).stat().st_size if self.path(name).exists() else 0 for name in STREAMS}
        return {**lengths, "parts": len(self._parts())}

    def cut_back(self, position: Mapping[str, int], step: int) -> None:
        """Drops every line written after `position` was taken. Evaluations of steps up to `step` stay."""
        evaluations = [record for record in self.read("eval") if record["step"] <= step]
        for part in self._parts()[position["parts"] :]:
            if part == self._part(position["parts"]):
                self.path("rollouts").write_bytes(gzip.decompress(part.read_bytes()))
            part.unlink()
        for name in STREAMS:
            path = self.path(name)
            if path.exists():
                os.truncate(path, min(position.get(name, 0), path.stat().st_size))
        self.path("eval").unlink(missing_ok=True)
        self.append("eval", evaluations)

    def read(self, stream: str) -> list[dict[str, Any]]:
        """All lines of a stream's present file. A last line cut off by a crash is left out."""
        path = self.path(stream)
        if not path.exists():
            return []
        lines = path.read_text("utf-8").split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def _part(self, number: int) -> Path:
        return self.out_dir / f"rollouts-{number:04d}.jsonl.gz"

    def _parts(self) -> list[Path]:
        return sorted(self.out_dir.glob("rollouts-????.jsonl.gz"))

    def _rotate(self) -> None:
        part = self._part(len(self._parts()))
        partial = part.with_suffix(".partial")
        partial.write_bytes(gzip.compress(self.path("rollouts").read_bytes(), mtime=0))
        os.replace(partial, part)
        self.path("rollouts").unlink()


def rollout_records(
    step: int,
    groups: Sequence[Group],
    rewards: Iterable[Any],
    advantages: Iterable[Any],
    judged: Sequence[Group] | None = None,
) -> list[dict[str, Any]]:
    """A line for each rollout. Durations are left out, so that a repeated run writes the same bytes.

    Status, score, reason and parts are what the verifier said. Where rewards are shuffled, "reward" is made of another
    completion's verdict, whose status is "shuffled_status". `judged`: the same groups with the shadow's verdicts.
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
            "finish_reason": completion.finish_reason,
            "tokens": len(completion.token_ids),
        }
        for group, group_rewards, group_advantages in zip(groups, rewards, advantages, strict=True)
        for i, (completion, verdict, reward, advantage) in enumerate(
            zip(group.completions, group.judged, group_rewards, group_advantages, strict=True)
        )
    ]
    given = [verdict for group in groups if group.own_verdicts for verdict in group.verdicts]
    for record, verdict in zip(records, given):
        record["shuffled_status"] = str(verdict.status)
    watching = [verdict for group in judged or () for verdict in group.verdicts]
    for record, verdict in zip(records, watching):
        record |= {"shadow_status": str(verdict.status), "shadow_score": verdict.score}
    return records
