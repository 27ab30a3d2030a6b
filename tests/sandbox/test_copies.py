"""Functions that fork and return in both processes: only the process that was asked answers."""

from __future__ import annotations

import pytest

from rlvr.sandbox import Call, Job, Limits, Pool, RunStatus, TestJob
from tests.helpers.programs import read_programs, runs_programs

pytestmark = runs_programs

# Each answers 7 in the process that was asked, and something else in its copy.
COPIES = read_programs("copies")
ROUNDS = 4


@pytest.mark.parametrize("program", COPIES.values(), ids=COPIES)
def test_only_the_process_that_was_asked_answers(pool: Pool, program: str):
    """The same answers in every run, by calls and by tests."""
    limits = Limits(seconds=10)
    calls = tuple(Call("f", (number,)) for number in range(3))
    runs = pool.run_many([Job(program, calls=calls, limits=limits)] * ROUNDS)
    assert [[answer.value for answer in run.returned] for run in runs] == [[7, 7, 7]] * ROUNDS
    code = "a = f(1)\nb = f(2)\nassert (a, b, f(3)) == (7, 7, 7)"
    tested = pool.run_many([TestJob(Job(program, limits=limits), code, ("f",))] * ROUNDS)
    assert [run.tests_passed for run in tested] == [True] * ROUNDS


@pytest.mark.parametrize("lines", ['{"n": 1, "v": 5}', '{"n": 0, "v": 5}\\n{"n": 0, "v": 5}', "[]", '{"n": 7, "v": 5}'])
def test_other_lines_than_one_for_each_call_are_no_answers(pool: Pool, lines: str):
    """Such as a program writes itself, or several of its processes at once."""
    program = f"import os\ndef f(x):\n    os.write(4, b'{lines}\\n')\n    return 5"
    run = pool.run(Job(program, calls=(Call("f", (1,)), Call("f", (2,)))))
    assert (run.returned, run.status) == ((), RunStatus.CRASH)
