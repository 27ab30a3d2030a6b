"""Rollouts of several turns by two processes, with shards or without, killed and resumed, and sampled ahead."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from rlvr.config import VLLMConfig
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import AHEAD
from rlvr.training.checkpoint.folders import checkpoint_folder, find_damage
from rlvr.training.rollout.episodes import Play
from rlvr.training.rollout.rollout import collect
from rlvr.training.run import Run
from tests.helpers.models import OwnWeights
from tests.helpers.overlap import threads
from tests.helpers.processes import run_processes
from tests.helpers.runs import AfterStep, weights_of
from tests.helpers.sharded import largest_difference, load, make_run, same, state, trained_parts, weights
from tests.helpers.turns import digits, slow_digits

pytestmark = pytest.mark.usefixtures("one_thread")

TURNS = {"max_new_tokens": 12, "max_turns": 3, "turn_tokens": 4, "mask_void": True}
ALGORITHMS: dict[str, dict] = {
    "grpo, credit per turn": {"algo": {"name": "grpo", "credit": "turn", "kl_coef": 0.1}},
    "rloo": {"algo": {"name": "rloo", "credit": "turn"}},
    "ppo": {"algo": {"name": "ppo", "minibatches": 2, "credit": "turn"}, "critic": {"lr": 1e-3}},
    "dpo": {"algo": {"name": "dpo"}},
}


class Counted:
    """An environment that counts the rollouts that it plays."""

    def __init__(self, inner=slow_digits) -> None:
        self.inner, self.played = inner, 0

    def __call__(self, problem, rng):
        self.played += 1
        return self.inner(problem, rng)


def make(out_dir: Path, shard: int = 1, environment=slow_digits, **groups: Mapping) -> Run:
    """Return a run whose rollouts are played in an environment, by default with replies that come at other times."""
    rollout = {**TURNS, **groups.pop("rollout", {})}
    run = make_run(out_dir, shard, rollout=rollout, **groups)
    run.worker = dataclasses.replace(run.worker, plan=Play(environment, run.config.rollout))
    return run


def rollouts(out_dir: Path) -> bytes:
    """What was logged of all rollouts, their turns included."""
    return (out_dir / "rollouts.jsonl").read_bytes()


def said(out_dir: Path) -> list:
    """The turns of all rollouts, in order."""
    return [json.loads(line)["turns"] for line in rollouts(out_dir).splitlines()]


def gradients_of_a_step(out_dir: Path, shard: int, settings: dict) -> dict[str, torch.Tensor]:
    """Return AdamW's first moments after one step with one minibatch: a tenth of the gradients, which nothing clips."""
    algo = {name: value for name, value in settings["algo"].items() if name != "minibatches"}
    run = make(out_dir, shard, **{**settings, "algo": algo, "run": {"steps": 1}})
    train(run)
    critic = {} if run.learner.critic is None else state(run.learner.critic.optimizer)
    found = {**state(run.learner.optimizer), **{f"critic {name}": value for name, value in critic.items()}}
    return {name: value for name, value in found.items() if name.endswith("exp_avg")}


