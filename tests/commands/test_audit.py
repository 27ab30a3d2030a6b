"""The audit finds what is wrong with a pack, and the profile says what a pack would teach."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rlvr.commands.audit import CheckResult, audit, main, perturb
from rlvr.commands.cli import main as cli
from rlvr.commands.profile import expected_signal
from rlvr.core.registry import make_verifier, register
from rlvr.core.types import Problem, Task, Verifier
from rlvr.sandbox import level
from rlvr.verifiers.runner import Runner
from tests.helpers.files import read_program


@register("tests/anything_goes")
def anything_goes(problem: Problem, completion: str) -> bool:
    """Accepts every completion."""
    return True


@register("tests/nothing_goes")
def nothing_goes(problem: Problem, completion: str) -> bool:
    """Rejects every completion."""
    return False


def findings(task: Task) -> dict[str, CheckResult]:
    with Runner(task.verifier) as runner:
        return {finding.check: finding for finding in audit(task, runner)}


def pack(verifier: str, train: list[tuple[str, object]], test: list[tuple[str, object]]) -> Task:
    problems = [
        [Problem(f"{part}/{i}", prompt, reference) for i, (prompt, reference) in enumerate(rows)]
        for part, rows in (("train", train), ("test", test))
    ]
    return Task("pack", *problems, make_verifier(verifier))


def test_a_clean_pack_passes():
    """Distinct prompts and readable references: every check is made and none fails."""
    found = findings(pack("math", [("a", "1"), ("b", r"\frac{1}{2}")], [("c", "x + 1")]))
    assert {name: finding.failed for name, finding in found.items()} == dict.fromkeys(found, 0)
    assert found["correct answers rejected"].checked == 3
    assert {"unreadable references", "wrong answers accepted", "empty completions accepted"} <= found.keys()


def test_overlap_and_repetition():
    """A prompt in train and test fails; one that is twice in train is a note."""
    found = findings(pack("math", [("a", "1"), ("A ", "1")], [("a", "1")]))
    shared = found["prompts in more than one part"]
    assert (shared.failed, shared.examples) == (1, ("train/0 and test/0",))
    assert not shared.note
    assert found["repeated prompts in train"].failed == 1
    assert found["repeated prompts in train"].note


def test_unreadable_reference():
    """It is counted and named."""
    found = findings(pack("math", [("a", "1"), ("b", None)], []))
    assert found["unreadable references"].failed == 1
    assert "train/1" in found["unreadable references"].examples[0]


def test_verifier_that_accepts_anything():
    """It accepts the empty completion and the wrong answer."""
    found = findings(pack("tests/anything_goes", [("a", "1")], []))
    assert found["empty completions accepted"].failed == 1
    assert found["wrong answers accepted"].failed == 1
    assert found["correct answers rejected"].failed == 0


def test_verifier_that_rejects_its_reference():
    """It is caught by the pack's own answers."""
    found = findings(pack("tests/nothing_goes", [("a", "1")], []))
    assert found["correct answers rejected"].failed == 1
    assert found["empty completions accepted"].failed == 0


def problem_with_answer(verifier: Verifier) -> Task:
    """One problem, of which 7 is a right answer."""
    problem = Problem("train/0", "a", r"[^?]*\d[^?]*", {"answer": "7"})
    return Task("pack", [problem], [], verifier)


def test_other_answers_are_a_note_where_several_are_right():
    """A pattern, formulas to satisfy, a tolerance: the altered answer may be right, too."""
    found = findings(problem_with_answer(make_verifier("regex")))
    assert "wrong answers accepted" not in found
    others = found["altered answers accepted, where several may be right"]
    assert (others.checked, others.failed, others.note) == (1, 1, True)
    close = Task("pack", [Problem("train/0", "a", "3.14159265")], [], make_verifier("math", rel_tol=0.01))
    assert findings(close)["altered answers accepted, where several may be right"].note
    exact = Task("pack", [Problem("train/0", "a", "3.14159265")], [], make_verifier("math"))
    assert findings(exact)["wrong answers accepted"].failed == 0


