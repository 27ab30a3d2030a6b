"""Weights in shards: training, short weights, checkpoints for any number of processes, kills, memory."""

from __future__ import annotations

import dataclasses
import os
import re
import resource
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM

from rlvr import distributed
from rlvr.algo.batch import Batch
from rlvr.config import Config, ModelConfig, MonitorConfig, VLLMConfig
from rlvr.core.files.models import Place
from rlvr.core.types import Problem, RunError, Sampling, Verdict
from rlvr.model.load.policy import load_policy
from rlvr.model.load.pretrained import holds_every_weight, weight_files
from rlvr.model.logprobs.critic import Critic
from rlvr.model.logprobs.scoring import token_logprobs
from rlvr.model.optim.sharding import check_shard, full, local, make_mesh, within
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import save_checkpoint
from rlvr.training.checkpoint.folders import checkpoint_folder, find_damage
from rlvr.training.monitor.monitor import Monitor
from rlvr.training.rollout.episodes import TurnPlan
from rlvr.training.run import Run
from rlvr.training.sft.sft import accumulate
from rlvr.training.step.update import accumulate_gradient
from tests.helpers import warm
from tests.helpers.files import lines
from tests.helpers.models import FAMILIES, make_model, make_tokens
from tests.helpers.processes import run_processes
from tests.helpers.runs import AfterStep, with_settings
from tests.helpers.sharded import (
    ALONE,
    CPU,
    are_equal,
    gradients,
    largest_difference,
    load,
    make_run,
    tiny_policy,
    trained_parts,
    weights,
)
from tests.helpers.turns import slow_digits
from tests.helpers.verifiers import HasSeven, OddDigits

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
        assert are_equal(start, same_start)
        assert largest_difference(whole, start) > 1e-3
        if clip > 1:
            assert are_equal(whole, parts)
            assert are_equal(value, value_parts)
        else:
            assert largest_difference(parts, whole) < 1e-6
            assert not value or largest_difference(value_parts, value) < 1e-6
    assert are_equal(results[0][1][1], results[1][1][1])
    if clip > 1:
        logs = [(tmp_path / shard / "rollouts.jsonl").read_bytes() for shard in "12"]
        assert logs[0] == logs[1]


class Whitened(OddDigits):
    """Scores that depend on the whole batch."""

    whole_batch = True

    def verify(self, pairs: Sequence[tuple[Problem, str]]) -> list[Verdict]:
        """Return the length of each text less the mean."""
        mean = sum(len(text) for _, text in pairs) / len(pairs)
        return [Verdict("partial", len(text) - mean) for _, text in pairs]


