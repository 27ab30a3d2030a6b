"""Mathematics to train on: MATH, DAPO-Math-17k, DeepScaleR, Big-Math, OpenR1-Math.

Each pack reads the columns as they are published, asks for the answer in a box, and is verified by `math`. Rows that
cannot be used are left out and counted (see `usable`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rlvr.core.registry import make_verifier, register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.base import build_task
from rlvr.tasks.jsonl import to_prompt
from rlvr.tasks.math.sets import MATH_500, boxed_prompt
from rlvr.tasks.rows import Row, find_split, first, stream
from rlvr.tasks.sources import Convert, Source, converted, published, published_task, usable, value
from rlvr.verifiers.extract import boxes

SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
MATH = Source(
    hub="EleutherAI/hendrycks_math",
    revision="21a5633873b6a120296cce3e2df9d5550074f4a3",
    licence="MIT",
    size="7,500 + 5,000",
    configs=SUBJECTS,
    splits={"train": "train", "test": "test"},
)
DAPO = Source(
    hub="BytedTsinghua-SIA/DAPO-Math-17k",
    revision="65877096c24ffa7abc4e4fa5edb95cf3413a5674",
    licence="Apache-2.0",
    size="1,791,700 rows, about 17,400 different problems",
    splits={"train": "train"},
)
DEEPSCALER = Source(
    hub="agentica-org/DeepScaleR-Preview-Dataset", licence="MIT", size="40,315", splits={"train": "train"}
)
BIG_MATH = Source(
    hub="SynthLabsAI/Big-Math-RL-Verified", licence="Apache-2.0", size="251,122", splits={"train": "train"}
)
OPENR1 = Source(
    hub="open-r1/OpenR1-Math-220k",
    revision="e4e141ec9dea9f8326f4d347be56105859b2bd68",
    licence="Apache-2.0",
    size="93,733 (default), 131,396 (extended)",
    splits={"train": "train"},
)
DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
# What stands in the place of an answer where there is none to compare.
NO_ANSWERS = frozenset(("proof", "not found", "none", "notfound"))
NO_ANSWER = "without an answer"


def boxed_answer(solution: str) -> str | None:
    """Return the content of the last box of a solution; None where it has none."""
    found = boxes(solution)
    return found[-1].text.strip() if found and found[-1].text.strip() else None


def math_problem(name: str, question: Any, answer: Any, **info: Any) -> Problem | str:
    """Return a problem that asks for the answer in a box, or why the row has none."""
    if not isinstance(question, str) or not question.strip():
        return "without a question"
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return NO_ANSWER if answer is None else "with an answer that is neither text nor a number"
    if str(answer).strip().casefold() in NO_ANSWERS or not str(answer).strip():
        return NO_ANSWER
    return Problem(name, boxed_prompt(question), str(answer).strip(), info)


def from_solution(row: Row, where: str, name: str) -> Problem | str:
    """Return a row of MATH as a problem: the answer is the last box of its solution."""
    answer = row.get("answer") or boxed_answer(str(value(row, ["solution"], where) or ""))
    return math_problem(name, value(row, ["problem"], where), answer, level=_level(row), type=row.get("type", ""))


def _level(row: Row) -> int:
    digits = str(row.get("level", "")).removeprefix("Level ").strip()
    return int(digits) if digits.isdecimal() else 0


@register_task("hendrycks_math")
@published(MATH, MATH_500)
def hendrycks_math(
    *,
    data: Path | None = None,
    problems: Literal["7500", "12000"] = "7500",
    levels: tuple[int, ...] = (1, 2, 3, 4, 5),
    num_train: int | None = None,
    num_test: int | None = None,
) -> Task:
    """MATH: competition problems with LaTeX answers, 7,500 or 12,000 to train on; MATH-500 is held out.

    problems: 12000 adds the test problems that are not in MATH-500. levels: of difficulty that are trained on.
    data: a folder with train.*, test.* (for 12000) and math500.* in the columns of the hub; without math500.* all of
    test.* is held out.
    """
    unknown = [level for level in levels if level not in range(1, 6)]
    if unknown or not levels:
        raise ValueError(f"task 'hendrycks_math', levels {','.join(map(str, levels))}: expected some of 1 to 5")
    for name, number in (("num_train", num_train), ("num_test", num_test)):
        first([], number, name)
    judge = make_verifier("math")
    whole, rest = _math_rows(data, "test", problems)
    held = usable("hendrycks_math", "test", converted("math500", "test", whole, _math(())), judge)
    made = converted("hendrycks_math", "train", _math_rows(data, "train", problems)[0], _math(levels))
    more = converted("hendrycks_math", "test", rest, _math(levels))
    train = usable("hendrycks_math", "train", (item for part in (made, more) for item in part), judge, held)
    return build_task("hendrycks_math", train=train[:num_train], test=held[:num_test], check_references=False)


def _math(levels: tuple[int, ...]) -> Convert:
    def convert(row: Row, where: str, name: str) -> Problem | str:
        problem = from_solution(row, where, name)
        if levels and isinstance(problem, Problem) and problem.info["level"] not in (*levels, 0):
            return "of other levels"
        return problem

    return convert


def _math_rows(data: Path | None, split: str, problems: str) -> tuple[Iterator[Row], Iterator[Row]]:
    """Return the rows of a split, and for the test split those that are to be trained on too.

    For 12000 these hold MATH-500, which `usable` leaves out again.
    """
    wants = split == "test" and problems == "12000"
    if data is None:
        if split == "train":
            return MATH.rows(None, "train"), iter(())
        return MATH_500.rows(None, "test"), MATH.rows(None, "test") if wants else iter(())
    if split == "train":
        return MATH.rows(data, "train"), iter(())
    held = [row for path in find_split(Path(data), "math500") for row in stream(path)] if Path(data).is_dir() else []
    if wants and not held:
        raise FileNotFoundError(f"{data}: no math500 file, which is held out; expected a folder with math500.jsonl")
    if not held:
        return MATH.rows(data, "test"), iter(())
    return iter(held), MATH.rows(data, "test") if wants else iter(())


@register_task("dapo_math")
@published(DAPO)
def dapo_math(
    *, data: Path | None = None, prompt: Literal["boxed", "published"] = "boxed", num_train: int | None = None
) -> Task:
    """DAPO-Math-17k: competition problems with whole-number answers; to train on only.

    The published file holds each problem about a hundred times; repetitions are left out. prompt: "boxed" asks for a
    box in the place of the published instructions ("Answer: ..." on the last line), "published" keeps these.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        messages, reward = value(row, ["prompt"], where), value(row, ["reward_model"], where)
        answer = reward.get("ground_truth") if isinstance(reward, dict) else None
        if messages is None:
            return "without a question"
        chat = to_prompt(messages, where)
        text = chat if isinstance(chat, str) else chat[-1]["content"]
        made = math_problem(name, text.removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX), answer)
        return made if isinstance(made, str) or prompt == "boxed" else Problem(made.id, chat, made.reference)

    return published_task("dapo_math", DAPO, data, convert, num_train=num_train)


