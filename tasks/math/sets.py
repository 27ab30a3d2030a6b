"""Math word problems and competitions, from the hub or from local files in the data set's own format.

Each pack reads the set's own columns, asks for the answer in a box, and is verified by `math`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import BOXED, build_task
from rlvr.tasks.rows import Row, column, first, read_split
from rlvr.tasks.sources import Source, published

GSM8K = Source(
    hub="openai/gsm8k",
    revision="740312add88f781978c0658806c59bc2815b9866",
    licence="MIT",
    size="7,473 + 1,319",
    configs=("main",),
    splits={"train": "train", "test": "test"},
)
MATH_500 = Source(
    hub="HuggingFaceH4/MATH-500",
    revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
    licence="MIT",
    size="500 of MATH's test problems",
)
SVAMP = Source(hub="ChilleD/SVAMP", licence="MIT", size="1,000", splits={"test": "train+test"})
AIME_24 = Source(hub="HuggingFaceH4/aime_2024", licence="not stated", size="30", splits={"test": "train"})

Convert = Callable[[Row, str], tuple[str, str]]


def boxed_prompt(question: str) -> str:
    """Return a question with the instruction to box the answer, unless it has it."""
    question = question.strip()
    return question if question.endswith(BOXED) else f"{question}\n{BOXED}"


def from_gsm8k(row: Row, where: str) -> tuple[str, str]:
    """Return the question, and the number after `####` without its thousands separators."""
    solution = str(column(row, ["answer"], where))
    _, marker, answer = solution.rpartition("####")
    if not marker or not answer.strip():
        raise ValueError(f"{where}: the answer does not end in '#### NUMBER': {solution[-60:]!r}")
    return str(column(row, ["question"], where)), answer.strip().replace(",", "")


def from_competition(row: Row, where: str) -> tuple[str, str]:
    """Return problem and answer unchanged (MATH-500, AIME)."""
    return str(column(row, ["problem", "prompt", "question"], where)), str(column(row, ["answer"], where))


def from_svamp(row: Row, where: str) -> tuple[str, str]:
    """Return body and question as one text; the answer, stored as a float, as an exact number."""
    body = str(column(row, ["Body"], where)).strip()
    # a few bodies lack their full stop, and some run on into the question after a comma
    text = body if body.endswith((".", ",", "?", "!")) else f"{body}."
    answer = column(row, ["Answer"], where)
    try:
        number = float(answer)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: the answer {answer!r} is not a number") from error
    return f"{text} {column(row, ['Question'], where)}", str(int(number)) if number.is_integer() else str(number)


def problems(name: str, split: str, rows: list[Row], convert: Convert) -> list[Problem]:
    """Return the rows of a split as problems; errors name the row by its number from 1."""
    made = []
    for index, row in enumerate(rows):
        question, answer = convert(row, f"{name} {split}, row {index + 1}")
        made.append(Problem(f"{name}/{split}/{index}", boxed_prompt(question), answer))
    return made


def evaluation_task(name: str, data: Path | None, num_test: int | None, source: Source, convert: Convert) -> Task:
    """Build a pack that has a test split only."""
    rows = list(source.rows(data, "test"))
    return build_task(name, train=(), test=problems(name, "test", first(rows, num_test, "num_test"), convert))


@register_task("gsm8k")
@published(GSM8K)
def gsm8k(*, data: Path | None = None, num_train: int | None = None, num_test: int | None = None) -> Task:
    """Grade-school word problems with whole-number answers: 7,473 to train on, 1,319 to test.

    `math` asks for answers that are evaluated (unevaluated=reject), as wherever all references are numbers.
    """
    splits = {}
    for split, limit in (("train", num_train), ("test", num_test)):
        rows = list(GSM8K.rows(None, split)) if data is None else read_split(Path(data), split, alone=False)
        splits[split] = problems("gsm8k", split, first(rows, limit, f"num_{split}"), from_gsm8k)
    return build_task("gsm8k", train=splits["train"], test=splits["test"])


@register_task("math500")
@published(MATH_500)
def math500(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """MATH-500: 500 competition problems with LaTeX answers; test only."""
    return evaluation_task("math500", data, num_test, MATH_500, from_competition)


@register_task("svamp")
@published(SVAMP)
def svamp(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """SVAMP: 1,000 one-step word problems with distracting numbers; test only.

    `math` asks for answers that are evaluated (unevaluated=reject), as wherever all references are numbers.
    """
    return evaluation_task("svamp", data, num_test, SVAMP, from_svamp)


@register_task("aime24")
@published(AIME_24)
def aime24(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """AIME 2024: 30 olympiad-level problems with answers from 0 to 999; test only."""
    return evaluation_task("aime24", data, num_test, AIME_24, from_competition)
