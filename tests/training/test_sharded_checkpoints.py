"""Checkpoints of weights in shards: one form for every number of processes, resume after deaths, batches ahead."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlvr.config import ModelConfig, VLLMConfig
from rlvr.core.types import RunError
from rlvr.model.load.policy import load_policy
from rlvr.model.load.pretrained import holds_every_weight, weight_files
from rlvr.model.logprobs.critic import Critic
from rlvr.model.optim.sharding import full, make_mesh
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import save_checkpoint
from rlvr.training.checkpoint.folders import checkpoint_folder, find_damage
from rlvr.training.run import Run
from tests.helpers import warm
from tests.helpers.models import FAMILIES, make_model, make_tokens
from tests.helpers.processes import run_processes
from tests.helpers.runs import AfterStep
from tests.helpers.sharded import (
    CPU,
    gradients,
    largest_difference,
    load,
    make_run,
    same,
    tiny_policy,
    trained_parts,
    weights,
)

pytestmark = pytest.mark.usefixtures("one_thread")

PPO = {"algo": {"name": "ppo"}, "critic": {"lr": 1e-3}}


@pytest.mark.parametrize("writers", [1, 2], ids=["written whole", "written in shards"])
def test_checkpoints_are_read_by_any_number_of_processes(tmp_path: Path, writers: int) -> None:
    """By 1, 2 and 3 to the bit, whoever wrote them; the step after it is the same up to the order of the sums."""
    settings = {**PPO, "run": {"save_every": 2}, "optim": {"tokens_per_microbatch": 4096}}

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
    assert {"model.safetensors", "critic.safetensors"} <= names
    assert ("optimizer" if writers > 1 else "optimizer.safetensors") in names
    copies = {count: shutil.copytree(tmp_path / "run", tmp_path / f"by {count}") for count in (1, 2, 3)}
    for count in copies:
        for found, further in run_processes(count, lambda rank, count=count: read(rank, count)):
            assert same(found, written)
            if count == writers:
                assert same(further, after)
            else:
                assert largest_difference(further, after) < 1e-6


def with_steps(run: Run, steps: int):
    from tests.helpers.runs import changed

    return changed(run.config, run={"steps": steps})


def test_transformers_loads_what_shards_wrote(tmp_path: Path) -> None:
    """One file, without the tied head; and `load_policy`, whole or in shards."""

    def write(rank: int) -> dict:
        policy = tiny_policy(2)
        policy.save(tmp_path / "model")
        torch.distributed.barrier()
        again = load_policy(ModelConfig(name=str(tmp_path / "model"), device="cpu"), mesh=make_mesh(2, CPU))
        assert same(weights(again), weights(policy))
        return weights(policy)

    written = run_processes(2, write)[0]
    assert "lm_head.weight" not in written
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="float32")
    assert loaded.lm_head.weight is loaded.get_input_embeddings().weight
    assert same(dict(loaded.named_parameters()), written)


@pytest.mark.parametrize("family", ["llama", "qwen3", "mistral", "gemma2", "bloom", "qwen2_moe"])
def test_a_model_is_read_in_parts(tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process loads it whole, except where transformers renames weights; probabilities and gradients are as whole.

    Packed by either pass, with windows, or padded; one process has fewer rows.
    """
    from rlvr.model.logprobs.scoring import token_logprobs

    folder = make_model(family, tmp_path / "model")
    tokens, mask = make_tokens(20)
    config = ModelConfig(name=str(folder), device="cpu")
    one = load_policy(config)
    whole = token_logprobs(one, tokens, mask)[0]
    (whole[:3].sum() + whole.sum()).backward()

    def read(rank: int) -> tuple:
        if holds_every_weight(one.model, weight_files(place(folder))):
            monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
        policy = load_policy(config, mesh=make_mesh(2, CPU))
        held, rows = weights(policy), slice(3 if rank else None)
        scored = token_logprobs(policy, tokens[rows], mask[rows])[0]
        scored.sum().backward()
        assert policy.packs == one.packs == (FAMILIES[family][0] != "padded")
        assert policy.eos_ids == one.eos_ids
        return held, scored.detach(), gradients(policy)

    assert holds_every_weight(one.model, weight_files(place(folder))) == (family != "qwen2_moe")
    for (held, scored, slopes), expected in zip(run_processes(2, read), (whole, whole[:3])):
        assert same(held, weights(one))
        torch.testing.assert_close(scored, expected.detach(), atol=1e-5, rtol=0)
        assert largest_difference(slopes, gradients(one), relative=True) < 1e-4


def place(folder: Path):
    from rlvr.core.files.models import Place

    return Place(str(folder))


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
        assert same(weights(again), weights(policy))
        return weights(policy)

    written = run_processes(2, write)[0]
    one = tiny_policy(lora_rank=2)
    assert not same(weights(one), written)
    one.load_weights(tmp_path / "adapter")
    assert same(weights(one), written)


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

    def killed(rank: int) -> None:
        run = make_run(tmp_path / "parts", 3, **settings)
        run.reporter.callbacks.append(AfterStep(lambda step: step == 3 and os.kill(os.getpid(), signal.SIGKILL)))
        train(run)

    def resumed(rank: int, count: int) -> dict:
        run = make_run(tmp_path / f"by {count}", count, **settings)
        load(run, 2)
        held = trained_parts(run)
        return {2: held, **by_step(run, 2)}

    expected = run_processes(3, whole)[0]
    trained = [{name: value for name, value in expected[step].items() if name.startswith("model.")} for step in (2, 3)]
    assert 5e-4 < largest_difference(*trained) < 2e-3
    assert run_processes(3, killed) == [None] * 3
    assert find_damage(checkpoint_folder(tmp_path / "parts", 2)) is None
    for count in (3, 2, 1):
        shutil.copytree(tmp_path / "parts", tmp_path / f"by {count}")
        for found in run_processes(count, lambda rank, count=count: resumed(rank, count)):
            assert found.keys() == {2, 3, 4}
            assert same(found[2], expected[2])
            if count == 3:
                assert all(same(found[step], expected[step]) for step in (3, 4))
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


def test_batches_ahead_are_gathered_beside_the_training(tmp_path: Path) -> None:
    """With staleness 1, two processes: repeated and resumed, the run is the same, byte for byte."""

    def work(rank: int, name: str, *, parts: bool = False) -> dict:
        def make() -> Run:
            run = make_run(tmp_path / name, 2, run={"steps": 4, "save_every": 2})
            engine = VLLMConfig(mismatch_alarm=10.0, max_staleness=1)
            run.config = changed_sampler(run, engine)
            return run

        run = make()
        if parts:
            full_length, run.config = run.config, with_steps(run, 2)
            train(run)
            run = make()
            run.config = full_length
            load(run, 2)
            train(run, 2)
        else:
            train(run)
        return trained_parts(run)

    runs = {
        name: run_processes(2, lambda rank, name=name: work(rank, name, parts=name == "resumed"))
        for name in ("first", "again", "resumed")
    }
    for name in ("again", "resumed"):
        assert same(runs[name][0], runs["first"][0])
        logs = [(tmp_path / run / "rollouts.jsonl").read_bytes() for run in ("first", name)]
        assert logs[0] == logs[1]


def changed_sampler(run: Run, engine):
    import dataclasses

    return dataclasses.replace(run.config, sampler=engine)


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
        alike = same(weights(critic.trunk), weights(run.learner.policy))
        with torch.no_grad():
            critic.parameters()[0].add_(1.0)
        return alike and not torch.equal(full(critic.parameters()[0]), full(run.learner.policy.parameters()[0]))

    assert run_processes(2, work) == [True, True]
