"""Checkpoints: damage, a full disk, the best one; and written beside the training."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rlvr.training.checkpoint.checkpoint
from rlvr.config import ModelConfig, OptimConfig, VLLMConfig
from rlvr.core.types import RunError
from rlvr.launch import launch
from rlvr.model.load.policy import load_policy
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.train import train
from rlvr.training.callbacks import TrainerCallback
from rlvr.training.checkpoint.checkpoint import Snapshot, load_checkpoint, save_checkpoint
from rlvr.training.checkpoint.folders import (
    best_steps,
    checkpoint_folder,
    delete_old_checkpoints,
    describe_checkpoints,
    find_damage,
    find_newest_whole,
    list_checkpoints,
)
from rlvr.training.run import Run
from tests.helpers.files import limit_file_size
from tests.helpers.models import OwnWeights
from tests.helpers.processes import run_processes
from tests.helpers.runs import AfterStep, tiny, with_settings
from tests.helpers.sharded import are_equal, load, make_run, trained_parts


@pytest.fixture(scope="module")
def trained():
    """A tiny policy and its optimizer after a step."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu"), corpus=["0123456789+="], seed=0)
    optimizer = make_optimizer(policy.parameters(), OptimConfig())
    for weight in policy.parameters():
        weight.grad = torch.ones_like(weight, dtype=weight.grad_dtype)
    optimizer.step()
    return policy, optimizer


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    """A run's folder with two checkpoints."""
    folder = tmp_path_factory.mktemp("saved")
    for step in (10, 20):
        save_checkpoint(checkpoint_folder(folder, step), step, *trained, {"log": {}})
    return folder


