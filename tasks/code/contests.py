"""Programming contests: APPS, TACO, CodeContests, LiveCodeBench. The verifier is `unit_tests`.

Tests are inputs and outputs, compared text by text with the tolerance that the statement names, or calls of a function.
Problems with several right answers need the contest's own judge, which is not published: they are left out and counted.
"""

from __future__ import annotations

import datetime
import json
import re
from pathlib import Path
from typing import Any, Literal

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.code import contest_tests
from rlvr.tasks.code.functions import ANSWER, code_problem
from rlvr.tasks.rows import Row
from rlvr.tasks.sources import Source, published, published_task, value

BOTH = {"train": "train", "test": "test"}
APPS = Source(hub="codeparrot/apps", licence="MIT", size="5,000 + 5,000", splits=BOTH)
TACO = Source(hub="BAAI/TACO", licence="Apache-2.0", size="25,443 + 1,000", splits=BOTH)
CODE_CONTESTS = Source(hub="deepmind/code_contests", licence="CC BY 4.0", size="13,328 + 117 + 165", splits=BOTH)
RELEASES = {f"release_v{n}": tuple(f"test{i if i > 1 else ''}.jsonl" for i in range(1, n + 1)) for n in range(1, 7)}
LIVE = Source(
    hub="livecodebench/code_generation_lite",
    revision="0fe84c3912ea0c4d4a78037083943e8f0c4dd505",
    licence="CC (the card names no variant)",
    size="400 (release_v1) to 1,055 (release_v6)",
)
GIVEN = ("public_tests", "private_tests")
EVERY = (*GIVEN, "generated_tests")
STDIO = "Read the input from stdin and write the answer to stdout."
SEVERAL, TALKS = "with several right answers (they need a judge)", "interactive"


def contest_prompt(statement: str, starter_code: str, called: str) -> str:
    """Return the statement, and how the program is called: `called` as it is, or through stdin where that is empty."""
    how = f"Complete this program:\n\n```python\n{starter_code.rstrip()}\n```" if called else STDIO
    if called and not starter_code.strip():
        how = f"Write {called}."
    return f"{statement.strip()}\n\n{how}\n\n{ANSWER}"


def contest_problem(
    name: str, statement: str, starter_code: str, reference: dict[str, Any] | str, **info: Any
) -> Problem | str:
    """Return a problem, or why there is none."""
    if not statement.strip():
        return "without a statement"
    if isinstance(reference, str):
        return reference
    if contest_tests.interactive(statement):
        return TALKS
    if contest_tests.several_answers(statement):
        return SEVERAL
    try:
        problem = code_problem(
            name, contest_prompt(statement, starter_code, contest_tests.called(reference)), reference
        )
    except ValueError:  # larger than what the verifier reads
        return "with unreadable references"
    weak = {"integrity": "weak"} if contest_tests.all_shown(reference, statement) else {}
    return Problem(problem.id, problem.prompt, reference, {**problem.info, **info, **weak})


def apps_reference(tests: Any, statement: str, starter_code: str, most: int | None) -> dict[str, Any] | str:
    """Return the reference of APPS's and TACO's `input_output`: {"inputs", "outputs"} and perhaps "fn_name"."""
    try:
        held = json.loads(tests) if isinstance(tests, str) else tests
    except (ValueError, RecursionError):
        return "with tests of another form"
    if not isinstance(held, dict) or not all(isinstance(held.get(key), list) for key in ("inputs", "outputs")):
        return "without tests" if not held else "with tests of another form"
    inputs, outputs = held["inputs"][:most], held["outputs"][:most]
    if not held.get("fn_name"):
        return contest_tests.stdio(inputs, outputs, statement)
    # Where all expected values are lists of one item, the lists are the data set's own.
    wrapped = all(isinstance(one, list) and len(one) == 1 for one in held["outputs"])
    whole = contest_tests.whole_keys  # as the data sets' own evaluation has it
    given = [[whole(one) for one in arguments] if isinstance(arguments, list) else arguments for arguments in inputs]
    expected = [whole(one[0] if wrapped else one) for one in outputs]
    reference = contest_tests.calls(str(held["fn_name"]), given, expected, statement)
    return reference if isinstance(reference, str) else contest_tests.in_class(reference, starter_code)


