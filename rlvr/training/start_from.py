"""Begin a run with the weights of another one (run.start_from)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from rlvr.config import Config
from rlvr.core.printable import note
from rlvr.runs.folder import TRAINING, read_record


def started_from(config: Config) -> Config:
    """Return the settings of a run that begins with the checkpoint run.start_from: its model, and no fine-tuning.

    run.start_from is then the checkpoint itself, also where a run was named: a run that is resumed keeps the one that
    it began with, whatever the other run has saved since. Raise ValueError where it is none.
    """
    if config.run.start_from is None:
        return config
    folder = began_with(config.run.out_dir, config.run.start_from) if not config.run.overwrite else None
    folder = folder or find_checkpoint(config.run.start_from)
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, start_from=folder),
        model=dataclasses.replace(config.model, name=str(folder)),
        sft=dataclasses.replace(config.sft, steps=0),
    )


def began_with(out_dir: Path, asked: Path) -> Path | None:
    """Return the checkpoint that the run in a folder began with, where it is the asked one or one of the asked run.

    None for a run without checkpoints of its own, which starts again, and for one that began with another. Raise
    ValueError where that checkpoint is gone or damaged: the model of the resumed run is made from it.
    """
    held = (read_record(out_dir / TRAINING.record) or {}).get("run")
    place = held.get("start_from") if isinstance(held, dict) else None
    if not isinstance(place, str):
        return None
    from rlvr.training.checkpoint import damage  # torch, which a path that is wrong does not wait for
    from rlvr.training.resume import has_checkpoints

    if not has_checkpoints(out_dir):
        return None
    folder = Path(place)
    if os.path.realpath(asked) not in map(os.path.realpath, (folder, folder.parent, folder.parent.parent)):
        return None
    reason = damage(folder) if folder.is_dir() else "no such folder"
    if reason is not None:
        raise ValueError(
            f"--run.start-from {asked}: the run in {out_dir} began with {folder}, and cannot be resumed without it "
            f"({reason}); restore it, or begin another run"
        )
    return folder


def find_checkpoint(path: Path, say: Callable[[str], None] = note) -> Path:
    """Return a checkpoint, or the last whole one of a run's folder: of one without any its fine-tuned model.

    `say` gets a line for each damaged checkpoint that is passed over. Raise ValueError, naming the path, where there is
    none, or it is damaged.
    """
    name = f"--run.start-from {path}"
    if not path.is_dir():
        raise ValueError(f"{name}: {'a file' if path.exists() else 'no such folder'}; expected a checkpoint of a run")
    from rlvr.training.checkpoint import damage, list_whole

    if (path / "state.json").exists():
        reason = damage(path)
        if reason is not None:
            raise ValueError(f"{name}: the checkpoint is damaged ({reason}); name another")
        return path
    whole = [path / "start"] if damage(path / "start") is None else []
    whole += [folder for _, folder in list_whole(path, say)]
    if not whole:
        hint = "for a model that no run saved there is --model.name"
        raise ValueError(f"{name}: neither a checkpoint nor the folder of a run that has a whole one; {hint}")
    return whole[-1]
