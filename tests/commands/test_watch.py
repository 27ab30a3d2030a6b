"""What `rlvr watch` reads of a run that is writing, finished or killed, and that it only reads."""

from __future__ import annotations

import gzip
import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.commands.cli import main as rlvr
from rlvr.commands.watch.state import Choice, WatchedRun
from rlvr.commands.watch.view import overview, part_text, rollout, snapshot, spark
from rlvr.runs.folder import hold_lock
from rlvr.runs.reading import RolloutReader
from rlvr.runs.records import Masks, parts_of_rollout

# The files of a run that is watched, and what `rlvr watch` prints of it.


def line(record: dict[str, Any]) -> str:
    return json.dumps(record) + "\n"


def make_row(step: int, sample: int, status: str = "correct", **more: Any) -> dict[str, Any]:
    row = {"step": step, "problem": f"p{sample // 2}", "sample": sample, "prompt": "1 + 1 =", "completion": "2"}
    return row | {"status": status, "reward": 1.0, "advantage": 0.5, "reason": "", "finish_reason": "stop"} | more


def metrics(step: int) -> dict[str, Any]:
    row = {"step": step, "reward": step / 10, "kl": 0.01, "entropy": 0.5, "completion_tokens": 12.0, "no_signal": 0.1}
    return (
        row
        | {"truncated": 0.0, "unscored": 0.25, "grad_norm": 1.0, "tokens_per_second": 100.0}
        | {"seconds/sample": 1.0, "seconds/train": 1.0}
    )


