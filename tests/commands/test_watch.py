"""What `rlvr watch` reads of a run that is writing, finished or killed, and that it only reads."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rlvr.commands.cli import main as rlvr
from rlvr.commands.watch.screen import follow
from rlvr.commands.watch.state import WatchedRun
from rlvr.commands.watch.view import overview
from rlvr.runs.folder import hold_lock
from rlvr.runs.reading import RolloutReader, Tail
from tests.helpers.watched import line, logged, metrics, printed, quiet, text_of, watched_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return watched_run(tmp_path)


def test_the_figures_of_a_run(folder: Path) -> None:
    """Progress, time of a step by its phases, figures, pass@1 with its interval, shares."""
    text = printed(WatchedRun(folder))
    for part in (
        "not running, not finished  step 4 of 10",
        "2 s a step (sample 1, train 1); 100 tokens/s",
        "0.400  from 0.100",
        "0.500 [0.400, 0.600] after step 4, from 0.250 [0.200, 0.300] after step 0",
        "unscored 0.25",
        "2 rollouts of step 4",
        "step 4, problem p0, sample 0: incorrect, reward +1.000, advantage +0.500",
    ):
        assert part in text


def test_it_knows_whether_the_run_is_running(folder: Path) -> None:
    """By the lock, which a killed process no longer holds; the time left only while it runs."""
    with hold_lock(folder):
        text = printed(WatchedRun(folder))
        assert f"running (process {os.getpid()}" in text
        assert "about 0:12 left" in text
    text = printed(WatchedRun(folder))
    assert "not running, not finished" in text
    assert "left" not in text
    (folder / "config.json").write_text(json.dumps({"run": {"steps": 4}}))
    assert "run  finished  step 4 of 4" in printed(WatchedRun(folder))


def test_a_run_that_ended_early_is_not_unfinished(folder: Path) -> None:
    """Its last evaluations were no better than one before, as often as it has patience for."""
    (folder / "config.json").write_text(json.dumps({"run": {"steps": 10}, "eval": {"patience": 1}}))
    assert "not finished" in printed(WatchedRun(folder))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line(metrics(5)))
    with (folder / "eval.jsonl").open("a") as file:
        file.write(line({"step": 5, "pass@1": 0.5}))
    assert "ended early" in printed(WatchedRun(folder))


def test_a_stall_is_told(folder: Path) -> None:
    """A running run that has logged nothing for ten times a step and a minute; not sooner, and not one that ended."""
    past = time.time() - 100
    for path in folder.iterdir():
        os.utime(path, (past, past))
    assert WatchedRun(folder).stall() == ""
    with hold_lock(folder):
        run = WatchedRun(folder)
        assert re.match(r"nothing logged for 1\d\d s, and a step takes 2 s", run.stall())
        assert "after 900 s" in run.stall()
        os.utime(folder / "metrics.jsonl")
        assert run.stall() == ""


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_half_a_line_waits_for_its_other_half(folder: Path, cut: int) -> None:
    """A line that the run has begun to write is read when it is whole."""
    run, new = WatchedRun(folder), line(metrics(5))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(new[:cut])
        file.flush()
        run.refresh()
        assert (run.step, run.damaged) == (4, 0)
        file.write(new[cut:])
    run.refresh()
    assert (run.step, run.damaged) == (5, 0)


def test_a_resume_that_takes_lines_back_is_followed(folder: Path) -> None:
    """Truncated, replaced by other lines of the same length, deleted and written again: never a line twice."""
    run, path = WatchedRun(folder), folder / "metrics.jsonl"
    text = path.read_text().splitlines(keepends=True)
    path.write_text("".join(text[:2]))
    run.refresh()
    assert [row["step"] for row in run.metrics] == [1, 2]
    path.write_text("".join([*text[:1], line(metrics(7)), *text[2:]]))
    run.refresh()
    assert [row["step"] for row in run.metrics] == [1, 7, 3, 4]
    path.unlink()
    run.refresh()
    path.write_text(text[0])
    run.refresh()
    assert [row["step"] for row in run.metrics] == [1]


def test_damaged_lines_are_left_out_and_counted(folder: Path) -> None:
    """In the middle of a log, and among the rollouts that are shown; the others stay."""
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "rew\n\xff\xfe\n[1]\n' + line(metrics(6)).encode())
    with (folder / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 4, "prob\n' + line(logged(4, 2)))
    run = WatchedRun(folder)
    text = printed(run)
    assert "sample 2" in text
    assert run.step == 6
    assert run.damaged == 4
    assert "4 damaged lines" in printed(run)


def test_rollouts_of_compressed_parts(folder: Path) -> None:
    """Found by step wherever they are; a part that is cut off gives what can be read."""
    reader = RolloutReader(folder)
    reader.refresh()
    assert [[row["step"] for row in reader.rollouts(step)] for step in (1, 2, 3, 4, 5)] == [
        [1, 1],
        [2, 2],
        [3, 3],
        [4, 4],
        [],
    ]
    assert reader.latest() == 4
    (folder / "rollouts.jsonl").unlink()
    reader.refresh()
    assert reader.latest() == 2
    part = folder / "rollouts-0000.jsonl.gz"
    part.write_bytes(part.read_bytes()[:-12])
    assert RolloutReader(folder).has(1)


def test_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names, bytes and times of all files are the same afterwards."""

    def state() -> list[Any]:
        return [(p.name, p.read_bytes(), p.stat().st_mtime_ns) for p in sorted(folder.iterdir())] + [
            folder.stat().st_mtime_ns
        ]

    with hold_lock(folder):
        before = state()
        assert rlvr(["watch", str(folder), "--once"]) == 0
        assert state() == before
    before = state()
    assert rlvr(["watch", str(folder)]) == 0
    assert state() == before


