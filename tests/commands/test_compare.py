"""`rlvr compare`: what is read, what the table says, and that the figure is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands.cli import main
from rlvr.commands.report.compare import alarm_steps, comparison_table, edges, from_to, read_conditions
from tests.helpers.pages import read_data


def make_run(
    folder: Path, *, last: float, alarm: int | None = None, monitor: bool = True, evaluated: bool = True
) -> str:
    """Twenty steps whose reward rises from 0 to `last`, and whose monitor falls from 1 by as much."""
    folder.mkdir(parents=True)
    rows = []
    for step in range(1, 21):
        rise = last * (step - 1) / 19
        rows.append(
            {"step": step, "reward": rise} | ({"monitor/score": 1 - rise, "monitor/rank": 0.5} if monitor else {})
        )
    streams = {"metrics": rows}
    if evaluated:
        streams["eval"] = [{"step": 0, "pass@1": 0.5, "pass@8": 0.9}, {"step": 20, "pass@1": 1 - last, "pass@8": 0.9}]
    if alarm:
        streams["alarms"] = [{"step": alarm, "signs": {}, "figures": {}, "rollouts": []}]
    for name, lines in streams.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(folder)


def test_conditions_are_groups_of_runs(tmp_path):
    """label=FOLDER,FOLDER is one condition; a folder alone is one by its name."""
    a, b, c = (make_run(tmp_path / name, last=0.5) for name in "abc")
    conditions = read_conditions([f"hacked={a},{b}", c])
    assert {label: len(runs) for label, runs in conditions.items()} == {"hacked": 2, "c": 1}


def test_numbers_of_the_table(tmp_path):
    """First and last tenth by hand, means over runs with their range, and the steps of the first alarms."""
    runs = [make_run(tmp_path / "0", last=0.4, alarm=12), make_run(tmp_path / "1", last=0.8)]
    found = read_conditions([f"x={','.join(runs)}"])["x"]
    # steps 1 and 2: 0 and 0.4 / 19; steps 19 and 20: 0.4 * 18 / 19 and 0.4
    assert edges(found[0].metrics, "reward") == pytest.approx((0.2 / 19, 0.4 * 18.5 / 19))
    assert from_to([(0.0, 0.4), (0.1, 0.8)]) == "0.05 → 0.60 (0.40..0.80)"
    assert from_to([(0.0, 0.4), None]) == "0.00 → 0.40"
    assert alarm_steps(found) == "12 -"
    assert edges(found[0].metrics, "kl") is None
    table = comparison_table({"x": found})
    assert [str(column.header) for column in table.columns][-2:] == ["held-out pass@1", "alarms at"]


def test_a_graded_score_has_a_column(tmp_path):
    """Where the held-out score says more than pass@1; without intervals, as everything in the table."""
    run = tmp_path / "graded"
    make_run(run, last=0.5)
    rows = [{"step": 0, "pass@1": 0.0, "score": -1.0}, {"step": 20, "pass@1": 0.0, "score": 2.5}]
    (run / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = comparison_table(read_conditions([str(run)]))
    assert [str(column.header) for column in table.columns][-3:-1] == ["held-out pass@1", "held-out score"]
    assert list(table.columns[-2].cells) == ["-1.00 → 2.50"]


def test_the_page_and_the_table_of_a_command(tmp_path, capsys):
    """Two conditions, one of them without monitor and evaluations: a page of three runs, a row for each condition."""
    a, b = make_run(tmp_path / "a", last=0.9, alarm=9), make_run(tmp_path / "b", last=0.6)
    plain = make_run(tmp_path / "plain", last=0.3, monitor=False, evaluated=False)
    out = tmp_path / "pages" / "both.html"
    assert main(["compare", f"two seeds={a},{b}", plain, "--out", str(out)]) == 0
    runs = read_data(out)["runs"]
    assert [run["condition"] for run in runs] == ["two seeds", "two seeds", "plain"]
    assert len({run["label"] for run in runs}) == 3
    assert [len(run["alarms"]) for run in runs] == [1, 0, 0]
    printed = capsys.readouterr().out
    assert "two seeds │    2 │ 0.02 → 0.73 (0.58..0.88) " in printed
    assert "no monitor" in printed
    assert str(out) in printed


def test_where_the_page_goes(tmp_path, capsys):
    """The path that is printed is the file's; a folder and another ending are refused, and nothing is written."""
    a = make_run(tmp_path / "a", last=0.5)
    assert main(["compare", a, "--out", str(tmp_path / "page")]) == 0
    assert capsys.readouterr().out.rstrip().endswith(str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").exists()
    for name, said in (("a", "is a folder"), ("a.png", "the page is HTML; expected a name such as a.html")):
        assert main(["compare", a, "--out", str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "a.png").exists()


# `rlvr compare --eval`: two evaluations on the same problems.


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


def compare_output(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["compare", "--eval", *argv]) == 0
    return capsys.readouterr().out


def test_difference_on_shared_problems(tmp_path, capsys):
    """Means, difference, interval and who is ahead, by hand; problems in one file only are told of."""
    a = write(tmp_path / "a.jsonl", {"p": "10", "q": "00", "r": "11", "only": "11"})
    b = write(tmp_path / "b.jsonl", {"r": "11", "q": "01", "p": "11", "other": "00"})
    printed = compare_output(capsys, a, b)
    assert "0.500" in printed
    assert "0.833" in printed
    # .5 .5 0 and .5 -.5 added: mean .2, variance .2, .2 +- 4.3027 sqrt(.2 / 5), cut at 1
    assert "+0.333 [-0.661, +1.000]" in printed
    assert "2 / 1 / 0" in printed
    assert "2 problems are in one of the two only" in printed


def test_k_threshold_and_folders(tmp_path, capsys):
    """pass@2 from two samples; a threshold judges scores; a folder is that of an evaluation."""
    a = write(tmp_path / "a/answers.jsonl", {"p": "10", "q": "00"}, score=0.5)
    b = write(tmp_path / "b/answers.jsonl", {"p": "11", "q": "10"}, score=0.5)
    folders = [str(Path(path).parent) for path in (a, b)]
    assert "1.000" in compare_output(capsys, *folders, "--k", "2")
    assert "+0.000" in compare_output(capsys, *folders, "--threshold", ".6")
    assert "+0.500" in compare_output(capsys, *folders, "--threshold", ".5")


def test_several_against_the_first(tmp_path, capsys):
    """A row each; samples without a score are left out."""
    names = [write(tmp_path / f"{i}.jsonl", {"p": marks, "q": "x1"}) for i, marks in enumerate(("0", "1", "0"))]
    printed = compare_output(capsys, *names)
    assert printed.count("0.500") >= 3
    assert "+0.500" in printed
    assert "+0.000" in printed


@pytest.mark.parametrize("changed", [{}, {"fingerprint": "y"}, {"split": "train"}, {"verifier": "exact"}])
def test_other_problems_with_the_same_ids(tmp_path, capsys, changed):
    """Are told of, as are other verdicts; other models and temperatures are what is compared."""
    held = {"task": "t", "split": "test", "fingerprint": "x", "samples": 1, "verifier": None}
    for name, more in (("a", {}), ("b", changed)):
        write(tmp_path / name / "answers.jsonl", {"p": "1", "q": "0"})
        (tmp_path / name / "settings.json").write_text(
            json.dumps(held | {"model": name, "temperature": len(name)} | more)
        )
    printed = " ".join(compare_output(capsys, str(tmp_path / "a"), str(tmp_path / "b" / "answers.jsonl")).split())
    assert ("paired by their ids alone" in printed) == bool(changed)
    for name in changed:
        assert f"{name} is" in printed
