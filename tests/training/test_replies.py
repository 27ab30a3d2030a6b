"""Calls beside the sampling: time limits, late answers, threads that hang."""

from __future__ import annotations

import threading
import time

import pytest

from rlvr.training.rollout.episodes import Background, Overdue

OPENED: list[Background] = []


@pytest.fixture(autouse=True)
def closed():
    """No thread outlives its test."""
    yield
    while OPENED:
        OPENED.pop().close()


def opened(seconds: float, at_once: int = 128) -> Background:
    OPENED.append(Background(seconds, at_once))
    return OPENED[-1]


def collected(background: Background, count: int) -> dict:
    found: dict = {}
    while len(found) < count:
        found.update(background.collect(wait=True))
    return found


def test_calls_run_at_the_same_time():
    """Fifty of 200 ms take far less than their sum."""
    background = opened(5.0)
    start = time.monotonic()
    for number in range(50):
        background.submit(number, lambda number=number: time.sleep(0.2) or number)
    assert collected(background, 50) == {number: number for number in range(50)}
    assert time.monotonic() - start < 50 * 0.2 / 2


def test_no_more_run_than_may():
    """Three at once: the most that were ever under way."""
    under_way, most, lock = 0, 0, threading.Lock()

    def work() -> None:
        nonlocal under_way, most
        with lock:
            under_way += 1
            most = max(most, under_way)
        time.sleep(0.01)
        with lock:
            under_way -= 1

    background = opened(5.0, at_once=3)
    for number in range(12):
        background.submit(number, work)
    collected(background, 12)
    assert most == 3


def test_a_call_that_hangs_is_given_up_and_its_place_goes_to_others():
    """Its answer, when it comes, is dropped, and `late` is told."""
    release, told = threading.Event(), threading.Event()
    background = opened(0.2, at_once=1)
    background.submit(0, lambda: release.wait(30) and "late", told.set)
    background.submit(1, lambda: "next")
    found = collected(background, 2)
    assert isinstance(found[0], Overdue)
    assert found[1] == "next"
    assert not told.is_set()
    release.set()
    assert told.wait(60)
    assert background.collect(wait=True) == []


def test_an_answer_after_the_limit_is_late_even_if_nobody_has_looked():
    """What counts is when it came, not when it was collected."""
    background, told = opened(0.05), threading.Event()
    background.submit(0, lambda: time.sleep(0.2) or "late", told.set)
    assert told.wait(60)
    ((_, outcome),) = background.collect(wait=True)
    assert isinstance(outcome, Overdue)


@pytest.mark.parametrize("raised", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_call_raises_is_its_outcome(raised: BaseException):
    """Nothing ends a thread of the pool."""

    def work() -> None:
        raise raised

    background = opened(5.0, at_once=1)
    background.submit(0, work)
    background.submit(1, lambda: "next")
    assert collected(background, 2) == {0: raised, 1: "next"}


def test_what_is_under_way_when_it_is_closed_is_dropped():
    """And what waits is never begun."""
    begun, under_way, release = [], threading.Event(), threading.Event()
    background = opened(60.0, at_once=1)
    background.submit(0, lambda: (under_way.set(), release.wait(60)))
    background.submit(1, lambda: begun.append(1))
    assert under_way.wait(60)
    background.close()
    release.set()
    time.sleep(0.3)
    assert begun == []
    assert background.collect(wait=False) == []
