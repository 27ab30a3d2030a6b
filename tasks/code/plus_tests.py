"""HumanEval+ and MBPP+: the same problems with many more tests, by EvalPlus (arXiv:2305.01210); to evaluate on."""

from __future__ import annotations

from pathlib import Path

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task
from rlvr.tasks.code.functions import code_problem, humaneval_prompt, humaneval_reference, mbpp_prompt
from rlvr.tasks.rows import Row
from rlvr.tasks.sources import Source, published, published_task, value

HUMANEVAL_PLUS = Source(hub="evalplus/humanevalplus", licence="Apache-2.0", size="164")
MBPP_PLUS = Source(
    hub="evalplus/mbppplus", revision="b2d74c91837c3f2a20c1299ae98133cbe7cfa077", licence="Apache-2.0", size="378"
)


@register_task("humaneval_plus")
@published(HUMANEVAL_PLUS)
def humaneval_plus(*, data: Path | None = None, num_test: int | None = None) -> Task:
    """HumanEval+: the 164 functions of HumanEval with about 80 times as many tests; test only."""

    def convert(row: Row, where: str, name: str) -> Problem | str:
        for column in ("task_id", "prompt", "entry_point", "test"):
            value(row, [column], where)
        problem = code_problem(str(row["task_id"]), humaneval_prompt(row), humaneval_reference(row))
        return Problem(problem.id, problem.prompt, problem.reference, {**problem.info, "prefix": row["prompt"]})

    return published_task("humaneval_plus", HUMANEVAL_PLUS, data, convert, num_test=num_test, verifier="unit_tests")


@register_task("mbpp_plus")
@published(MBPP_PLUS)
def mbpp_plus(*, data: Path | None = None, visible_tests: int = 1, num_test: int | None = None) -> Task:
    """MBPP+: 378 problems of MBPP with about 35 times as many tests, of which the prompt shows one; test only."""
    if visible_tests < 1:
        raise ValueError(f"task 'mbpp_plus', visible_tests {visible_tests}: expected at least 1: it names the function")

    def convert(row: Row, where: str, name: str) -> Problem | str:
        for column in ("task_id", "prompt", "test_list", "test"):
            value(row, [column], where)
        reference = {"type": "assert", "code": row["test"]}
        return code_problem(f"mbpp_plus/{row['task_id']}", mbpp_prompt(row, visible_tests), reference)

    return published_task("mbpp_plus", MBPP_PLUS, data, convert, num_test=num_test, verifier="unit_tests")