def watched_run(tmp_path: Path) -> Path:
    """A run of 4 of 10 steps; two rollouts a step, the first two steps compressed."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"run": {"steps": 10, "stall_timeout": 900.0}, "rollout": {}}))
    (run / "metrics.jsonl").write_text("".join(line(metrics(step)) for step in range(1, 5)))
    evaluations = [
        {"step": 0, "pass@1": 0.25, "pass@1_ci": [0.2, 0.3]},
        {"step": 4, "pass@1": 0.5, "pass@1_ci": [0.4, 0.6]},
    ]
    (run / "eval.jsonl").write_text("".join(map(line, evaluations)))
    rows = [make_row(step, i, "correct" if i else "incorrect") for step in range(1, 5) for i in range(2)]
    with gzip.open(run / "rollouts-0000.jsonl.gz", "wt") as part:
        part.write("".join(map(line, rows[:4])))
    (run / "rollouts.jsonl").write_text("".join(map(line, rows[4:])))
    return run


def quiet_lines(width: int) -> Console:
    return Console(width=width, file=io.StringIO(), highlight=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def print_run(run: WatchedRun, choice: Choice | None = None, width: int = 100) -> str:
    console = quiet_lines(width)
    console.print(snapshot(run, choice or Choice(), count=9, characters=2000, blocks=True))
    return text_of(console)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return watched_run(tmp_path)


def test_the_figures_of_a_run(folder):
    """Progress, time of a step by its phases, figures, pass@1 with its interval, shares."""
    text = print_run(WatchedRun(folder))
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


def test_it_knows_whether_the_run_is_running(folder):
    """By the lock, which a killed process no longer holds; the time left only while it runs."""
    with hold_lock(folder):
        text = print_run(WatchedRun(folder))
        assert f"running (process {os.getpid()}" in text
        assert "about 0:12 left" in text
    text = print_run(WatchedRun(folder))
    assert "not running, not finished" in text
    assert "left" not in text
    (folder / "config.json").write_text(json.dumps({"run": {"steps": 4}}))
    assert "run  finished  step 4 of 4" in print_run(WatchedRun(folder))


def test_a_run_that_ended_early_is_not_unfinished(folder):
    """Its last evaluations were no better than one before, as often as it has patience for."""
    (folder / "config.json").write_text(json.dumps({"run": {"steps": 10}, "eval": {"patience": 1}}))
    assert "not finished" in print_run(WatchedRun(folder))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(line(metrics(5)))
    with (folder / "eval.jsonl").open("a") as file:
        file.write(line({"step": 5, "pass@1": 0.5}))
    assert "ended early" in print_run(WatchedRun(folder))


def test_a_stall_is_told(folder):
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
def test_half_a_line_waits_for_its_other_half(folder, cut):
    """A line that the run has begun to write is read when it is whole."""
    run, new = WatchedRun(folder), line(metrics(5))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(new[:cut])
        file.flush()
        run.refresh()
        assert (run.step, run.num_damaged) == (4, 0)
        file.write(new[cut:])
    run.refresh()
    assert (run.step, run.num_damaged) == (5, 0)


def test_a_resume_that_takes_lines_back_is_followed(folder):
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


def test_damaged_lines_are_left_out_and_counted(folder):
    """In the middle of a log, and among the rollouts that are shown; the others stay."""
    with (folder / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 5, "rew\n\xff\xfe\n[1]\n' + line(metrics(6)).encode())
    with (folder / "rollouts.jsonl").open("a") as file:
        file.write('{"step": 4, "prob\n' + line(make_row(4, 2)))
    run = WatchedRun(folder)
    text = print_run(run)
    assert "sample 2" in text
    assert run.step == 6
    assert run.num_damaged == 4
    assert "4 damaged lines" in print_run(run)


def test_rollouts_of_compressed_parts(folder):
    """Found by step wherever they are; a part that is cut off gives what can be read."""
    reader = RolloutReader(folder)
    assert [[row["step"] for row in reader.rollouts(step)] for step in (1, 2, 3, 4, 5)] == [
        [1, 1],
        [2, 2],
        [3, 3],
        [4, 4],
        [],
    ]
    assert reader.latest() == 4
    (folder / "rollouts.jsonl").unlink()
    assert reader.latest() == 2
    part = folder / "rollouts-0000.jsonl.gz"
    part.write_bytes(part.read_bytes()[:-12])
    assert RolloutReader(folder).has(1)


def test_nothing_is_written(folder, capsys):
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


def test_while_a_run_writes(folder):
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
    assert run.num_damaged == 0


def test_a_run_before_its_first_step(folder):
    """Nothing but the settings: it says what the run may be doing."""
    for path in folder.glob("*.jsonl*"):
        path.unlink()
    with hold_lock(folder):
        text = print_run(WatchedRun(folder))
    assert "before the first step" in text
    assert "no rollouts yet" in text
    assert overview(WatchedRun(folder), blocks=False)


# What `rlvr watch` shows: figures and rollouts as text, the screen and its keys.

HOSTILE = "\x1b[2J\x1b]0;title\x07 [red]x[/red] \u202eevil \x00 \ud800 </script>"
TURNS = [
    {"role": "assistant", "text": "call it", "tokens": 3, "void": True},
    {"role": "tool", "text": "4 & 5", "tokens": 7},
    {"role": "assistant", "text": "nine", "tokens": 2, "reward": 0.5, "calls": 2, "failed": 1},
]


@pytest.mark.parametrize("field", ["prompt", "completion", "reason", "problem", "status", "turns"])
def test_control_characters_are_made_printable(folder, field):
    """What a model, a verifier or an environment wrote neither moves the cursor nor turns text round."""
    value = [{"role": HOSTILE, "text": HOSTILE, "tokens": 1}] if field == "turns" else HOSTILE
    (folder / "rollouts.jsonl").write_text(line(make_row(4, 0, **{field: value})))
    text = print_run(WatchedRun(folder), width=4000)
    assert "\\x1b[2J" in text
    assert "[red]x[/red]" in text
    assert not set(text) & set("\x1b\x00\x07\u202e\ud800")


@pytest.mark.parametrize("width", [10, 20, 40])
def test_narrow_terminals(folder, width):
    """No line is wider than the terminal, and the figures are there."""
    text = print_run(WatchedRun(folder), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "0.400" in text


def test_turns_are_readable():
    """Each with its role; replies and the prompt are dim, the model's turns are not, void ones are marked."""
    record = make_row(1, 0, turns=TURNS, prompt=[{"role": "user", "content": "add"}])
    parts = parts_of_rollout(record, Masks())
    assert [(part.role, part.trained) for part in parts] == [
        ("user", False),
        ("assistant", True),
        ("tool", False),
        ("assistant", True),
    ]
    assert parts[1].label == "assistant, 3 tokens, void"
    assert parts[3].label == "assistant, 2 tokens, reward +0.5, 2 calls, 1 failed"
    dim = [any("dim" in str(span.style) for span in part_text(part, 99).spans) for part in parts]
    assert dim == [True, False, True, False]
    text = rollout(record, Masks(), characters=99).plain
    assert text.index("[user]\nadd") < text.index("call it") < text.index("4 & 5") < text.index("nine")