def _check(pack: str, max_tests: int | None, limit_factor: float | None) -> None:
    if max_tests is not None and max_tests < 1:
        raise ValueError(f"task {pack!r}, max_tests {max_tests}: expected at least 1")
    if limit_factor is not None and not 0 < limit_factor < float("inf"):
        raise ValueError(f"task {pack!r}, limit_factor {limit_factor}: expected a number above 0")


def own_limits(row: Row, factor: float | None) -> dict[str, Any]:
    """Return a problem's time and memory limits times the factor, as {"limits": ...}; {} where it names none.

    TACO writes "2.0 seconds" and "256.0 megabytes", CodeContests {"seconds": 2, "nanos": 0} and bytes.
    """
    if factor is None:
        return {}
    time, memory, found = row.get("time_limit"), row.get("memory_limit"), {}
    if isinstance(time, dict):
        found["seconds"] = (time.get("seconds") or 0) + (time.get("nanos") or 0) / 1e9
    elif isinstance(time, str) and (read := re.fullmatch(r"(\d+(?:\.\d+)?) seconds?", time.strip())):
        found["seconds"] = float(read[1])
    if isinstance(row.get("memory_limit_bytes"), int):
        found["memory_mb"] = row["memory_limit_bytes"] / 1e6
    elif isinstance(memory, str) and (read := re.fullmatch(r"(\d+(?:\.\d+)?) (mega|giga)bytes?", memory.strip())):
        found["memory_mb"] = float(read[1]) * (1000 if read[2] == "giga" else 1)
    limits = {name: round(factor * number, 3) for name, number in found.items() if number > 0}
    return {"limits": limits} if limits else {}


def _difficulty(row: Row, wanted: tuple[str, ...]) -> bool:
    return not wanted or str(row.get("difficulty", "")).casefold() in {name.casefold() for name in wanted}


def _apps_like(
    pack: str,
    source: Source,
    data: Path | None,
    difficulties: tuple[str, ...],
    max_tests: int | None,
    include_weak: bool,
    num_train: int | None,
    num_test: int | None,
    limit_factor: float | None = None,
) -> Task:
    _check(pack, max_tests, limit_factor)

    def convert(row: Row, where: str, name: str) -> Problem | str:
        if not _difficulty(row, difficulties):
            return "of other difficulties"
        statement, start = str(value(row, ["question"], where) or ""), str(row.get("starter_code") or "")
        reference = apps_reference(value(row, ["input_output"], where), statement, start, max_tests)
        limits = own_limits(row, limit_factor)
        return contest_problem(name, statement, start, reference, difficulty=row.get("difficulty", ""), **limits)

    return published_task(
        pack,
        source,
        data,
        convert,
        num_train=num_train,
        num_test=num_test,
        verifier="unit_tests",
        include_weak=include_weak,
    )


@register_task("apps")
@published(APPS)
def apps(
    *,
    data: Path | None = None,
    difficulties: tuple[str, ...] = (),
    max_tests: int | None = None,
    include_weak: bool = False,
    num_train: int | None = None,
    num_test: int | None = None,
) -> Task:
    """APPS: 10,000 programming problems of contests and exercises, half of them to train on.

    difficulties: of introductory, interview, competition; all unless given. max_tests: of each problem, the first ones.
    include_weak: also train on problems whose tests a program could pass that solves nothing.
    """
    return _apps_like("apps", APPS, data, difficulties, max_tests, include_weak, num_train, num_test)


@register_task("taco")
@published(TACO)
def taco(
    *,
    data: Path | None = None,
    difficulties: tuple[str, ...] = (),
    max_tests: int | None = None,
    limit_factor: float | None = None,
    include_weak: bool = False,
    num_train: int | None = None,
    num_test: int | None = None,
) -> Task:
    """TACO: 26,443 programming problems of contests, 1,000 of them held out.

    difficulties: of EASY, MEDIUM, MEDIUM_HARD, HARD, VERY_HARD; all unless given. max_tests, include_weak: as of apps.
    limit_factor: each problem's own time and memory limit, times this, where it is below the verifier's.
    """
    return _apps_like("taco", TACO, data, difficulties, max_tests, include_weak, num_train, num_test, limit_factor)


