"""Runs that begin with the weights of another one, and runs that end early."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rlvr.commands.cli import main as rlvr
from rlvr.config import Config, to_json
from rlvr.core.types import Problem
from rlvr.launch import launch
from rlvr.training.checkpoint.folders import count_since_best
from rlvr.training.checkpoint.resume import find_checkpoint, resolve_start_from
from tests.helpers.files import lines
from tests.helpers.runs import tiny
from tests.helpers.verifiers import sums


def never(problem: Problem, completion: str) -> bool:
    """Accept nothing."""
    return False


def weights(run: Path, step: int) -> dict:
    return load_file(run / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


def same(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


def test_a_run_begins_with_the_weights_of_another(tmp_path: Path) -> None:
    """Not with those that its own seed makes, nor with the other's optimizer; it is not fine-tuned; it resumes."""
    launch(tiny(tmp_path / "a", run={"steps": 2, "seed": 3}), task=sums())
    still = {"run": {"steps": 1, "start_from": tmp_path / "a"}, "optim": {"lr": 0.0}, "sft": {"steps": 5}}
    launch(tiny(tmp_path / "b", **still), task=sums())
    assert same(weights(tmp_path / "b", 1), weights(tmp_path / "a", 2))
    assert not (tmp_path / "b" / "start").exists()
    launch(tiny(tmp_path / "c", run={"steps": 1}, optim={"lr": 0.0}), task=sums())
    assert not same(weights(tmp_path / "c", 1), weights(tmp_path / "a", 2))
    launch(tiny(tmp_path / "b", **still | {"run": still["run"] | {"steps": 2}}), task=sums())
    assert [row["step"] for row in lines(tmp_path / "b" / "metrics.jsonl")] == [1, 2]
    state = load_file(tmp_path / "b" / "checkpoints" / "step-000001" / "optimizer.safetensors")
    assert {float(value) for name, value in state.items() if name.endswith("step")} <= {1.0}


def test_which_checkpoint_it_is(tmp_path: Path) -> None:
    """A checkpoint that is named; of a run the last whole one, else the fine-tuned model."""
    run = tmp_path / "a"
    launch(tiny(run, run={"steps": 2, "save_every": 1}), task=sums())
    first, last = (run / "checkpoints" / f"step-00000{step}" for step in (1, 2))
    assert find_checkpoint(first) == first
    assert find_checkpoint(run) == last
    config = resolve_start_from(tiny(tmp_path / "b", run={"start_from": run}))
    assert (config.run.start_from, config.model.name, config.sft.steps) == (last, str(last), 0)
    (last / "model.safetensors").write_bytes(b"damaged")
    assert find_checkpoint(run) == first
    with pytest.raises(ValueError, match="is damaged"):
        find_checkpoint(last)


def saved(folder: Path, step: int) -> Path:
    """A folder that counts as a whole checkpoint of a step, or as the model before the first (0)."""
    place = folder / ("start" if step == 0 else f"checkpoints/step-{step:06d}")
    place.mkdir(parents=True)
    (place / "state.json").write_text(json.dumps({"step": step, "files": {}}))
    save_file({"w": torch.zeros(1)}, place / "model.safetensors")
    return place


@pytest.mark.parametrize("step", [0, 2])
@pytest.mark.parametrize("asked", ["run", "checkpoint", "link"])
def test_a_resumed_run_keeps_what_it_began_with(tmp_path: Path, step: int, asked: str) -> None:
    """Though the other run has saved more since; where it is gone, the message says what is missing."""
    other, mine = tmp_path / "a", tmp_path / "b"
    began = saved(other, step)
    (tmp_path / "l").symlink_to(other)
    place = {"run": other, "checkpoint": began, "link": tmp_path / "l"}[asked]
    settings = tiny(mine, run={"start_from": place})
    record_of(mine, resolve_start_from(settings))
    newer = saved(other, 4)
    if asked != "checkpoint":
        assert resolve_start_from(settings).run.start_from == place / newer.relative_to(other)
    saved(mine, 1)
    assert os.path.realpath(resolve_start_from(settings).run.start_from or "") == os.path.realpath(began)
    assert resolve_start_from(tiny(mine, run={"start_from": newer})).run.start_from == newer
    (began / "state.json").unlink()
    with pytest.raises(ValueError, match=r"began with .*cannot be resumed without it"):
        resolve_start_from(settings)
    if asked != "checkpoint":
        again = tiny(mine, run={"start_from": place, "overwrite": True})
        assert resolve_start_from(again).run.start_from == place / newer.relative_to(other)


def record_of(folder: Path, config: Config) -> None:
    """Write what a run records of its settings."""
    folder.mkdir()
    (folder / "config.json").write_text(to_json(config))


def test_resumed_beside_a_run_that_went_on(tmp_path: Path) -> None:
    """The same command goes on with the same settings."""
    launch(tiny(tmp_path / "a", run={"steps": 1}), task=sums())
    for step in (1, 2):
        launch(tiny(tmp_path / "b", run={"steps": step, "start_from": tmp_path / "a"}), task=sums())
        launch(tiny(tmp_path / "a", run={"steps": 1 + step}), task=sums())
    assert [row["step"] for row in lines(tmp_path / "b" / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize(
    "place, expected",
    [
        ("nowhere", "no such folder"),
        ("file", "a file; expected a checkpoint"),
        ("empty", "neither a checkpoint nor the folder of a run"),
        ("damaged", "the checkpoint is damaged"),
        ("org/name", "no such folder"),
    ],
)
def test_bad_places(
    tmp_path: Path, place: str, expected: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, exit code 2, nothing is written."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "state.json").write_text("{")
    assert rlvr(["train", "tiny_math", "--run.start-from", place, "--run.out-dir", "out"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"--run.start-from {place}: " in error
    assert expected in error
    assert not (tmp_path / "out").exists()


def test_a_run_ends_when_it_gets_no_better(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a checkpoint, after `patience` evaluations; again it does nothing; without patience it goes on."""
    often = {"every": 1, "patience": 2, "num_problems": 2, "samples": 4}
    settings = {"run": {"steps": 4}, "eval": often}
    launch(tiny(tmp_path, **settings), task=sums(never))
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    assert [row["step"] for row in lines(tmp_path / "eval.jsonl")] == [0, 1, 2]
    assert (tmp_path / "checkpoints" / "step-000002" / "state.json").exists()
    assert "ended early after step 2: the last 2 evaluations were no better" in " ".join(
        capsys.readouterr().out.split()
    )
    launch(tiny(tmp_path, **settings), task=sums(never))
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2]
    launch(tiny(tmp_path, **settings | {"eval": often | {"patience": 0}}), task=sums(never))
    assert [row["step"] for row in lines(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    "values, expected", [([], 0), ([0.5], 0), ([0.1, 0.2, 0.3], 0), ([0.1, 0.3, 0.2], 1), ([0.3, 0.3, 0.3], 2)]
)
def test_evaluations_since_the_best(tmp_path: Path, values: list[float], expected: int) -> None:
    """Counted by hand; of equal ones the first is the best."""
    assert (
        count_since_best(tmp_path, [{"step": step, "pass@1": value} for step, value in enumerate(values)]) == expected
    )
