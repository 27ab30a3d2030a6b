"""Packs of published data sets: rows as published, in each format, with their right answers and wrong ones."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from rlvr.commands.audit import main as audit
from rlvr.core.registry import TASKS, make_task
from rlvr.core.types import Problem, Task
from rlvr.sandbox import level
from rlvr.tasks.base import prompt_text
from rlvr.verifiers.runner import Runner
from tests.helpers.files import GOLDEN, lines

PUBLISHED = GOLDEN / "published"
SANDBOX = pytest.mark.skipif(level().number < 2, reason="no sandbox of level 2 on this machine")

# By pack: its file, the part that is filled, and by prompt's beginning a right answer and a wrong one.
BOXED = {
    "hendrycks_math": ("hendrycks_math_train", "train", ["0", "4", "17"]),
    "dapo_math": ("dapo_math", "train", ["34", "113", "-3"]),
    "deepscaler": ("deepscaler", "train", [r"-\dfrac23", "60", "15.0"]),
    "big_math": ("big_math", "train", [r"14/3", "9", "60"]),
    "openr1_math": ("openr1_math", "train", [r"v_R = 4, v_B = 10", "20", "15"]),
    "math500": ("math500", "test", [r"(3, \pi/2)", "p-q", r"\dfrac{14}{3}", "9"]),
    "aime25": ("aime25", "test", ["70", "588", "016"]),
    "aime26": ("aime25", "test", ["70", "588", "016"]),
    "amc23": ("amc23", "test", ["27", "36", r"45^\circ", "3159"]),
    "hmmt": ("hmmt", "test", ["103", "3375", r"\tfrac{1}{576}"]),
    "minerva": ("minerva", "test", ["1.6", r"4.5 \times 10^{33}", "20.39", "0.006"]),
    "olympiadbench": ("olympiadbench", "test", ["0, 1, -1", "9", "1000", "4085"]),
    "mmlu_pro": ("mmlu_pro", "test", ["A", "H", "B"]),
}


def part(task: Task, name: str) -> list[Problem]:
    return list(task.train if name == "train" else task.test)


def verdicts(task: Task, pairs: list[tuple[Problem, str]]) -> list[bool]:
    with Runner(task.verifier, workers=1) as runner:
        return [verdict.correct for verdict in runner.verify(pairs)]


@pytest.mark.parametrize("name", sorted(BOXED))
def test_published_rows_are_graded(name: str, tmp_path: Path) -> None:
    """Answers in another form than the published one are right, the next row's answer is wrong."""
    file, split, answers = BOXED[name]
    task = make_task(name, data=rows_in(tmp_path, file, split))
    problems = part(task, split)
    assert len(problems) == len(answers)
    assert not part(task, "test" if split == "train" else "train")
    boxed = [f"So the answer is \\boxed{{{answer}}}." for answer in answers]
    assert verdicts(task, list(zip(problems, boxed))) == [True] * len(answers)
    assert verdicts(task, list(zip(problems, boxed[1:] + boxed[:1]))) == [False] * len(answers)


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
@pytest.mark.parametrize(
    "name", ["hendrycks_math", "dapo_math", "mmlu_pro", "knights_knaves", "code_contests", "ifeval"]
)
def test_formats_give_the_same_pack(name: str, suffix: str, tmp_path: Path) -> None:
    """JSON Lines, JSON and parquet (with its nested columns) hold the same problems."""
    file = "hendrycks_math_train" if name == "hendrycks_math" else name
    split = "test" if name in ("mmlu_pro", "ifeval") else "train"
    lined = make_task(name, data=rows_in(tmp_path / "lines", file, split))
    other = make_task(name, data=rows_in(tmp_path / "other", file, split, suffix))
    assert other.fingerprint == lined.fingerprint


