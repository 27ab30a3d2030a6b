"""HumanEval and MBPP, and their versions with more tests by EvalPlus (arXiv:2305.01210), from the hub or local files.

A model sees the task and at most some of its tests; the others stay in the reference. The verifier is `unit_tests`.
Problems whose tests cannot be secured against a cheating program are marked (`integrity: weak`). Those of MBPP are left
out of training unless `include_weak` is set.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlvr.core.types import Problem, Task
from rlvr.verifiers.unit_tests import integrity

from ..base import build_task, normalize_prompt
from ..sources import SOURCES, Row, column, published_task, read_file, register_published, stream_hub

ANSWER = "Answer with the whole program, imports included, in one ```python block."
# By task_id, as the data set's authors divide it (arXiv:2108.07732, section 2.1). 1-10 are few-shot examples,
# 511-600 are for validation.
MBPP_TEST = range(11, 511)
MBPP_TRAIN = range(601, 975)
EVERY_MBPP_SPLIT = "train+test+validation+prompt"


def humaneval_reference(row: Row) -> dict[str, Any]:
    """Return the reference of a HumanEval row; `prelude` holds what the prompt defines besides the function."""
    reference = {"type": "check", "entry": row["entry_point"], "code": row["test"]}
    prelude = _prelude_of(row["prompt"], row["entry_point"])
    return {**reference, "prelude": prelude} if prelude else reference


def _prelude_of(prompt: str, entry: str) -> str:
    """Return the imports and helper functions of a HumanEval prompt, without the function to write."""
    try:
        tree = ast.parse(prompt + "\n    pass\n")
    except SyntaxError as error:
        raise ValueError(f"the prompt is not Python that ends with a function: {error}") from error
    kept = [s for s in tree.body if not (isinstance(s, ast.FunctionDef) and s.name == entry)]
    return "\n".join(ast.unparse(statement) for statement in kept)


def mbpp_reference(row: Row) -> dict[str, Any]:
    """Return all tests of an MBPP row (full or sanitized), after the imports or set-up code that they need."""
    before = [*(row.get("test_imports") or []), row.get("test_setup_code") or ""]
    return {"type": "assert", "code": "\n".join([*(part for part in before if part.strip()), *row["test_list"]])}


def mbpp_prompt(row: Row, visible_tests: int) -> str:
    """Return the task in words and the first tests; of several tests at least one stays hidden."""
    words = str(column(row, ["text", "prompt"], f"mbpp {row.get('task_id')}")).strip()
    tests = row["test_list"]
    shown = "\n".join(tests[: max(1, min(visible_tests, len(tests) - 1))])
    return f"{words}\nYour program must pass tests like this:\n\n```python\n{shown}\n```\n\n{ANSWER}"


def code_problem(name: str, prompt: str, reference: dict[str, Any], **info: str) -> Problem:
    """Return a problem with the integrity of its tests in `info`."""
    return Problem(name, prompt, reference, {"integrity": integrity(reference), **info})


def unseen(train: Iterable[Row], test: Sequence[Row]) -> list[Row]:
    """Return the training rows without those whose text is that of a test row (the full set has three)."""

    def text(row: Row) -> str:
        return normalize_prompt(str(column(row, ["text", "prompt"], "mbpp")))

    held_out = {text(row) for row in test}
    return [row for row in train if text(row) not in held_out]


def authors_rows(data: Path, file: str) -> list[Row]:
    """Return the rows of a local file, or of the file of that name in a folder."""
    path = data if data.is_file() else data / file
    if not path.is_file():
        raise FileNotFoundError(f"{data}: no such file, and no folder with {file}")
    return read_file(path)


def check_columns(row: Row, columns: Sequence[str], where: str) -> None:
    missing = [name for name in columns if name not in row]
    if missing:
        raise ValueError(f"{where}: no {', '.join(missing)}; its columns are {', '.join(row)}")


def check_visible(pack: str, visible_tests: int) -> None:
    """Raise ValueError unless a prompt shows a test."""
    if visible_tests < 1:
        raise ValueError(f"task {pack!r}, visible_tests {visible_tests}: expected at least 1: it names the function")


def humaneval_problem(row: Row, where: str, name: str = "") -> Problem:
    """Return a row as a problem. `prefix` is put before an answer that is only the function's body."""
    check_columns(row, ("task_id", "prompt", "entry_point", "test"), where)
    prompt = f"Complete this Python program.\n\n```python\n{row['prompt'].strip()}\n```\n\n{ANSWER}"
    return code_problem(str(row["task_id"]), prompt, humaneval_reference(row), prefix=row["prompt"])


@register_published("humaneval")
def humaneval(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """HumanEval: 164 Python functions to complete from a docstring, checked by hidden tests; test only."""
    return published_task("humaneval", data, humaneval_problem, num_test=num_test, verifier="unit_tests")


@register_published("humaneval_plus")
def humaneval_plus(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """HumanEval+: the 164 functions of HumanEval with about 80 times as many tests; test only."""
    return published_task("humaneval_plus", data, humaneval_problem, num_test=num_test, verifier="unit_tests")


@register_published("mbpp")
def mbpp(
    *,
    data: Path | None = None,
    sanitized: bool = False,
    visible_tests: int = 1,
    include_weak: bool = False,
    num_train: int | None = None,
    num_test: int | None = None,
) -> Task:
    """MBPP: small Python tasks in words with tests, of which one is shown: 374 to train on, 500 to test.

    sanitized: the 427 problems that were checked by hand. visible_tests: how many tests the prompt shows (at least one,
    which gives the function's name). include_weak: also train on problems whose tests cannot be secured.
    """
    check_visible("mbpp", visible_tests)
    hub = (SOURCES["mbpp"].hub, "sanitized" if sanitized else "full", EVERY_MBPP_SPLIT)
    file = "sanitized-mbpp.json" if sanitized else "mbpp.jsonl"
    rows = list(stream_hub(*hub)) if data is None else authors_rows(Path(data), file)
    for number, row in enumerate(rows, 1):
        check_columns(row, ("task_id", "test_list"), f"mbpp, row {number}")
    test = [row for row in rows if row["task_id"] in MBPP_TEST]
    train = unseen((row for row in rows if row["task_id"] in MBPP_TRAIN), test)

    def problems(rows: Iterable[Row]) -> list[Problem]:
        return [
            code_problem(f"mbpp/{row['task_id']}", mbpp_prompt(row, visible_tests), mbpp_reference(row)) for row in rows
        ]

    shown = [problem for problem in problems(train) if include_weak or problem.info["integrity"] != "weak"]
    return build_task(
        "mbpp",
        train=shown[:num_train],
        test=problems(test)[:num_test],
        verifier="unit_tests",
        include_weak=True,  # the weak ones are out already
    )


@register_published("mbpp_plus")
def mbpp_plus(*, data: Path | None = None, visible_tests: int = 1, num_test: int | None = None) -> Task:
    """MBPP+: 378 problems of MBPP with about 35 times as many tests, of which the prompt shows one; test only."""
    check_visible("mbpp_plus", visible_tests)

    def convert(row: Row, where: str, name: str) -> Problem | str:
        check_columns(row, ("task_id", "prompt", "test_list", "test"), where)
        reference = {"type": "assert", "code": row["test"]}
        return code_problem(f"mbpp_plus/{row['task_id']}", mbpp_prompt(row, visible_tests), reference)

    return published_task("mbpp_plus", data, convert, num_test=num_test, verifier="unit_tests")
