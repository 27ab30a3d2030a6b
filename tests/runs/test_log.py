"""The run's logs: append, rotate, cut back."""

from __future__ import annotations

import gzip
import json
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from rlvr.core.types import RunError
from rlvr.runs.log import RunLog
from tests.helpers.files import ROOT, read_program


def write(log: RunLog, step: int) -> None:
    log.append("metrics", [{"step": step}])
    log.append("rollouts", [{"step": step, "text": "x" * 100, "sample": i} for i in range(3)])
    log.append("eval", [{"step": step}])


def read_all(log: RunLog) -> list[dict]:
    """All rollouts, rotated parts first."""
    parts = sorted(log.out_dir.glob("rollouts-*.gz"))
    text = "".join(gzip.decompress(part.read_bytes()).decode() for part in parts)
    return [json.loads(line) for line in text.splitlines()] + log.read("rollouts")


def test_cutting_back_gives_the_files_of_that_moment(tmp_path):
    """Lines written after the position are gone, a half-written one too; evaluations of finished steps stay."""
    log = RunLog(tmp_path)
    write(log, 1)
    position = log.position()
    before = log.path("rollouts").read_bytes()
    write(log, 2)
    with log.path("rollouts").open("a") as file:
        file.write('{"step": 3, "te')
    log.truncate_to(position, step=1)
    assert log.path("rollouts").read_bytes() == before
    assert log.read("metrics") == log.read("eval") == [{"step": 1}]


def test_rotation_keeps_every_line_and_can_be_undone(tmp_path):
    """Past the size a file is compressed; cutting back to before the rotation brings its lines back."""
    log = RunLog(tmp_path, rotate_bytes=600)
    positions = []
    for step in range(1, 8):
        positions.append(log.position())
        write(log, step)
    assert len(list(tmp_path.glob("rollouts-*.gz"))) >= 2
    assert [r["step"] for r in read_all(log)] == [s for s in range(1, 8) for _ in range(3)]
    for steps_kept in (5, 3, 1, 0):
        log.truncate_to(positions[steps_kept], step=steps_kept)
        assert [r["step"] for r in read_all(log)] == [s for s in range(1, steps_kept + 1) for _ in range(3)]


KILLED = read_program("writer_that_is_killed")


def kill_at(folder, work: str, kind: str, limit: int, position: dict, step: int) -> bool:
    """Whether a process that does the work was killed before it had done it."""
    command = [sys.executable, "-c", KILLED, str(folder), work, kind, str(limit), repr(position), str(step)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL, -signal.SIGXFSZ), done.stderr
    return done.returncode != 0


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize(
    "work, kind", [("truncate_to", "operation"), ("truncate_to", "bytes"), ("rotate", "operation"), ("rotate", "bytes")]
)
def test_a_kill_anywhere_loses_no_line(tmp_path, work, kind):
    """SIGKILL before each file operation, and in the middle of writes; cutting back afterwards gives the same files."""
    log = RunLog(tmp_path / "whole", rotate_bytes=600)
    positions = []
    for step in range(1, 8):
        write(log, step)
        positions.append(log.position())
    step = 7 if work == "rotate" else 3  # back behind two rotations, or a rotation after the last checkpoint
    before = shutil.copytree(tmp_path / "whole", tmp_path / "before")
    log.truncate_to(positions[step - 1], step)
    assert [record["step"] for record in log.read("eval")] == list(range(1, step + 1))
    wanted = contents(tmp_path / "whole")
    kills = 0
    for number in range(30):
        limit = number if kind == "operation" else 1 + 12 * number
        folder = shutil.copytree(before, tmp_path / f"{kind}-{number}")
        ended = not kill_at(folder, work, kind, limit, positions[step - 1], step)
        kills += not ended
        RunLog(folder, rotate_bytes=600).truncate_to(positions[step - 1], step)
        assert contents(folder) == wanted, f"killed at {limit}"
        if ended:
            break
    assert kills >= (5 if work == "truncate_to" and kind == "operation" else 2)


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
    """What a write could not finish is cut off by the next start; the lines before are there."""
    log = RunLog(tmp_path)
    write(log, 1)
    position = log.position()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (position["rollouts"] + 50, hard))
    try:
        with pytest.raises(RunError, match=r"cannot write .*rollouts\.jsonl: File too large; the checkpoints are safe"):
            write(log, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    log.truncate_to(position, 1)
    assert [record["step"] for record in read_all(log)] == [1, 1, 1]


def test_a_broken_line_is_named(tmp_path):
    """Which file, and which line."""
    (tmp_path / "eval.jsonl").write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match=r"eval\.jsonl, line 2: not a line of a run's log"):
        RunLog(tmp_path).read("eval")


def test_numbers_that_json_has_not_become_null(tmp_path):
    """The gradient's norm after a dropped update is NaN: the line is JSON all the same, and can be read."""
    log = RunLog(tmp_path)
    log.append(
        "metrics", [{"step": 1, "grad_norm": float("nan"), "loss": float("inf"), "nested": {"a": [float("nan")]}}]
    )
    line = log.path("metrics").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == log.read("metrics")[0]
    assert log.read("metrics") == [{"step": 1, "grad_norm": None, "loss": None, "nested": {"a": [None]}}]
