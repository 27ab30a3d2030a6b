"""A reward model's training that was killed goes on from its last checkpoint, and ends as one that was not."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import rlvr.commands.rm.training as command
from rlvr.commands.rm.folder import HELD_OUT, TRAIN
from rlvr.commands.rm.launch import launch_reward_model
from rlvr.config import OptimConfig
from rlvr.config.reward_model import BaseModelConfig, PairsConfig, RewardConfig, RewardRunConfig, RewardTrainConfig
from rlvr.reward_model.preferences import PreferencePair, write_pairs
from tests.helpers import warm
from tests.helpers.files import lines
from tests.helpers.resuming import Killed, kill, steps_of, wait_for_checkpoint
from tests.helpers.runs import with_settings
from tests.helpers.sharded import tiny_policy

pytestmark = pytest.mark.usefixtures("one_thread")

FIRST = "model-0.training"  # where checkpoints of the first model are
PAIRS = [PreferencePair(f"{a}+{i}=", f"{a}{i} {a}", f"{a}{i} {b}") for i in range(5) for a in "123" for b in "4567"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    """The folder of a random tiny policy."""
    folder = tmp_path_factory.mktemp("policy")
    tiny_policy().save(folder)
    return folder


@pytest.fixture(scope="module")
def pairs(tmp_path_factory) -> Path:
    """A file of sixty pairs, of which twelve are held out."""
    path = tmp_path_factory.mktemp("pairs") / "given.jsonl"
    write_pairs(path, PAIRS)
    return path


def config(out_dir: Path, policy: Path, file: Path | None, **groups) -> RewardConfig:
    """Settings of ten steps that are saved every three."""
    made = RewardConfig(
        run=RewardRunConfig(out_dir=out_dir),
        pairs=PairsConfig(file=file, held_out=0.2),
        model=BaseModelConfig(name=str(policy), device="cpu"),
        train=RewardTrainConfig(epochs=2, batch_size=10, save_every=3),
        optim=OptimConfig(lr=1e-3, schedule="linear", warmup_steps=2),
    )
    return with_settings(made, **groups)


def train(settings: RewardConfig, at: int = 0, call: Callable[[], object] = kill) -> list[int]:
    """Train, with a call after a step is logged; return the steps that were done."""
    done: list[int] = []

    class Log(command.RunLog):
        def append(self, stream, records) -> None:
            super().append(stream, records)
            if stream == "metrics":
                [record] = records
                done.append(record["step"])
                if record["step"] == at:
                    call()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "RunLog", Log)
        try:
            launch_reward_model(settings)
        except Killed:
            assert at
    return done


def read_files(out_dir: Path) -> dict[str, bytes]:
    """All that a training has written, but for its settings."""
    paths = [path for path in out_dir.rglob("*") if path.is_file() and path.name not in ("config.json", "lock")]
    return {str(path.relative_to(out_dir)): path.read_bytes().replace(bytes(out_dir), b"") for path in paths}


def check_same(one: Path, other: Path) -> None:
    found, expected = read_files(one), read_files(other)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []


@pytest.mark.parametrize("groups", [{}, {"model": {"lora_rank": 2}}], ids=["all weights", "adapters"])
def test_a_killed_training_goes_on_from_its_last_checkpoint(tmp_path, policy, pairs, groups):
    """Killed after step 8 of 10: steps 7 to 10 follow. Model, metrics (each step once) and evaluation are the same."""
    assert train(config(tmp_path / "whole", policy, pairs, **groups)) == [*range(1, 11)]
    train(config(tmp_path / "parts", policy, pairs, **groups), 8)
    assert steps_of(tmp_path / "parts" / FIRST) == [3, 6]
    assert train(config(tmp_path / "parts", policy, pairs, **groups)) == [7, 8, 9, 10]
    check_same(tmp_path / "parts", tmp_path / "whole")
    assert [row["step"] for row in lines(tmp_path / "parts" / "metrics.jsonl")] == [*range(1, 11)]
    assert not list((tmp_path / "parts").glob("*.training"))


def test_a_training_that_is_complete_is_shown_again(tmp_path, policy, pairs, capsys):
    """The same command computes nothing, and prints the table."""
    train(config(tmp_path, policy, pairs))
    before, printed = read_files(tmp_path), capsys.readouterr().out
    assert train(config(tmp_path, policy, pairs)) == []
    assert read_files(tmp_path) == before
    assert capsys.readouterr().out.splitlines()[-6:] == printed.splitlines()[-6:]


@pytest.mark.parametrize("place", ["measure", "save_trainer", "discard"])
def test_a_kill_while_the_model_is_saved(tmp_path, policy, pairs, monkeypatch, place):
    """Before its line of eval.jsonl, between that and the model, and between the model and the end of its
    checkpoints."""
    train(config(tmp_path / "whole", policy, pairs))
    with monkeypatch.context() as patch:
        patch.setattr(command, place, lambda *_: kill())
        with pytest.raises(Killed):
            launch_reward_model(config(tmp_path / "parts", policy, pairs))
    train(config(tmp_path / "parts", policy, pairs))
    check_same(tmp_path / "parts", tmp_path / "whole")


def test_other_settings_or_pairs_are_refused(tmp_path, policy, pairs):
    """They are named; when it is saved, and where it is computed, may change."""
    train(config(tmp_path / "run", policy, pairs), 8)
    for groups, named in (
        ({"optim": {"lr": 2e-3}}, r"optim\.lr is 0\.001 there and 0\.002 here"),
        ({"train": {"epochs": 3}}, "train.epochs"),
        ({"run": {"seed": 4}}, "run.seed"),
    ):
        with pytest.raises(ValueError, match=f"holds a run already, with other settings: {named}"):
            launch_reward_model(config(tmp_path / "run", policy, pairs, **groups))
    given = pairs.read_text()
    try:
        pairs.write_text("".join(given.splitlines(keepends=True)[:-1]))
        with pytest.raises(ValueError, match="the task or the pairs"):
            launch_reward_model(config(tmp_path / "run", policy, pairs))
    finally:
        pairs.write_text(given)
    changed = config(tmp_path / "run", policy, pairs, train={"save_every": 1}, optim={"tokens_per_microbatch": 10**6})
    assert train(changed)[0] == 7


SAMPLED = {
    "task": "arithmetic",
    "num_problems": 24,
    "samples": 6,
    "max_new_tokens": 4,
    "verifier": "regex",
    "verifier_option": ("pattern=[0-4]", "match=search"),
}


def test_sampled_pairs_are_sampled_once(tmp_path, policy, monkeypatch):
    """A training that goes on takes the pairs that it began with, whatever would be sampled now; one that was killed
    before they were written samples again."""
    settings = {"pairs": {**SAMPLED, "policy": str(policy)}}
    whole = train(config(tmp_path / "whole", policy, None, **settings))
    with monkeypatch.context() as patch:
        patch.setattr(command, "train_on", lambda *_: kill())
        with pytest.raises(Killed):
            launch_reward_model(config(tmp_path / "parts", policy, None, **settings))
    train(config(tmp_path / "parts", policy, None, **settings), 1)
    assert (tmp_path / "parts" / TRAIN).read_bytes() == (tmp_path / "whole" / TRAIN).read_bytes()
    monkeypatch.setattr(command, "sample_pairs", lambda *_: kill())
    assert train(config(tmp_path / "parts", policy, None, **settings)) == whole
    check_same(tmp_path / "parts", tmp_path / "whole")
    (tmp_path / "parts" / HELD_OUT).unlink()
    with pytest.raises(Killed):
        launch_reward_model(config(tmp_path / "parts", policy, None, **settings))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_a_checkpoint(tmp_path, policy, pairs, number):
    """After the step that is under way; the last line says that the same command resumes."""
    with pytest.raises(KeyboardInterrupt) as raised:
        train(config(tmp_path / "parts", policy, pairs), 5, lambda: signal.raise_signal(number))
    where = tmp_path / "parts" / "model-0.training" / "checkpoints" / "step-000005"
    line = f"by {number.name} after a checkpoint of the training of the reward model, {where}; run the same command"
    assert line in str(raised.value)
    assert train(config(tmp_path / "parts", policy, pairs))[0] == 6
    train(config(tmp_path / "whole", policy, pairs))
    check_same(tmp_path / "parts", tmp_path / "whole")


def test_a_second_signal_says_where_it_resumes(tmp_path, policy, pairs, capfd):
    """It ends the training at once."""

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path, policy, pairs), 5, twice)
    printed = capfd.readouterr().err
    assert "lose steps 4 to 5 of the training of the reward model" in printed
    assert "run the same command to resume the training of the reward model from step 3" in printed


def flags(policy: Path, pairs: Path, shard: int = 1) -> list[str]:
    return (
        f"rm rm_pairs --pairs.file {pairs} --model.name {policy} --pairs.held-out 0.2 --model.device cpu "
        f"--train.save-every 3 --train.batch-size 8 --train.epochs 5 --model.shard {shard} --run.out-dir"
    ).split()


@pytest.mark.slow
@pytest.mark.parametrize("shard", [1, 2])
def test_two_processes(tmp_path, policy, pairs, shard):
    """Replicas or shards: both are killed some time after a checkpoint, and end with the bits of two that were not."""
    for done in warm.run_together(2, [*flags(policy, pairs, shard), str(tmp_path / "whole")]):
        assert done.returncode == 0, done.stderr[-3000:]
    processes = warm.start_together(2, [*flags(policy, pairs, shard), str(tmp_path / "parts")])
    try:
        wait_for_checkpoint(tmp_path / "parts" / FIRST, 6, processes[0])
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    again = warm.run_together(2, [*flags(policy, pairs, shard), str(tmp_path / "parts")])
    assert [done.returncode for done in again] == [0, 0], again[0].stderr[-3000:]
    assert "resuming the training of the reward model from step" in again[0].stdout
    check_same(tmp_path / "parts", tmp_path / "whole")
    assert json.loads((tmp_path / "parts" / "config.json").read_text())["model"]["shard"] == shard
