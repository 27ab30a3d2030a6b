"""Training prompts that repeat held-out ones, in any spelling: found, listed, left out of training."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest

from rlvr.commands.cli import main as cli
from rlvr.commands.task import build_task as task_of
from rlvr.commands.task import leave_problems_out
from rlvr.config import Config, CurriculumConfig, RunConfig
from rlvr.core.registry import make_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import build_task, spell_prompt
from rlvr.tasks.contamination import HeldOut, common_ends, ngrams
from rlvr.tasks.mixture import mix
from rlvr.training.problems.pass_rates import choose_problems
from tests.helpers.machine import processor_time

LONG = "A train leaves the old station at noon and travels north at sixty miles an hour until it meets the river {}"
BOX = " Please reason step by step, and put your final answer within \\boxed{}."


def problems(name: str, texts: list[str]) -> list[Problem]:
    return [Problem(f"{name}/{i}", text, "1") for i, text in enumerate(texts)]


def find_matches(train: list[str], held: list[str], **settings: float) -> dict[str, tuple[str, bool]]:
    matches = HeldOut({"held": problems("h", held)}, **settings).matches(problems("t", train))  # type: ignore[arg-type]
    return {match.problem: (match.held_out, match.exact) for match in matches}


def test_exact_after_normalisation() -> None:
    """Case, spaces and Unicode forms do not count, signs do."""
    held = ["What is 3 + 4?", "Solve  x² = 2"]
    assert find_matches(["WHAT is 3 + 4?", "What is 3 * 4?", "solve x2 = 2"], held) == {
        "t/0": ("h/0", True),
        "t/2": ("h/1", True),
    }


def test_instructions_of_a_pack_do_not_count() -> None:
    """The same question under other instructions is found; instructions alone are no overlap."""
    train = [f"Solve the following problem with great care: {n} + {n}{BOX}" for n in range(9)]
    held = [
        f"{n} + {n}\nGive the result on the last line of your answer, with no other words beside it" for n in (3, 30)
    ]
    assert find_matches(train, held, size=8) == {"t/3": ("h/0", True)}
    others = [f"{n} * {n}{BOX}" for n in range(20)]
    assert find_matches(others, [f"{n} - {n}{BOX}" for n in range(20)], size=8) == {}


def test_ngrams_and_shares() -> None:
    """13 words in common are found, 12 are not; with a share the nearest must have that much."""
    held = [LONG.format("Ob"), "Something else altogether, which has not a single long run of words in common with it"]
    part = " ".join(LONG.split()[:13])
    assert find_matches([part, " ".join(LONG.split()[:12]), "nothing"], held) == {"t/0": ("h/0", False)}
    assert find_matches([part], held, size=8, share=0.9) == {}
    assert find_matches([LONG.format("Don")], held, size=8, share=0.9) == {"t/0": ("h/0", False)}
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
    task = task_of(Config(run=run))
    assert [problem.id for problem in task.train] == ["m0", "m1", "m2", "m4", "m5"]
    whole = task_of(Config(run=RunConfig(task="jsonl", data=mine, task_option=("test_share=0",))))
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


# A held-out prompt, the same in another spelling, and one that asks for something else.
SPELLINGS = [
    ("Compute $1+1$.", ["Compute $ 1 + 1 $", "compute \\(1+1\\)", "Compute $$1+1.$$"], ["Compute $1-1$.", "1+1"]),
    (
        "Find $\\frac{1}{2}+x^2$",
        ["Find $\\dfrac12 + x^{2}$", "Find \\[\\tfrac{1}{2}+x²\\]"],
        ["Find $\\frac{1}{2}+x^3$"],
    ),
    ("Is $f'(3)\\leq 4$?", ["Is $f’\\left(3\\right)\\le4$"], ["Is $f(3)\\leq 4$?", "Is $f'(3)\\geq 4$?"]),
    ("Halve 3².", ["Halve $3^2$"], ["Halve $3_2$", "Halve 9"]),
    ("List (1, 2)", ["list $(1,2)$", "List $(1,\\,2)$"], ["List (12)", "List (1.2)"]),
]
# What many problems of competitions end with, and one of them whole.
ENDING = "can be written as $\\frac{m}{n}$ where $m$ and $n$ are relatively prime positive integers. Find $m+n$."
HELD = f"A fair coin is thrown until heads come up twice in a row. The expected number of throws {ENDING}"


def task(name: str, train: list[str], test: list[str]) -> Task:
    return build_task(name, train=problems(f"{name}/train", train), test=problems(f"{name}/test", test))


@pytest.mark.parametrize(("held", "same", "others"), SPELLINGS, ids=[held for held, _, _ in SPELLINGS])
def test_spellings_of_short_prompts(held: str, same: list[str], others: list[str]) -> None:
    """Found however short; numbers, signs and names count."""
    found = HeldOut({"held": problems("h", [held, "Another one"])}).matches(problems("t", [*same, *others]))
    assert [(match.problem, match.exact) for match in found] == [(f"t/{i}", True) for i in range(len(same))]
    assert {tuple(spell_prompt(text)) for text in same} == {tuple(spell_prompt(held))}


@pytest.mark.parametrize(("held", "same", "others"), SPELLINGS, ids=[held for held, _, _ in SPELLINGS])
def test_mixtures_and_splits_leave_out_other_spellings(
    held: str, same: list[str], others: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of another pack of a mixture; of the test split of a data set; of a split by a hash."""
    mixed = mix({"a": (task("a", [*same, *others], []), 1.0), "b": (task("b", ["b?"], [held]), 1.0)})
    assert {p.prompt for p in mixed.train} == {*others, "b?"}
    rows = {"train": [*same, *others], "test": [held]}
    for split, texts in rows.items():
        lines = [json.dumps({"prompt": text, "reference": "1"}) + "\n" for text in texts]
        (tmp_path / f"{split}.jsonl").write_text("".join(lines))
    assert {p.prompt for p in make_task("hub", data=tmp_path, test_split="test").train} == set(others)
    both = tmp_path / "all.jsonl"
    both.write_text((tmp_path / "train.jsonl").read_text() + (tmp_path / "test.jsonl").read_text())
    with caplog.at_level(logging.WARNING):
        divided = [
            make_task(name, data=both, test_share=0.5, seed=seed) for name in ("hub", "jsonl") for seed in range(6)
        ]
    for made in divided:
        assert not {tuple(spell_prompt(p.prompt)) for p in made.train} & {
            tuple(spell_prompt(p.prompt)) for p in made.test
        }
    for name in ("hub", "jsonl"):
        assert re.search(rf"task '{name}': \d prompts are held out in another spelling", caplog.text)


