"""HumanEval and MBPP: prompts, references, splits, and what stays hidden."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlvr.core.registry import make_task
from rlvr.core.types import Problem, Task, Verdict
from rlvr.tasks.base import build_task, prompt_text
from rlvr.tasks.published.functions import humaneval_reference, mbpp_prompt, mbpp_reference, unseen
from rlvr.verifiers.runner import Runner
from tests.helpers.files import DataSets

MBPP_ROW: dict[str, Any] = {
    "task_id": 700,
    "text": "Write a function to add.",
    "code": "def add(a, b):\r\n    return a + b",
    "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3", "assert add(5, 5) == 10", "assert add(-1, 1) == 0"],
    "challenge_test_list": [],
}
HUMANEVAL_ROW: dict[str, Any] = {
    "task_id": "HumanEval/1000",
    "prompt": 'import math\n\n\ndef double(x):\n    return 2 * x\n\n\ndef four(x):\n    """ Four times x. """\n',
    "entry_point": "four",
    "canonical_solution": "    return double(double(x))\n",
    "test": "def check(candidate):\n    assert candidate(2) == 8\n    assert candidate(3) == double(double(3))\n",
}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def test_mbpp_prompt_shows_one_test_and_hides_the_others() -> None:
    """Of three tests the first is shown, for the function's name; the reference holds all three."""
    prompt = mbpp_prompt(MBPP_ROW, 1)
    assert prompt == (
        "Write a function to add.\nYour program must pass tests like this:\n\n```python\nassert add(1, 2) == 3\n```\n\n"
        "Answer with the whole program, imports included, in one ```python block."
    )
    assert mbpp_reference(MBPP_ROW) == {"type": "assert", "code": "\n".join(MBPP_ROW["test_list"])}


def test_one_test_of_several_stays_hidden_whatever_is_asked() -> None:
    """visible_tests=9 shows two of three; a single test has to be shown."""
    assert "add(5, 5)" in mbpp_prompt(MBPP_ROW, 9)
    assert "add(-1, 1)" not in mbpp_prompt(MBPP_ROW, 9)
    assert "add(1, 2)" in mbpp_prompt({**MBPP_ROW, "test_list": MBPP_ROW["test_list"][:1]}, 1)


def test_imports_and_setup_come_before_the_tests() -> None:
    """The sanitized set's imports and the full set's set-up code are part of the test."""
    row = {**MBPP_ROW, "test_imports": ["import math"], "test_setup_code": "x = add(1, 1)"}
    assert mbpp_reference(row)["code"].startswith("import math\nx = add(1, 1)\nassert add(1, 2) == 3\n")


def test_helpers_of_a_humaneval_prompt_go_into_the_prelude() -> None:
    """The test calls `double`, which the prompt defines: it gets the prompt's own, not the candidate's."""
    assert humaneval_reference(HUMANEVAL_ROW)["prelude"] == "import math\ndef double(x):\n    return 2 * x"
    assert "prelude" not in humaneval_reference({**HUMANEVAL_ROW, "prompt": "def four(x):\n    '''x'''\n"})


def test_a_humaneval_answer_may_be_the_body_alone(tmp_path: Path) -> None:
    """A base model goes on after the docstring; what it writes is then put behind the prompt."""
    task = make_task("humaneval", data=write(tmp_path / "HumanEval.jsonl", [HUMANEVAL_ROW]))
    verdicts = judge(task, ["    return double(double(x))\n", "    return double(x)\n"])
    assert [verdict.correct for verdict in verdicts] == [True, False]


def test_training_tasks_that_repeat_a_test_task_are_left_out() -> None:
    """The comparison is of the words alone, without case and spaces."""
    rows = [{**MBPP_ROW, "text": "write a  function to ADD."}, {**MBPP_ROW, "text": "Write a function to subtract."}]
    assert unseen(rows, [MBPP_ROW]) == rows[1:]


def test_mbpp_is_divided_by_task_id(tmp_path: Path) -> None:
    """11 to 510 are held out, 601 to 974 trained on; few-shot and validation problems are in neither."""
    rows = [{**MBPP_ROW, "task_id": i, "text": f"Add {i}."} for i in (1, 10, 11, 510, 511, 600, 601, 974)]
    task = make_task("mbpp", data=write(tmp_path / "mbpp.jsonl", rows))
    assert [problem.id for problem in task.test] == ["mbpp/11", "mbpp/510"]
    assert [problem.id for problem in task.train] == ["mbpp/601", "mbpp/974"]


def test_weak_tests_are_left_out_of_training_by_default(tmp_path: Path) -> None:
    """A test that compares the identity of a candidate's objects cannot be secured."""
    weak = {**MBPP_ROW, "task_id": 701, "text": "Make it.", "test_list": ["a = make(1)", "assert make(1) is a"]}
    path = write(tmp_path / "mbpp.jsonl", [MBPP_ROW, weak])
    assert [problem.id for problem in make_task("mbpp", data=path).train] == ["mbpp/700"]
    both = make_task("mbpp", data=path, include_weak=True)
    assert [problem.info["integrity"] == "weak" for problem in both.train] == [False, True]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no test file; expected test\.jsonl"):
        make_task("humaneval", data=tmp_path)


