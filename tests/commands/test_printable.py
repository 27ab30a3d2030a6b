"""What a model or a file wrote does not act on the terminal, nor on a report."""

from __future__ import annotations

import json
import unicodedata

from rlvr.commands.cli import main
from rlvr.commands.console import Display
from rlvr.core.printable import in_one_line, printable
from tests.bad_files import contents
from tests.helpers.pages import read_texts


def test_no_control_character_reaches_the_terminal(bad_files, capsys):
    """Escape sequences of a completion, a prompt, an id or a file name are shown as text."""
    assert printable("a\x1b[2Jb\r\x07\x9b\u202e\ud800\n\té漢") == r"a\x1b[2Jb\r\x07\x9b\u202e\ud800" + "\n\té漢"
    assert in_one_line(" a\n\tb\x00 ") == r"a b\x00"
    evil = "\x1b]0;title\x07\x1b[2J[bold]x"
    record = {"step": 1, "problem": evil, "sample": 0, "prompt": evil, "completion": evil}
    display = Display()
    display.sample(record | {"status": "correct", "reason": evil, "advantage": 0.5})
    display.sample(
        record | {"prompt": [{"role": "user", "content": evil}], "status": "a", "reason": "", "advantage": 0}
    )
    display.say(evil)
    display.start("evaluating", 1)
    display.step(1, evil)
    main(["audit", "jsonl", "--data", "data/escape.jsonl", "--task-option", "verifier=mine:fails"])
    main(["grade", "--verifier", "exact", "data/escape.jsonl", "--output", "out.jsonl"])
    main(["report", "run\x1b[2J"])
    printed = capsys.readouterr()
    for text in (printed.out, printed.err):
        assert not [c for c in text if unicodedata.category(c) == "Cc" and c not in "\n\t"], ascii(text)
    assert "[bold]x" in printed.out
    assert r"\x1b[2J" in printed.err


def test_a_report_of_odd_rollouts(bad_files, capsys):
    """Half of a surrogate pair, control characters, prompts and ids of other types; the file is UTF-8 and escaped."""
    rows = [
        {
            "step": 1,
            "problem": [1],
            "sample": 0,
            "prompt": None,
            "completion": "\x1b<b>\ud800\x00",
            "status": "correct",
        },
        {"step": 1, "problem": {"a": 1}, "prompt": [5], "completion": 7},
        {},
    ]
    (bad_files / "run" / "rollouts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (bad_files / "run" / "eval.jsonl").write_text(
        '{"step": 0, "pass@1": 0.5, "pass@1_ci": "wide", "num_problems": 2}\n'
    )
    (bad_files / "run" / "config.json").write_bytes(b"\xff\x00")
    assert main(["report", "run"]) == 0
    path = bad_files / "run" / "report.html"
    assert not [c for c in path.read_text("utf-8") if unicodedata.category(c) == "Cc" and c not in "\n\t"]
    texts = [parts[-1][2] for _, _, parts in read_texts(path)]
    assert "\x1b<b>\ud800\x00" in texts  # which the page's script escapes, and sets as text


def test_a_damaged_part_of_the_rollouts(bad_files, capsys):
    """A compressed part that was cut off is named; the run's own files stay."""
    before = contents(bad_files)
    assert main(["report", "run_gz"]) == 2
    assert "rollouts-0000.jsonl.gz is damaged" in capsys.readouterr().err
    after = contents(bad_files)
    assert after == before


def test_labels_of_a_comparison_are_no_markup(bad_files, capsys):
    """Brackets and dollar signs of a label are shown as they are."""
    assert main(["compare", "[/red]$a_$=run", "--out", "figure.html"]) == 0
    assert "[/red]$a_$" in capsys.readouterr().out