def test_a_pipe_gets_a_line_for_each_step(folder: Path) -> None:
    """Until the run ends; the reader sees each step once."""
    console = quiet(200)
    steps = iter(range(5, 8))
    with hold_lock(folder):
        run = WatchedRun(folder)

        def write(_: float) -> None:
            step = next(steps, None)
            if step is None:
                (folder / "lock").unlink()
            else:
                with (folder / "metrics.jsonl").open("a") as file:
                    file.write(line(metrics(step)))

        follow(run, console, 1.0, sleep=write)
    text = text_of(console)
    assert [text.count(f"step {step}  reward") for step in (3, 4, 5, 6, 7)] == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (["nowhere"], "no such folder"),
        ([__file__], "no such folder, but a file"),
        (["."], "expected the folder of a run"),
        (["RUN", "--verdict", "corect"], "correct"),
        (["RUN", "--step", "99"], "no rollouts of it; the last is 4"),
        (["RUN", "--step", "0"], "--step 0"),
        (["RUN", "--interval", "0"], "--interval 0"),
        (["RUN", "--characters", "0"], "--characters 0"),
        (["RUN", "--colour"], "--colour"),
        ([], "rlvr watch"),
    ],
)
def test_bad_input(
    folder: Path,
    arguments: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One line, exit code 2."""
    (folder.parent / "empty").mkdir()
    monkeypatch.chdir(folder.parent / "empty")
    assert rlvr(["watch", *[str(folder) if word == "RUN" else word for word in arguments]]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.count("\n") == 1
    assert expected in error


def test_a_tail_of_nothing(tmp_path: Path) -> None:
    """A file that is not there yet has no lines, and then those that are written."""
    tail = Tail(tmp_path / "x.jsonl")
    assert tail.records() == (False, [])
    (tmp_path / "x.jsonl").write_text('{"step": 1}\n')
    assert tail.records() == (False, [{"step": 1}])


def test_while_a_run_writes(folder: Path) -> None:
    """A writer that appends in pieces beside the reader: every step is seen once, none damaged."""
    run = WatchedRun(folder)
    text = "".join(line(metrics(step)) for step in range(5, 200)).encode()

    def write() -> None:
        with (folder / "metrics.jsonl").open("ab", buffering=0) as file:
            for start in range(0, len(text), 37):
                file.write(text[start : start + 37])

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        run.refresh()
    run.refresh()
    assert [row["step"] for row in run.metrics] == list(range(1, 200))
    assert run.damaged == 0


def test_a_run_before_its_first_step(folder: Path) -> None:
    """Nothing but the settings: it says what the run may be doing."""
    for path in folder.glob("*.jsonl*"):
        path.unlink()
    with hold_lock(folder):
        text = printed(WatchedRun(folder))
    assert "before the first step" in text
    assert "no rollouts yet" in text
    assert overview(WatchedRun(folder), blocks=False)
