"""Weights in shards: the same training as with whole ones, 1/N of the memory, and unequal work of the processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from rlvr.algo.batch import Batch
from rlvr.core.types import Sampling
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim.sharding import check_shard, local, make_mesh
from rlvr.train import train
from rlvr.training.sft.sft import accumulate
from rlvr.training.step.update import accumulate_gradient
from tests.helpers.processes import run_processes
from tests.helpers.sharded import (
    ALONE,
    CPU,
    gradients,
    largest_difference,
    make_run,
    same,
    tiny_policy,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def uneven_batch(vocabulary: int) -> Batch:
    """One group with a single row of 41 tokens, and three with one of 13 each: of 45 tokens at once, 1 and 3."""
    generator = torch.Generator().manual_seed(3)
    lengths = torch.tensor([41, 13, 13, 13])
    columns = torch.arange(41)
    mask = (columns >= 5) & (columns < lengths[:, None])
    tokens = torch.randint(3, vocabulary, (4, 41), generator=generator) * (columns < lengths[:, None])
    logprobs = torch.full((4, 41), -2.0) * mask
    return Batch(
        tokens, mask, mask, logprobs, torch.tensor([1.0, -0.5, 2.0, 0.3]), lengths, torch.arange(4), logprobs, logprobs
    )


@pytest.mark.parametrize("model", [{}, {"gradient_checkpointing": True}], ids=["plain", "checkpointing"])
def test_unequal_microbatches_give_the_gradients_of_one_process(tmp_path: Path, model: dict) -> None:
    """Three microbatches on a process and one, with two that do not count, on the other."""
    settings = {"algo": {"kl_coef": 0.1}, "optim": {"tokens_per_microbatch": 20}}
    batch = uneven_batch(10)
    assert [[bool(w) for _, w in part] for part in batch.plan(2, 20, equal=True)] == [[True, False, False], [True] * 3]
    one = make_run(tmp_path, model=model, **settings)
    one.learner.accelerator = ALONE
    expected_sums = accumulate_gradient(one.learner, batch)

    def work(rank: int) -> tuple:
        run = make_run(tmp_path, 2, model=model, **settings)
        return accumulate_gradient(run.learner, batch), gradients(run.learner.policy)

    for sums, found in run_processes(2, work):
        assert largest_difference(found, gradients(one.learner.policy), relative=True) < 1e-5
        assert sums == pytest.approx(expected_sums, rel=1e-5)


ALGORITHMS = {
    "kl in the loss": {"algo": {"kl_coef": 0.1}},
    "kl in the reward": {"algo": {"name": "reinforce", "kl_coef": 0.1, "kl_in": "reward", "minibatches": 2}},
    "critic": {"algo": {"name": "ppo", "minibatches": 2}, "critic": {"lr": 1e-3}},
    "value head": {"algo": {"name": "ppo"}, "critic": {"lr": 1e-3, "kind": "head", "warmup": 1}},
    "pairs": {"algo": {"name": "dpo"}},
}


@pytest.mark.parametrize("name,clip", [*((name, 1e6) for name in ALGORITHMS), ("kl in the loss", 0.1)])
def test_shards_train_as_replicas_do(tmp_path: Path, name: str, clip: float) -> None:
    """Two processes, three steps: the same bits of weights and rollouts, up to the norm's rounding where it clips.

    With one microbatch for each minibatch: the sums over several are taken in another order.
    """
    settings = {**ALGORITHMS[name], "optim": {"max_grad_norm": clip, "tokens_per_microbatch": 4096}}

    def work(rank: int) -> list:
        found = []
        for shard in (1, 2):
            run = make_run(tmp_path / f"{shard}", shard, **settings)
            start = weights(run.learner.policy)
            train(run)
            critic = run.learner.critic
            found.append((start, weights(run.learner.policy), critic.tensors() if critic else {}))
        return found

    results = run_processes(2, work)
    for (start, whole, value), (same_start, parts, value_parts) in results:
        assert same(start, same_start)
        assert largest_difference(whole, start) > 1e-3
        if clip > 1:
            assert same(whole, parts)
            assert same(value, value_parts)
        else:
            assert largest_difference(parts, whole) < 1e-6
            assert not value or largest_difference(value_parts, value) < 1e-6
    assert same(results[0][1][1], results[1][1][1])
    if clip > 1:
        logs = [(tmp_path / shard / "rollouts.jsonl").read_bytes() for shard in "12"]
        assert logs[0] == logs[1]


@pytest.mark.parametrize("processes,shard", [(2, 2), (3, 3), (4, 2)], ids=["two", "three", "two replicas of two"])
def test_steps_are_those_of_one_process_in_a_part_of_the_memory(tmp_path: Path, processes: int, shard: int) -> None:
    """Three Adam steps at a rate of 1e-3: weights within a tenth of it; a process holds 1/N of all, within 2 %."""
    one = make_run(tmp_path / "one")
    train(one)

    def work(rank: int) -> tuple:
        run = make_run(tmp_path / "many", shard)
        train(run)
        held = run.learner.policy.parameters()
        accumulate_gradient(run.learner, uneven_batch(10))
        slopes = [weight.grad for weight in held]
        moments = [v for s in run.learner.optimizer.state.values() for v in s.values() if v.dim()]
        return weights(run.learner.policy), [share_here(tensors) for tensors in (held, slopes, moments)]

    for found, shares in run_processes(processes, work):
        assert largest_difference(found, weights(one.learner.policy)) < 1e-4
        assert shares == pytest.approx([1 / shard] * 3, rel=0.02)


def share_here(tensors) -> float:
    """The share of tensors' bytes that this process holds."""
    return sum(local(t).nbytes for t in tensors) / sum(t.numel() * t.element_size() for t in tensors)


