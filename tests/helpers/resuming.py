"""The demo, cut down to a few seconds, and what must be equal of two such runs."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path
from typing import Any, Literal

from rlvr.config import Config, EvalConfig, MonitorConfig
from rlvr.recipes.tiny_math import CONFIG
from rlvr.training.checkpoint.folders import list_checkpoints
from tests.helpers import warm


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
            task_option=options,
            verifier="regex",
            verifier_option=("pattern=7.*7", "match=search"),
            **run,
        ),
        sft=dataclasses.replace(CONFIG.sft, steps=6),
        rollout=dataclasses.replace(CONFIG.rollout, problems_per_step=4, group_size=4),
        algo=dataclasses.replace(CONFIG.algo, minibatches=minibatches, name="reinforce"),
        optim=dataclasses.replace(CONFIG.optim, lr=1e-3, warmup_steps=0),
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


def check_same(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    for name, content in one.items():
        assert content == other[name], f"{name} differ"


# Trainings that are ended where they are.


class Killed(BaseException):
    """Ends a training where it is."""


def kill() -> None:
    """End the training that calls this."""
    raise Killed


def steps_of(folder: Path) -> list[int]:
    """Return the steps whose checkpoints a folder holds."""
    return [step for step, _ in list_checkpoints(folder)]


def wait_for_checkpoint(folder: Path, step: int, process: warm.Started) -> None:
    """Wait until the checkpoint of this step or a later one is there; fail where the process ends before."""
    deadline = time.monotonic() + 120
    while max(steps_of(folder), default=0) < step:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Runs that unlearn what is measured: held-out problems are judged by another rule than the reward's.


def run_that_unlearns(
    out_dir: Path,
    action: Literal["warn", "stop", "rollback"] = "rollback",
    *,
    steps: int = 4,
    lr: float = 0.001,
    **evaluation: Any,
) -> Config:
    """A run of seconds that is rewarded for two sevens, and measured by completions of 20 characters or less.

    At this learning rate completions get longer within two steps, at a quarter within four; at a sixteenth they stay.
    """
    config = small(out_dir, steps=steps)
    settings = {"every": 2, "num_problems": 16, "samples": 4, "k": (1,), "verifier": "monitor", **evaluation}
    return dataclasses.replace(
        config,
        optim=dataclasses.replace(config.optim, lr=lr, schedule="constant", max_update_kl=0.0),
        eval=EvalConfig(on_regression=action, **settings),
        monitor=MonitorConfig("regex", verifier_option=("pattern=(?s).{0,20}", "match=full")),
    )