def cut_file(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES = {
    "cut weights": (lambda f: cut_file(f / "model.safetensors", 1000), r"model\.safetensors has 1000 bytes of \d+"),
    "no optimizer": (lambda f: (f / "optimizer.safetensors").unlink(), "no optimizer.safetensors"),
    "empty tokenizer": (lambda f: cut_file(f / "tokenizer.json", 0), "tokenizer.json has 0 bytes"),
    "zeros": (lambda f: zero(f / "optimizer.safetensors"), "header"),
    "cut state": (lambda f: cut_file(f / "state.json", 20), "state.json or a header cannot be read"),
    "state of zeros": (lambda f: zero(f / "state.json"), "state.json or a header cannot be read"),
    "a list for a state": (lambda f: (f / "state.json").write_text("[]"), "state.json or a header cannot be read"),
    "no state": (lambda f: (f / "state.json").unlink(), "no state.json"),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_checkpoint_is_told_and_the_one_before_is_taken(saved, tmp_path, what):
    """Without reading the tensors; it is renamed, so that it counts as none of those that are kept."""
    folder = shutil.copytree(saved, tmp_path / "run")
    newest = checkpoint_folder(folder, 20)
    assert find_damage(newest) is None
    hurt, message = DAMAGES[what]
    hurt(newest)
    assert re.search(message, find_damage(newest) or "")
    said: list[str] = []
    assert find_newest_whole(folder, said.append) == (10, checkpoint_folder(folder, 10))
    assert len(said) == 1
    assert re.search(f"step-000020 is damaged .*{message}.*; going back to step 10", said[0])
    assert list_checkpoints(folder) == [(10, checkpoint_folder(folder, 10))]
    assert (folder / "checkpoints" / "step-000020.damaged").is_dir()


def test_without_a_whole_checkpoint_nothing_is_begun_anew(saved, tmp_path):
    """All damaged: one line, and every file stays where it is."""
    folder = shutil.copytree(saved, tmp_path / "run")
    for step in (10, 20):
        cut_file(checkpoint_folder(folder, step) / "optimizer.safetensors", 100)
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=r"every checkpoint .* is damaged \(step-000020: optimizer\.safetensors has"):
        find_newest_whole(folder, print)
    assert sorted(folder.rglob("*")) == before
    assert find_newest_whole(tmp_path / "none", print) is None


def test_checkpoints_without_a_list_of_sizes_are_checked_by_their_headers(saved, tmp_path):
    """Those of earlier versions."""
    folder = shutil.copytree(checkpoint_folder(saved, 20), tmp_path / "step-000020")
    state = json.loads((folder / "state.json").read_text())
    del state["files"]
    (folder / "state.json").write_text(json.dumps(state))
    assert find_damage(folder) is None
    cut_file(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 1)
    assert "model.safetensors has" in (find_damage(folder) or "")


def test_a_checkpoint_that_cannot_be_read_is_one_line(saved, tmp_path, trained):
    """The right size and a header that says something else."""
    folder = shutil.copytree(checkpoint_folder(saved, 20), tmp_path / "step-000020")
    zero(folder / "optimizer.safetensors")
    with pytest.raises(ValueError, match=r"checkpoint .*step-000020 cannot be read"):
        load_checkpoint(folder, *trained)


@pytest.mark.parametrize("size", [0, 100, 400, 1000, 4000, 1_000_000, 4_000_000])
def test_a_full_disk_leaves_no_part_of_a_checkpoint(saved, tmp_path, trained, size):
    """Whichever file fails: one line that names the checkpoint and the last whole one, which is as before."""
    folder = shutil.copytree(saved, tmp_path / "run")
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < largest
    with limit_file_size(size), pytest.raises(RunError) as caught:
        save_checkpoint(checkpoint_folder(folder, 30), 30, *trained, {"log": {}})
    assert re.fullmatch(
        r"cannot save .*step-000030: .*; the last complete checkpoint, .*step-000020, is safe: .*", str(caught.value)
    )
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["step-000010", "step-000020"]
    assert find_damage(checkpoint_folder(folder, 20)) is None
    save_checkpoint(checkpoint_folder(folder, 30), 30, *trained, {"log": {}})
    assert find_damage(checkpoint_folder(folder, 30)) is None


def evaluations(*values: float, **more: list[float]) -> list[dict]:
    """Of the steps 0, 10, 20, ..."""
    rows = [{"step": 10 * i, "pass@8": 1.0, "pass@2": value} for i, value in enumerate(values)]
    return [{**row, **{name: column[i] for name, column in more.items()}} for i, row in enumerate(rows)]


def test_the_best_is_that_of_the_smallest_k_and_the_earliest_of_equals(tmp_path):
    """Among the steps whose weights are there; where pass@k is 0 throughout, of the highest mean score."""
    every = range(0, 100, 10)
    assert best_steps(tmp_path, evaluations(0.1, 0.5, 0.9, 0.9, 0.2), every) == [20]
    assert best_steps(tmp_path, evaluations(0.1, 0.5, 0.9, 0.9, 0.2), [0, 10, 40]) == [10]
    assert best_steps(tmp_path, evaluations(0.0, 0.0, 0.0, score=[0.1, 0.4, 0.3]), every) == [10]
    assert best_steps(tmp_path, [], every) == []


def test_evaluations_with_other_settings_are_not_compared(tmp_path):
    """The best before and the best after the change are both kept; the later one is named."""
    history = [
        {"step": 20, "changed": {"eval.temperature": [1.0, 0.0]}},
        {"step": 40, "changed": {"run.steps": [5, 6]}},
    ]
    (tmp_path / "config.json").write_text(json.dumps({"history": history}))
    rows = evaluations(0.1, 0.9, 0.8, 0.3, 0.2, 0.4)
    assert best_steps(tmp_path, rows, range(0, 100, 10)) == [10, 50]
    for step in (10, 50, 60):
        checkpoint_folder(tmp_path, step).mkdir(parents=True)
    assert describe_checkpoints(tmp_path, rows) == [
        f"last checkpoint: {tmp_path}/checkpoints/step-000060",
        f"best checkpoint: {tmp_path}/checkpoints/step-000050, held-out pass@2 0.400",
    ]
    delete_old_checkpoints(tmp_path, 1, [10])
    assert [step for step, _ in list_checkpoints(tmp_path)] == [10, 60]


pytestmark = pytest.mark.usefixtures("one_thread")

SAVING = {"save_every": 2, "steps": 4, "keep_checkpoints": 3, "async_save": True}
VARIANTS: dict[str, dict] = {
    "policy": {},
    "critic": {"algo": {"name": "ppo"}, "critic": {"lr": 1e-3}},
    "adapter": {"model": {"lora_rank": 2}},
    "rollouts ahead": {"sampler": VLLMConfig(mismatch_alarm=10.0, max_staleness=1)},
    "bfloat16 weights": {"model": {"weights": "bfloat16", "dtype": "bfloat16"}},
}


def make(folder: Path, shard: int = 1, **settings) -> Run:
    """Return a run of four steps that saves after the second and the last, beside the training."""
    settings = dict(settings)
    sampler = settings.pop("sampler", None)
    run = make_run(folder, shard, run={**SAVING, **settings.pop("run", {})}, **settings)
    if sampler is not None:
        run.config = dataclasses.replace(run.config, sampler=sampler)
        run.worker.sampler = OwnWeights(run.learner.policy)  # batches ahead need weights that the training leaves alone
    return run


def around_writes(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], object], after=lambda step: None) -> None:
    """Call two functions with the step before and after a thread writes its checkpoint."""
    write = Snapshot.write

    def wrap(self: Snapshot, folder: Path, group=None) -> None:
        before(self.step)
        try:
            write(self, folder, group)
        finally:
            after(self.step)

    monkeypatch.setattr(Snapshot, "write", wrap)


