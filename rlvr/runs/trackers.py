"""Experiment trackers, through Accelerate."""

from __future__ import annotations

import dataclasses
import importlib.util
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rlvr.config import Config, RunConfig
from rlvr.core.registry import did_you_mean

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
    """Open the run's trackers under its project and name, and log its settings."""
    run = config.run
    if run.trackers:
        name = run.tracker_name or run.out_dir.resolve().name
        groups = dataclasses.asdict(config).items()
        accelerator.init_trackers(
            run.tracker_project,
            {f"{g}.{key}": str(v) for g, values in groups for key, v in (values or {}).items()},
            {tracker: {NAME_ARGUMENT[tracker]: name} for tracker in run.trackers if tracker in NAME_ARGUMENT},
        )