@pytest.mark.parametrize(
    "masks, more, trained",
    [
        (Masks(void=True), {"turns": TURNS}, [False, False, True]),
        (Masks(truncated=True), {"turns": TURNS, "finish_reason": "length"}, [False, False, False]),
        (Masks(truncated=True), {"finish_reason": "context"}, [False]),
        (Masks(truncated=True), {}, [True]),
        (Masks(), {"finish_reason": "length"}, [True]),
        (Masks(), {"kept": False, "turns": TURNS}, [False, False, False]),
        (Masks(), {"turns": ["damaged"]}, [True]),
    ],
)
def test_what_is_trained_on(masks, more, trained):
    """By the settings of the run and the fields of the rollout; what is masked says so."""
    parts = parts_of_rollout(make_row(1, 0, **more), masks)[1:]
    assert [part.trained for part in parts] == trained
    assert all(("not trained on" in part.label) == (not part.trained and part.role != "tool") for part in parts)


def test_long_parts_are_cut_in_the_middle():
    """Begin and end stay."""
    text = rollout(make_row(1, 0, completion="a" * 50 + "b" * 900 + "c" * 50), Masks(), characters=100).plain
    assert "a" * 50 + " [...] " + "c" * 50 in text


def test_choices(folder):
    """By step, problem and verdict."""
    run = WatchedRun(folder)
    assert "2 rollouts of step 1" in print_run(run, Choice(step=1))
    assert "1 rollouts of step 1 with verdict correct" in print_run(run, Choice(step=1, verdicts=("correct",)))
    assert "0 rollouts of step 4 of problem p9" in print_run(run, Choice(problem="p9"))


@pytest.mark.parametrize(
    "values, expected", [([1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█"), ([3.0, 3.0], "▄▄"), ([0, 0, 8, 8], "▁▁██")]
)
def test_spark_by_hand(values, expected):
    """The lowest is the lowest block and the highest the full one; equal values are a flat line."""
    assert spark(values) == expected


def test_spark_of_many_values_is_short():
    """Means of equal shares."""
    assert spark([0.0] * 500 + [1.0] * 500, 4) == "▁▁██"


def in_terminal(folder: Path, **environment: str) -> tuple[int, bytes]:
    """Watch a run in a pseudo-terminal until it has drawn and the run has ended; return exit code and output."""
    main, other = pty.openpty()
    command = [sys.executable, "-m", "rlvr", "watch", str(folder), "--interval", "0.1"]
    written, deadline = b"", time.monotonic() + 60
    with hold_lock(folder):
        process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env={**os.environ, "TERM": "xterm", **environment}
        )
        os.close(other)
        while b"step 4 of 10" not in written and time.monotonic() < deadline:
            written += os.read(main, 65536) if select.select([main], [], [], 0.1)[0] else b""
    while process.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            written += os.read(main, 65536) if select.select([main], [], [], 0.1)[0] else b""
    with suppress(OSError):
        written += os.read(main, 65536)
    os.close(main)
    return process.wait(60), written


def test_in_a_terminal(folder):
    """It takes the screen while the run goes on, gives it back, and prints how the run ended."""
    code, written = in_terminal(folder)
    assert code == 0
    assert written.index(b"\x1b[?1049h") < written.index(b"\x1b[?1049l") < written.rindex(b"not running, not finished")


def test_on_a_dumb_terminal(folder):
    """Plain text and the end, without any escape."""
    code, written = in_terminal(folder, TERM="dumb")
    assert code == 0
    assert b"step 4 of 10" in written
    assert b"\x1b" not in written
