"""Settings of the group `run`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rlvr.config.group import ADVANCED, Used
from rlvr.config.quantities import COUNT, COUNT_OR_NONE, SECONDS
from rlvr.config.shared import EnvironmentSettings, SeedSetting, TaskSettings

WITH_TRACKERS = Used(lambda config: len(config.run.trackers) > 0, "with --run.trackers")
WITH_EVALUATIONS = Used(lambda config: config.eval.every >= 0, "with --eval.every 0 or more")


@dataclass(frozen=True)
class RunConfig(SeedSetting, EnvironmentSettings, TaskSettings):
    """What is trained on, for how long, and where the results are written."""

    leave_out: Annotated[Path | None, ADVANCED] = None
    """File with ids of problems that are not trained on, an id or a JSON object with one on each line, as
    `rlvr audit --against ... --found FILE` writes it."""
    out_dir: Path = Path("runs/run")
    """Output folder. A run that is already in it is resumed."""
    start_from: Annotated[Path | None, ADVANCED] = None
    """Checkpoint of another run, or its folder for the last one, whose weights and tokenizer this run begins with, in
    place of model.name and of the fine-tuning; the optimizer begins anew."""
    steps: Annotated[int, COUNT_OR_NONE] = 100
    """Training steps; each samples one batch of rollouts and trains on it."""
    save_every: Annotated[int, COUNT_OR_NONE] = 25
    """Steps between checkpoints; the last step is always saved. 0: only the last."""
    async_save: Annotated[bool, ADVANCED] = False
    """Write checkpoints beside the training, from a copy in the CPU's memory."""
    stall_timeout: Annotated[float, SECONDS, ADVANCED] = 1800.0
    """Seconds without progress of a process that the others wait for, after which all end with a line that names it."""
    keep_checkpoints: Annotated[int, COUNT, ADVANCED] = 2
    """Number of checkpoints to keep; older ones are deleted."""
    keep_best: Annotated[bool, ADVANCED, WITH_EVALUATIONS] = True
    """Also keep the checkpoint with the best held-out pass@1; it is saved as soon as it is measured."""
    overwrite: bool = False
    """Delete the run that is in out_dir and start again; files that no run wrote stay."""
    trackers: tuple[str, ...] = ()
    """Experiment trackers: tensorboard, wandb, trackio, mlflow (through Accelerate)."""
    tracker_project: Annotated[str, WITH_TRACKERS] = "rlvr"
    """Project name in the trackers (tensorboard: a folder in out_dir)."""
    tracker_name: Annotated[str | None, WITH_TRACKERS] = None
    """Run name in the trackers. None: the name of out_dir."""
    sample_every: Annotated[int, COUNT_OR_NONE, ADVANCED] = 10
    """Steps between rollouts printed to the terminal. 0: none."""
    shuffle_rewards: Annotated[bool, ADVANCED] = False
    """Control experiment: permute the rewards within each batch, so that they carry no information."""
    dry_run: bool = False
    """Check the settings, the task and the tokenizer, show the first prompt, and exit without loading weights or
    writing anything (short: --dry-run)."""
