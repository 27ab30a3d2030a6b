"""`rlvr grade`: its output, its summary, and its answers to bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlvr.commands import cli
from rlvr.commands.arguments import parse
from rlvr.commands.grade import GradeArgs, main
from tests.helpers.files import ROOT

LINES = [
    {"id": "a", "prompt": "6*3?", "reference": "18", "completion": r"\boxed{18}", "expected": True},
    {"id": "b", "gold": "18", "completion": "The answer is 18.", "expected": True},
    {"id": "c", "answer": 18, "completion": r"\boxed{17}", "expected": False, "note": "kept"},
    {"reference": r"\frac12", "completion": r"\boxed{0.5}", "expected": False},
    {"id": "e", "reference": "18", "completion": "no idea", "expected": True},
]


@pytest.fixture
def write(tmp_path):
    """Writes lines (objects, or text as it is) to a file."""

    def make(lines, name="in.jsonl"):
        path = tmp_path / name
        path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
        return str(path)

    return make


def verdicts(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_verdict_for_each_line(write, tmp_path, capsys):
    """With --output the verdicts go to the file, and the summary to standard output."""
    output = tmp_path / "out.jsonl"
    assert main(["--verifier", "math", write(LINES), "--output", str(output)]) == 0
    found = verdicts(output.read_text())
    assert [line["id"] for line in found] == ["a", "b", "c", 4, "e"]
    assert [line["status"] for line in found] == ["correct", "correct", "incorrect", "correct", "no_answer"]
    assert [line["correct"] for line in found] == [True, True, False, True, False]
    assert found[2]["extracted"] == "17"
    assert set(found[0]) == {"id", "status", "score", "correct", "reason", "extracted", "seconds"}
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "5 lines: 3 correct, 1 incorrect, 1 no_answer" in captured.out
    assert "verifications/s" in captured.out
    assert "agreement 3/5 (60.00%), false negatives 1, false positives 1" in captured.out
    assert "false negative: line 5 (id e): no_answer" in captured.out
    assert "false positive: line 4: correct, read '0.5'" in captured.out


def test_without_output_verdicts_go_to_standard_output(write, capsys):
    """And the summary to standard error, so that a pipe gets verdicts alone."""
    lines = [{key: value for key, value in line.items() if key != "expected"} for line in LINES]
    assert main([write(lines), "--verifier", "math"]) == 0
    captured = capsys.readouterr()
    assert len(verdicts(captured.out)) == 5
    assert "verifications/s" in captured.err
    assert "agreement" not in captured.err


def test_options(write, capsys):
    """Given once with several values, several times, before or after the file."""
    path = write([{"reference": "Paris", "completion": "The answer is paris."}])
    ways = [
        ["--verifier", "exact", "--verifier-option", "extract=marked", path],
        ["--verifier", "exact", path, "--verifier-option", "extract=marked", "case=false"],
        [path, "--verifier", "exact", "--verifier-option", "extract=marked", "--verifier-option", "case=no"],
    ]
    for arguments in ways:
        assert main(arguments) == 0
        assert verdicts(capsys.readouterr().out)[0]["status"] == "correct"
    assert main([*ways[0], "--verifier-option", "case=yes"]) == 0
    assert verdicts(capsys.readouterr().out)[0]["status"] == "incorrect"


def test_arguments():
    """Numbers as numbers, paths as paths."""
    flags = "--verifier math --workers 3 --timeout 0.5 f.jsonl --output o".split()
    args = parse(GradeArgs, flags, prog="rlvr grade")
    assert (args.file, args.workers, args.timeout, args.output) == (Path("f.jsonl"), 3, 0.5, Path("o"))


SHOUTING = """
from rlvr import register

@register("shouting")
def shouting(problem, completion):
    return completion.isupper()
