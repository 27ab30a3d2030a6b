"""Multiple choice: GPQA and MMLU-Pro. The options are listed under letters, and `choice` reads the letter."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from rlvr.core.registry import register_task
from rlvr.core.seeding import derive_seed
from rlvr.core.types import Problem, Task
from rlvr.tasks.rows import Row
from rlvr.tasks.sources import Source, published, published_task, value

GPQA = {
    subset: Source(
        hub="Idavidrein/gpqa",
        configs=(f"gpqa_{subset}",),
        licence="CC BY 4.0, on request; no example may be published",
        size=size,
        splits={"test": "train"},
    )
    for subset, size in (("diamond", "198"), ("main", "448"), ("extended", "546"))
}
MMLU_PRO = Source(
    hub="TIGER-Lab/MMLU-Pro", revision="3373e0b32277875b8db2aa555a333b78a08477ea", licence="MIT", size="12,032"
)
ASK = "Think step by step, then give the letter of the right option within \\boxed{}."
WRONG = ("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def choice_problem(name: str, question: Any, options: Sequence[Any], right: int) -> Problem | str:
    """Return a problem with its options under letters from A, or why there is none.

    The reference is the letter of option number `right`.
    """
    if not isinstance(question, str) or not question.strip() or not all(isinstance(one, str) for one in options):
        return "without a question or an option"
    listed = "\n".join(f"{letter}) {text.strip()}" for letter, text in zip(string.ascii_uppercase, options))
    return Problem(name, f"{question.strip()}\n\n{listed}\n\n{ASK}", string.ascii_uppercase[right])


@register_task("gpqa")
@published(*GPQA.values())
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
        question = value(row, ["Question"], where)
        options = [value(row, [name], where) for name in ("Correct Answer", *WRONG)]
        order = list(range(4))
        random.Random(derive_seed("gpqa", seed, str(question))).shuffle(order)
        return choice_problem(name, question, [options[place] for place in order], order.index(0))

    return published_task("gpqa", GPQA[subset], data, convert, num_test=num_test, verifier="choice")


@register_task("mmlu_pro")
@published(MMLU_PRO)
def mmlu_pro(*, data: Path | None = None, categories: tuple[str, ...] = (), num_test: int | None = None) -> Task:
    """MMLU-Pro: 12,032 questions of 14 subjects with up to ten options; test only.

    categories: subjects to evaluate on, such as math,physics; all unless given.
    """

    def convert(row: Row, where: str, name: str) -> Problem | str:
        question, options = value(row, ["question"], where), value(row, ["options"], where)
        answer, category = str(value(row, ["answer"], where)), str(row.get("category", ""))
        if categories and category not in categories:
            return "of other categories"
        if not isinstance(options, list) or answer not in list(string.ascii_uppercase[: len(options)]):
            return "whose answer is no letter of an option"
        right = string.ascii_uppercase.index(answer)
        if row.get("answer_index") not in (None, right):
            return "whose answer and answer_index differ"
        made = choice_problem(name, question, options, right)
        return made if isinstance(made, str) else replace(made, info={"category": category})

    return published_task("mmlu_pro", MMLU_PRO, data, convert, num_test=num_test, verifier="choice")