@pytest.mark.parametrize("shard", [1, 2], ids=["whole", "in shards"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_processes_give_the_rollouts_and_steps_of_one(tmp_path: Path, name: str, shard: int) -> None:
    """Three steps: the same turns, gradients to 1e-4 of a tensor's largest, weights within a tenth of the rate."""
    settings = ALGORITHMS[name]
    expected = gradients_of_a_step(tmp_path / "one step", 1, settings)
    one = make(tmp_path / "one", **settings)
    start = weights(one.learner.policy)
    train(one)

    def work(rank: int) -> tuple:
        found = gradients_of_a_step(tmp_path / "two, one step", shard, settings)
        environment = Counted()
        run = make(tmp_path / "two", shard, environment, **settings)
        train(run)
        return found, trained_parts(run), (dist.get_world_size(), os.getpid(), environment.played)

    results = run_processes(2, work)
    for slopes, parts, _ in results:
        moved = {key for key, value in expected.items() if bool(value.any())}  # a new critic's trunk has none
        assert moved == {key for key, value in slopes.items() if bool(value.any())}
        of_moved = ({key: found[key] for key in moved} for found in (slopes, expected))
        assert largest_difference(*of_moved, relative=True) < 1e-4
        own = {key: value for key, value in parts.items() if key in start}
        assert largest_difference(own, weights(one.learner.policy)) < 1e-4 < largest_difference(own, start)
    sizes, pids, played = zip(*(counted for _, _, counted in results))
    assert sizes == (2, 2)
    assert len({*pids, os.getpid()}) == 3
    assert min(played) > 0
    assert sum(played) == 3 * 5 * 4
    assert said(tmp_path / "two") == said(tmp_path / "one")
    turns = said(tmp_path / "two")
    assert len(turns) == sum(played)
    assert {len(row) for row in turns} == {5}
    assert any(turn.get("void") for row in turns for turn in row)
    assert any(turn.get("reward") for row in turns for turn in row)


@pytest.mark.parametrize("name", ["rloo", "ppo"])
def test_shards_play_and_train_as_replicas_do(tmp_path: Path, name: str) -> None:
    """Byte for byte, while a minibatch is one microbatch and nothing is clipped."""
    settings = {**ALGORITHMS[name], "optim": {"max_grad_norm": 1e6, "tokens_per_microbatch": 4096}}

    def work(rank: int) -> list:
        found = []
        for shard in (1, 2):
            run = make(tmp_path / f"{shard}", shard, **settings)
            train(run)
            found.append(weights(run.learner.policy))
        return found

    for whole, parts in run_processes(2, work):
        assert same(whole, parts)
    assert rollouts(tmp_path / "1") == rollouts(tmp_path / "2")


@pytest.mark.parametrize("shard", [1, 2], ids=["whole", "in shards"])
def test_a_run_of_two_that_was_killed_goes_on_byte_for_byte(tmp_path: Path, shard: int) -> None:
    """SIGKILL of one of two in the fourth step, while replies are made; both end. One goes on up to rounding."""
    settings = {**ALGORITHMS["rloo"], "run": {"save_every": 2, "steps": 5}}

    def whole(rank: int) -> tuple:
        environment = Counted()
        run = make(tmp_path / "whole", shard, environment, **settings)
        train(run)
        return trained_parts(run), environment.played

    (expected, _), (_, played) = run_processes(2, whole)
    begun = 0

    def killing(problem, rng):
        nonlocal begun
        begun += 1
        if begun > played * 3 // 5 + 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return (yield from slow_digits(problem, rng))

    def killed(rank: int) -> None:
        train(make(tmp_path / "parts", shard, killing, **settings))

    def resumed(rank: int, folder: str, shards: int) -> tuple:
        run = make(tmp_path / folder, shards, **settings)
        load(run, 2)
        train(run, 2)
        return trained_parts(run), dist.get_world_size()

    assert run_processes(2, killed) == [None] * 2
    assert find_damage(checkpoint_folder(tmp_path / "parts", 2)) is None
    assert not checkpoint_folder(tmp_path / "parts", 4).exists()
    for count in (2, 1):
        folder = f"by {count}"
        shutil.copytree(tmp_path / "parts", tmp_path / folder)
        shards = shard if count == 2 else 1
        for found, size in run_processes(count, lambda rank, f=folder, s=shards: resumed(rank, f, s)):
            assert size == count
            assert count == 1 or same(found, expected)
    assert rollouts(tmp_path / "by 2") == rollouts(tmp_path / "whole")
    assert said(tmp_path / "by 1") == said(tmp_path / "whole")


class Ahead(OwnWeights):
    """A sampler with a copy of the weights, which remembers how many pushes each batch of turns came after."""

    def converse(self, rollouts):
        self.pushes_before_call.append(self.pushes)
        return super().converse(rollouts)


def make_ahead(out_dir: Path, staleness: int, *, steps: int = 5, name: str = "rloo", environment=slow_digits) -> Run:
    """Return a run of one process that samples batches ahead."""
    run = make(out_dir, environment=environment, **ALGORITHMS[name], run={"steps": steps, "save_every": 2})
    run.config = dataclasses.replace(run.config, sampler=VLLMConfig(mismatch_alarm=10.0, max_staleness=staleness))
    run.worker = dataclasses.replace(run.worker, config=run.config, sampler=Ahead(run.learner.policy))
    return run


def metrics(run: Run) -> list[dict]:
    """What was logged of each step but its durations."""
    rows = run.reporter.log.read("metrics")
    return [
        {key: value for key, value in row.items() if "second" not in key and "mismatch/" not in key} for row in rows
    ]


@pytest.mark.parametrize("staleness", [1, 2])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_turns_are_sampled_from_the_weights_of_k_steps_before(tmp_path: Path, staleness: int, name: str) -> None:
    """All turns of batch s after max(0, s - k) pushes, whatever the timing; repeated, the run is the same."""
    runs = [make_ahead(tmp_path / part, staleness, name=name) for part in "ab"]
    for run in runs:
        train(run)
        assert run.worker.sampler.pushes_before_call == [max(0, s - staleness) for s in range(5 + staleness)]
        assert [row["staleness"] for row in run.reporter.log.read("metrics")] == [min(s, staleness) for s in range(5)]
    assert rollouts(tmp_path / "a") == rollouts(tmp_path / "b")
    assert metrics(runs[0]) == metrics(runs[1])
    assert torch.equal(weights_of(runs[0]), weights_of(runs[1]))
    assert not threads("rlvr-prefetch")


def test_the_first_stale_batch_is_what_the_first_weights_play(tmp_path: Path) -> None:
    """With k = 1 the second step's turns are those that the untrained policy draws with the second step's seeds."""
    run = make_ahead(tmp_path / "run", 1, environment=digits)
    untrained = collect(make_ahead(tmp_path / "other", 1, environment=digits).worker, 1)
    train(run)
    logged = [row for row in run.reporter.log.read("rollouts") if row["step"] == 2]
    expected = [[turn.text for turn in made.turns] for group in untrained for made in group.completions]
    assert [[turn["text"] for turn in row["turns"]] for row in logged] == expected


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_run_with_batches_ahead_is_resumed_with_their_turns(tmp_path: Path, name: str) -> None:
    """Five steps, against three, a signal, a resume and two more; the turns ahead are in the checkpoint."""
    whole = make_ahead(tmp_path / "whole", 1, name=name)
    train(whole)
    parts = make_ahead(tmp_path / "parts", 1, name=name)
    parts.reporter.callbacks.append(AfterStep(lambda step: step == 3 and os.kill(os.getpid(), signal.SIGINT)))
    assert train(parts).signal == signal.SIGINT
    ahead = (checkpoint_folder(tmp_path / "parts", 3) / AHEAD).read_text()
    assert '"turns"' in ahead
    again = make_ahead(tmp_path / "parts", 1, name=name)
    load(again, 3)
    again.worker.sampler = Ahead(again.learner.policy)
    train(again, 3)
    assert rollouts(tmp_path / "parts") == rollouts(tmp_path / "whole")
    assert metrics(again) == metrics(whole)
    assert torch.equal(weights_of(again), weights_of(whole))


def test_two_processes_sample_turns_ahead(tmp_path: Path) -> None:
    """With staleness 1 and shards: repeated the run is the same, byte for byte, and each process plays its share."""

    def work(rank: int, folder: str) -> tuple:
        environment = Counted()
        run = make(tmp_path / folder, 2, environment, **ALGORITHMS["rloo"])
        run.config = dataclasses.replace(run.config, sampler=VLLMConfig(mismatch_alarm=10.0, max_staleness=1))
        run.worker = dataclasses.replace(run.worker, config=run.config)
        train(run)
        return trained_parts(run), environment.played

    first, again = (run_processes(2, lambda rank, f=folder: work(rank, f)) for folder in ("first", "again"))
    for (parts, played), (others, _) in zip(first, again):
        assert same(parts, others)
        assert played > 0
    assert sum(played for _, played in first) == 4 * 5 * 4
    assert rollouts(tmp_path / "first") == rollouts(tmp_path / "again")
