"""Knights and Knaves (arXiv:2410.23123): who tells the truth, and who lies? The verifier is `identities`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.rows import Row
from rlvr.tasks.sources import Source, published, published_task, value

ASK = (
    "Reason step by step. Then state the identity of each character in this form, a line for each:\n\n"
    "CONCLUSION:\n(1) NAME is a {knight}\n(2) NAME is a {knave}"
)
PEOPLE = range(2, 9)
KNIGHTS = Source(
    hub="K-and-K/knights-and-knaves",
    revision="8cbfa837f57ea77e73f09990cc6f7aadc41d98a3",
    licence="CC BY-NC-SA 4.0",
    size="6,200 + 700",
    splits={"train": "train", "test": "test"},
    files={
        "train": [f"train/people{n}_num{200 if n == 2 else 1000}.jsonl" for n in PEOPLE],
        "test": [f"test/people{n}_num100.jsonl" for n in PEOPLE],
    },
)


def _fit(names: Any, solution: Any) -> bool:
    """Whether these are different names, and for each whether it is a knight: "False" as text would be true."""
    if not isinstance(names, list) or not isinstance(solution, list):
        return False
    truths = all(isinstance(truthful, bool | int) and truthful in (0, 1) for truthful in solution)
    return truths and 0 < len(names) == len(solution) == len({str(name).casefold() for name in names})


@register_task("knights_knaves")
@published(KNIGHTS)
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
        quiz, names, solution = (value(row, [column], where) for column in ("quiz", "names", "solution"))
        if not isinstance(quiz, str) or not _fit(names, solution):
            return "without a quiz or a solution"
        if len(names) not in people:
            return "of other numbers of people"
        words = row.get("knight_knave") or {}
        roles = [str(words.get("knight") or "knight"), str(words.get("knave") or "knave")]
        said = {person: roles[0] if truthful else roles[1] for person, truthful in zip(names, solution)}
        answer = ", ".join(f"{person} is a {role}" for person, role in said.items())
        prompt = f"{quiz.strip()}\n\n{ASK.format(knight=roles[0], knave=roles[1])}"
        return Problem(name, prompt, {"identities": said, "roles": roles}, {"answer": answer, "people": len(names)})

    return published_task(
        "knights_knaves",
        KNIGHTS,
        data,
        convert,
        num_train=num_train,
        num_test=num_test,
        verifier="identities",
    )
