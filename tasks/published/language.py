"""Questions in words: multiple choice (GPQA, MMLU-Pro), instructions that a program checks (IFEval, IFBench), logic.

GPQA and MMLU-Pro list options under letters, and the verifier `choice` reads the letter. `instructions` verifies IFEval
and IFBench, `identities` verifies Knights and Knaves (arXiv:2410.23123): who tells the truth, and who lies?
"""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rlvr.core.printable import kind_of
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, Task
from rlvr.verifiers.instructions import CHECKS, read_instructions
from rlvr.verifiers.instructions.ifeval import language_detector

from ..sources import SOURCES, Row, column, published_task, register_published

ASK_LETTER = "Think step by step, then give the letter of the right option within \\boxed{}."
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def choice_problem(name: str, question: Any, options: Sequence[Any], right: int) -> Problem | str:
    """Return a problem with its options under letters from A, or why there is none.

    The reference is the letter of option number `right`.
    """
    if not isinstance(question, str) or not question.strip() or not all(isinstance(one, str) for one in options):
        return "without a question or an option"
    listed = "\n".join(f"{letter}) {text.strip()}" for letter, text in zip(string.ascii_uppercase, options))
    return Problem(name, f"{question.strip()}\n\n{listed}\n\n{ASK_LETTER}", string.ascii_uppercase[right])


@register_published("gpqa", "gpqa_diamond", "gpqa_main", "gpqa_extended")
def gpqa(
    *,
    subset: Literal["diamond", "main", "extended"] = "diamond",
    data: Path | None = None,
    seed: int = 0,
    num_test: int | None = None,
) -> Task:
    """GPQA: questions in biology, physics and chemistry that experts wrote, four options each; test only.

    seed: of the order of the options, which is published with the right one first; a function of seed and question.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question = column(row, ["Question"], where)
        options = [column(row, [name], where) for name in ("Correct Answer", *WRONG)]
        order = list(range(4))
        random.Random(derive_seed("gpqa", seed, str(question))).shuffle(order)
        return choice_problem(name, question, [options[place] for place in order], order.index(0))

    return published_task("gpqa", data, convert, source=SOURCES[f"gpqa_{subset}"], num_test=num_test, verifier="choice")


@register_published("mmlu_pro")
def mmlu_pro(*, data: Path | None = None, categories: tuple[str, ...] = (), num_test: int | None = None) -> Task:
    """MMLU-Pro: 12,032 questions of 14 subjects with up to ten options; test only.

    categories: subjects to evaluate on, such as math,physics; all unless given.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question, options = column(row, ["question"], where), column(row, ["options"], where)
        answer, category = str(column(row, ["answer"], where)), str(row.get("category", ""))
        if categories and category not in categories:
            return "of other categories"
        if not isinstance(options, list) or answer not in list(string.ascii_uppercase[: len(options)]):
            return "whose answer is no letter of an option"
        right = string.ascii_uppercase.index(answer)
        if row.get("answer_index") not in (None, right):
            return "whose answer and answer_index differ"
        made = choice_problem(name, question, options, right)
        return made if isinstance(made, str) else replace(made, info={"category": category})

    return published_task("mmlu_pro", data, convert, num_test=num_test, verifier="choice")


def instructions_of(row: Row, where: str) -> dict[str, Any]:
    """Return the reference of a row: its instructions with the parameters that they have, whole numbers as such."""
    names, given = column(row, ["instruction_id_list"], where) or [], column(row, ["kwargs"], where) or []
    for key, held in (("instruction_id_list", names), ("kwargs", given)):
        if not isinstance(held, list):
            raise ValueError(f"{where}: {key} is {kind_of(held)}; expected a list")
    return {"instruction_id_list": list(names), "kwargs": [_parameters(one) for one in given]}


def _parameters(given: Any) -> dict[str, Any]:
    # On the hub every parameter of every check is a column, empty where it does not apply, and numbers are floats.
    found = {name: held for name, held in (given or {}).items() if held is not None}
    return {name: int(n) if isinstance(n, float) and n.is_integer() else n for name, n in found.items()}