def test_one_part_with_one_right_answer_is_enough():
    """Of a combination the altered answer is wrong where it is to any part, gates among them."""
    both = make_verifier("combine", parts=("tests/anything_goes", "regex"))
    assert findings(problem_with_answer(both))["wrong answers accepted"].checked == 1
    assert "wrong answers accepted" not in findings(problem_with_answer(make_verifier("combine", parts=("regex",))))


@pytest.mark.parametrize(
    ("answer", "other"),
    [
        ("9", "10"),
        ("-3", "-4"),
        ("1.50", "1.51"),
        (r"\frac{3}{4}", r"\frac{3}{5}"),
        ("(4 + 2) * 3", "(4 + 2) * 4"),
        ("(B)", "(C)"),
        (r"\text{(C)}", r"\text{(D)}"),
        ("p - q", "p - q + 1"),
        ("Evelyn", "Evelyn + 1"),
    ],
)
def test_perturbed(answer, other):
    """The last number grows by one, a choice moves on by one letter, anything else gets one added."""
    assert perturb(answer) == other


def test_demonstrations_are_counted(capsys):
    """The sloppy demonstrations of the arithmetic pack are a note, not a failure."""
    options = ["num_train=50", "num_test=20", "num_demonstrations=60", "forget=1"]
    assert main(["arithmetic", "--task-option", *options]) == 0
    printed = capsys.readouterr().out
    assert "50 train, 20 test, 60 demonstrations" in printed
    assert "note  demonstrations that do not verify" in printed
    assert "FAIL" not in printed


def test_exit_codes(tmp_path, capsys):
    """1 where a check fails, 2 with one line for what cannot be audited."""
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"prompt": "a", "reference": "1"}) + "\n")
    options = ["--data", str(data), "--task-option", "verifier=tests/anything_goes"]
    assert cli(["audit", "jsonl", *options]) == 1
    assert "FAIL  empty completions accepted: 1 of 1" in capsys.readouterr().out
    assert cli(["audit", "nothing"]) == 2
    assert capsys.readouterr().err.startswith("error: no task 'nothing'")


PACK = read_program("audited_packs")


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of packs that are made by hand."""
    (tmp_path / "audited_packs.py").write_text("from rlvr.core.registry import make_verifier\n" + PACK)
    monkeypatch.syspath_prepend(tmp_path)
    return "audited_packs"


def test_packs_made_by_hand_are_checked_as_for_training(mine, capsys):
    """A repeated id, which `rlvr train` refuses, fails; a sound pack has a fingerprint."""
    assert cli(["audit", f"{mine}:same_id"]) == 1
    printed = capsys.readouterr().out
    assert "FAIL  packs that `rlvr train` refuses: 1 of 1\n" in printed
    assert "task 'mine': two problems have the id 'p'; expected unique ids" in printed
    assert cli(["audit", f"{mine}:fine"]) == 0
    assert ", fingerprint " in capsys.readouterr().out


def test_references_that_are_not_answers(mine, capsys):
    """The failure says where to put an answer; with it, the pack passes."""
    assert cli(["audit", f"{mine}:list_of_two"]) == 1
    assert 'as Problem.info["answer"]' in capsys.readouterr().out
    cli(["audit", f"{mine}:with_answer"])
    assert "ok    correct answers rejected: 0 of 1" in capsys.readouterr().out


def test_check_that_fails_ends_in_one_line(mine, capsys):
    """With the line of the pack's own code, the problem and the exception."""
    assert cli(["audit", f"{mine}:broken"]) == 2
    error = capsys.readouterr().err
    assert re.match(r"error: \S+/audited_packs\.py, line \d+: problem 'p': check_reference of the verifier ", error)
    assert "audited_packs.broken.<locals>.Broken" in error
    assert "TypeError: can only concatenate" in error
    assert error.count("\n") == 1


