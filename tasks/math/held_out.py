"""Mathematics to evaluate on: AIME 2025 and 2026, AMC 2023, OlympiadBench, Minerva, HMMT. AIME 2024: sets.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.math.train import boxed_answer, math_problem
from rlvr.tasks.rows import Row
from rlvr.tasks.sources import Source, published, published_task, value
from rlvr.verifiers import verify_math

ARENA = "CC BY-NC-SA 4.0"
AIME_25 = Source(
    hub="MathArena/aime_2025",
    revision="c94da77eb22bbd6439e62a323bec18493a421302",
    licence=ARENA,
    size="30",
    splits={"test": "train"},
)
AIME_26 = Source(hub="MathArena/aime_2026", licence=ARENA, size="30", splits={"test": "train"})
AMC_23 = Source(hub="math-ai/amc23", licence="not stated", size="40")
OLYMPIAD = Source(
    hub="Hothan/OlympiadBench",
    configs=("OE_TO_maths_en_COMP",),
    licence="Apache-2.0",
    size="674 of mathematics, in English, without pictures",
    splits={"test": "train"},
)
MINERVA = Source(hub="math-ai/minervamath", licence="not stated (MIT OpenCourseWare: CC BY-NC-SA 4.0)", size="272")
HMMT = {
    month: Source(hub=f"MathArena/hmmt_{month}", licence=ARENA, size="30 to 33", splits={"test": "train"})
    for month in ("feb_2025", "nov_2025", "feb_2026")
}


def written(answer: Any) -> Any:
    """Return an answer that is stored as a float (27.0) as the whole number that it is."""
    return int(answer) if isinstance(answer, float) and answer.is_integer() else answer


def competition(name: str, source: Source, data: Path | None, num_test: int | None) -> Task:
    """Build a pack of a competition's problems: columns problem (or question) and answer."""

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question = value(row, ["problem", "question"], where)
        answer = value(row, ["answer"], where) if "answer" in row else boxed_answer(str(row.get("solution", "")))
        if isinstance(answer, list):
            answer = ", ".join(str(part).strip() for part in answer)
        return math_problem(name, question, written(answer))

    return published_task(name, source, data, convert, num_test=num_test)


@register_task("aime25")
@published(AIME_25)
def aime25(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """AIME 2025: 30 olympiad-level problems with answers from 0 to 999; test only."""
    return competition("aime25", AIME_25, data, num_test)


@register_task("aime26")
@published(AIME_26)
def aime26(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """AIME 2026: 30 olympiad-level problems with answers from 0 to 999; test only."""
    return competition("aime26", AIME_26, data, num_test)


@register_task("amc23")
@published(AMC_23)
def amc23(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """AMC 2023: 40 problems of the twelfth grade's competition, rewritten to have numbers as answers; test only."""
    return competition("amc23", AMC_23, data, num_test)


@register_task("hmmt")
@published(*HMMT.values())
def hmmt(
    *,
    month: Literal["feb_2025", "nov_2025", "feb_2026"] = "feb_2025",
    data: Path | None = None,
    num_test: int | None = None,
) -> Task:
    """HMMT: problems of a tournament of the last years with LaTeX answers; test only. month: of the tournament."""
    return competition(f"hmmt_{month}", HMMT[month], data, num_test)


@register_task("minerva")
@published(MINERVA)
def minerva(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """Minerva: 272 problems of undergraduate science courses, answers in numbers and formulas; test only."""
    return competition("minerva", MINERVA, data, num_test)


def with_unit(answer: str, unit: str) -> str:
    """Return an answer with its unit, so that 150 km is not 150 m, where `math` then still reads the answer alone."""
    whole = f"{answer.strip().strip('$')} \\text{{ {unit.strip().strip('$')}}}"
    return whole if verify_math(whole, f"\\boxed{{{answer}}}").correct else answer


@register_task("olympiadbench")
@published(OLYMPIAD)
def olympiadbench(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """OlympiadBench: 674 olympiad problems in English with LaTeX answers; test only.

    Answers with a tolerance, and problems that need a picture or a proof, are left out.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question, answers = value(row, ["question"], where), value(row, ["final_answer"], where)
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

    return published_task("olympiadbench", OLYMPIAD, data, convert, num_test=num_test)
