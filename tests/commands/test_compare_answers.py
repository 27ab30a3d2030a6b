"""`rlvr compare --eval`: two evaluations on the same problems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands.cli import main


def write(path: Path, rights: dict[str, str], *, score: float = 1.0) -> str:
    """Answers by problem: a digit for each sample, 1 for right, x for one without a score."""
    rows = [
        {
            "id": name,
            "sample": i,
            "completion": "c",
            "status": "correct" if mark == "1" else "incorrect",
            "score": None if mark == "x" else score * (mark == "1"),
            "correct": mark == "1",
            "extracted": None,
        }
        for name, marks in rights.items()
        for i, mark in enumerate(marks)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def compared(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["compare", "--eval", *argv]) == 0
    return capsys.readouterr().out


def test_difference_on_shared_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Means, difference, interval and who is ahead, by hand; problems in one file only are told of."""
    a = write(tmp_path / "a.jsonl", {"p": "10", "q": "00", "r": "11", "only": "11"})
    b = write(tmp_path / "b.jsonl", {"r": "11", "q": "01", "p": "11", "other": "00"})
    printed = compared(capsys, a, b)
    assert "0.500" in printed
    assert "0.833" in printed
    # .5 .5 0 and .5 -.5 added: mean .2, variance .2, .2 +- 4.3027 sqrt(.2 / 5), cut at 1
    assert "+0.333 [-0.661, +1.000]" in printed
    assert "2 / 1 / 0" in printed
    assert "2 problems are in one of the two only" in printed


def test_k_threshold_and_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """pass@2 from two samples; a threshold judges scores; a folder is that of an evaluation."""
    a = write(tmp_path / "a/answers.jsonl", {"p": "10", "q": "00"}, score=0.5)
    b = write(tmp_path / "b/answers.jsonl", {"p": "11", "q": "10"}, score=0.5)
    folders = [str(Path(path).parent) for path in (a, b)]
    assert "1.000" in compared(capsys, *folders, "--k", "2")
    assert "+0.000" in compared(capsys, *folders, "--threshold", ".6")
    assert "+0.500" in compared(capsys, *folders, "--threshold", ".5")


def test_several_against_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row each; samples without a score are left out."""
    names = [write(tmp_path / f"{i}.jsonl", {"p": marks, "q": "x1"}) for i, marks in enumerate(("0", "1", "0"))]
    printed = compared(capsys, *names)
    assert printed.count("0.500") >= 3
    assert "+0.500" in printed
    assert "+0.000" in printed


@pytest.mark.parametrize("changed", [{}, {"fingerprint": "y"}, {"split": "train"}, {"verifier": "exact"}])
def test_other_problems_with_the_same_ids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str]
) -> None:
    """Are told of, as are other verdicts; other models and temperatures are what is compared."""
    held = {"task": "t", "split": "test", "fingerprint": "x", "samples": 1, "verifier": None}
    for name, more in (("a", {}), ("b", changed)):
        write(tmp_path / name / "answers.jsonl", {"p": "1", "q": "0"})
        (tmp_path / name / "settings.json").write_text(
            json.dumps(held | {"model": name, "temperature": len(name)} | more)
        )
    printed = " ".join(compared(capsys, str(tmp_path / "a"), str(tmp_path / "b" / "answers.jsonl")).split())
    assert ("paired by their ids alone" in printed) == bool(changed)
    for name in changed:
        assert f"{name} is" in printed


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--eval", "A"], "expected two evaluations or more"),
        (["--eval", "A", "nowhere"], "nowhere: no such file"),
        (["--eval", "A", "B", "--k", "0"], "--k 0"),
        (["--eval", "A", "B", "--k", "9"], "no problem has 9 scored samples"),
        (["--eval", "A", "B", "--threshold", "nan"], "--threshold nan"),
        (["--eval", "A", "OTHER"], "no problem in common"),
        (["--eval", "A", "BROKEN"], "not an answer of an evaluation"),
        (["--eval", "A", "CUT"], "its last line is cut off"),
        (["--eval", "A", "BARE"], "an answer has no field 'correct'"),
        (["--eval", "A", "B", "--out", "x.png"], "--eval prints a table"),
        (["run", "--eval", "A", "B"], "one at a time"),
        (["run", "--k", "2"], "it is read only with --eval"),
        ([], "or --eval FILE FILE"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    """Exit code 2; no file is changed, one that is cut off either."""
    paths = {name: write(tmp_path / name, {"p": "1"}) for name in ("A", "B")}
    paths["OTHER"] = write(tmp_path / "OTHER", {"z": "1"})
    for name, text in (
        ("BROKEN", "{}\n"),
        ("CUT", '{"id": "p", "sam'),
        ("BARE", '{"id": "p", "sample": 0, "score": 1}\n'),
    ):
        (tmp_path / name).write_text(text)
        paths[name] = str(tmp_path / name)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["compare", *(paths.get(token, token) for token in argv)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