@pytest.mark.parametrize("count", [11, 40, 300])
def test_common_phrases_are_no_match(count: int) -> None:
    """A 13-gram that more than ten training prompts have does not make them copies; copies are found all the same."""
    cast = [
        f"Urn {i} holds {i * i} red and {7 * i} blue balls. The chance of {i} red {ENDING} ({i})" for i in range(count)
    ]
    held = HeldOut({"aime": problems("h", [HELD, "Something short"])})
    assert held.matches(problems("t", cast)) == []
    copies = [f"{HELD} Show {i} steps." for i in range(count)]
    found = held.matches(problems("t", [*cast, HELD, *copies]))
    assert {match.problem for match in found} == {f"t/{i}" for i in range(count, 2 * count + 1)}
    assert [match.exact for match in found] == [True] + [False] * count
    few = held.matches(problems("t", cast[:10]))
    assert len(few) == 10
    assert all(match.share < 0.5 for match in few)


@pytest.fixture
def audited(tmp_path: Path) -> tuple[Task, Path]:
    """A pack from a file, and the list that its audit wrote."""
    rows = [{"id": f"m{i}", "prompt": f"Add {i} and {i}.", "reference": str(2 * i)} for i in range(6)]
    mine, held, found = tmp_path / "mine.jsonl", tmp_path / "held.jsonl", tmp_path / "found.jsonl"
    mine.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held.write_text(json.dumps({"prompt": "Add $3$ and $3$", "reference": "6"}) + "\n")
    flags = ["audit", "jsonl", "--data", str(mine), "--task-option", "test_share=0", "--against", "jsonl"]
    flags += ["--against-option", f"jsonl.data={held}", "jsonl.test_share=1", "--found", str(found)]
    assert cli(flags) == 1
    return make_task("jsonl", data=mine, test_share=0.0), found