TURNS = {"max_turns": 3, "turn_tokens": 4, "mask_void": True}
SEVERAL: dict[str, tuple[int, int, dict]] = {
    "two shards": (2, 2, {}),
    "three shards": (3, 3, {}),
    "two replicas of two shards": (4, 2, {}),
    "fewer problems than processes": (3, 1, {"rollout": {"problems_per_step": 2}, "algo": {"kl_coef": 0.1}}),
    "kl in the reward": (2, 1, ALGORITHMS["kl in the reward"]),
    "value head": (2, 1, ALGORITHMS["value head"]),
    "curriculum with dynamic sampling": (
        *(3, 1),
        {"curriculum": {"draw": "signal", "half_life": 1.0}, "rollout": {"resample_rounds": 1}},
    ),
    "rewards of the whole batch, with a monitor": (2, 1, {"algo": {"name": "reinforce"}}),
    "turns": (2, 1, {"rollout": TURNS, "algo": {"credit": "turn", "name": "rloo", "kl_coef": 0.1}}),
    "turns in shards": (2, 2, {"rollout": TURNS, "algo": {"credit": "turn", "name": "ppo"}, "critic": {"lr": 1e-3}}),
    "turns in shards, pairs": (2, 2, {"rollout": TURNS, "algo": {"name": "dpo"}}),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_steps_are_those_of_one_process_in_a_part_of_the_memory(tmp_path: Path, name: str) -> None:
    """The same rollouts; after three Adam steps at a rate of 1e-3 weights within a tenth of it. A process holds 1/N of
    all, within 2 %.
    """
    processes, shard, settings = SEVERAL[name]

    def make_shard(folder: str, shard: int) -> Run:
        run = make_run(tmp_path / folder, shard, **settings)
        if "monitor" in name:
            run.worker.verifier, run.monitor = Whitened(), Monitor(HasSeven(), MonitorConfig("math"))
        if "turns" in name:
            run.worker.plan = TurnPlan(slow_digits, run.config.rollout)
        train(run)
        return run

    one = make_shard("one", 1)

    def work(rank: int) -> tuple:
        run = make_shard("many", shard)
        found = weights(run.learner.policy)
        if settings:
            return found, []
        held = run.learner.policy.parameters()
        accumulate_gradient(run.learner, uneven_batch(10))
        slopes = [weight.grad for weight in held]
        moments = [v for s in run.learner.optimizer.state.values() for v in s.values() if v.dim()]
        return found, [share_here(tensors) for tensors in (held, slopes, moments)]

    for found, shares in run_processes(processes, work):
        assert largest_difference(found, weights(one.learner.policy)) < 1e-4
        assert shares == pytest.approx([1 / shard] * len(shares), rel=0.02)
    logs = [lines(tmp_path / run / "rollouts.jsonl") for run in ("one", "many")]
    texts = [[(row["completion"], row.get("turns")) for row in rows] for rows in logs]
    assert texts[0] == texts[1] != []


def test_collective_calls_of_three_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shares are parts in order, gathering keeps the order, gradients (also missing ones) and sums add up."""
    monkeypatch.setattr(distributed, "BUCKET_ELEMENTS", 5)  # several buckets

    def work(rank: int) -> tuple:
        accelerator = Accelerator(cpu=True)
        kinds = ((3, torch.float32), (4, torch.float32), (2, torch.float64))
        held = [torch.nn.Parameter(torch.zeros(n, dtype=kind)) for n, kind in kinds]
        held[0].grad = torch.full((3,), 10.0**rank)
        held[2].grad = torch.full((2,), rank + 1.0, dtype=torch.float64)  # the second has none
        distributed.sum_gradients(held, accelerator)
        return (
            list(distributed.share(list("abcde"), accelerator)),
            distributed.gather([rank] * rank, accelerator),
            distributed.sum_tensor(torch.tensor([rank + 1.0]), accelerator).tolist(),
            [weight.grad.tolist() for weight in held],
            distributed.sum_stats({"b": 1.0, "a": float(rank)}, accelerator, "cpu"),
        )

    gradients = [[111.0] * 3, [0.0] * 4, [6.0] * 2]
    for part, found in zip((["a"], ["b", "c"], ["d", "e"]), run_processes(3, work), strict=True):
        assert found == (part, [1, 2, 2], [6.0], gradients, {"a": 3.0, "b": 3.0})


def share_here(tensors) -> float:
    """The share of tensors' bytes that this process holds."""
    return sum(local(t).nbytes for t in tensors) / sum(t.numel() * t.element_size() for t in tensors)


def test_adapters_are_trained_on_frozen_shards(tmp_path: Path) -> None:
    """LoRA in bfloat16: adapters' gradients within 5 % of one process's, whose residual stream is float32.

    The reference is the model without them.
    """
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
            assert float((found[name] - value).norm()) <= 0.05 * float(value.norm()), name
        torch.testing.assert_close(scored, before, atol=5e-2, rtol=0)


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


SHORT = {"dtype": "bfloat16"}


def test_shards_are_gathered_in_the_dtype_of_the_computation(tmp_path: Path) -> None:
    """Without autocast: logprobs and gradients are those of one process with weights in bfloat16.

    Gradients of both ranks, of microbatches and of the LM head's chunks add up in float32.
    """
    batch = uneven_batch(10)
    rows = {"tokens_per_microbatch": 1}
    one = make_run(tmp_path, model={"weights": "bfloat16", "dtype": "bfloat16"}, optim=rows)
    one.learner.accelerator = ALONE
    with torch.no_grad():
        scored = token_logprobs(one.learner.policy, batch.tokens, batch.mask)[0]
    accumulate_gradient(one.learner, batch)
    expected = gradients(one.learner.policy)

    def work(rank: int) -> tuple:
        run = make_run(tmp_path, 2, model=SHORT, optim=rows)
        policy = run.learner.policy
        for weight in policy.parameters():
            local(weight).data.copy_(local(weight).to(torch.bfloat16))
        with torch.no_grad():
            found = token_logprobs(policy, batch.tokens, batch.mask)[0]
        layer = policy.causal.base_model.layers[0]
        seen: list = []
        layer.mlp.register_forward_pre_hook(lambda *_: seen.append(layer.mlp.gate_proj.weight.dtype))
        layer.mlp.register_forward_pre_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
        within(policy.model, lambda: policy.causal(batch.tokens[:, :4]))
        accumulate_gradient(run.learner, batch)
        copy = policy.gather(dtype=policy.dtype)
        return found, seen, gradients(policy), {weight.dtype for weight in copy.parameters()}

    for found, seen, slopes, dtypes in run_processes(2, work):
        assert (seen, dtypes) == ([torch.bfloat16, False], {torch.bfloat16})
        assert torch.equal(found, scored)
        assert {value.dtype for value in slopes.values()} == {torch.float32}
        assert largest_difference(slopes, expected, relative=True) < 1e-5


REFUSED = {
    "optim.name adamw8bit": {"optim": {"name": "adamw8bit"}},
    "optim.offload": {"optim": {"offload": True}},
    "model.weights bfloat16": {"model": {"weights": "bfloat16"}},
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_states_are_refused_in_shards(name: str) -> None:
    """In one line that names both settings."""
    config = with_settings(with_settings(Config(), model={"shard": 2}), **REFUSED[name])
    with pytest.raises(ValueError, match=f"^{re.escape(name)} with model\\.shard 2: "):
        config.check()


PPO = {"algo": {"name": "ppo"}, "critic": {"lr": 1e-3}}


@pytest.mark.parametrize("writers", [1, 2], ids=["written whole", "written in shards"])
@pytest.mark.parametrize("chosen", [PPO, {"model": SHORT}], ids=["critic", "bfloat16"])
def test_checkpoints_are_read_by_any_number_of_processes(tmp_path: Path, chosen: dict, writers: int) -> None:
    """By 1, 2 and 3 to the bit, whoever wrote them; the step after it is the same up to the order of the sums."""
    settings = {**chosen, "run": {"save_every": 2}, "optim": {"tokens_per_microbatch": 4096}}

    def write(rank: int) -> tuple:
        run = make_run(tmp_path / "run", writers, **settings)
        run.config = with_steps(run, 2)
        train(run)
        held = trained_parts(run)
        run.config = with_steps(run, 3)
        train(run, 2)
        return held, trained_parts(run)

    def read(rank: int, count: int) -> tuple:
        run = make_run(copies[count], count, **settings)
        load(run, 2)
        held = trained_parts(run)
        train(run, 2)
        return held, trained_parts(run)

    written, after = run_processes(writers, write)[0]
    names = {path.name for path in checkpoint_folder(tmp_path / "run", 2).iterdir()}
    assert {"model.safetensors"} | ({"critic.safetensors"} if chosen is PPO else set()) <= names
    assert ("optimizer" if writers > 1 else "optimizer.safetensors") in names
    copies = {count: shutil.copytree(tmp_path / "run", tmp_path / f"by {count}") for count in (1, 2, 3)}
    for count in copies:
        for found, further in run_processes(count, lambda rank, count=count: read(rank, count)):
            assert are_equal(found, written)
            if count == writers:
                assert are_equal(further, after)
            elif chosen is PPO:  # in bfloat16 other sums round further apart
                assert largest_difference(further, after) < 1e-6


def with_steps(run: Run, steps: int) -> Config:
    return with_settings(run.config, run={"steps": steps})


def test_transformers_loads_what_shards_wrote(tmp_path: Path) -> None:
    """One file, without the tied head; and `load_policy`, whole or in shards."""

    def write(rank: int) -> dict:
        policy = tiny_policy(2)
        policy.save(tmp_path / "model")
        torch.distributed.barrier()
        again = load_policy(ModelConfig(name=str(tmp_path / "model"), device="cpu"), mesh=make_mesh(2, CPU))
        assert are_equal(weights(again), weights(policy))
        return weights(policy)

    written = run_processes(2, write)[0]
    assert "lm_head.weight" not in written
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    assert loaded.lm_head.weight is loaded.get_input_embeddings().weight
    assert are_equal(dict(loaded.named_parameters()), written)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "bloom", "qwen2_moe"])
