"""Rollouts with an environment whose rows depend on one another: only where none waits for the rest do they end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

import pytest

from rlvr.config import RolloutConfig
from rlvr.core.types import Completion, Environment, Group, Problem, Reply, Sampler, Sampling, Status
from rlvr.model.load.policy import Policy
from rlvr.training.rollout.episodes import Play
from rlvr.training.rollout.rollout import rollout
from tests.helpers.played import Steps, digits

PROBLEMS = [Problem(f"p{i}", f"{i}+{i}=") for i in range(5)]
LIMITS = RolloutConfig(max_turns=4, turn_tokens=6)
BUDGET = Sampling(max_new_tokens=24)


def play_rows(policy: Policy, sampler: Sampler, environment: Environment, **options) -> list[Group]:
    """Return groups of two rollouts of each of PROBLEMS. options: of `rollout`, and `limits` and `context`."""
    plan = Play(environment, options.pop("limits", LIMITS), options.pop("context", None))
    settings = {
        "problems": PROBLEMS,
        "group_size": 2,
        "seed": (0, "rollout", 3),
        "sampling": BUDGET,
        **options,
    }
    return rollout(policy, sampler, plan=plan, **settings)


def completions(groups: list[Group]) -> list[Completion]:
    return [completion for group in groups for completion in group.completions]


def unscored(groups: list[Group]) -> set[str]:
    """The problems of which a rollout ended in an error."""
    failed = [(g.problem.id, c.verdict) for g in groups for c in g.completions if c.verdict is not None]
    return {name for name, verdict in failed if verdict.status is Status.ERROR}


@contextmanager
def in_rounds(sampler: Sampler) -> Iterator[None]:
    """Meanwhile a sampler plays in rounds, as Sampler does by default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sampler), "converse", Sampler.converse)
        yield


class LastOfAll:
    """An environment in which the first reply to problem p0 comes after all rollouts of the others have ended."""

    def __init__(self, rows: int) -> None:
        self.missing, self.lock, self.all_ended = rows, threading.Lock(), threading.Event()

    def __call__(self, problem: Problem, rng: Random) -> Steps:
        if problem.id != "p0":
            verdict = yield from digits(problem, rng)
            with self.lock:
                self.missing -= 1
                if not self.missing:
                    self.all_ended.set()
            return verdict
        yield None
        self.all_ended.wait(60)
        yield Reply("1", role="user")
        return None


def interrupt_without_replies(policy: Policy, sampler: Sampler) -> None:
    """Interrupt a sampler that plays rows in which all replies are missing, and come after a minute.

    Raises what playing them raises; TimeoutError where that takes longer than 20 s.
    """
    asked, release = threading.Semaphore(0), threading.Event()

    def hangs(problem: Problem, rng: Random) -> Steps:
        yield None
        asked.release()
        release.wait(60)
        return None

    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(play_rows, policy, sampler, hangs)
        for _ in range(2 * len(PROBLEMS)):
            assert asked.acquire(timeout=60)
        sampler.interrupt()
        try:
            playing.result(20)
        finally:
            release.set()
