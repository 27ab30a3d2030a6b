"""What is on the screen: colours that are not alone, and a clock that goes on."""

from __future__ import annotations

import io
import re
import time
from typing import Any

import pytest
from rich.console import Console

from rlvr.commands.console import Display, make_evaluation_table

RECORD = {
    "step": 3,
    "problem": "p",
    "sample": 0,
    "prompt": "1+1=",
    "completion": "2",
    "status": "correct",
    "reason": "",
    "reward": 1.0,
    "advantage": 0.5,
}


def show_sample(capsys: pytest.CaptureFixture[str], status: str) -> str:
    """The verdict's line of a printed sample."""
    Display().sample(RECORD | {"status": status})
    return capsys.readouterr().out.splitlines()[-1]


def test_right_and_wrong_differ_in_colour_and_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Green and red where there is a terminal; with NO_COLOR, and into a file, the words alone."""
    assert show_sample(capsys, "correct") == "correct, advantage +0.500"
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    right, wrong = show_sample(capsys, "correct"), show_sample(capsys, "incorrect")
    assert "\x1b[1;32mcorrect" in right
    assert "\x1b[1;31mincorrect" in wrong
    monkeypatch.setenv("NO_COLOR", "1")
    plain = show_sample(capsys, "correct")
    assert re.sub(r"\x1b\[[01]?m", "", plain) == "correct, advantage +0.500"


def test_a_sample_of_several_turns_has_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    """With an advantage for each turn, as `--algo.credit turn` gives, their mean is printed."""
    turns = [{"role": "assistant", "text": "?4"}, {"role": "user", "text": "lower"}, {"role": "assistant", "text": "3"}]
    Display().sample(RECORD | {"turns": turns, "completion": "3", "advantage": [-0.5, 1.0]})
    assert capsys.readouterr().out.splitlines()[1:] == [
        "1+1=",
        "[assistant] ?4",
        "[user] lower",
        "[assistant] 3",
        "correct, advantage +0.250",
    ]
    Display().sample(RECORD | {"advantage": None})
    assert capsys.readouterr().out.endswith("correct, not trained on\n")


def live_display() -> tuple[Display, io.StringIO]:
    """A display on a terminal of 80 columns that is a text."""
    display, screen = Display(), io.StringIO()
    display.console, display.live = Console(file=screen, force_terminal=True, width=80, soft_wrap=True), True
    return display, screen


def test_the_clock_of_training_goes_on_in_evaluations() -> None:
    """The bar stays while held-out problems are measured, and its time is that since training began."""
    display, screen = live_display()
    display.start("training", 4)
    display.step(1, "reward 0.5")
    display.start("evaluating step 1", 8)
    time.sleep(1.1)
    display.step(8, "")
    display.finish()
    display.step(4, "reward 1.0")
    display.close()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "").splitlines()[-2:]
    assert any(re.search(r"training .* 4/4 0:00:0[1-9]", line) for line in last), last
    assert "evaluating" not in " ".join(last)


def test_bars_fit_a_terminal_of_80_columns() -> None:
    """Name, bar, count and clock of both phases, and the numbers of the step, each in whole; `height` counts them."""
    display, screen = live_display()
    text = "reward 0.512  no signal 0.31  truncated 0.02  grad 0.85  2757 tok/s"
    assert display.height() == 0
    display.start("training", 400)
    assert display.height() == 1
    display.step(120, text)
    assert display.height() == 2
    display.start("evaluating step 120", 128)
    assert display.height() == 3
    display.step(64, "")
    deadline = time.monotonic() + 60
    while "64/128" not in screen.getvalue():  # it is drawn again ten times a second
        assert time.monotonic() < deadline
        time.sleep(0.05)
    display.close()
    assert display.height() == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 80
    assert text in lines
    assert any(re.search(r"^evaluating step 120 .* 64/128 0:00:0\d left", line) for line in lines), lines


def evaluation(step: int, **more: Any) -> dict[str, Any]:
    record = {"step": step, "num_problems": 128, "truncated": 0.25}
    for name in ("pass@1", "pass@8"):
        record |= {name: 0.5, f"{name}_ci": [0.4, 0.6]}
    return record | {"strict_pass@1": 0.4, "lenient_pass@1": 0.6} | more


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    """Two pass@k with intervals, strict and lenient extraction, truncation."""
    screen = io.StringIO()
    Console(file=screen, width=200).print(make_evaluation_table([evaluation(0), evaluation(80)]))
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    assert "0.500 [0.40, 0.60]" in screen.getvalue()


@pytest.mark.parametrize("columns", [40, 80])
@pytest.mark.parametrize("live", [True, False])
def test_no_number_of_a_table_is_cut(columns: int, live: bool) -> None:
    """A graded score makes the table wider than 80 columns; into a file it is whole, a terminal breaks its lines."""
    display, screen = Display(), io.StringIO()
    display.console, display.live = Console(file=screen, force_terminal=live, width=columns), live
    display.print_table(make_evaluation_table([evaluation(0, score=1.5, score_ci=[0.9, 2.1])]))
    [row] = [line for line in screen.getvalue().splitlines() if "0.500" in line]
    assert row.count("0.500 [0.40, 0.60]") == 2
    assert "1.500 [0.90, 2.10]" in row
    assert "…" not in screen.getvalue()


def test_a_graded_score_has_a_column() -> None:
    """With its interval, where it has one; and none where the score is pass@1."""
    for more, cell in (({"score": 1.5, "score_ci": [0.9, 2.1]}, "1.500 [0.90, 2.10]"), ({"score": 2.0}, "2.000")):
        screen = io.StringIO()
        Console(file=screen, width=120).print(make_evaluation_table([evaluation(0, **more)]))
        assert cell in screen.getvalue()
    screen = io.StringIO()
    Console(file=screen, width=120).print(make_evaluation_table([evaluation(0, score=0.5, score_ci=[0.4, 0.6])]))
    assert "score" not in screen.getvalue()
