"""Task packs: items by seed and index, disjoint parts, fingerprints, data in its own formats, bad data."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from rlvr.core.registry import TASKS, make_task, make_verifier, register
from rlvr.core.types import Problem, Reply, Task, Verdict
from rlvr.recipes.qwen2_5_0_5b_gsm8k import after_hashes
from rlvr.tasks.base import Generated, build_task, generate_task, judge_with, seal_task
from rlvr.tasks.sources import stream_hub
from tests.helpers.files import GOLDEN, DataSets, lines


@register("tests/ends_with_reference")
def ends_with_reference(problem: Problem, completion: str) -> bool:
    """Whether the completion ends with the reference."""
    return completion.endswith(str(problem.reference))


def write_lines(path: Path, rows: list[object]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def small(train: list[str], test: list[str], demonstrations: list[str] | None = None) -> Task:
    def problems(part: str, prompts: list[str]) -> list[Problem]:
        return [Problem(f"{part}/{i}", prompt, "1") for i, prompt in enumerate(prompts)]

    shown = [(problem, "1") for problem in problems("shown", demonstrations or [])]
    return build_task(
        "small",
        train=problems("train", train),
        test=problems("test", test),
        verifier="tests/ends_with_reference",
        demonstrations=shown,
    )


def test_generated_is_a_sequence() -> None:
    """Slices, negative indices and the end behave as those of a list."""
    squares = Generated(5, lambda i: i * i)
    assert list(squares) == [0, 1, 4, 9, 16]
    assert squares[-1] == 16
    assert list(squares[1:4]) == [1, 4, 9]
    assert list(squares[::-2]) == [16, 4, 0]
    assert len(squares[:2]) == 2
    with pytest.raises(IndexError):
        squares[5]
    with pytest.raises(ValueError, match="-1 problems"):
        Generated(-1, lambda i: i)


def test_a_generated_pack_makes_each_item_once():
    """A run reads all of them several times: for the fingerprint, the alphabet, the context, in each epoch."""
    made = []

    def problem(name: str, number: int, stream: Random) -> Problem:
        made.append(name)
        return Problem(name, f"{number} + 1 =", number + 1)

    def propose(stream: Random) -> tuple[str, int]:
        return str(number := stream.randrange(10**6)), number

    task = generate_task("next", propose, problem, seed=0, sizes=(30, 10))
    assert list(task.train) == list(task.train)
    assert [*task.test[3:]] == [*task.test][3:]
    assert len(made) == len({*made}) == 40


def test_tasks_made_by_hand_are_sealed() -> None:
    """A pack that builds its Task itself gets the same checks, and a fingerprint that shows the options."""
    problems = [Problem(f"p{i}", f"question {i}", "1") for i in range(4)]
    made = [
        seal_task(Task("own", problems[:2], problems[2:], make_verifier(name, **options)))
        for name, options in (("math", {}), ("math", {"extract": "strict"}), ("tests/ends_with_reference", {}))
    ]
    assert len({task.fingerprint for task in made}) == 3
    assert seal_task(made[0]) is made[0]
    with pytest.raises(ValueError, match="overlap"):
        seal_task(Task("own", [problems[0]], [Problem("q", "Question 0", "1")], make_verifier("math")))


def test_overlap_is_refused_by_normalised_prompt() -> None:
    """Case, spacing and compatibility forms do not hide that train and test share a prompt; the error names both."""
    with pytest.raises(ValueError, match=r"train and test overlap: train/1 and test/0 .*WHAT"):
        small(["a", "What  is\n½ of 2?"], ["WHAT is 1\u20442 of 2?"])
    with pytest.raises(ValueError, match="demonstrations and train overlap"):
        small(["b"], ["c"], ["B "])
    with pytest.raises(ValueError, match="demonstrations and test overlap"):
        small(["b"], ["c"], ["C"])
    assert len(small(["b", "b"], ["c"]).train) == 2


def test_repeated_ids_are_refused() -> None:
    """Evaluation files answers by id, so that two problems cannot share one."""
    with pytest.raises(ValueError, match="two problems have the id 'x'"):
        build_task("twice", train=[Problem("x", "a", "1"), Problem("x", "b", "1")], test=[], verifier="math")


def test_empty_pack_is_refused() -> None:
    """A pack without any problem is an error."""
    with pytest.raises(ValueError, match="no problems"):
        small([], [])


def test_bad_reference_is_refused_and_named() -> None:
    """The verifier reads each reference when the pack is built; what it cannot read stops with the problem's name."""
    with pytest.raises(ValueError, match="test/1"):
        build_task("bad", train=[], test=[Problem("test/0", "a", "3"), Problem("test/1", "b", None)], verifier="math")