"""


def test_a_function_of_ones_own_needs_no_references(write, tmp_path, monkeypatch, capsys):
    """Nor do those of the built-in verifiers that read none, alone or together."""
    (tmp_path / "shouting_of_mine.py").write_text(SHOUTING)
    monkeypatch.syspath_prepend(tmp_path)
    path = write([{"completion": "HELLO"}, {"completion": "hello"}, {"completion": "HEY", "reference": "unread"}])
    assert main(["--verifier", "shouting_of_mine:shouting", path]) == 0
    assert [line["correct"] for line in verdicts(capsys.readouterr().out)] == [True, False, True]
    for arguments in (
        ["length"],
        ["combine", "--verifier-option", "parts=length,repetition"],
        ["regex", "--verifier-option", "pattern=H.*"],
    ):
        assert main([path, "--verifier", *arguments]) == 0
        assert "error" not in capsys.readouterr().out


def test_references_that_cannot_be_read(write, capsys):
    """The other verdicts are written; one line names the bad ones; exit code 2."""
    lines = [
        {"reference": {"numbers": [1, 2], "target": 3}, "completion": r"\boxed{1 + 2}"},
        {"reference": "three", "completion": r"\boxed{1 + 2}"},
        {"reference": {"numbers": [1, 2], "target": 4}, "completion": r"\boxed{1 + 2}"},
        {"reference": None, "completion": r"\boxed{1 + 2}"},
    ]
    assert main(["--verifier", "countdown", write(lines)]) == 2
    captured = capsys.readouterr()
    found = verdicts(captured.out)
    assert [line["status"] for line in found] == ["correct", "bad_reference", "incorrect", "bad_reference"]
    assert [line["score"] for line in found] == [1.0, None, 0.0, None]
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "the reference cannot be read on lines 2, 4" in errors[0]


def test_rollouts_of_a_run_have_no_references(write, capsys):
    """The one line names the command that judges them; without it every completion would be wrong."""
    path = write([{"step": 1, "problem": "p", "sample": 0, "prompt": "1+1=", "completion": "2"}], "rollouts.jsonl")
    assert cli.main(["grade", "--verifier", "tests.helpers.verifiers:OddDigits", path]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"`rlvr regrade {Path(path).parent} --verifier tests.helpers.verifiers:OddDigits` judges rollouts" in error


def test_text_that_utf8_cannot_hold(write, capsys):
    """Half a surrogate pair in a completion comes back escaped."""
    path = write(['{"reference": "x", "completion": "\\ud800", "expected": true}'])
    assert main(["--verifier", "exact", path]) == 0
    captured = capsys.readouterr()
    assert verdicts(captured.out)[0]["extracted"] == "\ud800"
    assert "false negative: line 1: incorrect" in captured.err


def test_the_command_starts_fast_and_without_torch(write):
    """From the shell to the verdicts, without the packages of training."""
    code = (
        "import sys\nfrom rlvr.commands.cli import main\n"
        f"code = main(['grade', '--verifier', 'exact', {write(LINES[:1])!r}])\n"
        "heavy = {'torch', 'transformers', 'numpy', 'sympy', 'jsonschema', 'tyro'} & set(sys.modules)\n"
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    times = []
    for _ in range(3):
        before = os.times()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
        after = os.times()  # processor time: other work on the machine does not count
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
        assert done.stderr.splitlines()[-1] == "0 []"
    assert min(times) < 1.0


def test_gsm8k_solutions_are_right(rlvr_data, tmp_path, capsys):
    """All gold solutions (1,319 in the whole set), by the verifier `math` with its marked answers."""
    lines = []
    for line in rlvr_data("gsm8k/test.jsonl").read_text().splitlines():
        answer = json.loads(line)["answer"]
        lines.append({"reference": answer.rpartition("####")[2].strip(), "completion": answer, "expected": True})
    path = tmp_path / "gsm8k.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert main(["--verifier", "math", str(path), "--output", str(tmp_path / "out.jsonl")]) == 0
    count = 1319 if rlvr_data.is_complete("gsm8k/test.jsonl") else 12
    assert f"agreement {count}/{count}" in capsys.readouterr().out


def test_math500_answers_are_right(rlvr_data, tmp_path, capsys):
    """All gold answers (500 in the whole set) in a box, each equal to itself."""
    lines = []
    for line in rlvr_data("math500/test.jsonl").read_text().splitlines():
        answer = json.loads(line)["answer"]
        lines.append({"reference": answer, "completion": rf"So it is \boxed{{{answer}}}.", "expected": True})
    path = tmp_path / "math500.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    assert main(["--verifier", "math", str(path), "--output", str(tmp_path / "out.jsonl")]) == 0
    count = 500 if rlvr_data.is_complete("math500/test.jsonl") else 28
    assert f"agreement {count}/{count}" in capsys.readouterr().out
