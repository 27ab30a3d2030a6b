"""The deadline of a verification on a machine that is busy with others."""

from __future__ import annotations

import time

import pytest

from rlvr.core.types import Problem, Status
from rlvr.verifiers import Runner
from rlvr.verifiers.runner.worker import seconds_waited
from tests.helpers.machine import busy_processors

TIMEOUT = 1.0


def computes(problem: Problem, completion: str) -> bool:
    """Use half of the time limit, of a processor."""
    until = time.process_time() + TIMEOUT / 2
    while time.process_time() < until:
        pass
    return True


def sleeps(problem: Problem, completion: str) -> bool:
    """Wait, for no processor."""
    time.sleep(60)
    return True


def loops(problem: Problem, completion: str) -> bool:
    """Compute without an end."""
    while True:
        pass


def asked(number: int) -> list[tuple[Problem, str]]:
    return [(Problem(str(i), "", "x"), "") for i in range(number)]


def test_waiting_for_a_processor_is_not_the_time_of_a_verification() -> None:
    """One that computes for less than its limit has its verdict, however long that takes by the clock."""
    with busy_processors(), Runner(computes, workers=2, timeout=TIMEOUT) as runner:
        found = runner.verify(asked(6))
    if max(verdict.seconds for verdict in found) < TIMEOUT:
        pytest.skip("the others did not keep it waiting")
    assert {verdict.status for verdict in found} == {Status.CORRECT}


@pytest.mark.parametrize("verifier", [sleeps, loops])
def test_a_verification_without_an_end_is_ended_on_a_busy_machine_too(verifier) -> None:
    """At its deadline, also where the process always waits for a processor."""
    with busy_processors(), Runner(verifier, workers=1, timeout=TIMEOUT) as runner:
        [verdict] = runner.verify(asked(1))
    assert verdict.status is Status.ERROR
    assert verdict.reason.startswith("no verdict within 1 s")


def test_a_process_that_is_gone_has_waited_for_nothing() -> None:
    """As where the system has no such statistics."""
    assert seconds_waited(2**22 + 1) == 0