def judge(task: Task, completions: list[str]) -> list[Verdict]:
    """Verdicts on one completion for each held-out problem, or on several for the only one."""
    problems = task.test if len(task.test) > 1 else list(task.test) * len(completions)
    with Runner(task.verifier, workers=1) as runner:
        return runner.verify(list(zip(problems, completions, strict=True)))


def hidden_tests_in_prompt(task: Task) -> list[str]:
    """Ids of the problems whose prompt holds a line of its reference that it should not."""

    def leaks(problem: Problem) -> bool:
        lines = [line.strip() for line in problem.reference["code"].splitlines() if line.strip().startswith("assert")]
        shown = prompt_text(problem.prompt)
        allowed = 1 if task.name == "mbpp" else 0
        return sum(line in shown for line in dict.fromkeys(lines)) > allowed

    return [problem.id for problem in [*task.train, *task.test] if leaks(problem)]


@pytest.mark.parametrize(
    ("file", "sanitized", "num_test", "num_excerpt"),
    [("mbpp/mbpp.jsonl", False, 500, 6), ("mbpp/sanitized-mbpp.json", True, 257, 6)],
)
def test_mbpp_from_the_authors_files(
    rlvr_data: DataSets, file: str, sanitized: bool, num_test: int, num_excerpt: int
) -> None:
    """The full and the sanitized set load, keep their test problems, and hide their tests; few are weak."""
    task = make_task("mbpp", data=rlvr_data(file), sanitized=sanitized)
    everything = make_task("mbpp", data=rlvr_data(file), sanitized=sanitized, include_weak=True)
    assert len(task.test) == (num_test if rlvr_data.is_complete(file) else num_excerpt)
    assert 0 <= len(everything.train) - len(task.train) <= 9
    assert hidden_tests_in_prompt(task) == []
    assert task.fingerprint == make_task("mbpp", data=rlvr_data(file).parent, sanitized=sanitized).fingerprint


def test_humaneval_from_the_authors_file(rlvr_data: DataSets) -> None:
    """All problems (whole: 164) to test on, none to train on; no prompt holds a line of its tests."""
    path = rlvr_data("humaneval/HumanEval.jsonl")
    whole = rlvr_data.is_complete("humaneval/HumanEval.jsonl")
    task = make_task("humaneval", data=path)
    assert (len(task.train), len(task.test)) == (0, 164 if whole else 12)
    assert hidden_tests_in_prompt(task) == []
    assert sum("def " in problem.reference.get("prelude", "") for problem in task.test) == (4 if whole else 2)


def test_solutions_of_the_authors_pass_and_others_do_not(rlvr_data: DataSets) -> None:
    """The first ten problems: the authors' own solution, in a fence, is correct; an empty function is not."""
    path = rlvr_data("humaneval/HumanEval.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()][:10]
    task = make_task("humaneval", data=path, num_test=10)
    right = judge(task, [f"So:\n```python\n{row['prompt']}{row['canonical_solution']}```" for row in rows])
    wrong = judge(task, [f"{row['prompt']}    return None\n" for row in rows])
    assert [verdict.correct for verdict in right] == [True] * 10
    assert [verdict.correct for verdict in wrong] == [False] * 10


def test_weak_problems_of_ones_own_are_left_out_of_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A constant passes two of three: they stay in test, and in training only if asked for."""
    codes = ["assert f(2) == 4", "assert f(2)", "assert not isinstance(f(2), str)"]
    rows = [{"id": str(i), "prompt": f"p{i}", "reference": {"type": "assert", "code": c}} for i, c in enumerate(codes)]
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "train.jsonl", rows)
    write(tmp_path / "data" / "test.jsonl", [{**row, "id": f"t{row['id']}", "prompt": f"t{row['id']}"} for row in rows])
    options = {"data": tmp_path / "data", "verifier": "unit_tests"}
    task = make_task("jsonl", **options)
    assert [problem.id for problem in task.train] == ["0"]
    assert len(task.test) == 3
    assert "2 of 3 training problems have weak tests and are left out: 1, 2" in caplog.text
    assert len(make_task("jsonl", **options, include_weak=True).train) == 3


def test_build_task_leaves_weak_problems_out_too() -> None:
    """With any pack that checks its references, and through `combine`."""
    problems = [
        Problem(str(i), f"p{i}", {"type": "assert", "code": f"assert f(2){w}"}) for i, w in enumerate((" == 4", ""))
    ]
    for verifier, options in (("unit_tests", {}), ("combine", {"parts": ("unit_tests",)})):
        made = build_task("mine", train=problems, test=[], verifier=verifier, verifier_options=options)
        assert [problem.id for problem in made.train] == ["0"]
        both = {"verifier": verifier, "verifier_options": options, "include_weak": True}
        assert len(build_task("mine", train=problems, test=[], **both).train) == 2
