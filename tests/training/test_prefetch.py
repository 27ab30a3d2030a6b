"""Verification beside sampling, and rollouts sampled ahead of the training."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading

import pytest
import torch

from rlvr.config import AlgoConfig, Config, CurriculumConfig, ModelConfig, RolloutConfig
from rlvr.core.types import RunError, Sampler, error
from rlvr.model.load.policy import load_policy
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import AHEAD, load_checkpoint, read_groups, write_groups
from rlvr.training.checkpoint.folders import checkpoint_folder
from rlvr.training.rollout.episodes import TurnPlan
from rlvr.training.rollout.rollout import collect
from rlvr.training.run import Run
from rlvr.training.step.rewards import group_advantages, group_rewards
from rlvr.training.step.update import accumulate_gradient, prepare_batch, to_batch
from rlvr.verifiers.runner import Runner, VerifierErrors
from tests.helpers.models import OwnWeights
from tests.helpers.overlap import Plain, logs, make_run, threads
from tests.helpers.runs import AfterStep, weights_of
from tests.helpers.turns import played_groups, slow_digits
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


class Conversing(OwnWeights):
    """A sampler with a copy of the weights, which remembers how many pushes each batch of turns came after."""

    def converse(self, rollouts):
        self.pushes_before_call.append(self.pushes)
        return super().converse(rollouts)


@pytest.mark.parametrize("sampler", [OwnWeights, Conversing])
@pytest.mark.parametrize("staleness", [1, 2])
def test_batch_is_sampled_from_the_weights_of_k_steps_before(tmp_path, staleness, sampler):
    """Batch s, all its turns too, after max(0, s - k) pushes, whatever the timing; the age is logged; repeated, the run
    is the same."""
    settings = {"max_staleness": staleness, "steps": 5, "max_turns": 3, "turn_tokens": 4}
    runs = [make_run(tmp_path / name, sampler=sampler, **settings) for name in ("a", "b")]
    for run in runs:
        if sampler is Conversing:
            run.worker.plan = TurnPlan(slow_digits, run.config.rollout)
        train(run)
        assert run.worker.sampler.pushes_before_call == [max(0, s - staleness) for s in range(5 + staleness)]
        assert [row["staleness"] for row in run.reporter.log.read("metrics")] == [min(s, staleness) for s in range(5)]
    assert logs(runs[0]) == logs(runs[1])
    assert torch.equal(weights_of(runs[0]), weights_of(runs[1]))


def test_first_stale_batch_is_what_the_first_weights_draw(tmp_path):
    """With k = 1 the second step's rollouts are those that the untrained policy draws with the second step's seeds."""
    run = make_run(tmp_path, sampler=OwnWeights, max_staleness=1)
    untrained = collect(make_run(tmp_path / "other").worker, 1)
    train(run)
    logged = [row["completion"] for row in run.reporter.log.read("rollouts") if row["step"] == 2]
    assert logged == [completion.text for group in untrained for completion in group.completions]


def test_without_staleness_nothing_is_logged_of_it(tmp_path):
    """On-policy runs have the log that they had."""
    run = make_run(tmp_path)
    train(run)
    assert all("staleness" not in row and "seconds/wait" not in row for row in run.reporter.log.read("metrics"))
    assert not list(tmp_path.rglob(AHEAD))


@pytest.mark.parametrize("minibatches", [1, 2])
def test_importance_weight_corrects_the_age(tmp_path, minibatches):
    """Trained on older rollouts, old logprobs are the present weights'; each token's gradient is weighted by
    min(pi_now / pi_then, 2)."""
    run = make_run(tmp_path, sampler=OwnWeights, max_staleness=1)
    run.config = dataclasses.replace(run.config, algo=AlgoConfig(minibatches=minibatches))
    groups = collect(run.worker, 0)
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in run.learner.policy.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    advantages = group_advantages(groups, group_rewards(groups, run.config.rollout), run.config.algo)
    batch = prepare_batch(run.learner, to_batch(run.learner, groups, advantages))
    now, _ = token_logprobs(run.learner.policy, batch.tokens, batch.mask, temperature=1.0)
    if minibatches > 1:
        torch.testing.assert_close(batch.old_logprobs, now.detach(), atol=1e-5, rtol=0)
    ratio = (now.detach() - batch.sampler_logprobs).exp().clamp(max=2.0)
    assert float((ratio[batch.mask] - 1).abs().mean()) > 0.01
    loss = -(ratio * batch.advantages[:, None] * now * batch.mask).sum() / sum(batch.token_counts)
    expected = torch.autograd.grad(loss, list(run.learner.policy.parameters()))
    accumulate_gradient(run.learner, batch)
    for weight, gradient in zip(run.learner.policy.parameters(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, atol=1e-6, rtol=1e-4)


def resume(run: Run, step: int) -> None:
    """Puts a run where its last checkpoint is, as the command line does."""
    folder = checkpoint_folder(run.reporter.log.out_dir, step)
    state = load_checkpoint(folder, run.learner.policy, run.learner.optimizer)
    run.reporter.log.truncate_to(state["log"], step)
    run.worker.sampler = OwnWeights(run.learner.policy)


@pytest.mark.parametrize("draw", ["epochs", "signal"])
@pytest.mark.parametrize("staleness", [1, 2])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, staleness, draw):
    """With k = 1 and 2: six steps, against three, a signal, a resume, and three more; also with a curriculum."""
    settings = {
        "sampler": OwnWeights,
        "max_staleness": staleness,
        "curriculum": CurriculumConfig(draw=draw),
        "steps": 6,
    }
    whole = make_run(tmp_path / "whole", **settings)
    train(whole)
    parts = make_run(tmp_path / "parts", **settings)
    parts.reporter.callbacks.append(AfterStep(lambda step: step == 3 and os.kill(os.getpid(), signal.SIGINT)))
    assert train(parts).signal == signal.SIGINT
    assert (checkpoint_folder(tmp_path / "parts", 3) / AHEAD).exists()
    again = make_run(tmp_path / "parts", **settings)
    resume(again, 3)
    train(again, 3)
    assert logs(again) == logs(whole)
    assert torch.equal(weights_of(again), weights_of(whole))
    assert not threads("rlvr-")


def test_lengthened_run_equals_a_longer_one(tmp_path):
    """A run that had come to its end goes on with the batch that it had sampled ahead."""
    whole = make_run(tmp_path / "whole", sampler=OwnWeights, max_staleness=1, steps=4)
    train(whole)
    train(make_run(tmp_path / "parts", sampler=OwnWeights, max_staleness=1, steps=2))
    again = make_run(tmp_path / "parts", sampler=OwnWeights, max_staleness=1, steps=4)
    resume(again, 2)
    train(again, 2)
    assert logs(again) == logs(whole)
    assert torch.equal(weights_of(again), weights_of(whole))


def test_groups_are_stored_to_the_last_bit(tmp_path):
    """With turns, verdicts of environments and process rewards, but without durations: a checkpoint is the same bytes
    however long its verdicts took. A problem that the task has no more is named."""
    groups, played = collect(make_run(tmp_path).worker, 0), played_groups(3, 20, void=True)
    groups = [dataclasses.replace(g, verdicts=tuple(v.with_seconds(0.0) for v in g.verdicts)) for g in groups]
    odd = dataclasses.replace(groups[0].verdicts[0], parts={"a": 0.1}, reason="\u2028 \n é", steps=((1, 0.1),))
    groups[0] = dataclasses.replace(groups[0], verdicts=(odd, *groups[0].verdicts[1:]), own_verdicts=(odd,))
    groups[1] = dataclasses.replace(groups[1], kept=False, round=2)
    judged = dataclasses.replace(played[0].completions[0], verdict=odd)
    played[0] = dataclasses.replace(played[0], completions=(judged, *played[0].completions[1:]))
    write_groups(tmp_path / AHEAD, {7: groups, 8: played})
    problems = [*PROBLEMS, *(group.problem for group in played)]
    assert read_groups(tmp_path / AHEAD, problems) == {7: groups, 8: played}
    slow = [dataclasses.replace(g, verdicts=tuple(v.with_seconds(7.0) for v in g.verdicts)) for g in groups]
    write_groups(tmp_path / "slow", {7: slow, 8: played})
    assert (tmp_path / "slow").read_bytes() == (tmp_path / AHEAD).read_bytes()
    with pytest.raises(ValueError, match=f"problem '{groups[0].problem.id}' is not among"):
        read_groups(tmp_path / AHEAD, [])


class Fails(OwnWeights):
    """An engine that is lost while it samples beside the training."""

    def stream(self, prompts, sampling, seeds, on_group):
        if self.pushes == 1:
            raise RunError("the engine is lost")
        return super().stream(prompts, sampling, seeds, on_group)


def test_failure_beside_the_training_reaches_the_run(tmp_path):
    """It is raised when the step that went on meanwhile wants to push; the steps before are logged."""
    run = make_run(tmp_path, sampler=Fails, max_staleness=1)
    with pytest.raises(RunError, match="the engine is lost"):
        train(run)
    assert [row["step"] for row in run.reporter.log.read("metrics")] == [1]


class Hangs(OwnWeights):
    """An engine that answers nothing after its first batch, until it is interrupted."""

    def __init__(self, policy) -> None:
        super().__init__(policy)
        self.interrupted, self.hanging = threading.Event(), threading.Event()

    def stream(self, prompts, sampling, seeds, on_group):
        if self.pushes_before_call:
            self.hanging.set()
            assert self.interrupted.wait(30)
            raise RunError("interrupted")
        return super().stream(prompts, sampling, seeds, on_group)

    def interrupt(self) -> None:
        self.interrupted.set()


def test_second_signal_ends_the_sampling_in_flight(tmp_path):
    """Ctrl-C twice while the engine hangs: KeyboardInterrupt at once, and no thread is left."""
    run = make_run(tmp_path, sampler=Hangs, max_staleness=1)

    def press_twice() -> None:
        assert run.worker.sampler.hanging.wait(30)
        for _ in range(2):
            threading.Event().wait(0.3)
            os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press_twice)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        train(run)
    pressing.join()
    assert run.worker.sampler.interrupted.is_set()
    assert not threads("rlvr-")
