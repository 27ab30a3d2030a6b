"""Experiment trackers, through Accelerate."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlvr.config import Config, RunConfig
from rlvr.core.files.write import write_whole
from rlvr.core.registry import did_you_mean

from .folder import read_record
from .tracker_tables import SENDERS, histograms_of, table_of_answers, table_of_rollouts

if TYPE_CHECKING:
    from accelerate import Accelerator

# Accelerate's trackers, each with the modules of which it needs one. Asking Accelerate would import torch.
MODULES = {
    **{name: (name,) for name in ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "swanlab", "trackio", "wandb")},
    "tensorboard": ("tensorboard", "tensorboardX"),
}
# The argument of a tracker for the run's name. tensorboard has none: there the name is a folder.
NAME_ARGUMENT = {"wandb": "name", "trackio": "name", "mlflow": "run_name", "swanlab": "experiment_name"}
TENSORBOARD = "tensorboard"
MARGIN = 600.0  # seconds
STATE = "trackers.json"


def check_trackers(run: RunConfig) -> None:
    """Raise ValueError for a tracker that is unknown, not installed, or cannot take the run's name."""
    for name in run.trackers:
        if name not in MODULES:
            raise ValueError(f"run.trackers {name!r}; {did_you_mean(name, MODULES)}")
        if not any(importlib.util.find_spec(module) for module in MODULES[name]):
            raise ValueError(f"run.trackers {name!r} is not installed; pip install {name}")
        if run.tracker_name is not None and name not in (*NAME_ARGUMENT, TENSORBOARD):
            raise ValueError(f"run.tracker_name: {name} has no run names; leave it out")


def make_accelerator(config: Config, *, cpu: bool) -> Accelerator:
    """Return the accelerator with the run's trackers, which `check_trackers` accepts.

    cpu: whether the model is on the CPU. Accelerate must be told, because it takes ranks without GPUs for single ones.
    """
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    run = config.run
    trackers = [tensorboard(run) if name == TENSORBOARD else name for name in run.trackers]
    # torch gives up on a hanging rank only after the watchdog (rlvr.training.supervision) has named it.
    patience = InitProcessGroupKwargs(timeout=timedelta(seconds=run.stall_timeout + MARGIN))
    return Accelerator(
        cpu=cpu, log_with=trackers or None, project_dir=run.out_dir if trackers else None, kwargs_handlers=[patience]
    )


def tensorboard(run: RunConfig) -> Any:
    """Return Accelerate's tensorboard tracker; it writes to OUT_DIR/PROJECT or, with a name, OUT_DIR/PROJECT/NAME."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    folder = run.tracker_project if run.tracker_name is None else f"{run.tracker_project}/{run.tracker_name}"
    return LOGGER_TYPE_TO_CLASS[TENSORBOARD](folder, run.out_dir)


def start_trackers(config: Config, accelerator: Accelerator) -> None:
    """Open the run's trackers under its project and name, and log its settings and versions.

    A run that is resumed goes on in the same run of each tracker, by the ids in trackers.json.
    """
    run = config.run
    if not run.trackers:
        return
    held = read_record(run.out_dir / STATE) or {}
    ids = {"wandb": secrets.token_hex(8), **held.get("ids", {})}
    name = run.tracker_name or run.out_dir.resolve().name
    named = {tracker: {NAME_ARGUMENT[tracker]: name} for tracker in run.trackers if tracker in NAME_ARGUMENT}
    goes_on = {"wandb": {"id": ids["wandb"], "resume": "allow"}, "trackio": {"resume": "allow" if held else "never"}}
    goes_on |= {"mlflow": {"run_id": ids["mlflow"]}} if "mlflow" in ids else {}
    accelerator.init_trackers(
        run.tracker_project, None, {tracker: own | goes_on.get(tracker, {}) for tracker, own in named.items()}
    )
    settings = describe_settings(config)
    for tracker in accelerator.trackers:
        if tracker.name != "mlflow" or "mlflow" not in ids:  # whose parameters cannot change, as run.steps may
            tracker.store_init_configuration(settings)
    if accelerator.is_main_process:
        if "mlflow" in run.trackers:
            ids["mlflow"] = accelerator.get_tracker("mlflow", unwrap=True).info.run_id
        write_state(run.out_dir, {"step": 0, "evaluation": -1, **held, "ids": ids})


def describe_settings(config: Config) -> dict[str, str]:
    """Return settings and versions of a run, each by its whole name."""
    groups = dataclasses.asdict(config).items()
    settings = {f"{group}.{key}": str(v) for group, values in groups for key, v in (values or {}).items()}
    versions = (read_record(config.run.out_dir / "config.json") or {}).get("versions", {})
    return settings | {f"versions.{name}": str(version) for name, version in versions.items()}


def write_state(out_dir: Path, state: Mapping[str, Any]) -> None:
    """Write trackers.json: the ids of the run in its trackers, and the last step and evaluation that they have."""
    write_whole(out_dir / STATE, json.dumps(state) + "\n")


class Tracked:
    """Sends what a run logs to its open trackers: each step and evaluation once, after a resume too.

    Every `run.sample_every` steps a table of rollouts and histograms follow the numbers; after an evaluation the
    held-out answers that were kept.
    """

    def __init__(self, run: RunConfig, accelerator: Accelerator) -> None:
        self.run, self.accelerator = run, accelerator
        self.senders = [
            SENDERS[name](accelerator.get_tracker(name, unwrap=True)) for name in run.trackers if name in SENDERS
        ]
        self.state = read_record(run.out_dir / STATE) or {}

    def go_back(self, step: int) -> None:
        """A rollback repeats the steps after this one with other numbers, which are sent too."""
        self.state |= {name: min(self.state[name], step) for name in ("step", "evaluation")}

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Send the metrics of a step."""
        if step > self.state["step"]:
            self.accelerator.log(dict(values), step=step)

    def rollouts(self, step: int, rollouts: Sequence[Mapping[str, Any]]) -> None:
        """Send a table and histograms of a step's rollouts where they are due; the step is then done."""
        if step <= self.state["step"]:
            return
        if rollouts and self.run.sample_every and step % self.run.sample_every == 0:
            table, histograms = table_of_rollouts(rollouts), histograms_of(rollouts)
            for sender in self.senders:
                sender.table("rollouts/samples", table, step)
                for name, values in histograms.items():
                    sender.histogram(name, values, step)
        self._done("step", step)

    def evaluation(self, step: int, values: Mapping[str, float]) -> None:
        """Send what an evaluation measured, and the answers that were kept."""
        if step <= self.state["evaluation"]:
            return
        self.accelerator.log(dict(values), step=step)
        if (table := table_of_answers(self.run.out_dir, step)) is not None:
            for sender in self.senders:
                sender.table("eval/answers", table, step)
        self._done("evaluation", step)

    def report(self, path: Path) -> None:
        """Send the page of the run as an artifact."""
        for sender in self.senders:
            sender.file(path, "report")

    def _done(self, name: str, step: int) -> None:
        self.state[name] = step
        write_state(self.run.out_dir, self.state)