def rows_in(folder: Path, file: str, split: str, suffix: str = ".jsonl") -> Path:
    """Write the published rows as one file of a split, in one of the formats."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, path = lines(PUBLISHED / f"{file}.jsonl"), folder / f"{split}{suffix}"
    if suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_every_published_pack_tells_where_its_data_are() -> None:
    """`rlvr list NAME` shows the data set's name on the hub, its commit where one is pinned, licence and size."""
    packs = {name: TASKS.get(name) for name in TASKS.names() if hasattr(TASKS.get(name), "sources")}
    assert {*BOXED, "gpqa", "apps", "taco", "code_contests", "livecodebench", "ifeval", "gsm8k", "mbpp"} <= set(packs)
    for pack in packs.values():
        for source in pack.sources:  # type: ignore[attr-defined]
            assert f"Hub: {source.hub}" in (pack.__doc__ or "")
            assert source.licence
            assert source.size
            assert source.revision is None or (len(source.revision) == 40 and source.revision in (pack.__doc__ or ""))


def test_dapo_prompts_lose_their_instructions_or_keep_them(tmp_path: Path) -> None:
    """Boxed: the question alone; published: the chat as it is, whose answers "Answer: 34" are read too."""
    data = rows_in(tmp_path, "dapo_math", "train")
    boxed, published = make_task("dapo_math", data=data), make_task("dapo_math", data=data, prompt="published")
    assert str(boxed.train[0].prompt).startswith("In triangle $ABC$")
    assert str(boxed.train[0].prompt).endswith("within \\boxed{}.")
    assert "Answer:" not in str(boxed.train[0].prompt)
    assert published.train[0].prompt == lines(data)[0]["prompt"]
    assert verdicts(published, [(published.train[0], "It is 34.\nAnswer: 34")]) == [True]


def test_repeated_and_contradictory_rows_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A hundred copies of each row give three problems; one with two answers is in none."""
    rows = lines(PUBLISHED / "dapo_math.jsonl")
    other = {**rows[2], "reward_model": {"ground_truth": "5", "style": ""}}
    path = tmp_path / "dapo-math-17k.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows * 100, other, rows[2]]))
    with caplog.at_level(logging.WARNING):
        task = make_task("dapo_math", data=path)
    assert [problem.reference for problem in task.train] == ["34", "113"]
    assert "2 of 302 rows are used for train" in caplog.text
    assert "297 repeated" in caplog.text
    assert "with contradictory references" in caplog.text


def test_math_500_is_left_out_of_training(tmp_path: Path) -> None:
    """12,000 problems: those of the test set too, without the ones of MATH-500."""
    train, held = lines(PUBLISHED / "hendrycks_math_train.jsonl"), lines(PUBLISHED / "math500.jsonl")
    more = {**train[0], "problem": "What is $1+1$?", "solution": r"It is $\boxed{2}$."}
    test = [
        {"problem": r["problem"], "level": "Level 2", "type": "x", "solution": rf"\boxed{{{r['answer']}}}"}
        for r in held
    ]
    for name, rows in (("train", train), ("test", [*test, more]), ("math500", held)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    small, large = (make_task("hendrycks_math", data=tmp_path, problems=n) for n in ("7500", "12000"))
    assert (len(small.train), len(small.test), len(large.train), len(large.test)) == (3, 4, 4, 4)
    assert large.train[-1].reference == "2"
    hard = make_task("hendrycks_math", data=tmp_path, levels=(5,))
    assert [problem.info["level"] for problem in hard.train] == [5]
    (tmp_path / "math500.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="no math500 file"):
        make_task("hendrycks_math", data=tmp_path, problems="12000")


def test_gpqa_options_are_shuffled_by_the_seed(tmp_path: Path) -> None:
    """The letter follows the right option; another seed gives another order, the same seed the same."""
    data = rows_in(tmp_path, "gpqa", "test")
    tasks = [make_task("gpqa", data=data, seed=seed) for seed in (0, 0, 1, 2, 3)]
    assert tasks[0].fingerprint == tasks[1].fingerprint
    assert len({tuple(problem.reference for problem in task.test) for task in tasks}) > 1
    right = [row["Correct Answer"] for row in lines(data)]
    for task in tasks:
        for problem, option in zip(task.test, right):
            assert f"\n{problem.reference}) {option}\n" in prompt_text(problem.prompt)
    pairs = [(problem, f"The answer is ({problem.reference}).") for problem in tasks[0].test]
    wrong = [(problem, "ABCD"["BCDA".index(problem.reference)]) for problem in tasks[0].test]
    assert verdicts(tasks[0], [*pairs, *wrong]) == [True] * 3 + [False] * 3


def test_instructions_of_ifeval_and_ifbench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Numbers that parquet holds as floats are whole; prompts whose instructions are not checked are counted."""
    task = make_task("ifeval", data=rows_in(tmp_path, "ifeval", "test"))
    word = "*one* *two* *three* " + "word " * 300
    places = " ".join(f"[place{i}]" for i in range(12))
    right = [word, "Go to Edo forthwith.", f"I am {places}"]
    wrong = [word.replace("*", ""), "Go, go.", "I am [one]"]
    assert verdicts(task, list(zip(task.test, right))) == [True] * 3
    assert verdicts(task, list(zip(task.test, wrong))) == [False] * 3
    data = rows_in(tmp_path / "bench", "ifbench", "test")
    assert len(make_task("ifbench", data=data).test) == 4
    [file] = data.glob("*.jsonl") if data.is_dir() else [data]
    other = json.loads(file.read_text("utf-8").splitlines()[0]) | {"key": "x", "instruction_id_list": ["words:rhyme"]}
    file.write_text(file.read_text("utf-8") + json.dumps(other) + "\n", "utf-8")
    with caplog.at_level(logging.WARNING):
        bench = make_task("ifbench", data=data)
    assert "with instructions that are not checked here" in caplog.text
    assert len(bench.test) == 4


