"""Verification beside sampling, sampling beside training: the same numbers in the same order, whatever the timing."""

from __future__ import annotations

import threading

import pytest
import torch

from rlvr.config import (
    Config,
    ModelConfig,
    RolloutConfig,
)
from rlvr.core.types import RunError, Sampler, error
from rlvr.model.load.policy import load_policy
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.rollout.rollout import collect
from rlvr.verifiers.runner import Runner, VerifierErrors
from tests.helpers.overlap import Plain, logs, make_run, threads
from tests.helpers.runs import weights_of
from tests.helpers.verifiers import PROBLEMS, odd_digits

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("rollout", [{}, {"resample_rounds": 2}, {"batch_size": 5}], ids=["plain", "dynamic", "cut"])
def test_overlap_changes_no_log(tmp_path, rollout):
    """Groups verified as they finish, and all of them after sampling: the same bytes, the same weights."""
    rollout, batch_size = dict(rollout), rollout.get("batch_size", 512)
    rollout.pop("batch_size", None)
    streamed = make_run(tmp_path / "streamed", **rollout)
    streamed.worker.sampler.batch_size = batch_size
    whole = make_run(tmp_path / "whole", sampler=Plain, **rollout)
    assert type(streamed.worker.sampler).stream is TorchSampler.stream
    assert type(whole.worker.sampler).stream is Sampler.stream
    for run in (streamed, whole):
        train(run)
    assert logs(streamed) == logs(whole)
    assert torch.equal(weights_of(streamed), weights_of(whole))
    assert streamed.worker.verifier.counts == whole.worker.verifier.counts


def test_groups_are_handed_over_once_and_complete():
    """Each prompt with seeds, when its last completion is drawn, however the work is cut into batches."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu", dtype="float32"), corpus=["0123456789+= "])
    run = Config(rollout=RolloutConfig(max_new_tokens=20))
    prompts = [policy.encode(problem.prompt) for problem in PROBLEMS[:5]]
    seeds = [[1, 2, 3], [], [4], [5, 6, 7, 8, 9], [10]]
    for batch_size in (512, 4):
        handed: list = []
        sampler = TorchSampler(policy, batch_size=batch_size)
        drawn = sampler.stream(prompts, run.sampling(), seeds, lambda *group, to=handed: to.append(group))
        assert sorted(p for p, _ in handed) == [0, 2, 3, 4]
        assert all(group == drawn[p] for p, group in handed)
        assert drawn == sampler.generate(prompts, run.sampling(), seeds)


def test_verification_starts_before_sampling_ends(tmp_path):
    """The second group is held back until the verifier has seen the first."""
    seen = threading.Event()

    def tell(problem, text):
        seen.set()
        return odd_digits(problem, text)

    tell.isolate = False  # it tells this process

    class Waits(TorchSampler):
        def stream(self, prompts, sampling, seeds, on_group):
            def hand_over(place, group):
                assert not handed or seen.wait(30)
                handed.append(place)
                on_group(place, group)

            handed = []
            return super().stream(prompts, sampling, seeds, hand_over)

    run = make_run(tmp_path, verifier=Runner(tell), sampler=TorchSampler)
    run.worker.sampler = Waits(run.learner.policy)
    assert len(collect(run.worker, 0)) == 6
    assert seen.is_set()


class Batches:
    """Judges whole batches and remembers their sizes."""

    def __init__(self, whole_batch: bool) -> None:
        self.whole_batch = whole_batch
        self.sizes: list[int] = []

    def verify_batch(self, pairs):
        self.sizes.append(len(pairs))
        return [odd_digits(problem, text) for problem, text in pairs]

    def __call__(self, problem, text):
        return odd_digits(problem, text)


def test_verifier_of_whole_batches_gets_one(tmp_path):
    """With whole_batch a single call after sampling, alone and as a part of another; without it the sum is the same."""

    class Parts:
        def __init__(self, part) -> None:
            self.components = {"part": part}

        def problem_for(self, name, problem):
            return problem

        def merge(self, verdicts):
            return verdicts["part"]

    for wrap in (lambda part: part, Parts):
        whole, parts = Batches(True), Batches(False)
        verdicts = [
            [group.verdicts for group in collect(make_run(tmp_path, verifier=Runner(wrap(verifier))).worker, 0)]
            for verifier in (whole, parts)
        ]
        statuses = [[v.status for row in rows for v in row] for rows in verdicts]
        assert statuses[0] == statuses[1]
        assert len(whole.sizes) == 1
        assert sum(parts.sizes) >= whole.sizes[0] > 12


def test_errors_within_the_budget_end_no_run_and_beyond_it_do(tmp_path):
    """The share is that of the whole batch, though the first groups to finish are errors throughout."""

    def fails_on_first(problem, text):
        return error("broken") if problem.id == first else odd_digits(problem, text)

    first = collect(make_run(tmp_path).worker, 0)[0].problem.id
    groups = collect(make_run(tmp_path, verifier=Runner(fails_on_first, error_budget=0.2)).worker, 0)
    assert [v.score for v in groups[0].verdicts] == [None] * 4
    for sampler in (TorchSampler, Plain):
        run = make_run(tmp_path / sampler.__name__, sampler=sampler, verifier=Runner(always_fails, error_budget=0.2))
        with pytest.raises(VerifierErrors, match="24 of 24 verdicts have no score"):
            train(run)
        assert not run.reporter.log.path("metrics").exists()


def always_fails(problem, text):
    return error("broken")


always_fails.isolate = False


class Breaks(Runner):
    """A verifier whose machinery fails."""

    def verify_part(self, pairs):
        raise RunError("no worker can be started")


def test_failure_of_the_verifier_ends_the_run(tmp_path):
    """What it raised in its thread is raised where the step waits, and the thread is over."""
    with pytest.raises(RunError, match="no worker can be started"):
        train(make_run(tmp_path, verifier=Breaks(odd_digits)))
    assert not threads("rlvr-")