def instruction_task(name: str, data: Path | None, num_test: int | None, options: dict[str, Any]) -> Task:
    """Build a pack of prompts with instructions; those with an instruction that is not checked here are left out."""

    def convert(row: Row, where: str, default: str) -> Problem | str:
        prompt, reference = column(row, ["prompt"], where), instructions_of(row, where)
        if prompt is None or not reference["instruction_id_list"]:
            return "without a prompt or instructions"
        if "language:response_language" in reference["instruction_id_list"]:
            language_detector()  # its absence is no reason to measure on fewer prompts
        unknown = [one for one in reference["instruction_id_list"] if one not in CHECKS]
        if unknown:
            return "with instructions that are not checked here"
        read_instructions(reference)
        key = row.get("key")
        return Problem(default if key is None else f"{name}/{key}", str(prompt), reference)

    return published_task(name, data, convert, num_test=num_test, verifier="instructions", verifier_options=options)


@register_published("ifeval")
def ifeval(*, data: Path | None = None, loose: bool = False, num_test: int | None = None) -> Task:
    """IFEval: 541 prompts with 25 kinds of instructions that a program checks; test only.

    A response is right if it follows all of them. loose: the loose accuracy of the paper (arXiv:2311.07911).
    """
    return instruction_task("ifeval", data, num_test, {"loose": loose})


@register_published("ifbench")
def ifbench(*, data: Path | None = None, loose: bool = True, num_test: int | None = None) -> Task:
    """IFBench: prompts with instructions that are not in IFEval (arXiv:2507.02833); test only.

    Prompts with an instruction that `instructions` does not check are left out: the log says how many. loose: as the
    paper measures.
    """
    return instruction_task("ifbench", data, num_test, {"loose": loose})


ASK_IDENTITIES = (
    "Reason step by step. Then state the identity of each character in this form, a line for each:\n\n"
    "CONCLUSION:\n(1) NAME is a {knight}\n(2) NAME is a {knave}"
)
PEOPLE = range(2, 9)


def _is_solution(names: Any, solution: Any) -> bool:
    """Return whether these are different names with a truth value each. ("False" as text would be true.)"""
    if not isinstance(names, list) or not isinstance(solution, list):
        return False
    truths = all(isinstance(truthful, bool | int) and truthful in (0, 1) for truthful in solution)
    return truths and 0 < len(names) == len(solution) == len({str(name).casefold() for name in names})


@register_published("knights_knaves")
def knights_knaves(
    *,
    data: Path | None = None,
    people: tuple[int, ...] = tuple(PEOPLE),
    num_train: int | None = None,
    num_test: int | None = None,
) -> Task:
    """Knights and Knaves: logic puzzles of 2 to 8 people, each with one solution: 6,200 to train on, 700 to test.

    people: the numbers of people of the puzzles that are used.
    """
    unknown = [number for number in people if number not in PEOPLE]
    if unknown or not people:
        raise ValueError(f"task 'knights_knaves', people {','.join(map(str, people))}: expected numbers from 2 to 8")

    def convert(row: Row, where: str, name: str) -> Problem | str:
        quiz, names, solution = (column(row, [key], where) for key in ("quiz", "names", "solution"))
        if not isinstance(quiz, str) or not _is_solution(names, solution):
            return "without a quiz or a solution"
        if len(names) not in people:
            return "of other numbers of people"
        words = row.get("knight_knave") or {}
        roles = [str(words.get("knight") or "knight"), str(words.get("knave") or "knave")]
        said = {person: roles[0] if truthful else roles[1] for person, truthful in zip(names, solution)}
        answer = ", ".join(f"{person} is a {role}" for person, role in said.items())
        prompt = f"{quiz.strip()}\n\n{ASK_IDENTITIES.format(knight=roles[0], knave=roles[1])}"
        return Problem(name, prompt, {"identities": said, "roles": roles}, {"answer": answer, "people": len(names)})

    return published_task(
        "knights_knaves",
        data,
        convert,
        num_train=num_train,
        num_test=num_test,
        verifier="identities",
    )
