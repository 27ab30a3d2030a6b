"""Instructions that a program can check: IFEval and IFBench. The verifier is `instructions`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvr.core.printable import kind_of
from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.rows import Row
from rlvr.tasks.sources import Source, published, published_task, value
from rlvr.verifiers.instructions import CHECKS, read_instructions
from rlvr.verifiers.instructions.ifeval import language_detector

IFEVAL = Source(
    hub="google/IFEval",
    revision="966cd89545d6b6acfd7638bc708b98261ca58e84",
    licence="Apache-2.0",
    size="541",
    splits={"test": "train"},
)
IFBENCH = Source(hub="allenai/IFBench_test", licence="ODC-BY", size="300", splits={"test": "train"})


def instructions_of(row: Row, where: str) -> dict[str, Any]:
    """Return the reference of a row: its instructions with the parameters that they have, whole numbers as such."""
    names, given = value(row, ["instruction_id_list"], where) or [], value(row, ["kwargs"], where) or []
    for column, held in (("instruction_id_list", names), ("kwargs", given)):
        if not isinstance(held, list):
            raise ValueError(f"{where}: {column} is {kind_of(held)}; expected a list")
    return {"instruction_id_list": list(names), "kwargs": [_parameters(one) for one in given]}


def _parameters(given: Any) -> dict[str, Any]:
    # On the hub every parameter of every check is a column, empty where it does not apply, and numbers are floats.
    found = {name: held for name, held in (given or {}).items() if held is not None}
    return {name: int(n) if isinstance(n, float) and n.is_integer() else n for name, n in found.items()}


def instruction_task(
    name: str, source: Source, data: Path | None, num_test: int | None, options: dict[str, Any]
) -> Task:
    """Build a pack of prompts with instructions; those with an instruction that is not checked here are left out."""

    def convert(row: Row, where: str, default: str) -> Problem | str:
        prompt, reference = value(row, ["prompt"], where), instructions_of(row, where)
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

    return published_task(
        name, source, data, convert, num_test=num_test, verifier="instructions", verifier_options=options
    )


@register_task("ifeval")
@published(IFEVAL)
def ifeval(*, data: Path | None = None, loose: bool = False, num_test: int | None = None) -> Task:
    """IFEval: 541 prompts with 25 kinds of instructions that a program checks; test only.

    A response is right if it follows all of them. loose: the loose accuracy of the paper (arXiv:2311.07911).
    """
    return instruction_task("ifeval", IFEVAL, data, num_test, {"loose": loose})


@register_task("ifbench")
@published(IFBENCH)
def ifbench(*, data: Path | None = None, loose: bool = True, num_test: int | None = None) -> Task:
    """IFBench: prompts with instructions that are not in IFEval (arXiv:2507.02833); test only.

    Prompts with an instruction that `instructions` does not check are left out: the log says how many. loose: as the
    paper measures.
    """
    return instruction_task("ifbench", IFBENCH, data, num_test, {"loose": loose})