def test_fingerprint_is_the_same_in_another_process() -> None:
    """It does not depend on the process's hash seed."""
    here = make_task("countdown", num_train=20, num_test=5).fingerprint
    code = (
        "from rlvr.core.registry import make_task; print(make_task('countdown', num_train=20, num_test=5).fingerprint)"
    )
    there = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "7"}
    )
    assert there.stdout.strip() == here


def test_fingerprint_of_an_environment_is_without_the_folder_of_its_pack() -> None:
    """A run goes on where the pack was moved to another folder of rlvr.tasks; another module is another environment."""
    problem = Problem(id="p", prompt="2 + 2?", reference="4")

    def fingerprint(module: str) -> str:
        def play(problem: Problem, rng: Random) -> Generator[Reply | None, str, Verdict | None]:
            yield None
            return None

        play.__module__, play.__qualname__ = module, "play"
        return build_task("x", train=[problem], test=(), verifier="math", environment=play).fingerprint

    assert (
        fingerprint("rlvr.tasks.games")
        == fingerprint("rlvr.tasks.generated.games")
        == fingerprint("rlvr.tasks.new.games")
    )
    others = ("rlvr.tasks.games", "rlvr.tasks.generated.hops", "mine.tasks.generated.games", "games", "rlvr.tasks")
    assert len({fingerprint(module) for module in others}) == len(others)


def test_fingerprint_depends_on_problems_and_verifier(tmp_path: Path) -> None:
    """Another reference, verifier or verifier option gives another fingerprint; the same data gives the same."""
    rows = [{"prompt": f"question {i}", "reference": str(i)} for i in range(8)]
    changed = [*rows[:-1], {"prompt": "question 7", "reference": "8"}]
    data = write_lines(tmp_path / "a" / "data.jsonl", rows)
    same = write_lines(tmp_path / "b" / "data.jsonl", rows)
    other = write_lines(tmp_path / "c" / "data.jsonl", changed)
    options = {"verifier": "tests/ends_with_reference"}
    prints = [
        make_task("jsonl", data=data, **options).fingerprint,
        make_task("jsonl", data=other, **options).fingerprint,
        make_task("jsonl", data=data, verifier="math").fingerprint,
        make_task("jsonl", data=data, verifier="math", verifier_options=("extract=lenient",)).fingerprint,
    ]
    assert len(set(prints)) == 4
    assert make_task("jsonl", data=same, **options).fingerprint == prints[0]


def test_packs_import_without_torch_and_datasets() -> None:
    """Naming the packs is cheap: neither torch nor datasets nor transformers is imported."""
    code = "import sys, rlvr.tasks; print([m for m in ('torch', 'datasets', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_gsm8k_in_its_own_format(rlvr_data: DataSets) -> None:
    """The folder gives both splits (whole: 7,473 and 1,319 problems); references are the numbers after ####."""
    task = make_task("gsm8k", data=rlvr_data("gsm8k/test.jsonl").parent)
    assert (len(task.train), len(task.test)) == (
        (7473, 1319) if rlvr_data.is_complete("gsm8k/test.jsonl") else (10, 12)
    )
    assert task.test[0].reference == "18"
    assert task.test[0].prompt.endswith("\\boxed{}.")
    assert all(re.fullmatch(r"-?[\d.]+", problem.reference) for problem in [*task.train, *task.test])


def test_the_answer_after_hashes() -> None:
    """The first number after the marker counts, and nothing else, as in the peer's run that the recipe repeats."""
    problem = Problem("p", "", "So 3 * 400 = 1,200.\n#### 1,200")
    said = {
        "#### 1200": True,
        "#### 1,200.": False,
        "\\boxed{1200}": False,
        "#### 7\n#### 1200": False,
        "#### $1200": False,
    }
    assert {text: after_hashes(problem, text) for text in said} == said


def test_gsm8k_from_one_file(rlvr_data: DataSets) -> None:
    """A file is the split that its name begins with; the other is empty."""
    test = make_task("gsm8k", data=rlvr_data("gsm8k/test.jsonl"), num_test=7)
    train = make_task("gsm8k", data=rlvr_data("gsm8k/train.jsonl"), num_train=6)
    assert (len(test.train), len(test.test)) == (0, 7)
    assert (len(train.train), len(train.test)) == (6, 0)