def test_a_model_is_read_in_parts(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process loads it whole, except where transformers renames weights; probabilities and gradients are as whole.

    Packed by either pass, with windows, or padded; one process has fewer rows.
    """
    folder = make_model(family, tmp_path / "model")
    tokens, mask = make_tokens(20)
    config = ModelConfig(name=str(folder), device="cpu")
    one = load_policy(config)
    whole = token_logprobs(one, tokens, mask)[0]
    (whole[:3].sum() + whole.sum()).backward()

    def read(rank: int) -> tuple:
        if holds_every_weight(one.model, weight_files(Place(str(folder)))):
            monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
        policy = load_policy(config, mesh=make_mesh(2, CPU))
        held, rows = weights(policy), slice(3 if rank else None)
        scored = token_logprobs(policy, tokens[rows], mask[rows])[0]
        scored.sum().backward()
        assert policy.packs == one.packs == (FAMILIES[family][0] != "padded")
        assert policy.eos_ids == one.eos_ids
        return held, scored.detach(), gradients(policy)

    assert holds_every_weight(one.model, weight_files(Place(str(folder)))) == (family != "qwen2_moe")
    for (held, scored, slopes), expected in zip(run_processes(2, read), (whole, whole[:3])):
        assert are_equal(held, weights(one))
        torch.testing.assert_close(scored, expected.detach(), atol=1e-5, rtol=0)
        assert largest_difference(slopes, gradients(one), relative=True) < 1e-4


def test_adapters_in_shards_are_saved_and_read(tmp_path: Path) -> None:
    """As peft loads them, by one process or two."""

    def write(rank: int) -> dict:
        policy = tiny_policy(2, lora_rank=2)
        with torch.no_grad():
            for weight in policy.parameters():
                weight.add_(0.25)
        policy.save(tmp_path / "adapter")
        torch.distributed.barrier()
        again = tiny_policy(2, lora_rank=2)
        again.load_weights(tmp_path / "adapter")
        assert are_equal(weights(again), weights(policy))
        return weights(policy)

    written = run_processes(2, write)[0]
    one = tiny_policy(lora_rank=2)
    assert not are_equal(weights(one), written)
    one.load_weights(tmp_path / "adapter")
    assert are_equal(weights(one), written)


@pytest.mark.parametrize("full_on", [0, 1])
def test_a_full_disk_ends_all_processes_in_one_line(tmp_path: Path, full_on: int) -> None:
    """Whichever process cannot write; the checkpoint before is whole, and of the other nothing is left."""

    def write(rank: int) -> str:
        run = make_run(tmp_path, 2)
        train(run)
        # The first process writes the weights before the optimizer's state: only the latter is too large.
        if rank == full_on:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (3_200_000 if rank else 3_300_000, resource.RLIM_INFINITY))
        with pytest.raises(RunError) as caught:
            save_checkpoint(checkpoint_folder(tmp_path, 4), 4, run.learner.policy, run.learner.optimizer, {"log": {}})
        return str(caught.value)

    for line in run_processes(2, write):
        assert re.match(r"cannot save .*step-000004: .*", line)
        assert "\n" not in line
    assert find_damage(checkpoint_folder(tmp_path, 3)) is None
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000003"]


@pytest.mark.slow
def test_a_killed_run_is_resumed_by_any_number_of_processes(tmp_path: Path) -> None:
    """Three processes, one killed after the third step: three resume byte for byte; two, and one, to 1e-6.

    What a checkpoint holds is restored to the bit. After the step that follows, which moves weights of up to 1 by up to
    1e-3, no weight differs by more than 1e-6, and no entry of a moment by more than 1e-6 of its tensor's largest: sums
    over microbatches are taken in another order. The next step starts from these differences, divided by small moments.
    """
    settings = {"run": {"save_every": 2, "steps": 4}, "eval": {"every": 1}}

    def whole(rank: int) -> dict:
        run = make_run(tmp_path / "whole", 3, **settings)
        return by_step(run)

    def kill_rank(rank: int) -> None:
        run = make_run(tmp_path / "parts", 3, **settings)
        run.reporter.callbacks.append(AfterStep(lambda step: step == 3 and os.kill(os.getpid(), signal.SIGKILL)))
        train(run)

    def resume_ranks(rank: int, count: int) -> dict:
        run = make_run(tmp_path / f"by {count}", count, **settings)
        load(run, 2)
        held = trained_parts(run)
        return {2: held, **by_step(run, 2)}

    expected = run_processes(3, whole)[0]
    trained = [{name: value for name, value in expected[step].items() if name.startswith("model.")} for step in (2, 3)]
    assert 5e-4 < largest_difference(*trained) < 2e-3
    assert run_processes(3, kill_rank) == [None] * 3
    assert find_damage(checkpoint_folder(tmp_path / "parts", 2)) is None
    for count in (3, 2, 1):
        shutil.copytree(tmp_path / "parts", tmp_path / f"by {count}")
        for found in run_processes(count, lambda rank, count=count: resume_ranks(rank, count)):
            assert found.keys() == {2, 3, 4}
            assert are_equal(found[2], expected[2])
            if count == 3:
                assert all(are_equal(found[step], expected[step]) for step in (3, 4))
            else:
                assert largest_difference(found[3], expected[3]) < 1e-6
                assert largest_difference(moments(found[3]), moments(expected[3]), relative=True) < 1e-6
                assert largest_difference(found[4], expected[4]) < 1e-4
    for name in ("rollouts.jsonl", "checkpoints/step-000004/model.safetensors"):
        assert (tmp_path / "by 3" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for path in (tmp_path / "whole" / "checkpoints" / "step-000004" / "optimizer").iterdir():
        if path.name != ".metadata":  # which names the folder that it was written into
            other = tmp_path / "by 3" / "checkpoints" / "step-000004" / "optimizer" / path.name
            assert other.read_bytes() == path.read_bytes()


def by_step(run: Run, start: int = 0) -> dict[int, dict]:
    """Train to the end; return `trained_parts` after each step."""
    found: dict[int, dict] = {}

    def note(step: int) -> bool:
        found[step] = trained_parts(run)
        return False

    run.evaluate = note
    train(run, start)
    return found


def moments(parts: dict) -> dict:
    """Return the moments among `trained_parts`."""
    return {name: value for name, value in parts.items() if ".exp_avg" in name}


AHEAD: dict[str, dict] = {
    "one turn": {},
    "turns": {"rollout": {"max_turns": 3, "turn_tokens": 4}},
    "dynamic sampling": {"rollout": {"resample_rounds": 2}},
    "shuffled": {"run": {"shuffle_rewards": True}},
    "slices": {"sampler": {"slice_tokens": 3, "max_staleness": 2}},
    "turns in slices": {
        "rollout": {"max_turns": 3, "turn_tokens": 4},
        "sampler": {"slice_tokens": 3, "max_staleness": 2},
    },
}


@pytest.mark.parametrize("name", AHEAD)
def test_batches_ahead_are_gathered_beside_the_training(tmp_path: Path, name: str) -> None:
    """With staleness 1, or in slices, two processes: repeated and resumed, the run is the same, byte for byte."""

    def make(folder: str) -> Run:
        settings = {**AHEAD[name], "run": {"steps": 4, "save_every": 2, **AHEAD[name].get("run", {})}}
        engine = VLLMConfig(mismatch_alarm=10.0, **{"max_staleness": 1, **settings.pop("sampler", {})})
        run = make_run(tmp_path / folder, 2, **settings)
        run.config = dataclasses.replace(run.config, sampler=engine)
        if "turns" in name:
            run.worker.plan = TurnPlan(slow_digits, run.config.rollout)
        return run

    def work(rank: int, folder: str) -> dict:
        run, start = make(folder), 0
        if folder == "resumed":
            run.config = with_steps(run, 2)
            train(run)
            run, start = make(folder), 2
            load(run, start)
        train(run, start)
        return trained_parts(run)

    runs = ("first", "again", "resumed") if name == "one turn" else ("first", "resumed")
    first, *others = (run_processes(2, lambda rank, folder=folder: work(rank, folder))[0] for folder in runs)
    assert all(are_equal(other, first) for other in others)
    assert len({(tmp_path / folder / "rollouts.jsonl").read_bytes() for folder in runs}) == 1


COMMAND = (
    "train tiny_math --sft.steps 2 --rollout.problems-per-step 3 --rollout.group-size 4 --rollout.max-new-tokens 10 "
    "--eval.every 0 --eval.num-problems 3 --eval.samples 1 --eval.k 1 --run.steps 2 --run.save-every 1 "
    "--run.sample-every 0 "
    "--model.device cpu --run.verifier regex --run.verifier-option pattern=[0-9] match=search "
    "--run.task-option num_train=32 num_test=8 num_demonstrations=64"
).split()


@pytest.mark.slow
def test_the_command_trains_in_shards_and_resumes_without(tmp_path: Path) -> None:
    """Fine-tuning, steps, evaluations and checkpoints on two processes; one goes on, with whole weights."""
    out = ["--run.out-dir", str(tmp_path / "run")]
    for done in warm.run_together(2, [*COMMAND, *out, "--model.shard", "2"]):
        assert done.returncode == 0, done.stderr[-3000:]
    done = warm.run([*COMMAND, *out, "--run.steps", "3"])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "resuming from step 2" in done.stdout
    for step in (2, 3):
        assert find_damage(checkpoint_folder(tmp_path / "run", step)) is None


@pytest.mark.parametrize("processes,shard", [(1, 2), (2, 3)])
def test_the_command_refuses_numbers_that_do_not_fit(tmp_path: Path, processes: int, shard: int) -> None:
    """Exit code 2 and one line, before anything is written."""
    flags = [*COMMAND, "--model.shard", str(shard), "--run.out-dir", str(tmp_path / "run")]
    for done in warm.run_together(processes, flags):
        assert done.returncode == 2
        assert f"model.shard {shard} with {processes} process" in done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_critic_of_shards_starts_as_a_copy(tmp_path: Path) -> None:
    """Its trunk is the policy's to the bit, and in shards; it moves alone."""

    def work(rank: int) -> bool:
        run = make_run(tmp_path, 2)
        critic = Critic(run.learner.policy, make_run(tmp_path, 2, **PPO).config.critic, run.config.optim)
        alike = are_equal(weights(critic.trunk), weights(run.learner.policy))
        with torch.no_grad():
            critic.parameters()[0].add_(1.0)
        return alike and not torch.equal(full(critic.parameters()[0]), full(run.learner.policy.parameters()[0]))

    assert run_processes(2, work) == [True, True]
