"""The answers of an evaluation that a run keeps for people to read and compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accelerate import Accelerator

from rlvr.core.printable import cut_middle
from rlvr.core.types import Problem
from rlvr.distributed import gather
from rlvr.runs.log import RunLog

from .answers import Answer

SAMPLES = 4  # of each problem
LONGEST = 20_000  # characters of a completion or a turn; the middle of longer ones is left out


class KeptAnswers:
    """Collects the first SAMPLES answers to some problems, and writes them as one compressed file of the run.

    What it holds is bounded: by the number of problems, SAMPLES, and LONGEST characters of each text.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = {problem.id: problem for problem in problems}
        self._rows: list[Answer] = []

    def add(self, rows: Sequence[Answer]) -> None:
        """Keep those of this rank's answers that are wanted."""
        wanted = (row for row in rows if row["id"] in self.problems and row["sample"] < SAMPLES)
        self._rows += [shorten_texts(row) for row in wanted]

    def write(self, log: RunLog, step: int, accelerator: Accelerator) -> None:
        """Write the answers of all ranks, a line for each problem in its order; nothing without problems."""
        if not self.problems:
            return
        rows = gather(self._rows, accelerator)
        if not accelerator.is_main_process:
            return
        by_id: dict[str, list[Answer]] = {name: [] for name in self.problems}
        for row in sorted(rows, key=lambda row: row["sample"]):
            by_id[row["id"]].append({name: value for name, value in row.items() if name != "id"})
        lines = [
            {"step": step, "problem": name, "prompt": problem.prompt, "answers": by_id[name]}
            for name, problem in self.problems.items()
        ]
        log.write_answers(step, lines)


def shorten_texts(row: Answer) -> Answer:
    """Return an answer with texts of at most LONGEST characters."""
    turns: dict[str, Any] = {}
    if "turns" in row:
        turns["turns"] = [{**turn, "text": cut_middle(turn["text"], LONGEST)} for turn in row["turns"]]
    return {**row, "completion": cut_middle(row["completion"], LONGEST), **turns}