def test_solve_rates_and_sources_of_big_math(tmp_path: Path) -> None:
    """Rows without a rate are out where rates are asked for."""
    data = rows_in(tmp_path, "big_math", "train")
    assert [p.reference for p in make_task("big_math", data=data, min_solve_rate=0.8).train] == ["\\frac{14}{3}"]
    assert [p.reference for p in make_task("big_math", data=data, without_sources=("math",)).train] == ["60"]


INSTRUCTED = {"prompt": "Say.", "key": 1, "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}


@pytest.mark.parametrize(
    ("final", "unit", "right", "wrong"),
    [
        ("$150$", "m", ["150", "150 m", "0.15 \\text{ km}"], ["150 km", "0.15"]),
        ("3", "minutes", ["3", "3 \\text{ minutes}", "180 s"], ["3 hours", "180"]),
        ("40", "$\\%$", ["40", "40\\%"], ["4", "60"]),
        ("7", "apples", ["7"], ["8"]),
    ],
)
def test_units_of_olympiadbench(final: str, unit: str, right: list[str], wrong: list[str], tmp_path: Path) -> None:
    """The number alone, as the prompt asks, and with its unit; not with another one. Unknown units do not count."""
    row = {"question": "How much?", "final_answer": [final], "unit": unit, "error": None, "context": None}
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps(row))
    task = make_task("olympiadbench", data=path)
    pairs = [(task.test[0], f"So \\boxed{{{answer}}}.") for answer in (*right, *wrong)]
    assert verdicts(task, pairs) == [True] * len(right) + [False] * len(wrong)


def test_rows_of_ifeval_without_a_key_are_named_by_their_number(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text("".join(json.dumps({**INSTRUCTED, "key": None, "prompt": text}) + "\n" for text in "ab"))
    assert [p.id for p in make_task("ifeval", data=path).test] == ["ifeval/test/0", "ifeval/test/1"]


AUDITED = ["hendrycks_math", "dapo_math", "deepscaler", "big_math", "math500", "aime25", "amc23", "hmmt", "minerva"]


@pytest.mark.parametrize("name", [*AUDITED, "olympiadbench", "mmlu_pro", "gpqa", "knights_knaves", "ifeval", "ifbench"])
def test_audits_pass_on_data_of_the_published_form(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right answers are accepted, wrong and empty ones are not."""
    file, split, _ = BOXED.get(name, (name, "train" if name == "knights_knaves" else "test", []))
    assert audit([name, "--data", str(rows_in(tmp_path, file, split)), "--workers", "1"]) == 0, capsys.readouterr().out


def test_audit_of_openr1(tmp_path: Path) -> None:
    """The proof is left out."""
    assert audit(["openr1_math", "--data", str(rows_in(tmp_path, "openr1_math", "train")), "--workers", "1"]) == 0