def written_late(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the checkpoint of step 2 only when step 3 has been trained."""
    trained = threading.Event()
    run.reporter.callbacks.append(AfterStep(lambda step: step == 3 and trained.set()))
    if not run.learner.accelerator.is_main_process:
        trained.set()  # it waits for the first, which makes the folder
    around_writes(monkeypatch, lambda step: trained.wait(60))


def content(out_dir: Path, step: int) -> dict[str, Any]:
    """Return what a checkpoint holds, by file: bytes and, of state.json, values.

    Not DCP's list of files, which names the folder they were written into. Of metrics.jsonl, whose durations differ,
    the steps that are in the part that state.json counts.
    """
    folder = checkpoint_folder(out_dir, step)
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".metadata"]
    found: dict[str, Any] = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    state = json.loads(found["state.json"])
    counted = (out_dir / "metrics.jsonl").read_bytes()[: state["log"].pop("metrics")]
    state["files"].pop("optimizer/.metadata", None), state["files"].pop("critic_optimizer/.metadata", None)
    return {**found, "state.json": state, "metrics": [json.loads(line)["step"] for line in counted.splitlines()]}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_checkpoint_is_of_its_step(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written while later steps change the weights, it has the bytes of one that the training waited for."""
    run = make(tmp_path / "at once", run={"async_save": False}, **VARIANTS[name])
    train(run)
    beside = make(tmp_path / "beside", **VARIANTS[name])
    written_late(beside, monkeypatch)
    train(beside)
    for step in (2, 4):
        one, other = (content(tmp_path / folder, step) for folder in ("at once", "beside"))
        assert one == other
        assert one["metrics"] == list(range(1, step + 1))
    assert ("ahead.jsonl" in one) == (name == "rollouts ahead")


@pytest.mark.parametrize("shard", [1, 2], ids=["replicas", "shards"])
def test_processes_write_beside_the_training(tmp_path: Path, shard: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes with a critic: the same bytes, and a resume from the earlier checkpoint ends with them too."""

    def work(rank: int) -> bool:
        run = make(tmp_path / "at once", shard, run={"async_save": False}, **VARIANTS["critic"])
        train(run)
        beside = make(tmp_path / "beside", shard, **VARIANTS["critic"])
        with monkeypatch.context() as patch:
            written_late(beside, patch)
            train(beside)
        if rank == 0:
            shutil.copytree(tmp_path / "beside", tmp_path / "resumed")
            shutil.rmtree(checkpoint_folder(tmp_path / "resumed", 4))
        run.learner.accelerator.wait_for_everyone()
        resumed = make(tmp_path / "resumed", shard, **VARIANTS["critic"])
        load(resumed, 2)
        train(resumed, 2)
        return are_equal(trained_parts(resumed), trained_parts(run))

    assert run_processes(2, work) == [True, True]
    for step in (2, 4):
        expected = content(tmp_path / "at once", step)
        assert content(tmp_path / "beside", step) == expected
    assert content(tmp_path / "resumed", 4) == expected


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("function", ["write_tensors", "save_file", "write_groups"])
def test_a_kill_in_mid_save_leaves_the_one_before(
    tmp_path: Path, processes: int, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before a part of the second checkpoint is written: the first is whole, the other does not count."""
    if processes == 2 and function != "write_tensors":
        pytest.skip("as with one process")
    variant = VARIANTS["rollouts ahead"] if function == "write_groups" else VARIANTS["critic"]

    def work(rank: int) -> None:
        run = make(tmp_path, processes, **variant)
        usual = getattr(rlvr.training.checkpoint.checkpoint, function)

        def save_and_die(*args, **options):
            if checkpoint_folder(tmp_path, 2).exists() and rank == processes - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return usual(*args, **options)

        monkeypatch.setattr(rlvr.training.checkpoint.checkpoint, function, save_and_die)
        train(run)

    assert run_processes(processes, work)[-1] is None
    assert list_checkpoints(tmp_path) == [(2, checkpoint_folder(tmp_path, 2))]
    assert find_damage(checkpoint_folder(tmp_path, 2)) is None


@pytest.mark.parametrize("processes,shard", [(1, 1), (2, 1), (2, 2)], ids=["one", "replicas", "shards"])
def test_a_full_disk_ends_the_run_at_the_next_step(
    tmp_path: Path, processes: int, shard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line, on every process, once the thread has failed; of the checkpoint nothing is left."""

    def work(rank: int) -> tuple[str, int]:
        run = make(tmp_path, shard)
        trained, failed = threading.Event(), threading.Event()
        around_writes(monkeypatch, lambda step: rank or trained.wait(60), lambda step: failed.set())
        begun = []

        def full_after_2(step: int) -> None:
            begun.append(step)
            if step == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
            if step == 3:
                trained.set()
                failed.wait(60)

        run.reporter.callbacks.append(AfterStep(full_after_2))
        with pytest.raises(RunError) as caught:
            train(run)
        return str(caught.value), max(begun, default=3)

    for line, steps in run_processes(processes, work):
        assert re.match(r"cannot save .*step-000002: .*", line)
        assert "\n" not in line
        assert steps == 3
    assert list((tmp_path / "checkpoints").iterdir()) == []


@pytest.mark.parametrize("end", ["signal", "error", "last step"])
def test_what_is_being_written_is_waited_for(tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the training ends, the thread has ended, and the checkpoint is whole."""
    run = make(tmp_path, run={"save_every": 2, "steps": 2 if end == "last step" else 4})
    ended: list[int] = []
    around_writes(monkeypatch, lambda step: time.sleep(1), ended.append)

    def after(step: int) -> None:
        if step == 3 and end == "signal":
            run.stop.elsewhere = True
        if step == 3 and end == "error":
            raise LookupError("an end")

    run.reporter.callbacks.append(AfterStep(after))
    if end == "error":
        with pytest.raises(LookupError, match="an end"):
            train(run)
    else:
        assert bool(train(run)) == (end == "signal")
    expected = [2, 3] if end == "signal" else [2]
    assert [step for step, _ in list_checkpoints(tmp_path)] == expected
    assert all(find_damage(folder) is None for _, folder in list_checkpoints(tmp_path))
    assert ended == expected


class Saved(TrainerCallback):
    """Collects the steps that were saved, and whether they were whole then."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, bool]] = []

    def on_save(self, step, folder) -> None:
        self.steps.append((step, find_damage(folder) is None))


@pytest.mark.parametrize("late", [False, True])
def test_the_same_checkpoints_are_kept(tmp_path: Path, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one and the best one, and callbacks are told of each when it is whole."""
    found = {}
    for name in ("at once", "beside"):
        settings = {"steps": 4, "save_every": 1, "keep_checkpoints": 1, "async_save": name == "beside"}
        config = with_settings(tiny(tmp_path / name), run=settings, eval={"every": 1})
        saved = Saved()
        with monkeypatch.context() as patch:
            if late and name == "beside":
                around_writes(patch, lambda step: time.sleep(0.5))
            launch(config, callbacks=[saved])
        found[name] = (saved.steps, [step for step, _ in list_checkpoints(tmp_path / name)])
    assert found["at once"] == found["beside"]
    assert found["at once"][0] == [(step, True) for step in (1, 2, 3, 4)]
