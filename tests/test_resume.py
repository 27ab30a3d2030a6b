"""A run that was interrupted ends as one that was not: weights, optimizer and rollouts, byte for byte."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlvr.config import Config
from rlvr.launch import launch
from rlvr.recipes.tiny_math import CONFIG

SMALL = (
    "--sft.steps 6 --rollout.problems-per-step 4 --rollout.group-size 4 --eval.every -1 --run.sample-every 0 "
    "--optim.lr 1e-3 --run.task-options num_train=64 num_test=16 num_demonstrations=256 "
    "--run.verifier regex --run.verifier-options pattern=7.*7 match=search"
).split()


def small(out_dir: Path, *, steps: int, minibatches: int = 1, save_every: int = 0, **run) -> Config:
    """The demo, cut down to a few seconds, with a reward that random text earns now and then."""
    options = ("num_train=64", "num_test=16", "num_demonstrations=256")
    return dataclasses.replace(
        CONFIG,
        run=dataclasses.replace(
            CONFIG.run,
            out_dir=out_dir,
            steps=steps,
            save_every=save_every,
            sample_every=0,
            task_options=options,
            verifier="regex",
            verifier_options=("pattern=7.*7", "match=search"),
            **run,
        ),
        sft=dataclasses.replace(CONFIG.sft, steps=6),
        rollout=dataclasses.replace(CONFIG.rollout, problems_per_step=4, group_size=4),
        algo=dataclasses.replace(CONFIG.algo, minibatches=minibatches, advantage="reinforce"),
        optim=dataclasses.replace(CONFIG.optim, lr=1e-3),
        eval=dataclasses.replace(CONFIG.eval, every=-1),
    )


def results(out_dir: Path, step: int) -> dict[str, bytes]:
    """Everything that must be equal."""
    folder = out_dir / "checkpoints" / f"step-{step:06d}"
    return {
        "weights": (folder / "model.safetensors").read_bytes(),
        "optimizer": (folder / "optimizer.safetensors").read_bytes(),
        "rollouts": (out_dir / "rollouts.jsonl").read_bytes(),
    }


def check_learned(out_dir: Path) -> None:
    """The comparison would say nothing of weights that did not move."""
    metrics = [json.loads(line) for line in (out_dir / "metrics.jsonl").read_text().splitlines()]
    assert sum(record["grad_norm"] > 0 for record in metrics) >= len(metrics) / 2


def check_same(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    for name, content in one.items():
        assert content == other[name], f"{name} differ"


@pytest.mark.parametrize("minibatches", [1, 4])
def test_resumed_run_equals_an_uninterrupted_one(tmp_path, minibatches):
    """Four steps, against two, a resume, and two more."""
    launch(small(tmp_path / "whole", steps=4, minibatches=minibatches))
    launch(small(tmp_path / "parts", steps=2, minibatches=minibatches))
    launch(small(tmp_path / "parts", steps=4, minibatches=minibatches))
    check_same(results(tmp_path / "whole", 4), results(tmp_path / "parts", 4))
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
    check_learned(tmp_path / "whole")


def test_an_evaluation_that_a_stop_came_before_is_made_up_for(tmp_path, monkeypatch):
    """A run that is stopped in a step after which held-out problems are due has the same evaluations in the end."""
    whole, parts = (
        dataclasses.replace(
            small(tmp_path / name, steps=3), eval=dataclasses.replace(CONFIG.eval, every=1, num_problems=4, samples=8)
        )
        for name in ("whole", "parts")
    )
    launch(whole)
    with monkeypatch.context() as patched:
        patched.setattr("rlvr.launch.step_printer", lambda *_: interrupt_after_two)
        with pytest.raises(KeyboardInterrupt, match="after a checkpoint"):
            launch(parts)
    launch(parts)
    assert (tmp_path / "whole" / "eval.jsonl").read_bytes() == (tmp_path / "parts" / "eval.jsonl").read_bytes()


def interrupt_after_two(step: int, *_: object) -> None:
    if step == 2:
        signal.raise_signal(signal.SIGINT)


def command(out_dir: Path, *flags: str) -> list[str]:
    train = [sys.executable, "-m", "rlvr", "train", "tiny_math", *SMALL, "--run.out-dir", str(out_dir)]
    return [*train, "--algo.advantage", "reinforce", *flags]


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    """Until a log has so many lines; fails where the process ends before."""
    deadline = time.monotonic() + 120
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("minibatches", ["1", "4"])
def test_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, minibatches):
    """SIGKILL in the middle of a step after the last save: the steps since are repeated exactly."""
    flags = ("--run.steps", "8", "--run.save-every", "3", "--algo.minibatches", minibatches)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command(tmp_path / "whole", *flags), check=True, capture_output=True, env=environment)
    process = subprocess.Popen(
        command(tmp_path / "killed", *flags), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    wait_for_lines(tmp_path / "killed" / "metrics.jsonl", 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    again = subprocess.run(
        command(tmp_path / "killed", *flags), check=True, capture_output=True, text=True, env=environment
    )
    assert "resuming from step" in again.stdout
    check_same(results(tmp_path / "whole", 8), results(tmp_path / "killed", 8))
    check_learned(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_step_saves_and_says_how_to_go_on(tmp_path, number):
    """Ctrl-C loses nothing, and the same command resumes from the very step."""
    process = subprocess.Popen(
        command(tmp_path, "--run.steps", "1000"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for_lines(tmp_path / "metrics.jsonl", 2, process)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert number.name in errors
    assert "the same command goes on" in errors
    done = len((tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (tmp_path / "checkpoints" / f"step-{done:06d}" / "state.json").exists()


def test_folder_of_another_run_is_refused(tmp_path):
    """Other settings in the same folder: one line that names the first difference; nothing is touched."""
    launch(small(tmp_path, steps=1))
    before = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match=r"algo\.minibatches is 1 there and 2 here"):
        launch(small(tmp_path, steps=1, minibatches=2))
    assert (tmp_path / "metrics.jsonl").read_bytes() == before
    launch(small(tmp_path, steps=1, minibatches=2, overwrite=True))


def test_only_the_last_checkpoints_are_kept_and_transformers_loads_them(tmp_path):
    """Saved every step, two kept, and the last one is a model folder."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    launch(small(tmp_path, steps=4, save_every=1))
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept == ["step-000003", "step-000004"]
    folder = tmp_path / "checkpoints" / "step-000004"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.vocab_size >= len(tokenizer.get_vocab()) > 10