def test_shared_data_sets_are_clean(rlvr_data):
    """AIME and the first problems of GSM8K and MATH-500 pass, with the math verifier as it is."""
    assert main(["aime24", "--data", str(rlvr_data("aime/aime24.jsonl"))]) == 0
    assert main(["gsm8k", "--data", str(rlvr_data("gsm8k/test.jsonl").parent), "--max-problems", "50"]) == 0
    assert main(["math500", "--data", str(rlvr_data("math500/test.jsonl")), "--max-problems", "60"]) == 0


def test_expected_signal_by_hand():
    """Of two right in four, 1 - 2/6 of the pairs differ; of one in four 1/2; of scores .1, .2, .2, .2 half too."""
    right = [[0.0] * 4, [1.0] * 4, [1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]]
    assert expected_signal(right, 2) == pytest.approx((2 / 3 + 1 / 2) / 4)
    assert expected_signal([[0.1, 0.2, 0.2, 0.2], [1.0]], 2) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="no problem has 8"):
        expected_signal(right, 8)


def test_profile_command(tmp_path, capsys):
    """An untrained model finds every problem too hard; the counts of each problem, of two samples, are written."""
    flags = ["--model", "tiny", "--task-option", "num_train=6", "num_demonstrations=5", "--samples"]
    rest = ["--group-size", "2", "--max-new-tokens", "4", "--device", "cpu", "--out-dir", str(tmp_path / "profile")]
    assert cli(["profile", "arithmetic", *flags, "3", *rest]) == 0
    assert cli(["profile", "arithmetic", *flags, "2", *rest]) == 0
    printed = capsys.readouterr().out
    assert "too hard (never right) 100.0%" in printed
    assert "differing rewards: 0.0%" in printed
    lines = (tmp_path / "profile" / "profile.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first.pop("fingerprint")
    assert (first.pop("model"), first.pop("verifier")) == ("tiny", None)
    assert first == {"id": "arithmetic/train/0", "samples": 2, "correct": 0, "score": 0.0}
    assert len(lines) == 6
    assert cli(["profile", "arithmetic", *flags, "2", "--group-size", "1"]) == 2
    assert "expected 2 or more" in capsys.readouterr().err


def test_a_pack_without_a_fingerprint_shows_none(tmp_path, monkeypatch, capsys):
    """A Task that is made by hand has none where it is refused: the line ends before the word."""
    (tmp_path / "by_hand.py").write_text(
        "from rlvr import Problem, Task\n"
        "def pack() -> Task:\n"
        "    right = lambda problem, text: text == problem.reference\n"
        "    return Task('by hand', [Problem('a', '1+1=', '2')], [Problem('a', '1+2=', '3')], right)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    main(["by_hand:pack"])
    assert capsys.readouterr().out.splitlines()[0] == "by hand: 1 train, 1 test, 0 demonstrations"


def code_pack(train: list[str], test: list[str]) -> Task:
    problems = [
        [Problem(f"{part}/{i}", f"{part} {i}", {"type": "assert", "code": code}) for i, code in enumerate(codes)]
        for part, codes in (("train", train), ("test", test))
    ]
    return Task("code", *problems, make_verifier("unit_tests", slots=1))


@pytest.mark.skipif(level().number < 2, reason="no sandbox of level 2 on this machine")
def test_null_programs_are_run_on_code_packs():
    """Problems that they pass fail the audit in train, and are listed in test; other weak ones are counted."""
    value, truth, lazy = "assert f(2) == 4", "assert f(2)", "assert all(a == b for a, b in zip(f([1]), [3, 4]))"
    found = findings(code_pack([value, truth], [value, truth, lazy]))
    train, test = (found[f"problems of {part} that null programs pass"] for part in ("train", "test"))
    assert (train.failed, train.note) == (1, False)
    assert train.examples[0].startswith("train/1: weak, passed by a program that returns True")
    assert (test.failed, test.note, len(test.examples)) == (2, True, 2)
    assert found["other weak problems of train"].failed == 0
    kept = findings(code_pack([value], [value]))
    assert kept["problems of train that null programs pass"].failed == 0
