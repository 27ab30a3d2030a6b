"""How rollouts with an environment end: its failures, replies that never come, its own verdict; what is closed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from rlvr.core.types import (
    Reply,
    RunError,
    Status,
    correct,
    error,
    incorrect,
)
from rlvr.model.load.policy import Policy
from tests.helpers.turns import LIMITS, completions, digits, forever, one, played, talking_policy


@pytest.fixture(scope="module")
def policy() -> Policy:
    return talking_policy()


def raises(problem, rng):
    yield
    raise ZeroDivisionError("by zero\nand more")


def returns_error(problem, rng):
    yield
    return error("no sandbox")


def says_nothing(problem, rng):
    yield
    yield


def speaks_first(problem, rng):
    yield Reply("hello")


def speaks_for_the_model(problem, rng):
    yield
    yield Reply("42", role="assistant")


def pays_infinity(problem, rng):
    yield
    yield Reply("1", reward=float("inf"))


def cuts_elsewhere(problem, rng):
    yield
    yield Reply("12", payload=((1, 4),))


def cuts_twice(problem, rng):
    yield
    yield Reply("1234", payload=((0, 3), (2, 4)))


def is_no_generator(problem, rng):
    return "42"


def gives_up(problem, rng):
    yield
    raise SystemExit(1)


def returns_text(problem, rng):
    yield
    return "right"


@pytest.mark.parametrize(
    "environment, reason",
    [
        (raises, "the environment raised ZeroDivisionError: by zero"),
        (returns_error, "no sandbox"),
        (says_nothing, "it yielded None"),
        (speaks_first, "it began with"),
        (speaks_for_the_model, "role 'assistant'"),
        (pays_infinity, "reward inf"),
        (cuts_elsewhere, "payload ((1, 4),); expected parts of its text"),
        (cuts_twice, "payload ((0, 3), (2, 4)); expected"),
        (is_no_generator, "TypeError"),
        (gives_up, "SystemExit: 1"),
        (returns_text, "TypeError"),
    ],
)
def test_a_failure_of_the_environment_leaves_its_rollout_without_a_score(policy, environment, reason):
    """The others go on; never a score of 0."""

    def now_and_then(problem, rng):
        return environment(problem, rng) if problem.id == "p1" else digits(problem, rng)

    groups = played(policy, now_and_then)
    for made in groups[1].completions:
        assert made.verdict.status is Status.ERROR
        assert reason in made.verdict.reason
        assert "\n" not in made.verdict.reason
        assert made.finish_reason == "error"
    good = played(policy, digits)
    for group, wanted in zip(groups, good, strict=True):
        if group.problem.id == "p1":
            continue
        # Logprobs are rounded otherwise in a batch of another size, and nothing else may differ.
        for made, whole in zip(group.completions, wanted.completions, strict=True):
            assert made.logprobs == pytest.approx(whole.logprobs, abs=1e-5)
            assert replace(made, logprobs=()) == replace(whole, logprobs=())


def test_a_sandbox_that_cannot_work_at_all_ends_the_run(policy):
    """A RunError is passed on, as that of a verifier."""

    def lost(problem, rng):
        yield
        raise RunError("no namespaces here")

    with pytest.raises(RunError, match="no namespaces here"):
        played(policy, lost)


def test_a_reply_that_never_comes_costs_one_rollout(policy):
    """It is counted as an error; what comes after the end is dropped, and the environment closed."""
    release, closed = threading.Event(), threading.Event()

    def hangs(problem, rng):
        if problem.id != "p2":
            yield from digits(problem, rng)
            return None
        try:
            yield
            release.wait(30)
            yield Reply("too late")
        finally:
            closed.set()

    start = time.monotonic()
    groups = played(policy, hangs, limits=replace(LIMITS, reply_seconds=0.5), group_size=1)
    assert time.monotonic() - start < 28  # the reply itself comes after 30
    statuses = [made.verdict and made.verdict.status for made in completions(groups)]
    assert statuses == [None, None, Status.ERROR, None, None]
    assert "within 0.5 s" in groups[2].completions[0].verdict.reason
    release.set()
    assert closed.wait(10)


@pytest.mark.parametrize("verdict", [correct("12"), incorrect("no")])
def test_an_environment_may_judge(policy, verdict):
    """Its verdict is the completion's."""

    def judges(problem, rng):
        yield
        return verdict

    made = one(policy, judges, "12")
    assert (made.verdict, made.finish_reason, len(made.turns)) == (verdict, "stop", 1)


def test_environments_are_closed_when_a_limit_ends_the_rollout(policy):
    """So that what they hold is freed."""
    closed, kept = threading.Event(), []

    def holds(problem, rng):
        try:
            yield from forever(problem, rng)
        finally:
            closed.set()

    def held(problem, rng):
        kept.append(holds(problem, rng))  # a generator that nobody refers to would be closed by the interpreter
        return kept[-1]

    one(policy, held, "1")
    assert closed.wait(10)


def test_replies_are_made_beside_the_sampling_and_each_other(policy):
    """Tools of 0.2 s for 40 rollouts of three turns take far less than one after the other."""

    def waits(problem, rng):
        inner = digits(problem, rng)
        found = next(inner)
        while True:
            said = yield found
            time.sleep(0.2)
            try:
                found = inner.send(said)
            except StopIteration:
                return None

    start = time.monotonic()
    played(policy, waits, group_size=8)
    assert time.monotonic() - start < 40 * 3 * 0.2 / 2
