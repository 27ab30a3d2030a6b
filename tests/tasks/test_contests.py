"""Packs of contests and EvalPlus: tests as published, unpacked without trust, run within their limits."""

from __future__ import annotations

import base64
import json
import logging
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from rlvr.commands.audit import main as audit
from rlvr.core.registry import make_task, make_verifier
from rlvr.core.types import Problem, Status, Task
from rlvr.sandbox import Limits, level
from rlvr.tasks.published.contests import has_several_answers, tolerance_of, unpack_tests
from rlvr.verifiers.code.equality import is_same_value
from rlvr.verifiers.runner import Runner
from rlvr.verifiers.unit_tests import LEAST_MEMORY, lower_limits
from tests.helpers.files import GOLDEN, cases, lines

PUBLISHED = GOLDEN / "published"
SANDBOX = pytest.mark.skipif(level().number < 2, reason="no sandbox of level 2 on this machine")
PROGRAMS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {}
"""By pack: its split, and by a word of the problem's prompt programs that are right and wrong."""
for row in lines(GOLDEN / "contest_programs.jsonl"):
    PROGRAMS.setdefault(row["pack"], (row["split"], {}))[1][row["prompt"]] = row["right"], row["wrong"]


def copy_of(name: str, folder: Path, split: str) -> Path:
    path = folder / f"{split}.jsonl"
    path.write_text((PUBLISHED / f"{name}.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
    return path


def judge_programs(
    task: Task, programs: dict[str, tuple[str, str]], split: str
) -> tuple[list[bool], list[bool], list[str]]:
    problems = list(task.train if split == "train" else task.test)
    chosen = [(next(p for p in problems if word in str(p.prompt)), pair) for word, pair in programs.items()]
    with Runner(task.verifier, workers=1) as runner:
        right = runner.verify([(p, f"```python\n{pair[0]}\n```") for p, pair in chosen])
        wrong = runner.verify([(p, f"```python\n{pair[1]}\n```") for p, pair in chosen])
    reasons = [verdict.reason for verdict in right]
    return [v.correct for v in right], [v.correct for v in wrong], reasons


@SANDBOX
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_programs_are_graded(name: str, tmp_path: Path) -> None:
    """Right programs pass, programs that are wrong in a case do not."""
    split, programs = PROGRAMS[name]
    options = {"include_weak": True} if split == "train" else {}
    task = make_task(name, data=copy_of(name, tmp_path, split), **options)
    right, wrong, reasons = judge_programs(task, programs, split)
    assert right == [True] * len(programs), reasons
    assert wrong == [False] * len(programs)


@SANDBOX
@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_audits_pass(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No null program passes a problem that is trained on."""
    split = PROGRAMS[name][0]
    assert audit([name, "--data", str(copy_of(name, tmp_path, split)), "--workers", "1"]) == 0, capsys.readouterr().out


def test_problems_that_need_a_judge_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two of six problems accept several outputs; the log counts them."""
    with caplog.at_level(logging.WARNING):
        task = make_task("code_contests", data=copy_of("code_contests", tmp_path, "train"), include_weak=True)
    assert len(task.train) == 4
    assert "2 with several right answers (they need a judge)" in caplog.text
    assert all(problem.reference["compare"] == "tokens" for problem in task.train)


@pytest.mark.parametrize(("statement", "several"), cases("several_answers"))
def test_statements_with_several_answers(statement: str, several: bool) -> None:
    """Told from the words of the statement."""
    assert has_several_answers(statement) is several


@pytest.mark.parametrize(("statement", "tolerance"), cases("tolerances"))
def test_tolerances_are_those_of_the_statement(statement: str, tolerance: float) -> None:
    """And there is none where it names none."""
    assert tolerance_of(statement) == pytest.approx(tolerance)


def apps(folder: Path, *rows: tuple[str, dict[str, object]], start: str = "", **options: object) -> Task:
    """Return the pack of rows with a statement and tests each."""
    path = folder / "train.jsonl"
    path.write_text(
        "".join(
            json.dumps({"question": text, "input_output": json.dumps(tests), "starter_code": start}) + "\n"
            for text, tests in rows
        )
    )
    return make_task("apps", data=path, **options)


DOUBLE = {"fn_name": "double", "inputs": [[1], [2], [30]], "outputs": [[2], [4], [60]]}


@pytest.mark.parametrize(
    ("pack", "start", "words"),
    [
        ("apps", "", "Write a function `double`."),
        ("taco", "", "Write a function `double`."),
        ("apps", "def double(x):\n\t", "Complete this program:\n\n```python\ndef double(x):"),
        ("taco", "class Solution:\n    def double(self, x):\n", "class Solution:"),
    ],
)
def test_the_prompt_names_what_the_tests_call(pack: str, start: str, words: str, tmp_path: Path) -> None:
    """Also where there is no code to begin with; an answer under another name could not be right."""
    row = {"question": "Return twice x.", "input_output": json.dumps(DOUBLE), "starter_code": start}
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row))
    assert words in str(make_task(pack, data=path).train[0].prompt)


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (lambda n: [n / 3], True),
        (lambda n: [round(n / 3, 5)], True),
        (lambda n: [n / 3 + 1e-4], False),
        (lambda n: n / 3, False),
    ],
)
def test_floats_that_are_published_with_few_digits(
    answer: Callable[[int], object], right: bool, tmp_path: Path
) -> None:
    """A call may differ by what the statement allows. Whether values are wrapped is told from all tests."""
    tests = {"fn_name": "f", "inputs": [[1], [2], [4]], "outputs": [[[0.33333]], [[0.66667]], [[1.33333]]]}
    text = "Return a list. Answers within 10^-5 of the actual answer will be accepted."
    (problem,) = apps(tmp_path, (text, tests), max_tests=2).train
    allowed = problem.reference["tolerance"]
    assert allowed == 1e-5
    cases = problem.reference["cases"]
    assert [is_same_value(answer(*case["args"]), case["expected"], allowed) for case in cases] == [right] * 2