@register_task("deepscaler")
@published(DEEPSCALER)
def deepscaler(*, data: Path | None = None, num_train: int | None = None) -> Task:
    """DeepScaleR: competition problems of AIME, AMC, Omni-MATH and STILL with LaTeX answers; to train on only."""

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question, answer = value(row, ["problem"], where), value(row, ["answer"], where)
        return math_problem(name, question, answer)

    return published_task("deepscaler", DEEPSCALER, data, convert, num_train=num_train)


@register_task("big_math")
@published(BIG_MATH)
def big_math(
    *,
    data: Path | None = None,
    min_solve_rate: float = 0.0,
    max_solve_rate: float = 1.0,
    without_sources: tuple[str, ...] = (),
    num_train: int | None = None,
) -> Task:
    """Big-Math: verified problems of ten sources with the rate at which an 8B model solves them; to train on only.

    min_solve_rate, max_solve_rate: bounds of llama8b_solve_rate; rows without a rate are kept where both are as they
    are. without_sources: values of `source` that are left out, such as math. The data set asks for an account.
    """
    if not 0 <= min_solve_rate <= max_solve_rate <= 1:
        raise ValueError(
            f"task 'big_math', min_solve_rate {min_solve_rate} and max_solve_rate {max_solve_rate}: expected rates in "
            "[0, 1], the first not above the second"
        )
    every = (min_solve_rate, max_solve_rate) == (0.0, 1.0)

    def convert(row: Row, where: str, name: str) -> Problem | str:
        rate, source = value(row, ["llama8b_solve_rate"], where), str(row.get("source", ""))
        if source in without_sources:
            return "of sources that are left out"
        if not every and (rate is None or not min_solve_rate <= rate <= max_solve_rate):
            return "with other solve rates"
        question, answer = value(row, ["problem"], where), value(row, ["answer"], where)
        return math_problem(name, question, answer, source=source, solve_rate=rate)

    return published_task("big_math", BIG_MATH, data, convert, num_train=num_train)


def without_empty_units(answer: Any) -> Any:
    """Return an answer without the empty commands that are left of units, and the signs between them."""
    return re.sub(r"(?:\\(?:mathrm|text)\s*\{~?\}/?)+", "", answer).strip() if isinstance(answer, str) else answer


@register_task("openr1_math")
@published(OPENR1)
def openr1_math(
    *, data: Path | None = None, subset: Literal["default", "extended", "all"] = "default", num_train: int | None = None
) -> Task:
    """OpenR1-Math-220k: problems of NuminaMath 1.5 with verified answers; to train on only. Proofs are left out.

    Of units that the published answers have lost the empty commands are removed. subset: of the hub's data set; it has
    no meaning for local data.
    """
    source = Source(**{**vars(OPENR1), "configs": (subset,)})

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question, answer = value(row, ["problem"], where), value(row, ["answer"], where)
        if row.get("question_type") == "proof":
            return "asking for proofs"
        return math_problem(name, question, without_empty_units(answer), source=row.get("source", ""))

    return published_task("openr1_math", source, data, convert, num_train=num_train)
