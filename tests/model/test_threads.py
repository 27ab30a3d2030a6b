"""Passes in several threads at once on a CPU: the same gradients and completions, and equal runs stay equal."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rlvr.config import ModelConfig, OptimConfig, SFTConfig
from rlvr.core.types import Completion, Sampling, Task
from rlvr.model.cpu import threads
from rlvr.model.cpu.threads import GradientSum, add_to_weights, passes_at_once, run_at_once
from rlvr.model.load.policy import load_policy
from rlvr.model.optim.health import NotFinite
from rlvr.sampling import torch_sampler
from rlvr.sampling.torch_sampler import TorchSampler
from rlvr.training.saving import fine_tune
from rlvr.training.step import prepare
from rlvr.training.supervision.signals import StopRequest
from tests.helpers.models import make_model, shake
from tests.helpers.runs import batch_of, gradient_of, make_run
from tests.helpers.verifiers import PROBLEMS, HasSeven, OddDigits


@pytest.fixture
def two_threads() -> Iterator[None]:
    """Torch has two threads, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def number_of_passes(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many passes each call has run at once."""
    found: list[int] = []

    def count_and_run(works, *rest):
        found.append(len(works))
        return run_at_once(works, *rest)

    monkeypatch.setattr(prepare, "run_at_once", count_and_run)
    monkeypatch.setattr(torch_sampler, "run_at_once", count_and_run)
    return found


def test_works_run_at_once_with_their_share_of_the_threads(two_threads: None) -> None:
    """They meet at a barrier; gradients are off where the caller's are; results come in order, exceptions too."""
    barrier = threading.Barrier(2, timeout=60)

    def work(number: int) -> tuple[int, int, bool]:
        barrier.wait()
        return number, torch.get_num_threads(), torch.is_grad_enabled()

    with torch.no_grad():
        assert run_at_once([lambda: work(0), lambda: work(1)]) == [(0, 1, False), (1, 1, False)]
    assert run_at_once([lambda: (torch.get_num_threads(), threading.current_thread())]) == [
        (2, threading.current_thread())
    ]
    assert torch.get_num_threads() == 2

    def fails() -> tuple[int, int, bool]:
        raise ValueError("in a thread")

    with pytest.raises(ValueError, match="in a thread"):
        run_at_once([lambda: (0, 0, True), fails])
    assert torch.get_num_threads() == 2
    assert passes_at_once(torch.device("cpu")) == 2
    assert passes_at_once(torch.device("cuda")) == 1


def test_sums_of_gradients_are_those_of_backward() -> None:
    """Also where autograd returns one tensor as the gradient of two weights, and for a weight that nothing reads."""
    a, b, unused = (torch.ones(3, requires_grad=True) for _ in range(3))
    sums = [GradientSum([a, b, unused]) for _ in range(2)]
    for number, one in enumerate(sums):
        for factor in (1.0, 2.0, 3.0):
            one.add(((a + b) * factor * (number + 1)).sum())
        one.add((a * 10).sum())
    add_to_weights(sums)
    assert a.grad is not None
    assert a.grad.tolist() == [6 + 12 + 20] * 3
    assert b.grad is not None
    assert b.grad.tolist() == [6 + 12] * 3
    assert unused.grad is None
    add_to_weights(sums[:1])
    assert a.grad.tolist() == [38 + 16] * 3


@pytest.mark.parametrize(
    "options",
    [
        {"algo": {"kl_coef": 0.1, "minibatches": 2}},
        {"algo": {"name": "dpo"}},
        {"algo": {"name": "ppo"}, "critic": {"kind": "shared", "lr": 1e-3}},
        {"algo": {"entropy_coef": 0.1}, "model": {"lora_rank": 2, "lora_alpha": 4}},
    ],
    ids=["grpo", "dpo", "critic", "lora"],
)
def test_the_gradient_is_that_of_one_pass_after_another(tmp_path, number_of_passes, monkeypatch, options) -> None:
    """To rounding; and twice the same, bit for bit."""
    run = make_run(tmp_path, verifier=HasSeven(), reference=True, **options)
    shake(run.learner.policy, 0.1, 1)
    run.config = dataclasses.replace(run.config, optim=OptimConfig(tokens_per_microbatch=200))
    number_of_passes.clear()
    batch = batch_of(run)
    # The reference of a LoRA policy is its model with the adapter off, which no other thread may compute with.
    assert set(number_of_passes) == ({1} if "model" in options else {2})
    number_of_passes.clear()
    first, again = gradient_of(run, batch), gradient_of(run, batch)
    assert set(number_of_passes) == {2}
    assert torch.equal(first, again)
    monkeypatch.setattr(threads, "MOST", 1)
    expected = gradient_of(run, batch)
    assert number_of_passes[-1] == 1
    assert expected.norm() > 1e-4
    torch.testing.assert_close(first, expected, atol=1e-6, rtol=1e-4)


def test_rows_longer_than_half_of_a_microbatch_run_alone(tmp_path, number_of_passes) -> None:
    """Passes that run at once hold no more tokens than one that runs alone."""
    run = make_run(tmp_path, verifier=HasSeven())
    batch = batch_of(run)
    longest = int(batch.lengths.max())
    for tokens, at_once in ((2 * longest - 1, 1), (2 * longest, 2)):
        run.config = dataclasses.replace(run.config, optim=OptimConfig(tokens_per_microbatch=tokens))
        gradient_of(run, batch)
        assert number_of_passes[-1] == at_once


@pytest.mark.parametrize(("name", "value"), [("sides", (100,)), ("most", 100)])
def test_a_model_whose_passes_change_its_angles_runs_alone(
    name, value, tmp_path, number_of_passes, monkeypatch
) -> None:
    """Rotary scaling keeps the angles of the last pass in the model."""
    run = make_run(tmp_path, verifier=HasSeven())
    batch = batch_of(run)
    monkeypatch.setattr(run.learner.policy.trial, name, value)
    gradient_of(run, batch)
    assert number_of_passes[-1] == 1


def test_fine_tuning_twice_gives_the_same_bits(tmp_path, number_of_passes) -> None:
    """The order in which threads end changes nothing."""
    ends = []
    for name in ("first", "second"):
        run = make_run(tmp_path)
        run.config = dataclasses.replace(run.config, sft=SFTConfig(steps=3, warmup_steps=0))
        task = Task("sums", PROBLEMS, PROBLEMS, OddDigits(), demonstrations=[(p, "7") for p in PROBLEMS])
        fine_tune(run.learner, task, run.reporter, tmp_path / name, print, StopRequest())
        ends.append(torch.cat([weight.detach().flatten() for weight in run.learner.policy.parameters()]))
    assert torch.equal(*ends)
    assert 2 in number_of_passes


PROMPTS = ["12+34=", "5-3=", "123+456=", "7="]


@pytest.mark.parametrize(("family", "groups"), [("llama", 4), ("llama", 1), ("gpt2", 4)])
def test_rows_drawn_in_two_threads(family, groups, tmp_path: Path, number_of_passes, monkeypatch) -> None:
    """Completions are those of one thread, also of a single prompt; the callback is called in the caller's thread."""
    policy = load_policy(ModelConfig(name=str(make_model(family, tmp_path)), device="cpu", dtype="float32"))
    prompts = [policy.render(prompt) for prompt in PROMPTS[:groups]]
    seeds = [[100 * p + g for g in range(40 // groups)] for p in range(groups)]
    sampling = Sampling(max_new_tokens=20)
    sampler = TorchSampler(policy)
    expected = sampler.generate(prompts, sampling, seeds)
    assert not number_of_passes  # the tiny model decodes in one thread
    monkeypatch.setattr("rlvr.model.cpu.processor.ONE_THREAD_BELOW", 0)
    monkeypatch.setattr("rlvr.model.cpu.processor.SEVERAL_THREADS_FROM", 0)
    seen: dict[int, list[Completion]] = {}

    def pass_on(place: int, made: list[Completion]) -> None:
        assert threading.current_thread() is threading.main_thread()
        seen[place] = made

    found = sampler.stream(prompts, sampling, seeds, pass_on)
    assert number_of_passes == [2]
    assert [[c.token_ids for c in group] for group in found] == [[c.token_ids for c in group] for group in expected]
    assert [seen[place] for place in range(groups)] == found


def test_a_sampler_in_another_thread_has_the_threads_that_it_was_made_with(
    tmp_path: Path, number_of_passes, monkeypatch
) -> None:
    """As where a step is sampled ahead: what other threads do meanwhile must not change how rows are divided."""
    policy = load_policy(ModelConfig(name=str(make_model("llama", tmp_path)), device="cpu", dtype="float32"))
    monkeypatch.setattr("rlvr.model.cpu.processor.ONE_THREAD_BELOW", 0)
    monkeypatch.setattr("rlvr.model.cpu.processor.SEVERAL_THREADS_FROM", 0)
    sampler = TorchSampler(policy)
    prompts, seeds = [policy.render(prompt) for prompt in PROMPTS], [list(range(10))] * len(PROMPTS)

    def sample_with_one() -> None:
        torch.set_num_threads(1)  # as a thread begins while others compute with one each
        sampler.generate(prompts, Sampling(max_new_tokens=4), seeds)

    other = threading.Thread(target=sample_with_one)
    other.start()
    other.join()
    torch.set_num_threads(2)
    assert number_of_passes == [2]


def test_an_error_ends_both_threads(tmp_path: Path, number_of_passes, monkeypatch) -> None:
    """One of the callback, and one of a model whose weights are broken."""
    policy = load_policy(ModelConfig(name=str(make_model("llama", tmp_path)), device="cpu", dtype="float32"))
    monkeypatch.setattr("rlvr.model.cpu.processor.ONE_THREAD_BELOW", 0)
    monkeypatch.setattr("rlvr.model.cpu.processor.SEVERAL_THREADS_FROM", 0)
    sampler, before = TorchSampler(policy), threading.active_count()
    prompts, seeds = [policy.render(prompt) for prompt in PROMPTS], [list(range(10))] * len(PROMPTS)

    def fail(place: int, made: list[Completion]) -> None:
        raise KeyError("the caller's")

    with pytest.raises(KeyError, match="the caller's"):
        sampler.stream(prompts, Sampling(max_new_tokens=20), seeds, fail)
    with torch.no_grad():
        policy.parameters()[-1].fill_(float("nan"))
    with pytest.raises(NotFinite):
        sampler.generate(prompts, Sampling(max_new_tokens=20), seeds)
    assert number_of_passes == [2, 2]
    assert threading.active_count() == before