@register_task("code_contests")
@published(CODE_CONTESTS)
def code_contests(
    *,
    data: Path | None = None,
    tests: Literal["given", "all"] = "given",
    max_tests: int | None = None,
    limit_factor: float | None = None,
    include_weak: bool = False,
    num_train: int | None = None,
    num_test: int | None = None,
) -> Task:
    """CodeContests: problems of Codeforces, AtCoder and others, 165 of them held out.

    tests: "given" are the public and the private ones, "all" also those that the data set's authors generated; these
    are used too where the given ones are the statement's examples only. limit_factor: each problem's own time and
    memory limit, times this, where it is below the verifier's.
    """
    _check("code_contests", max_tests, limit_factor)

    def convert(row: Row, where: str, name: str) -> Problem | str:
        statement = str(value(row, ["description"], where) or "")
        if "<image>" in statement:
            return "with pictures"
        if any(row.get(name) for name in ("input_file", "output_file")):
            return "that read or write files"
        reference = _reference(row, where, statement, GIVEN if tests == "given" else EVERY, max_tests)
        if not isinstance(reference, str) and contest_tests.all_shown(reference, statement):
            reference = _reference(row, where, statement, EVERY, max_tests)
        return contest_problem(name, statement, "", reference, **own_limits(row, limit_factor))

    return published_task(
        "code_contests",
        CODE_CONTESTS,
        data,
        convert,
        num_train=num_train,
        num_test=num_test,
        verifier="unit_tests",
        include_weak=include_weak,
    )


def _reference(row: Row, where: str, statement: str, parts: tuple[str, ...], most: int | None) -> dict[str, Any] | str:
    inputs: list[Any] = []
    outputs: list[Any] = []
    for part in parts:
        held = value(row, [part], where) or {}
        inputs += held.get("input") or []
        outputs += held.get("output") or []
    return contest_tests.stdio(inputs[:most], outputs[:most], statement)


@register_task("livecodebench")
@published(LIVE)
def livecodebench(
    *,
    data: Path | None = None,
    release: Literal["release_v1", "release_v2", "release_v3", "release_v4", "release_v5", "release_v6"] = "release_v6",
    after: str = "",
    before: str = "",
    num_test: int | None = None,
) -> Task:
    """LiveCodeBench: contest problems of LeetCode, AtCoder and Codeforces by their date; test only.

    release: the problems up to this one of the hub's releases. after, before: contest dates as 2024-08-01, the first
    counted in and the second not, so that a model is measured on problems from after its training.
    """
    first_day, last_day = _day(after, "after"), _day(before, "before")
    source = Source(**{**vars(LIVE), "files": {"test": RELEASES[release]}})

    def convert(row: Row, where: str, name: str) -> Problem | str:
        day = str(value(row, ["contest_date"], where) or "")[:10]
        if (first_day or last_day) and not day:
            return "without a date"
        if (first_day and day < first_day) or (last_day and day >= last_day):
            return "of other dates"
        statement, start = str(value(row, ["question_content"], where) or ""), str(row.get("starter_code") or "")
        reference = live_reference(row, where, statement, start)
        return contest_problem(
            f"livecodebench/{value(row, ['question_id'], where)}",
            statement,
            start,
            reference,
            date=day,
            platform=row.get("platform", ""),
        )

    return published_task("livecodebench", source, data, convert, num_test=num_test, verifier="unit_tests")


def live_reference(row: Row, where: str, statement: str, starter_code: str) -> dict[str, Any] | str:
    """Return the reference of a row of LiveCodeBench: its public and its private tests."""
    tests: list[dict[str, Any]] = []
    for column in ("public_test_cases", "private_test_cases"):
        tests += contest_tests.unpacked(str(value(row, [column], where) or "[]"), where)
    if not any(test.get("testtype") == "functional" for test in tests):
        return contest_tests.stdio([t["input"] for t in tests], [t["output"] for t in tests], statement)
    metadata = row.get("metadata") or "{}"
    try:
        entry = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("func_name", "")
        arguments = [[json.loads(line) for line in t["input"].split("\n") if line.strip()] for t in tests]
        expected = [json.loads(t["output"]) for t in tests]
    except (ValueError, AttributeError):
        return "with tests of another form"
    reference = contest_tests.calls(str(entry), arguments, expected, statement)
    return reference if isinstance(reference, str) else contest_tests.in_class(reference, starter_code)


def _day(text: str, option: str) -> str:
    if not text:
        return ""
    try:
        return datetime.date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError(f"task 'livecodebench', {option} {text!r}: expected a date as 2024-08-01") from None
