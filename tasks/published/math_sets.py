"""Mathematics: published word problems and competitions. Each pack asks for the answer in a box; `math` verifies it.

Packs that differ in nothing but their source have a summary in sources.toml. Rows that cannot be used are left out and
counted (see `usable_problems`).
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Task
from rlvr.verifiers import verify_math
from rlvr.verifiers.extract import boxes

from ..base import BOXED, build_task
from ..own_data import to_prompt
from ..sources import (
    SOURCES,
    SUMMARIES,
    Row,
    Source,
    column,
    convert_rows,
    find_split,
    published_task,
    read_file,
    register_published,
    usable_problems,
)

DAPO_PREFIX = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_SUFFIX = '\n\nRemember to put your answer on its own line after "Answer:".'
# What stands in the place of an answer where there is none to compare.
NO_ANSWERS = frozenset(("proof", "not found", "none", "notfound"))
NO_ANSWER = "without an answer"


def boxed_prompt(question: str) -> str:
    """Return a question with the instruction to box the answer, unless it has it."""
    question = question.strip()
    return question if question.endswith(BOXED) else f"{question}\n{BOXED}"


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


@register_published("gsm8k")
def gsm8k(*, data: Path | None = None, num_train: int | None = None, num_test: int | None = None) -> Task:
    """Grade-school word problems with whole-number answers: 7,473 to train on, 1,319 to test.

    `math` asks for answers that are evaluated (unevaluated=reject), as wherever all references are numbers.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        solution = str(column(row, ["answer"], where))
        _, marker, answer = solution.rpartition("####")
        if not marker or not answer.strip():
            raise ValueError(f"{where}: the answer does not end in '#### NUMBER': {solution[-60:]!r}")
        return math_problem(name, column(row, ["question"], where), answer.strip().replace(",", ""))

    return published_task("gsm8k", data, convert, num_train=num_train, num_test=num_test)