def test_a_list_of_other_data_is_refused(
    audited: tuple[Task, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ids are other problems there: another prompt, another order; ids that are absent are counted."""
    whole, found = audited
    assert [p.id for p in leave_problems_out(whole, found).train] == ["m0", "m1", "m2", "m4", "m5"]
    for prompt in ("Add 3 and 4.", "Add 3 and 3. Box it."):
        other = build_task("x", train=[Problem("m3", prompt, "7"), *problems("n", ["?"])], test=[])
        with pytest.raises(ValueError, match=r"problem 'm3' has another prompt than in the audit"):
            leave_problems_out(other, found)
    found.write_text(found.read_text() + "m9\nm5\n")
    with caplog.at_level(logging.WARNING):
        assert len(leave_problems_out(whole, found).train) == 4
    assert "1 of its 3 ids are not in the task" in caplog.text


@pytest.mark.parametrize("content", ["prompt,reference\n1,2\n", '{"prompt": "mine"}\n', "\x00\x01"])
def test_the_option_found_overwrites_lists_only(
    content: str, audited: tuple[Task, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data of one's own stay; a list of an earlier audit is written anew."""
    _, found = audited
    mine = tmp_path / "mine.csv"
    mine.write_text(content)
    capsys.readouterr()
    flags = ["audit", "jsonl", "--data", str(tmp_path / "mine.jsonl"), "--task-option", "test_share=0"]
    flags += ["--against", "jsonl", "--against-option", f"jsonl.data={tmp_path / 'held.jsonl'}", "jsonl.test_share=1"]
    assert cli([*flags, "--found", str(mine)]) == 2
    assert capsys.readouterr().err.startswith(f"error: --found {str(mine)!r} exists, and nothing in it says")
    assert mine.read_text() == content
    before = found.read_text()
    assert cli([*flags, "--found", str(found)]) == 1
    assert found.read_text() == before


def test_a_profile_of_the_whole_pack_fits_what_is_left(audited: tuple[Task, Path], tmp_path: Path) -> None:
    """And a profile of what is left; the line tells whose pass rates they are; the fingerprints differ."""
    whole, found = audited
    left = leave_problems_out(whole, found)
    profile = tmp_path / "profile.jsonl"

    def write(fingerprint: str, **more: str | None) -> None:
        rows = [
            {"id": p.id, "samples": 4, "correct": 2, "score": 0.5, "fingerprint": fingerprint, **more}
            for p in whole.train
        ]
        profile.write_text("".join(json.dumps(row) + "\n" for row in rows))

    chosen = {}
    for name, fingerprint in (("whole", whole.fingerprint), ("left", left.fingerprint)):
        write(fingerprint, model="org/name", verifier="exact")
        chosen[name], told = choose_problems(left, CurriculumConfig(profile, (0.1, 0.9)))
        assert [p.id for p in chosen[name].train] == ["m0", "m1", "m2", "m4", "m5"]
        assert told.startswith("profile of org/name judged by exact: pass rates from 0.1 to 0.9: 5 of 5 problems")
    assert (
        choose_problems(whole, CurriculumConfig(profile_of(whole, profile)))[0].fingerprint
        != chosen["whole"].fingerprint
    )
    write("f" * 16)
    with pytest.raises(ValueError, match="a profile of other problems"):
        choose_problems(left, CurriculumConfig(profile))


def profile_of(task: Task, path: Path) -> Path:
    row = {"id": task.train[0].id, "samples": 1, "correct": 1, "score": 1.0, "fingerprint": task.fingerprint}
    path.write_text(json.dumps(row) + "\n")
    return path
