"""Begin a run with the weights of another one (run.start_from)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rlvr.config import Config
from rlvr.training.checkpoint import damage, list_checkpoints


def started_from(config: Config) -> Config:
    """Return the settings of a run that begins with the checkpoint run.start_from: its model, and no fine-tuning.

    run.start_from is then the checkpoint itself, also where a run was named. Raise ValueError where it is none.
    """
    if config.run.start_from is None:
        return config
    folder = find_checkpoint(config.run.start_from)
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, start_from=folder),
        model=dataclasses.replace(config.model, name=str(folder)),
        sft=dataclasses.replace(config.sft, steps=0),
    )


def find_checkpoint(path: Path) -> Path:
    """Return a checkpoint, or the last whole one of a run's folder: of one without any its fine-tuned model.

    Raise ValueError, naming the path, where there is none, or it is damaged.
    """
    name = f"--run.start-from {path}"
    if not path.is_dir():
        raise ValueError(f"{name}: {'a file' if path.exists() else 'no such folder'}; expected a checkpoint of a run")
    if (path / "state.json").exists():
        reason = damage(path)
        if reason is not None:
            raise ValueError(f"{name}: the checkpoint is damaged ({reason}); name another")
        return path
    found = [folder for _, folder in reversed(list_checkpoints(path))] + [path / "start"]
    whole = next((folder for folder in found if damage(folder) is None), None)
    if whole is None:
        hint = "for a model that no run saved there is --model.name"
        raise ValueError(f"{name}: neither a checkpoint nor the folder of a run that has a whole one; {hint}")
    return whole
