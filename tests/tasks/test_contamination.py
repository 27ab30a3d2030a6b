"""Training prompts that repeat held-out ones: found, listed, left out of training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlvr.commands.cli import main as cli
from rlvr.commands.task import build_task, leave_problems_out
from rlvr.config import Config, RunConfig
from rlvr.core.registry import make_task
from rlvr.core.types import Problem
from rlvr.tasks.contamination import HeldOut, common_ends, ngrams
from tests.helpers.machine import processor_time

LONG = "A train leaves the old station at noon and travels north at sixty miles an hour until it meets the river {}"
BOX = " Please reason step by step, and put your final answer within \\boxed{}."


def problems(name: str, texts: list[str]) -> list[Problem]:
    return [Problem(f"{name}/{i}", text, "1") for i, text in enumerate(texts)]


def found(train: list[str], held: list[str], **settings: float) -> dict[str, tuple[str, bool]]:
    matches = HeldOut({"held": problems("h", held)}, **settings).matches(problems("t", train))  # type: ignore[arg-type]
    return {match.problem: (match.held_out, match.exact) for match in matches}


def test_exact_after_normalisation() -> None:
    """Case, spaces and Unicode forms do not count, signs do."""
    held = ["What is 3 + 4?", "Solve  x² = 2"]
    assert found(["WHAT is 3 + 4?", "What is 3 * 4?", "solve x2 = 2"], held) == {
        "t/0": ("h/0", True),
        "t/2": ("h/1", True),
    }


def test_instructions_of_a_pack_do_not_count() -> None:
    """The same question under other instructions is found; instructions alone are no overlap."""
    train = [f"Solve the following problem with great care: {n} + {n}{BOX}" for n in range(9)]
    held = [
        f"{n} + {n}\nGive the result on the last line of your answer, with no other words beside it" for n in (3, 30)
    ]
    assert found(train, held, size=8) == {"t/3": ("h/0", True)}
    others = [f"{n} * {n}{BOX}" for n in range(20)]
    assert found(others, [f"{n} - {n}{BOX}" for n in range(20)], size=8) == {}


def test_ngrams_and_shares() -> None:
    """13 words in common are found, 12 are not; with a share the nearest must have that much."""
    held = [LONG.format("Ob"), "Something else altogether, which has not a single long run of words in common with it"]
    part = " ".join(LONG.split()[:13])
    assert found([part, " ".join(LONG.split()[:12]), "nothing"], held) == {"t/0": ("h/0", False)}
    assert found([part], held, size=8, share=0.9) == {}
    assert found([LONG.format("Don")], held, size=8, share=0.9) == {"t/0": ("h/0", False)}
    assert list(ngrams("a b c".split(), 2)) == [("a", "b"), ("b", "c")]
    assert common_ends([["a", "b", "z"], ["a", "c", "z"]]) == (1, 1)
    assert common_ends([["a"], ["a"]]) == (0, 0)


def test_time_grows_with_the_data_only() -> None:
    """Sixteen times the data, with much in common, take far less than a square of that."""

    def seconds(count: int) -> float:
        texts = [f"{LONG.format(n)} and again {n * 7919 % 10007} {LONG.format(n)}" for n in range(count)]
        with processor_time() as taken:
            HeldOut({"held": problems("h", texts)}).matches(problems("t", texts))
        return taken.seconds

    few = min(seconds(200) for _ in range(3))
    assert seconds(3200) < 16 * 5 * few + 0.1


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def packs(tmp_path: Path) -> tuple[Path, Path]:
    """A file to train on, of which two prompts are held out in another."""
    train = [f"Add {n} and {n}." for n in range(6)] + [LONG.format("Ob")]
    mine = write(tmp_path / "mine.jsonl", [{"id": f"m{i}", "prompt": p, "reference": "1"} for i, p in enumerate(train)])
    held = [{"prompt": "add 3 and 3.", "reference": "1"}, {"prompt": LONG.format("Don"), "reference": "1"}]
    return mine, write(tmp_path / "held.jsonl", held)


def test_audit_lists_and_training_leaves_out(
    packs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The audit fails, its file has the ids, and a run with that file trains on the others only."""
    mine, held = packs
    out = tmp_path / "found.jsonl"
    flags = ["audit", "jsonl", "--data", str(mine), "--task-option", "test_share=0", "--against", "jsonl"]
    flags += ["--against-option", f"jsonl.data={held}", "jsonl.test_share=1", "--found", str(out)]
    assert cli(flags) == 1
    printed = capsys.readouterr().out
    assert (
        "FAIL  training prompts that repeat held-out ones (2 of jsonl; 1 exact, others by 13-grams): 2 of 7" in printed
    )
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["m3", "m6"]
    run = RunConfig(task="jsonl", data=mine, task_option=("test_share=0",), leave_out=out)
    task = build_task(Config(run=run))
    assert [problem.id for problem in task.train] == ["m0", "m1", "m2", "m4", "m5"]
    whole = build_task(Config(run=RunConfig(task="jsonl", data=mine, task_option=("test_share=0",))))
    assert task.fingerprint != whole.fingerprint
    out.write_text("m3\nm6\n")
    assert leave_problems_out(whole, out).fingerprint == task.fingerprint


def test_a_clean_pack_passes(packs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Against several packs; the file is there and empty, and leaves everything in."""
    out = tmp_path / "found.jsonl"
    flags = ["audit", "arithmetic", "--task-option", "num_train=50", "num_demonstrations=20", "num_test=10"]
    flags += ["--against", "jsonl", "hops", "--against-option", f"jsonl.data={packs[1]}", "jsonl.test_share=1"]
    assert cli([*flags, "--found", str(out)]) == 0
    assert "ok    training prompts that repeat held-out ones" in capsys.readouterr().out
    assert out.read_text() == ""
    task = make_task("arithmetic", num_train=5)
    assert leave_problems_out(task, out) is task


BAD = {
    "no task 'math50'": ["--against", "math50"],
    "which is not given": ["--found", "x.jsonl"],
    "the pack has no held-out problems": ["--against", "arithmetic", "--against-option", "arithmetic.num_test=0"],
    "hops.num_test is given twice": ["--against", "hops", "--against-option", "hops.num_test=3", "hops.num_test=4"],
    "expected pack.option=value": ["--against", "hops", "--against-option", "num_test=0"],
    "ngram": ["--against", "hops", "--ngram", "0"],
    "ngram-share": ["--against", "hops", "--ngram-share", "1.5"],
}


@pytest.mark.parametrize("message", sorted(BAD))
def test_bad_input_is_one_line(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With exit code 2."""
    assert cli(["audit", "arithmetic", *BAD[message]]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [("nobody\n", "none of its 1 ids"), ('{"name": "x"}\n', "line 1: no id"), ('{"id"\n', "line 1"), (None, "gone")],
)
def test_bad_lists_are_one_line(
    text: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list that names nothing of the task, lines without ids, no file."""
    path = tmp_path / ("list" if text is not None else "gone")
    if text is not None:
        path.write_text(text)
    assert (
        cli(["train", "tiny_math", "--dry-run", "--run.leave-out", str(path), "--run.out-dir", str(tmp_path / "r")])
        == 2
    )
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