SHOWN = [
    (
        "-----Examples-----\nInput\n3\n1 2 3\n\nOutput\n6\n\n-----Note-----",
        {"inputs": ["3\n1 2 3\n"], "outputs": ["6\n"]},
    ),
    ("-----Sample Input 1-----\n10\n\n-----Sample Output 1-----\n8\n", {"inputs": ["10"], "outputs": ["8"]}),
    ("f(2) == 4, and f([1, 'a']) is 'b'", {"fn_name": "f", "inputs": [[2], [[1, "a"]]], "outputs": [[4], ["b"]]}),
    ("Input: s = 'aa', p = 'a'\nOutput: false", {"fn_name": "f", "inputs": [["aa", "a"]], "outputs": [False]}),
]


@pytest.mark.parametrize(("statement", "tests"), SHOWN, ids=["APPS", "AtCoder", "a function", "LeetCode"])
def test_tests_that_the_statement_shows_are_weak(
    statement: str, tests: dict[str, list[object]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A program may know them by heart: not trained on, unless there is one more that the statement does not show."""
    more = {**tests, "inputs": [*tests["inputs"], ["77"] if "fn_name" in tests else "77"]}
    more["outputs"] = [*tests["outputs"], ["99"] if "fn_name" in tests else "99"]
    other = ("Another one.\n" + statement, more)
    with caplog.at_level(logging.WARNING):
        task = apps(tmp_path, (statement, tests), other)
    assert [p.id for p in task.train] == ["apps/train/1"]
    assert "1 of 2 training problems have weak tests and are left out: apps/train/0" in caplog.text
    whole = apps(tmp_path, (statement, tests), other, include_weak=True)
    assert [p.info["integrity"] for p in whole.train] == ["weak", "strong"]


@pytest.mark.parametrize(("private", "cases"), [([], 3), (["9 9\n"], 2), (["1 2\n"], 4)])
def test_generated_tests_replace_tests_that_are_shown(private: list[str], cases: int, tmp_path: Path) -> None:
    """Where the given tests are the examples of the statement only."""

    def tests(inputs: list[str]) -> dict[str, list[str]]:
        return {"input": inputs, "output": [f"{sum(map(int, text.split()))}\n" for text in inputs]}

    row = {
        "description": "Sum.\n\nExamples\n\nInput\n\n\n1 2\n\n\nOutput\n\n\n3",
        "public_tests": tests(["1 2\n"]),
        "private_tests": tests(private),
        "generated_tests": tests(["5 6\n", "70 8\n"]),
    }
    path = tmp_path / "train.jsonl"
    path.write_text(json.dumps(row))
    assert [len(p.reference["cases"]) for p in make_task("code_contests", data=path).train] == [cases]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"1": "a", "-20": "b"}, {1: "a", -20: "b"}),
        ({"1": "a", "b": 2}, {"1": "a", "b": 2}),
        ({"1.5": 0}, {"1.5": 0}),
        ({}, {}),
        ([{"1": 2}], [{"1": 2}]),
    ],
)
def test_keys_that_json_made_text_of(given: object, read: object, tmp_path: Path) -> None:
    """Whole numbers again, if all of them are: of an argument and of a value."""
    tests = {"fn_name": "f", "inputs": [[given, 1], [5, 6]], "outputs": [[given], [7]]}
    task = apps(tmp_path, ("Do it.", tests), include_weak=True)
    case = task.train[0].reference["cases"][0]
    assert case["args"] == [read, 1]
    assert case["expected"] == read


def pack_tests(value: object) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()


class Hostile:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (self.path,)  # type: ignore[return-value]


def test_private_tests_are_unpacked_without_trust(tmp_path: Path) -> None:
    """Text is; what asks for a function, is no text, or is damaged, is refused, and nothing is called."""
    tests = [{"input": "1", "output": "2", "testtype": "stdin"}]
    assert unpack_tests(pack_tests(json.dumps(tests)), "row 1") == tests
    assert unpack_tests(json.dumps(tests), "row 1") == tests
    canary = tmp_path / "canary"
    for bad, message in (
        (pack_tests(Hostile(canary)), "the pickle asks for"),
        (pack_tests(tests), "a list, pickled"),
        (pack_tests(json.dumps({"input": 1})), "tests of another form"),
        (pack_tests(json.dumps([{"input": 1, "output": 2}])), "tests of another form"),
        ("not base64!", "cannot be unpacked"),
        (base64.b64encode(b"not zlib").decode(), "cannot be unpacked"),
        (base64.b64encode(zlib.compress(b"\x80\x04garbage")).decode(), "cannot be unpacked"),
        (pack_tests("not json"), "no JSON"),
    ):
        with pytest.raises(ValueError, match=message) as raised:
            unpack_tests(bad, "row 7")
        assert str(raised.value).startswith("row 7")
    assert not canary.exists()


def test_release_windows(tmp_path: Path) -> None:
    """The first day counts, the last does not."""
    data = copy_of("livecodebench", tmp_path, "test")
    rows = {row["question_id"]: row["contest_date"][:10] for row in lines(data)}
    assert sorted(rows.values()) == ["2023-08-21", "2023-09-30", "2024-09-07"]

    def ids(**options: str) -> set[str]:
        return {problem.id.partition("/")[2] for problem in make_task("livecodebench", data=data, **options).test}

    assert ids(after="2023-09-30") == {"3044", "abc999_a"}
    assert ids(before="2023-09-30") == {"1873_A"}
    assert ids(after="2023-08-22", before="2024-09-07") == {"3044"}


@pytest.mark.parametrize(
    ("own", "seconds", "memory"),
    [
        ({}, 10.0, 1024),
        ({"seconds": 2.5}, 2.5, 1024),
        ({"seconds": 60, "memory_mb": 1e5}, 10.0, 1024),
        ({"memory_mb": 511.5}, 10.0, 512),
        ({"memory_mb": 16}, 10.0, LEAST_MEMORY),
    ],
)
def test_a_problems_limits_lower_the_verifiers(own: dict, seconds: float, memory: int) -> None:
    """They never raise them; an interpreter needs some memory itself."""
    found = lower_limits(Limits(seconds=10.0, memory_mb=1024), own)
    assert (found.seconds, found.memory_mb) == (seconds, memory)


BAD_LIMITS = ({"second": 1}, {"seconds": 0}, {"seconds": True}, {"memory_mb": "64"}, 3, {"seconds": float("nan")})


@pytest.mark.parametrize("own", BAD_LIMITS)
def test_limits_that_are_none_are_bad_references(own: object) -> None:
    """A verdict without a score that says what is expected."""
    reference = {"type": "stdio", "cases": [{"input": "1", "output": "1"}]}
    verdict = make_verifier("unit_tests")(Problem("p", "?", reference, {"limits": own}), "print(input())")
    assert verdict.status is Status.BAD_REFERENCE
    assert "limits" in verdict.reason


@SANDBOX
def test_a_slow_program_ends_at_the_problems_limit() -> None:
    """One that sleeps passes within the verifier's time, and not within the problem's; memory likewise."""
    cases = [{"input": "1", "output": "1"}]
    program = "import time\ntime.sleep(1.5)\nx = bytearray(300_000_000)\nprint(input())"
    verifier = make_verifier("unit_tests", timeout=20.0, slots=1)
    limits = ({}, {"seconds": 0.5}, {"memory_mb": 256})
    reference = {"type": "stdio", "cases": cases}
    problems = [Problem(f"p{i}", "?", reference, {"limits": own}) for i, own in enumerate(limits)]
    verdicts = verifier.verify_batch([(problem, program) for problem in problems])
    verifier.close()
    assert [verdict.status for verdict in verdicts] == [Status.CORRECT, Status.TIMEOUT, Status.LIMIT]