@pytest.mark.parametrize(
    ("name", "file", "expected", "excerpt"),
    [
        (
            "math500",
            "math500/test.jsonl",
            (500, r"\left( 3, \frac{\pi}{2} \right)"),
            (28, r"\left( 3, \frac{\pi}{2} \right)"),
        ),
        ("svamp", "svamp/test.jsonl", (1000, "145"), (6, "145")),
        ("aime24", "aime/aime24.jsonl", (30, "204"), (2, "60")),
    ],
)
def test_evaluation_sets_in_their_own_format(
    rlvr_data: DataSets, name: str, file: str, expected: tuple[int, str], excerpt: tuple[int, str]
) -> None:
    """File and folder give the same problems, all of them for the test, each asking for a box once."""
    task = make_task(name, data=rlvr_data(file))
    assert len(task.train) == 0
    assert (len(task.test), task.test[0].reference) == (expected if rlvr_data.is_complete(file) else excerpt)
    assert all(str(problem.prompt).count("put your final answer within \\boxed{}") == 1 for problem in task.test)
    assert make_task(name, data=rlvr_data(file).parent).fingerprint == task.fingerprint


def test_hub_layout_in_a_local_folder(tmp_path: Path) -> None:
    """The loader used for the hub reads a folder of the same layout through `datasets`, split by split."""
    rows = [{"question": f"{i} + 1?", "answer": f"think #### {i + 1}"} for i in range(3)]
    write_lines(tmp_path / "set" / "train.jsonl", rows)
    write_lines(tmp_path / "set" / "test.jsonl", rows[:1])
    assert list(stream_hub(str(tmp_path / "set"), None, "train")) == rows
    assert list(stream_hub(str(tmp_path / "set"), None, "test")) == rows[:1]
    with pytest.raises(OSError, match="--data PATH"):
        list(stream_hub(str(tmp_path / "set"), None, "validation"))


def test_parquet_as_on_the_hub(tmp_path: Path) -> None:
    """A clone of a hub repository, with its parquet shards a folder down, gives the problems of the jsonl files."""
    from datasets import Dataset

    rows = [{"question": f"{i} + 1?", "answer": f"think #### {i + 1}"} for i in range(3)]
    for split, part in (("train", rows[:2]), ("test", rows[2:])):
        write_lines(tmp_path / "lines" / f"{split}.jsonl", list(part))
        (tmp_path / "hub" / "main").mkdir(parents=True, exist_ok=True)
        Dataset.from_list(part).to_parquet(tmp_path / "hub" / "main" / f"{split}-00000-of-00001.parquet")
    hub, lines = (make_task("gsm8k", data=tmp_path / folder) for folder in ("hub", "lines"))
    assert list(hub.test) == list(lines.test)
    assert hub.fingerprint == lines.fingerprint


def test_missing_and_empty_files(tmp_path: Path) -> None:
    """What is not there, or holds no rows, is said in one line."""
    with pytest.raises(FileNotFoundError, match="no such file"):
        make_task("gsm8k", data=tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="no test file"):
        make_task("gsm8k", data=tmp_path)


@pytest.mark.parametrize(
    "row", lines(GOLDEN / "refused_packs.jsonl"), ids=lambda row: f"{row['pack']}: {row['message']}"
)
def test_packs_refuse_in_one_line(row: dict[str, Any], tmp_path: Path) -> None:
    """An option, a file or a row that cannot be used is named. tests/golden/refused_packs.jsonl lists the cases."""
    data = {}
    if "file" in row:
        data["data"] = tmp_path / row["file"]
        data["data"].write_text(row["text"])
    with pytest.raises((ValueError, LookupError)) as raised:
        make_task(row["pack"], **data, **row["options"])
    assert row["message"] in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("odd", lines(GOLDEN / "odd_rows.jsonl"), ids=lambda odd: f"{odd['pack']}: {odd['reason']}")
