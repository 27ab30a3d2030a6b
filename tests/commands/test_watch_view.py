"""What `rlvr watch` shows: figures and rollouts as text, the screen and its keys."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rlvr.commands.watch.screen import Screen, WatchArgs, keys_of
from rlvr.commands.watch.state import Choice, WatchedRun
from rlvr.commands.watch.view import part_text, rollout, spark
from rlvr.runs.records import Masks, parts_of_rollout
from tests.helpers.watched import line, logged, printed, watched_run

HOSTILE = "\x1b[2J\x1b]0;title\x07 [red]x[/red] \u202eevil \x00 \ud800 </script>"
TURNS = [
    {"role": "assistant", "text": "call it", "tokens": 3, "void": True},
    {"role": "tool", "text": "4 & 5", "tokens": 7},
    {"role": "assistant", "text": "nine", "tokens": 2, "reward": 0.5, "calls": 2, "failed": 1},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return watched_run(tmp_path)


@pytest.mark.parametrize("field", ["prompt", "completion", "reason", "problem", "status", "turns"])
def test_control_characters_are_made_printable(folder: Path, field: str) -> None:
    """What a model, a verifier or an environment wrote neither moves the cursor nor turns text round."""
    value = [{"role": HOSTILE, "text": HOSTILE, "tokens": 1}] if field == "turns" else HOSTILE
    (folder / "rollouts.jsonl").write_text(line(logged(4, 0, **{field: value})))
    text = printed(WatchedRun(folder), width=4000)
    assert "\\x1b[2J" in text
    assert "[red]x[/red]" in text
    assert not set(text) & set("\x1b\x00\x07\u202e\ud800")


@pytest.mark.parametrize("width", [10, 20, 40])
def test_narrow_terminals(folder: Path, width: int) -> None:
    """No line is wider than the terminal, and the figures are there."""
    text = printed(WatchedRun(folder), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "0.400" in text


def test_turns_are_readable() -> None:
    """Each with its role; replies and the prompt are dim, the model's turns are not, void ones are marked."""
    record = logged(1, 0, turns=TURNS, prompt=[{"role": "user", "content": "add"}])
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
def test_what_is_trained_on(masks: Masks, more: dict[str, Any], trained: list[bool]) -> None:
    """By the settings of the run and the fields of the rollout; what is masked says so."""
    parts = parts_of_rollout(logged(1, 0, **more), masks)[1:]
    assert [part.trained for part in parts] == trained
    assert all(("not trained on" in part.label) == (not part.trained and part.role != "tool") for part in parts)


def test_long_parts_are_cut_in_the_middle() -> None:
    """Begin and end stay."""
    text = rollout(logged(1, 0, completion="a" * 50 + "b" * 900 + "c" * 50), Masks(), characters=100).plain
    assert "a" * 50 + " [...] " + "c" * 50 in text


def test_choices(folder: Path) -> None:
    """By step, problem and verdict."""
    run = WatchedRun(folder)
    assert "2 rollouts of step 1" in printed(run, Choice(step=1))
    assert "1 rollouts of step 1 with verdict correct" in printed(run, Choice(step=1, verdicts=("correct",)))
    assert "0 rollouts of step 4 of problem p9" in printed(run, Choice(problem="p9"))


@pytest.mark.parametrize(
    "values, expected", [([1, 2, 3, 4, 5, 6, 7, 8], "▁▂▃▄▅▆▇█"), ([3.0, 3.0], "▄▄"), ([0, 0, 8, 8], "▁▁██")]
)
def test_spark_by_hand(values: list[float], expected: str) -> None:
    """The lowest is the lowest block and the highest the full one; equal values are a flat line."""
    assert spark(values) == expected


def test_spark_of_many_values_is_short() -> None:
    """Means of equal shares."""
    assert spark([0.0] * 500 + [1.0] * 500, 4) == "▁▁██"


def screen(folder: Path, *, width: int = 60, height: int = 30) -> Screen:
    console = Console(width=width, height=height, file=sys.stdout, force_terminal=True, highlight=False)
    return Screen(WatchedRun(folder), Choice(), console, WatchArgs(folder))


def plain(page: Any) -> list[str]:
    return "".join(segment.text for segment in page.segments).split("\n")


@pytest.mark.parametrize("width, height", [(60, 30), (30, 12), (200, 60), (12, 5)])
def test_a_page_fills_the_terminal_and_no_more(folder: Path, width: int, height: int) -> None:
    """Whatever its size."""
    lines = plain(screen(folder, width=width, height=height).page())
    assert len(lines) == height
    assert max(map(len, lines)) <= width


def test_keys_choose(folder: Path) -> None:
    """Step, rollout, verdict and problem; keys beyond the ends change nothing."""
    view = screen(folder)

    def shows(*keys: str) -> str:
        for key in keys:
            view.press(key)
        return "\n".join(plain(view.page()))

    assert "step 4, problem p0, sample 0" in shows()
    assert "sample 1" in shows("n")
    assert "sample 1" in shows("n", "n")
    assert "sample 0" in shows("p")
    assert "step 1, problem p0" in shows("left", "left", "left", "left")
    assert "with verdict correct" in shows("v")
    assert "with verdict incorrect" in shows("v")
    assert "with verdict" not in shows("v")
    assert "of problem p0" in shows("o")
    assert "of problem" not in shows("o")
    assert "rollouts of step 4" in shows("l")


def test_scrolling_ends_with_the_text(folder: Path) -> None:
    """Down to the last line of a long rollout, and up again."""
    (folder / "rollouts.jsonl").write_text(line(logged(4, 0, completion="\n".join(map(str, range(100))))))
    view = screen(folder)
    first = plain(view.page())
    for _ in range(60):
        view.press("down")
        last = plain(view.page())
    assert last[-2].strip() == "99"
    for _ in range(60):
        view.press("up")
    assert plain(view.page()) == first


def test_keys_of_escape_sequences() -> None:
    """Arrows of both modes, letters, several at once; anything else is left out."""
    assert keys_of(b"q\x1b[A\x1bOB\x1b[Cv\x01\xff") == ["q", "up", "down", "right", "v"]


def in_terminal(folder: Path, typed: bytes, **environment: str) -> tuple[int, bytes]:
    """Run `rlvr watch` in a pseudo-terminal, type when it has drawn, return its exit code and what it wrote."""
    main, other = pty.openpty()
    command = [sys.executable, "-m", "rlvr", "watch", str(folder), "--interval", "0.1"]
    process = subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, env={**os.environ, "TERM": "xterm", **environment}
    )
    os.close(other)
    written, sent = b"", False
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if select.select([main], [], [], 0.1)[0]:
            try:
                written += os.read(main, 65536)
            except OSError:
                break
        if not sent and b"quit" in written:
            sent = os.write(main, typed) > 0
    code = process.wait(60)
    os.close(main)
    return code, written


def test_in_a_terminal(folder: Path) -> None:
    """It takes the screen and gives it back; keys work at once."""
    code, written = in_terminal(folder, b"\x1b[D\x1b[Dnq")
    assert code == 0
    assert b"\x1b[?1049h" in written
    assert b"\x1b[?1049l" in written
    assert b"problem p0" in written


def test_on_a_dumb_terminal(folder: Path) -> None:
    """Plain text and the end, without any escape."""
    code, written = in_terminal(folder, b"", TERM="dumb")
    assert code == 0
    assert b"step 4 of 10" in written
    assert b"\x1b" not in written
