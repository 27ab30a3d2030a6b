"""What the sandbox is asked for: numbers, texts and names that cannot be meant, and what is closed."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from rlvr.sandbox import Call, Job, Limits, Pool, RunStatus, Session, TestJob
from rlvr.sandbox.external import ExternalLimits
from rlvr.sandbox.ray_executor import RayExecutor
from rlvr.verifiers import Runner

COUNTS = [name for name in Limits.__slots__ if name != "seconds"]
NO_NUMBERS = [math.nan, math.inf, -math.inf, True, False, "5", None, [5], -1, 10**12, 10**5000]
NO_COUNTS = [*NO_NUMBERS, 1.5, 2.0]


@pytest.mark.parametrize(
    "value", [*NO_NUMBERS, 0, 1e-9, 1e300], ids=lambda value: repr(value)[:12] if value != 10**5000 else "huge"
)
def test_seconds_are_a_number_within_bounds(value: Any) -> None:
    """NaN, infinity and truth values too are refused, in one line that names the limit."""
    for kind in (Limits, ExternalLimits):
        with pytest.raises(ValueError, match=r"^limit seconds .*: expected a number above 0"):
            kind(seconds=value)


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_whole_numbers_within_bounds(name: str) -> None:
    """Of memory, processes, files and sizes."""
    for value in [*NO_COUNTS, *([] if name == "total_memory_mb" else [0])]:
        with pytest.raises(ValueError, match=rf"^limit {name} .*: expected a whole number from "):
            Limits(**{name: value})
    for value in (8, 10**9):
        assert getattr(Limits(**{name: value}), name) == value


@pytest.mark.parametrize("name", ["memory_mb", "file_kb"])
def test_counts_of_other_programs_are_whole_numbers(name: str) -> None:
    """The limits of provers are checked as those of programs."""
    for value in (*NO_COUNTS, 0):
        with pytest.raises(ValueError, match=rf"^limit {name} .*: expected a whole number from "):
            ExternalLimits(**{name: value})


def test_the_largest_limits_work(pool: Pool) -> None:
    """No number within the bounds is too large for the system."""
    counts = dict.fromkeys(COUNTS, 10**9)
    result = pool.run(Job("def f(): return 2", calls=(Call("f"),), limits=Limits(seconds=86_400, **counts)))
    assert (result.status, result.returned[0].value) == (RunStatus.OK, 2)
    assert pool.run(
        TestJob(Job("def f(): return 1", limits=Limits(seconds=86_400)), "assert f() == 1", ("f",))
    ).tests_passed


@pytest.mark.parametrize("value", [0, -1, True, 1.0, math.nan, "2", 10**9])
def test_the_number_of_slots(value: Any) -> None:
    """A whole number from 1, for a pool, a cluster and a Runner, to which 0 says: one for each core."""
    with pytest.raises(ValueError, match=r"^slots .*expected a whole number from 1"):
        Pool(value)
    if value != 0:
        with pytest.raises(ValueError, match=r"^workers .*expected a whole number from 0"):
            Runner(lambda problem, completion: True, workers=value)
    if value != 10**9:
        with pytest.raises(ValueError, match=r"^batch .*expected a whole number from 1"):
            RayExecutor(1, batch=value)


def test_other_arguments_of_pool_session_and_runner() -> None:
    """A single text is no list of names; levels are numbers; times and shares are finite."""
    for name in ("preload", "packages"):
        for value in ("numpy", [1], None, 7):
            with pytest.raises(ValueError, match=rf"^{name} .*expected a list of names"):
                Pool(1, **{name: value})
    with pytest.raises(ValueError, match=r"^packages .*expected a list of names"):
        Session(packages="numpy")
    for level in (True, "3", 2.5, math.nan, 4, 0, -1):
        with pytest.raises(ValueError, match=r"^sandbox level .*expected 1, 2 or 3"):
            Pool(1, level=level)
    for name, value in (("timeout", math.nan), ("memory_mb", 0.5), ("recycle_after", True), ("error_budget", math.nan)):
        with pytest.raises(ValueError, match=rf"^{name} "):
            Runner(lambda problem, completion: True, **{name: value})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"stdin": "\ud800"}, r"stdin is not text in UTF-8: it holds the lone surrogate \ud800"),
        ({"stdin": b"bytes"}, "stdin is a bytes; expected text"),
        ({"stdin": None}, "stdin is a NoneType; expected text"),
        ({"program": b"1"}, "program is a bytes; expected text"),
        ({"program": None}, "program is a NoneType; expected text"),
        ({"setup": 1}, "setup is a int; expected text"),
        ({"prelude": None}, "prelude is a NoneType; expected text"),
        ({"limits": None}, "limits of a job: a NoneType; expected Limits"),
        ({"calls": "f()"}, "calls of a job 'f()'"),
    ],
)
def test_a_job_that_cannot_be_run_is_refused_when_it_is_made(parts: dict[str, Any], message: str) -> None:
    """Not by `run_many`, where it would take the other jobs of its batch with it."""
    with pytest.raises(ValueError, match=re.escape(message)):
        Job(**{"program": "print(1)", **parts})


@pytest.mark.parametrize(
    ("stdin", "read"),
    [("a\0b", r"b'a\x00b'"), ("\udc80", r"b'\x80'"), ("é\U0001f600", r"b'\xc3\xa9\xf0\x9f\x98\x80'"), ("", "b''")],
)
def test_any_text_can_be_read_from_standard_input(pool: Pool, stdin: str, read: str) -> None:
    """NUL, and surrogates that stand for bytes, too."""
    assert pool.run(Job("import sys; print(sys.stdin.buffer.read())", stdin)).stdout == f"{read}\n"


@pytest.mark.parametrize("program", ["print('\ud800')", "\ud800", "print(1)\0", "\0"])
def test_a_program_that_is_no_text_costs_itself(pool: Pool, program: str) -> None:
    """It does not compile, in a pool as in a session; what runs beside it runs."""
    bad, good = pool.run_many([Job(program), Job("print(2)")])
    assert bad.status is RunStatus.COMPILE_ERROR
    assert good.stdout == "2\n"
    with Session(level=pool.level.number) as session:
        assert session.run(program).status is RunStatus.CRASH
        assert session.run("print(3)").stdout == "3\n"


def test_a_closed_pool_says_so() -> None:
    """Each of its methods, whether there is work or not; closing it again does nothing."""
    pool = Pool(1)
    assert pool.run(Job("print(1)")).stdout == "1\n"
    pool.close()
    pool.close()
    for call in (lambda: pool.run(Job("1")), lambda: pool.run_many([Job("1")]), lambda: pool.run_many([]), pool.warm):
        with pytest.raises(RuntimeError, match="this Pool is closed"):
            call()
    with pytest.raises(RuntimeError, match="this Pool is closed"), pool:
        pass


@pytest.mark.parametrize("wall", [math.nan, math.inf, 0, -1, True, "1"])
def test_the_time_of_one_program_of_a_session(wall: Any) -> None:
    """A number within bounds; the session goes on."""
    with Session() as session:
        with pytest.raises(ValueError, match=r"^wall .*expected a number above 0"):
            session.run("print(1)", wall=wall)
        with pytest.raises(ValueError, match="program is a bytes; expected text"):
            session.run(b"print(1)")
        assert session.run("print(1)", wall=60).stdout == "1\n"