def test_packs_leave_out_odd_rows(odd: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A row in another form than the published one is counted. It is not trained on, and does not end the command."""
    path = tmp_path / ("train.jsonl" if odd["pack"] == "knights_knaves" else "test.jsonl")
    write_lines(path, odd["rows"])
    task = make_task(odd["pack"], data=path)
    assert len(task.train) + len(task.test) == 1
    assert "1 of 2 rows are used" in caplog.text
    assert odd["reason"] in caplog.text


def test_jsonl_holds_out_by_hash(tmp_path: Path) -> None:
    """Of one file a share is held out; lines that are added later do not move a prompt from one side to the other."""
    rows = [{"prompt": f"question {i}", "reference": "1", "id": f"q{i}", "level": i} for i in range(300)]
    options = {"verifier": "tests/ends_with_reference", "test_share": 0.2}
    few = make_task("jsonl", data=write_lines(tmp_path / "few.jsonl", rows[:200]), **options)
    many = make_task("jsonl", data=write_lines(tmp_path / "many.jsonl", rows), **options)
    assert 25 <= len(few.test) <= 55
    assert list(many.test)[: len(few.test)] == list(few.test)
    assert few.train[0].info == {"level": int(few.train[0].id[1:])}


@pytest.mark.parametrize("seed", range(20))
def test_a_small_file_has_held_out_problems(tmp_path: Path, seed: int) -> None:
    """By a hash alone a tenth of 50 would be anything between 0 and 12: at least 5; and the split is told."""
    rows = [{"prompt": f"question {i}", "reference": "1"} for i in range(50)]
    data = write_lines(tmp_path / "mine.jsonl", rows)
    for name, column in (("jsonl", "reference_key"), ("hub", "reference")):
        task = make_task(name, data=data, seed=seed, **{column: "reference"})
        assert 5 <= len(task.test) <= 12
        assert len(task.train) + len(task.test) == 50
        [line] = task.split_notes
        assert line.startswith(
            f"{name}: 50 problems are divided into {len(task.train)} to train on and {len(task.test)}"
        )
        assert "test_share=0.1" in line
    whole = make_task("jsonl", data=data, seed=seed, test_share=0)
    assert (len(whole.train), len(whole.test)) == (50, 0)


def test_copies_of_a_prompt_stay_together(tmp_path: Path) -> None:
    """Of four prompts, ten times each, half is held out: whole prompts."""
    rows = [{"prompt": f"question {i % 4}", "reference": "1"} for i in range(40)]
    task = make_task("jsonl", data=write_lines(tmp_path / "mine.jsonl", rows), test_share=0.5)
    assert not {problem.prompt for problem in task.train} & {problem.prompt for problem in task.test}
    assert {problem.prompt for problem in task.test}


def test_a_split_of_ones_own_is_not_logged(tmp_path: Path) -> None:
    """A folder with both files; and of a mixture each pack's line is kept, whichever verifier a run names."""
    write_lines(tmp_path / "train.jsonl", [{"prompt": "a", "reference": "1"}])
    write_lines(tmp_path / "test.jsonl", [{"prompt": "b", "reference": "1"}])
    assert make_task("jsonl", data=tmp_path).split_notes == ()
    data = write_lines(tmp_path / "mine.jsonl", [{"prompt": f"q{i}", "reference": "1"} for i in range(30)])
    task = make_task("mixture", packs="jsonl,arithmetic", options=(f"jsonl.data={data}",))
    assert len(task.split_notes) == 1
    assert judge_with(task, make_verifier("math")).split_notes == task.split_notes


def test_jsonl_folder_and_chat_prompts(tmp_path: Path) -> None:
    """A folder gives its own split; a prompt may be a list of messages."""
    messages = [{"role": "user", "content": "say 1"}]
    write_lines(tmp_path / "train.jsonl", [{"prompt": messages, "reference": "1"}])
    write_lines(tmp_path / "test.jsonl", [{"prompt": "say 2", "reference": "2"}])
    task = make_task("jsonl", data=tmp_path, verifier="tests/ends_with_reference")
    assert (len(task.train), len(task.test)) == (1, 1)
    assert task.train[0].prompt == messages
    assert ends_with_reference(task.train[0], "it is 1")
    write_lines(tmp_path / "test.jsonl", [{"prompt": [{"role": "user"}]}])
    with pytest.raises(ValueError, match="line 1: a message of the prompt"):
        make_task("jsonl", data=tmp_path, verifier="tests/ends_with_reference")
    write_lines(tmp_path / "test.jsonl", [{"prompt": messages, "reference": "1"}])
    with pytest.raises(ValueError, match="overlap"):
        make_task("jsonl", data=tmp_path, verifier="tests/ends_with_reference")


@pytest.mark.parametrize("name", TASKS.names())
def test_negative_numbers_of_problems_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line that names the option, before any data is asked for."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for option in TASKS.options(name):
        if option.startswith("num_"):
            with pytest.raises(
                ValueError, match=rf"^task '{name}', option {option}: -5; expected a number of at least 0$"
            ):
                make_task(name, **{option: "-5"})
            with pytest.raises(ValueError, match="at least 0"):
                make_task(name, **{option: -1})


def test_every_pack_has_a_summary() -> None:
    """`rlvr list` shows the first line of each pack's docstring."""
    assert {"arithmetic", "countdown", "gsm8k", "math500", "svamp", "aime24", "jsonl"} <= set(TASKS.names())
    assert all(TASKS.summary(name).endswith((".", "minute.")) for name in TASKS.names())
