"""The logs of a run that another process writes, truncates or replaces meanwhile."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.runs.folder import hold_lock
from rlvr.runs.reading import LiveLogs, RolloutReader


def line(step: int, **more: Any) -> str:
    return json.dumps({"step": step, **more}) + "\n"


def steps_of(logs: LiveLogs) -> list[int]:
    return [row["step"] for row in logs.metrics]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four steps with two rollouts each; those of the first two steps are compressed."""
    (tmp_path / "metrics.jsonl").write_text("".join(map(line, range(1, 5))))
    rollouts = [line(step, sample=sample) for step in range(1, 5) for sample in range(2)]
    with gzip.open(tmp_path / "rollouts-0000.jsonl.gz", "wt") as part:
        part.write("".join(rollouts[:4]))
    (tmp_path / "rollouts.jsonl").write_text("".join(rollouts[4:]))
    return tmp_path


def test_a_run_is_running_while_its_lock_is_held(folder):
    """A killed process no longer holds it."""
    logs = LiveLogs(folder)
    assert not logs.running
    with hold_lock(folder):
        logs.refresh()
        assert logs.running


@pytest.mark.parametrize("cut", [1, 5, 10])
def test_half_a_line_waits_for_its_other_half(folder, cut):
    """A line that the run has begun to write is read when it is whole."""
    logs, new = LiveLogs(folder), line(5)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(new[:cut])
        file.flush()
        logs.refresh()
        assert steps_of(logs) == [1, 2, 3, 4]
        file.write(new[cut:])
    logs.refresh()
    assert steps_of(logs) == [1, 2, 3, 4, 5]


def test_a_resume_that_takes_lines_back_is_followed(folder):
    """Truncated, replaced by other lines of the same length, deleted and written again: never a line twice."""
    logs, path = LiveLogs(folder), folder / "metrics.jsonl"
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join(text[:2]))
    logs.refresh()
    assert steps_of(logs) == [1, 2]
    path.write_text("".join([*text[:1], line(7), *text[2:]]))
    logs.refresh()
    assert steps_of(logs) == [1, 7, 3, 4]
    path.unlink()
    logs.refresh()
    path.write_text(text[0])
    logs.refresh()
    assert steps_of(logs) == [1]


def test_damaged_lines_are_left_out(folder):
    """In the middle of a log, and among rollouts; the others stay."""
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "rew\n\xff\xfe\n[1]\n' + line(6).encode())
    with (folder / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 4, "prob\n' + line(4, sample=2))
    logs = LiveLogs(folder)
    assert steps_of(logs) == [1, 2, 3, 4, 6]
    assert [row["sample"] for row in logs.rollouts.rollouts(4)] == [0, 1, 2]


def test_rollouts_of_compressed_parts(folder):
    """Found by step wherever they are; a part that is cut off gives what can be read."""
    reader = RolloutReader(folder)
    found = [[row["step"] for row in reader.rollouts(step)] for step in (1, 2, 3, 4, 5)]
    assert found == [[1, 1], [2, 2], [3, 3], [4, 4], []]
    part = folder / "rollouts-0000.jsonl.gz"
    part.write_bytes(part.read_bytes()[:-12])
    assert RolloutReader(folder).has(1)