@register_published("svamp")
def svamp(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """SVAMP: 1,000 one-step word problems with distracting numbers; test only.

    `math` asks for answers that are evaluated (unevaluated=reject), as wherever all references are numbers.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        body, answer = str(column(row, ["Body"], where)).strip(), column(row, ["Answer"], where)
        # A few bodies lack their full stop, and some run on into the question after a comma.
        text = body if body.endswith((".", ",", "?", "!")) else f"{body}."
        try:
            number = float(answer)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: the answer {answer!r} is not a number") from error
        return math_problem(name, f"{text} {column(row, ['Question'], where)}", without_point(number))

    return published_task("svamp", data, convert, num_test=num_test)


def without_point(answer: Any) -> Any:
    """Return an answer that is stored as a float (27.0) as the whole number that it is."""
    return int(answer) if isinstance(answer, float) and answer.is_integer() else answer


def plain_task(name: str, data: Path | None, num_test: int | None) -> Task:
    """Build a pack of problems with the columns problem (or question) and answer, or a solution with a box."""

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question = column(row, ["problem", "prompt", "question"], where)
        if "answer" in row or "solution" not in row:
            answer = column(row, ["answer"], where)
        else:
            answer = boxed_answer(str(row["solution"]))
        if isinstance(answer, list):
            answer = ", ".join(str(part).strip() for part in answer)
        return math_problem(name, question, without_point(answer))

    return published_task(name, data, convert, num_test=num_test)


def _register_plain(name: str, summary: str) -> None:
    def pack(*, data: Path | None = None, num_test: int | None = None) -> Task:
        return plain_task(name, data, num_test)

    pack.__name__ = pack.__qualname__ = name
    pack.__doc__ = summary
    register_published(name)(pack)


for _name, _summary in SUMMARIES.items():
    _register_plain(_name, _summary)


@register_published("hmmt", "hmmt_feb_2025", "hmmt_nov_2025", "hmmt_feb_2026")
def hmmt(
    *,
    month: Literal["feb_2025", "nov_2025", "feb_2026"] = "feb_2025",
    data: Path | None = None,
    num_test: int | None = None,
) -> Task:
    """HMMT: problems of a tournament of the last years with LaTeX answers; test only. month: of the tournament."""
    return plain_task(f"hmmt_{month}", data, num_test)


def with_unit(answer: str, unit: str) -> str:
    """Return an answer with its unit, so that 150 km is not 150 m, where `math` then still reads the answer alone."""
    whole = f"{answer.strip().strip('$')} \\text{{ {unit.strip().strip('$')}}}"
    return whole if verify_math(whole, f"\\boxed{{{answer}}}").correct else answer


@register_published("olympiadbench")
def olympiadbench(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """OlympiadBench: 674 olympiad problems in English with LaTeX answers; test only.

    Answers with a tolerance, and problems that need a picture or a proof, are left out.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question, answers = column(row, ["question"], where), column(row, ["final_answer"], where)
        if "<image_" in str(question):
            return "with pictures"
        if row.get("error"):
            return "with a tolerance"
        answer = ", ".join(map(str, answers)) if isinstance(answers, list) else answers
        if row.get("unit") and isinstance(answer, str):
            answer = with_unit(answer, str(row["unit"]))
        unit = f" Give the number without its unit, {row['unit']}." if row.get("unit") else ""
        text = f"{row['context'].strip()}\n{question}" if row.get("context") else str(question)
        return math_problem(name, text.strip() + unit, answer)

    return published_task("olympiadbench", data, convert, num_test=num_test)


def from_solution(row: Row, where: str, name: str) -> Problem | str:
    """Return a row of MATH as a problem: the answer is the last box of its solution."""
    answer = row.get("answer") or boxed_answer(str(column(row, ["solution"], where) or ""))
    return math_problem(name, column(row, ["problem"], where), answer, level=_level(row), type=row.get("type", ""))


def _level(row: Row) -> int:
    digits = str(row.get("level", "")).removeprefix("Level ").strip()
    return int(digits) if digits.isdecimal() else 0


@register_published("hendrycks_math", "hendrycks_math", "math500")
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
    own = find_split(Path(data), "math500") if data is not None and Path(data).is_dir() else []
    if data is not None and problems == "12000" and not own:
        raise FileNotFoundError(f"{data}: no math500 file, which is held out; expected a folder with math500.jsonl")
    if data is None:
        rows = SOURCES["math500"].rows(None, "test")
    else:
        rows = (row for path in own for row in read_file(path)) if own else SOURCES["hendrycks_math"].rows(data, "test")
    judge = make_verifier("math")
    held = usable_problems("hendrycks_math", "test", convert_rows("math500", "test", rows, from_solution), judge)

    def convert(row: Row, where: str, name: str) -> Problem | str:
        problem = from_solution(row, where, name)
        other = isinstance(problem, Problem) and problem.info["level"] not in (*levels, 0)
        return "of other levels" if other else problem

    # Those of the test split hold MATH-500, which `usable_problems` leaves out again.
    splits = ("train", "test") if problems == "12000" else ("train",)
    made = [
        convert_rows("hendrycks_math", split, SOURCES["hendrycks_math"].rows(data, split), convert) for split in splits
    ]
    train = usable_problems("hendrycks_math", "train", chain(*made), judge, held)
    return build_task("hendrycks_math", train=train[:num_train], test=held[:num_test], check_references=False)


@register_published("dapo_math")
def dapo_math(
    *, data: Path | None = None, prompt: Literal["boxed", "published"] = "boxed", num_train: int | None = None
) -> Task:
    """DAPO-Math-17k: competition problems with whole-number answers; to train on only.

    The published file holds each problem about a hundred times; repetitions are left out. prompt: "boxed" asks for a
    box in the place of the published instructions ("Answer: ..." on the last line), "published" keeps these.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        messages, reward = column(row, ["prompt"], where), column(row, ["reward_model"], where)
        answer = reward.get("ground_truth") if isinstance(reward, dict) else None
        if messages is None:
            return "without a question"
        chat = to_prompt(messages, where)
        text = chat if isinstance(chat, str) else chat[-1]["content"]
        made = math_problem(name, text.removeprefix(DAPO_PREFIX).removesuffix(DAPO_SUFFIX), answer)
        return made if isinstance(made, str) or prompt == "boxed" else Problem(made.id, chat, made.reference)

    return published_task("dapo_math", data, convert, num_train=num_train)


@register_published("deepscaler")
def deepscaler(*, data: Path | None = None, num_train: int | None = None) -> Task:
    """DeepScaleR: competition problems of AIME, AMC, Omni-MATH and STILL with LaTeX answers; to train on only."""

    def convert(row: Row, where: str, name: str) -> Problem | str:
        return math_problem(name, column(row, ["problem"], where), column(row, ["answer"], where))

    return published_task("deepscaler", data, convert, num_train=num_train)


@register_published("big_math")
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
        rate, source = column(row, ["llama8b_solve_rate"], where), str(row.get("source", ""))
        if source in without_sources:
            return "of sources that are left out"
        if not every and (rate is None or not min_solve_rate <= rate <= max_solve_rate):
            return "with other solve rates"
        question, answer = column(row, ["problem"], where), column(row, ["answer"], where)
        return math_problem(name, question, answer, source=source, solve_rate=rate)

    return published_task("big_math", data, convert, num_train=num_train)


def without_empty_units(answer: Any) -> Any:
    """Return an answer without the empty commands that are left of units, and the signs between them."""
    return re.sub(r"(?:\\(?:mathrm|text)\s*\{~?\}/?)+", "", answer).strip() if isinstance(answer, str) else answer


@register_published("openr1_math")
def openr1_math(
    *, data: Path | None = None, subset: Literal["default", "extended", "all"] = "default", num_train: int | None = None
) -> Task:
    """OpenR1-Math-220k: problems of NuminaMath 1.5 with verified answers; to train on only. Proofs are left out.

    Of units that the published answers have lost the empty commands are removed. subset: of the hub's data set; it has
    no meaning for local data.
    """
    source = Source(**{**vars(SOURCES["openr1_math"]), "configs": (subset,)})

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question, answer = column(row, ["problem"], where), column(row, ["answer"], where)
        if row.get("question_type") == "proof":
            return "asking for proofs"
        return math_problem(name, question, without_empty_units(answer), source=row.get("source", ""))

    return published_task("openr1_math", data, convert, source=source, num_train=num_train)
