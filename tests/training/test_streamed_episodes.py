"""Rollouts with an environment whose rows wait for nobody: the same as in rounds, and in which order."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from rlvr.config import ModelConfig
from rlvr.core.types import Ask, Reply, RunError, Sampler, Sampling, error
from rlvr.model.load.policy import Policy, load_policy
from rlvr.train import train
from rlvr.training.rollout.episodes import Play
from tests.helpers.models import OwnWeights
from tests.helpers.overlap import logs, make_run, threads
from tests.helpers.runs import weights_of
from tests.helpers.turns import (
    LIMITS,
    PROBLEMS,
    LastOfAll,
    completions,
    digits,
    in_rounds,
    play_rows,
    slow_digits,
    unscored,
)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(ModelConfig(name="tiny", device="cpu"), corpus=["0123456789+=<eos>? []morechats\n"], seed=0)


class OneAtATime(Sampler):
    """Samples one turn after the other, the newest first or the oldest, and keeps which rows it took when."""

    def __init__(self, policy: Policy, *, newest: bool = False) -> None:
        self.inner, self.newest = OwnWeights(policy), newest
        self.taken: list[int] = []

    def generate(self, prompts, sampling, seeds):
        return [
            [self.inner.generate([prompt], sampling, [[seed]])[0][0] for seed in row]
            for prompt, row in zip(prompts, seeds, strict=True)
        ]

    def load_weights(self, policy) -> None:
        self.inner.load_weights(policy)

    def converse(self, rollouts) -> None:
        more, waiting = threading.Event(), deque[tuple[int, Ask]]()
        rollouts.on_reply(more.set)
        while True:
            more.clear()
            asks = rollouts.asks(every=False)
            waiting.extend(asks or ())
            if waiting:
                row, ask = waiting.pop() if self.newest else waiting.popleft()
                self.taken.append(row)
                rollouts.add_turn(row, self.generate([ask.context], ask.sampling, [[ask.seed]])[0][0])
            elif asks is None:
                return
            else:
                more.wait(0.5)


def raises_at_times(problem, rng):
    said = yield
    while True:
        if problem.id == "p1":
            raise ZeroDivisionError("by zero")
        if problem.id == "p3" and rng.random() < 0.5:
            return error("no sandbox")
        said = yield Reply(f"{len(said)}?", reward=0.5, void="1" in said)


@pytest.mark.parametrize(
    "environment, options",
    [
        (digits, {}),
        (slow_digits, {}),
        (raises_at_times, {}),
        (raises_at_times, {"limits": replace(LIMITS, max_turns=2)}),
        (raises_at_times, {"context": 16}),
        (slow_digits, {"sampling": Sampling(max_new_tokens=9)}),
        (digits, {"sampling": Sampling(max_new_tokens=24, temperature=0.0)}),
    ],
)
@pytest.mark.parametrize("newest", [False, True])
def test_rollouts_are_those_of_rounds(policy, environment, options, newest):
    """Tokens, logprobs, turns, ends and verdicts, in whatever order rows are sampled."""
    sampler = OneAtATime(policy, newest=newest)
    told = []
    streamed = play_rows(policy, sampler, environment, on_group=lambda place, group: told.append(place), **options)
    with in_rounds(sampler):
        assert play_rows(policy, sampler, environment, **options) == streamed
    assert sorted(told) == list(range(len(PROBLEMS)))
    assert max(len(made.turns) for made in completions(streamed)) > 1


def test_a_row_goes_on_while_the_reply_to_another_is_made(policy):
    """The first reply to p0 comes when all others have ended; in rounds it is overdue before that."""
    sampler = OneAtATime(policy)
    groups = play_rows(policy, sampler, LastOfAll(8))
    assert unscored(groups) == set()
    first = sampler.taken.index(0)
    others = [place for place, row in enumerate(sampler.taken) if row > 1]
    assert first < min(others) < max(others) < sampler.taken.index(0, first + 1)
    with in_rounds(sampler):
        groups = play_rows(policy, sampler, LastOfAll(8), limits=replace(LIMITS, reply_seconds=2.0))
    assert unscored(groups) == {"p0"}


def test_an_overdue_reply_ends_its_rollout(policy):
    """Nobody waits for it any longer than the limit says."""
    release = threading.Event()

    def hangs(problem, rng):
        if problem.id == "p2":
            yield
            release.wait(60)
        else:
            yield from digits(problem, rng)

    groups = play_rows(policy, OneAtATime(policy), hangs, limits=replace(LIMITS, reply_seconds=1.0))
    release.set()
    assert unscored(groups) == {"p2"}


def test_an_environment_that_cannot_work_ends_the_run(policy):
    """A RunError is passed on."""

    def lost(problem, rng):
        yield
        raise RunError("no namespaces here")

    with pytest.raises(RunError, match="no namespaces here"):
        play_rows(policy, OneAtATime(policy), lost)


def test_turns_sampled_ahead_are_those_of_rounds(tmp_path):
    """Beside the training, one step ahead: the same rollouts, metrics and weights."""
    runs = []
    for name, environment, rounds in (("streamed", slow_digits, False), ("rounds", digits, True)):
        run = make_run(tmp_path / name, sampler=OneAtATime, max_staleness=1, max_turns=3, turn_tokens=4)
        run.worker.plan = Play(environment, run.worker.config.rollout)
        with in_rounds(run.worker.sampler) if rounds else nullcontext():
            train(run)
        runs.append(run)
    assert logs(runs[0]) == logs(runs[1])
    assert torch.equal(weights_of(runs[0]), weights_of(runs[1]))
    assert [row["staleness"] for row in runs[0].reporter.log.read("metrics")] == [0, 1, 1]
    assert threads("rlvr-sampling") == []
