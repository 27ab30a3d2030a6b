"""Checkpoints that are damaged, that no disk has room for, and that measured best."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from rlvr.config import ModelConfig, OptimConfig
from rlvr.core.types import RunError
from rlvr.model.load.policy import load_policy
from rlvr.model.optim.optimizer import make_optimizer
from rlvr.training.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from rlvr.training.checkpoint.folders import (
    best_steps,
    checkpoint_folder,
    delete_old_checkpoints,
    describe_checkpoints,
    find_damage,
    find_newest_whole,
    list_checkpoints,
)


@pytest.fixture(scope="module")
def trained():
    """A tiny policy and its optimizer after a step."""
    policy = load_policy(ModelConfig(name="tiny", device="cpu"), corpus=["0123456789+="], seed=0)
    optimizer = make_optimizer(policy.parameters(), OptimConfig())
    for weight in policy.parameters():
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    return policy, optimizer


@pytest.fixture(scope="module")
def saved(trained, tmp_path_factory):
    """A run's folder with two checkpoints."""
    folder = tmp_path_factory.mktemp("saved")
    for step in (10, 20):
        save_checkpoint(checkpoint_folder(folder, step), step, *trained, {"log": {}})
    return folder


def cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES = {
    "cut weights": (lambda f: cut(f / "model.safetensors", 1000), r"model\.safetensors has 1000 bytes of \d+"),
    "no optimizer": (lambda f: (f / "optimizer.safetensors").unlink(), "no optimizer.safetensors"),
    "empty tokenizer": (lambda f: cut(f / "tokenizer.json", 0), "tokenizer.json has 0 bytes"),
    "zeros": (lambda f: zero(f / "optimizer.safetensors"), "header"),
    "cut state": (lambda f: cut(f / "state.json", 20), "state.json or a header cannot be read"),
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
        cut(checkpoint_folder(folder, step) / "optimizer.safetensors", 100)
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
    cut(folder / "model.safetensors", (folder / "model.safetensors").stat().st_size - 1)
    assert "model.safetensors has" in (find_damage(folder) or "")


def test_a_checkpoint_that_cannot_be_read_is_one_line(saved, tmp_path, trained):
    """The right size and a header that says something else."""
    folder = shutil.copytree(checkpoint_folder(saved, 20), tmp_path / "step-000020")
    zero(folder / "optimizer.safetensors")
    with pytest.raises(ValueError, match=r"checkpoint .*step-000020 cannot be read"):
        load_checkpoint(folder, *trained)


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file can grow beyond so many bytes: writing more fails as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 100, 400, 1000, 4000, 1_000_000, 4_000_000])
def test_a_full_disk_leaves_no_part_of_a_checkpoint(saved, tmp_path, trained, size):
    """Whichever file fails: one line that names the checkpoint and the last whole one, which is as before."""
    folder = shutil.copytree(saved, tmp_path / "run")
    largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < largest
    with files_up_to(size), pytest.raises(RunError) as caught:
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
