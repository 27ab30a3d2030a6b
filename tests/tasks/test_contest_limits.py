"""The time and memory limits that contests publish with a problem: read, and held by the verifier."""

from __future__ import annotations

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Status
from rlvr.sandbox import Limits, level
from rlvr.tasks.published.contests import own_limits
from rlvr.verifiers.unit_tests import LEAST_MEMORY, lower_limits

SANDBOX = pytest.mark.skipif(level().number < 2, reason="no sandbox of level 2 on this machine")
LIMITS = {
    "codeforces": ({"time_limit": {"seconds": 2, "nanos": 500_000_000}, "memory_limit_bytes": 256_000_000}, 2.5, 256),
    "taco": ({"time_limit": "2.0 seconds", "memory_limit": "256.0 megabytes"}, 2, 256),
    "one": ({"time_limit": "1 second", "memory_limit": "1.5 gigabytes"}, 1, 1500),
    "no time": ({"time_limit": None, "memory_limit_bytes": 64_000_000}, None, 64),
    "zero": ({"time_limit": {"seconds": 0, "nanos": 0}, "memory_limit_bytes": 0}, None, None),
    "words": ({"time_limit": "a while", "memory_limit": "None"}, None, None),
    "dots": ({"time_limit": "1.2.3 seconds", "memory_limit": "4 megabytes"}, None, 4),
    "none": ({}, None, None),
}


@pytest.mark.parametrize("factor", [None, 1.0, 5.0])
@pytest.mark.parametrize("name", LIMITS)
def test_limits_as_the_data_sets_write_them(name: str, factor: float | None) -> None:
    """Times the factor; none without one, and where a row has none."""
    row, seconds, memory = LIMITS[name]
    held = {"seconds": seconds, "memory_mb": memory}
    expected = {key: number * factor for key, number in held.items() if number is not None} if factor else {}
    assert own_limits(row, factor) == ({"limits": expected} if expected else {})


@pytest.mark.parametrize(
    ("own", "seconds", "memory"),
    [
        ({}, 10.0, 1024),
        ({"seconds": 2.5}, 2.5, 1024),
        ({"seconds": 60, "memory_mb": 1e5}, 10.0, 1024),
        ({"memory_mb": 511.5}, 10.0, 512),
        ({"memory_mb": 16}, 10.0, LEAST_MEMORY),
    ],
)
def test_a_problems_limits_lower_the_verifiers(own: dict, seconds: float, memory: int) -> None:
    """They never raise them; an interpreter needs some memory itself."""
    found = lower_limits(Limits(seconds=10.0, memory_mb=1024), own)
    assert (found.seconds, found.memory_mb) == (seconds, memory)


BAD_LIMITS = ({"second": 1}, {"seconds": 0}, {"seconds": True}, {"memory_mb": "64"}, 3, {"seconds": float("nan")})


@pytest.mark.parametrize("own", BAD_LIMITS)
def test_limits_that_are_none_are_bad_references(own: object) -> None:
    """A verdict without a score that says what is expected."""
    reference = {"type": "stdio", "cases": [{"input": "1", "output": "1"}]}
    verdict = make_verifier("unit_tests")(Problem("p", "?", reference, {"limits": own}), "print(input())")
    assert verdict.status is Status.BAD_REFERENCE
    assert "limits" in verdict.reason


@SANDBOX
def test_a_slow_program_ends_at_the_problems_limit() -> None:
    """One that sleeps passes within the verifier's time, and not within the problem's; memory likewise."""
    cases = [{"input": "1", "output": "1"}]
    program = "import time\ntime.sleep(1.5)\nx = bytearray(300_000_000)\nprint(input())"
    verifier = make_verifier("unit_tests", timeout=20.0, slots=1)
    limits = ({}, {"seconds": 0.5}, {"memory_mb": 256})
    reference = {"type": "stdio", "cases": cases}
    problems = [Problem(f"p{i}", "?", reference, {"limits": own}) for i, own in enumerate(limits)]
    verdicts = verifier.verify_batch([(problem, program) for problem in problems])
    verifier.close()
    assert [verdict.status for verdict in verdicts] == [Status.CORRECT, Status.TIMEOUT, Status.LIMIT]