def test_adapters_are_trained_on_frozen_shards(tmp_path: Path) -> None:
    """LoRA in bfloat16: adapters' gradients within 2 % of one process's; the reference is the model without them."""
    model = {"lora_rank": 4, "dtype": "bfloat16"}
    batch = uneven_batch(10)

    def learner(shard: int):
        run = make_run(tmp_path, shard, model=model, optim={"tokens_per_microbatch": 20})
        torch.manual_seed(0)
        with torch.no_grad():
            for name, weight in run.learner.policy.model.named_parameters():
                if "lora_B" in name:
                    drawn = torch.randn(weight.shape) * 0.05
                    whole = drawn if shard == 1 else drawn[rows_here(weight)]
                    local(weight).copy_(whole)
        return run.learner

    one = learner(1)
    one.accelerator = ALONE
    accumulate_gradient(one, batch)
    before = token_logprobs(one.policy.reference(), batch.tokens, batch.mask)[0].detach()
    expected = gradients(one.policy)

    def work(rank: int) -> tuple:
        made = learner(2)
        accumulate_gradient(made, batch)
        reference = made.policy.reference()
        return gradients(made.policy), token_logprobs(reference, batch.tokens, batch.mask)[0].detach()

    for found, scored in run_processes(2, work):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert float((found[name] - value).norm()) <= 0.02 * float(value.norm()), name
        torch.testing.assert_close(scored, before, atol=1e-2, rtol=0)


def rows_here(weight) -> slice:
    """The rows of a weight that this process holds."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape, offset = compute_local_shape_and_global_offset(weight.shape, weight.device_mesh, weight.placements)
    return slice(offset[0], offset[0] + shape[0])


def test_processes_sample_unequal_lengths_from_gathered_weights() -> None:
    """No collective hides in it: one draws 12 tokens, one 5 and one nothing; to the bit as the whole policy would."""
    from rlvr.sampling.torch_sampler import TorchSampler

    prompts, seeds, counts = [[3, 4, 5], [6, 7, 8, 9], [5, 5]], [[1, 2, 3]] * 3, [12, 5, 0]

    def draw(policy, rank: int) -> list:
        sampler = TorchSampler(policy)
        chosen = prompts if counts[rank] else []
        drawn = sampler.generate(chosen, Sampling(max_new_tokens=counts[rank] or 1), seeds[: len(chosen)])
        sampler.sleep()
        sampler.load_weights(policy)
        again = sampler.generate(chosen, Sampling(max_new_tokens=counts[rank] or 1), seeds[: len(chosen)])
        assert again == drawn
        return drawn

    expected = [draw(tiny_policy(), rank) for rank in range(3)]
    assert run_processes(3, lambda rank: draw(tiny_policy(3), rank)) == expected


def test_a_microbatch_without_scored_tokens_still_takes_part() -> None:
    """Its process gathers weights with the others, and adds nothing to the gradients."""
    batch = uneven_batch(10)
    one = tiny_policy()
    token_logprobs(one, batch.tokens, batch.mask)[0].sum().backward()

    def work(rank: int) -> tuple:
        policy = tiny_policy(2)
        scored, entropy = token_logprobs(policy, batch.tokens, batch.mask & (rank == 0), with_entropy=True)
        scored.sum().backward()
        assert entropy is not None
        return scored.detach(), entropy, gradients(policy)

    (_, _, first), (scored, entropy, second) = run_processes(2, work)
    assert not scored.any()
    assert not entropy.any()
    for found in (first, second):
        assert largest_difference(found, gradients(one), relative=True) < 1e-5


def test_fine_tuning_in_shards() -> None:
    """Loss and gradients of a batch that one process has no rows of."""
    batch = uneven_batch(10).rows(torch.tensor([0]))
    one = tiny_policy()
    expected = accumulate(one, batch, ALONE, 20)

    def work(rank: int) -> tuple:
        policy = tiny_policy(2)
        return accumulate(policy, batch, Accelerator(cpu=True), 20), gradients(policy)

    results = run_processes(2, work)
    assert sum(loss for loss, _ in results) == pytest.approx(expected, rel=1e-5)
    for _, found in results:
        assert largest_difference(found, gradients(one), relative=True) < 1e-5


@pytest.mark.parametrize("shard,processes", [(2, 1), (3, 2), (4, 6), (3, 4)])
def test_numbers_that_do_not_fit_are_refused(shard: int, processes: int) -> None:
    """In one line that names the numbers that do."""
    with pytest.raises(ValueError, match=f"model.shard {shard} with {processes} process.*: expected 1"):
        check_shard(shard, processes)


def test_one_shard_is_the_whole_model() -> None:
    """Without several processes there is no mesh."""
    check_shard(1, 5)
    assert make_mesh(1, CPU) is None
    assert tiny_policy().mesh is None
