"""Weights stored in bfloat16 and in shards: their float32 copies are in shards too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from rlvr.config import Config
from rlvr.model.optim.optimizer import MASTER
from rlvr.model.optim.sharding import local
from rlvr.train import train
from rlvr.training.checkpoint.checkpoint import load_checkpoint
from rlvr.training.checkpoint.folders import checkpoint_folder
from tests.helpers.processes import run_processes
from tests.helpers.runs import with_settings
from tests.helpers.sharded import largest_difference, make_run, same, state, weights

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT = {"weights": "bfloat16", "dtype": "auto"}


@pytest.mark.parametrize("algo", [{"kl_coef": 0.1}, {"name": "ppo"}], ids=["reference", "critic"])
def test_shards_train_as_replicas_do(tmp_path: Path, algo: dict) -> None:
    """The same bits of weights and copies after three steps; a process holds half of the copies."""

    def work(rank: int) -> list:
        found = []
        for shard in (1, 2):
            run = make_run(tmp_path / f"{shard}", shard, model=SHORT, algo=algo, optim={"tokens_per_microbatch": 4096})
            start = weights(run.learner.policy)
            train(run)
            optimizer = run.learner.optimizer
            here = sum(local(held[MASTER]).numel() for held in optimizer.state.values())
            found.append((start, weights(run.learner.policy), state(optimizer), here))
        return found

    for (start, whole, states, everything), (_, parts, states_in_parts, half) in run_processes(2, work):
        assert {value.dtype for value in whole.values()} == {torch.bfloat16}
        assert largest_difference(whole, start) > 1e-3
        assert same(whole, parts)
        assert same(states, states_in_parts)
        assert half == pytest.approx(everything / 2, rel=0.02)


@pytest.mark.parametrize("writers", [1, 2])
def test_copies_are_read_by_any_number_of_processes(tmp_path: Path, writers: int) -> None:
    """To the bit, from one file or from shards."""

    def write(rank: int) -> dict:
        run = make_run(tmp_path / "run", writers, model=SHORT, run={"save_every": 3})
        train(run)
        return {**weights(run.learner.policy), **state(run.learner.optimizer)}

    written = run_processes(writers, write)[0]
    assert any(name.endswith(MASTER) for name in written)
    for readers in (1, 2):
        copy = tmp_path / str(readers)
        shutil.copytree(tmp_path / "run", copy)

        def read(rank: int, copy: Path = copy, readers: int = readers) -> dict:
            run = make_run(copy, readers, model=SHORT)
            load_checkpoint(checkpoint_folder(copy, 3), run.learner.policy, run.learner.optimizer)
            return {**weights(run.learner.policy), **state(run.learner.optimizer)}

        assert same(written, run_processes(readers, read)[0])


@pytest.mark.parametrize("optim", [{"name": "adamw8bit"}, {"offload": True}])
def test_other_states_are_refused_in_shards(optim: dict) -> None:
    """In one line that names both settings."""
    config = with_settings(Config(), model={"shard": 2}, optim=optim)
    with pytest.raises(ValueError, match=r"^optim\.(name adamw8bit|offload) with model\.shard 2: "):
        config.check()
