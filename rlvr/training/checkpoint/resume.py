"""Resuming a training run: which settings may change, the history that config.json keeps, and run.start_from."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlvr import __version__
from rlvr.config import Config, to_json
from rlvr.config.settings import groups_of, resumable_settings, settings_of
from rlvr.config.shared import TurnSettings
from rlvr.config.training import read_config
from rlvr.core.printable import note
from rlvr.core.types import Task
from rlvr.runs.folder import TRAINING, Record, RunFolder, read_record, texts

from .folders import folder_of_unfinished, has_checkpoints, has_fine_tuning, newest_step

Settings = dict[tuple[str, str], Any]  # in JSON, by group and name

# Settings that are compared with "auto" resolved, each with the property of the group that resolves it.
RESOLVED = {
    "loss": "policy_loss",
    "advantage_scale": "scale",
    "kl_in": "kl_place",
    "kl_estimator": "estimator",
    "normalize": "normalizer",
}
# Settings that the fine-tuned model in start/, and the checkpoints of an unfinished fine-tuning, depend on.
STARTS_FROM = {
    "run": ("task", "data", "task_option", "environment", "environment_option", "seed"),
    "model": ("*",),
    "sft": ("*",),
    "optim": ("name",),
    "rollout": tuple(setting.name for setting in settings_of(TurnSettings)),
}


def train_folder(config: Config, task: Task) -> RunFolder:
    """Return the folder of a training run. A run with the same settings is resumed.

    A run with other settings is overwritten if it has no checkpoint, and keeps an equal fine-tuned start. If it has a
    checkpoint, or a fine-tuned start that differs, it is refused without run.overwrite.
    """
    wanted: Record = {**json.loads(to_json(config)), "fingerprint": task.fingerprint, **current_versions()}
    wanted["versions"] |= digest_files(task.verifier) | digest_files(task.environment)
    folder = config.run.out_dir
    step = newest_step(folder)

    def starts_alike(held: Record) -> bool:
        return find_difference(held, wanted, within=STARTS_FROM) is None

    def difference_to(held: Record) -> str | None:
        found = find_difference(held, wanted)
        if found is None and step > config.run.steps:
            return f"a run that has done {step} steps, and run.steps is {config.run.steps}"
        return found and f"a run with other settings: {found}"

    return RunFolder(
        folder,
        TRAINING,
        flag="--run.out-dir",
        record=lambda held: {**wanted, "history": extend_history(held, wanted, step) if held else []},
        difference=difference_to,
        loses=lambda held: has_checkpoints(folder) or (has_fine_tuning(folder) and not starts_alike(held)),
        stays=lambda held: ("start", folder_of_unfinished(folder / "start").name) if starts_alike(held) else (),
        overwrite=config.run.overwrite,
        inputs=texts({**wanted, "run": {k: v for k, v in wanted["run"].items() if k != "out_dir"}}),
    )


def find_difference(held: Record, wanted: Record, *, within: Mapping[str, tuple[str, ...]] | None = None) -> str | None:
    """Return the first setting that differs and matters to what a step computes (`within`: of these groups and names).

    Settings that the run of a record did not have count as their default, and those that nothing reads as equal.
    """
    old, new = effective_settings(held), effective_settings(wanted)
    for group, name in {**new, **old}:
        chosen = within is None or not {name, "*"}.isdisjoint(within.get(group, ()))
        if chosen and old.get((group, name)) != new.get((group, name)):
            before, after = (all_settings(record).get((group, name)) for record in (held, wanted))
            return f"{group}.{name} is {before!r} there and {after!r} here"
    if held["fingerprint"] != wanted["fingerprint"]:
        there, here = held["fingerprint"], wanted["fingerprint"]
        return f"the task's problems, or their profile (fingerprint {there} there and {here} here)"
    return None


def extend_history(held: Record, wanted: Record, step: int) -> list[Record]:
    """Return the history of a run that is resumed after `step` steps: what changed, as [old, new], if anything did."""
    old, new = all_settings(held), all_settings(wanted)
    names = {**new, **old}
    changed = {f"{g}.{name}": [old.get((g, name)), new.get((g, name))] for g, name in names}
    changed = {name: pair for name, pair in changed.items() if pair[0] != pair[1]}
    before, after = held.get("versions", {}), wanted["versions"]
    updated = {name: [before[name], after[name]] for name in after if before.get(name, after[name]) != after[name]}
    entry = {"step": step, "changed": changed, **({"versions": updated} if updated else {})}
    return [*held.get("history", ()), *([entry] if changed or updated else [])]


def describe_changes(entry: Record) -> str:
    """Return in words what an entry of the history says: the settings and versions with which a run is resumed."""
    changes = {**entry["changed"], **entry.get("versions", {})}
    return f"resumed with other settings: {', '.join(f'{name} {old} -> {new}' for name, (old, new) in changes.items())}"


def all_settings(record: Record) -> Settings:
    """Return every setting of a record; the default of those that it does not have."""
    groups = json.loads(to_json(read_config(record)))
    return {(group, name): value for group, values in groups.items() if values for name, value in values.items()}


def effective_settings(record: Record) -> Settings:
    """Return the settings that are read and may not change, with "auto" resolved."""
    config = read_config(record)
    settings = all_settings(record)
    settings |= {("algo", n): getattr(config.algo, kind) for n, kind in RESOLVED.items() if ("algo", n) in settings}
    unread = {
        (group, setting.name)
        for group, value in groups_of(config)
        for setting in settings_of(type(value))
        if setting.find_unmet(config) is not None
    }
    left_out = unread | resumable_settings(config)
    return {name: value for name, value in settings.items() if name not in left_out}


def current_versions() -> Record:
    """Return what a result depends on besides the settings: versions and threads."""
    import torch  # here, since a wrong name in a run's settings does not wait for it
    import transformers

    return {
        "versions": {
            "rlvr": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
    }


def digest_files(verifier: Any) -> dict[str, str]:
    """Return a digest of each file outside rlvr that defines a verifier, or an environment, or a part of it."""
    parts = getattr(verifier, "components", {})
    found = {name: digest for part in parts.values() for name, digest in digest_files(part).items()}
    defined = verifier.func if isinstance(verifier, functools.partial) else verifier
    defined = defined if inspect.isroutine(defined) or isinstance(defined, type) else type(defined)
    path = Path(getattr(sys.modules.get(defined.__module__), "__file__", None) or "")
    if defined.__module__.split(".")[0] != "rlvr" and path.suffix == ".py" and path.is_file():
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def resolve_start_from(config: Config) -> Config:
    """Return the settings of a run that begins with the checkpoint run.start_from: its model, and no fine-tuning.

    run.start_from becomes the checkpoint itself if a run was named: a resumed run keeps the one that it began with,
    whatever the other run has saved since. Raises ValueError if it is no checkpoint.
    """
    if config.run.start_from is None:
        return config
    folder = find_first_checkpoint(config.run.out_dir, config.run.start_from) if not config.run.overwrite else None
    folder = folder or find_checkpoint(config.run.start_from)
    return dataclasses.replace(
        config,
        run=dataclasses.replace(config.run, start_from=folder),
        model=dataclasses.replace(config.model, name=str(folder)),
        sft=dataclasses.replace(config.sft, steps=0),
    )


def find_first_checkpoint(out_dir: Path, asked: Path) -> Path | None:
    """Return the checkpoint that the run in a folder began with, if it is the asked one or one of the asked run.

    None for a run without checkpoints of its own, which starts again, and for one that began with another. Raises
    ValueError if that checkpoint is gone or damaged, since the resumed run's model is made from it.
    """
    held = (read_record(out_dir / TRAINING.record) or {}).get("run")
    place = held.get("start_from") if isinstance(held, dict) else None
    if not isinstance(place, str):
        return None
    from .folders import find_damage

    if not has_checkpoints(out_dir):
        return None
    folder = Path(place)
    if os.path.realpath(asked) not in map(os.path.realpath, (folder, folder.parent, folder.parent.parent)):
        return None
    reason = find_damage(folder) if folder.is_dir() else "no such folder"
    if reason is not None:
        raise ValueError(
            f"--run.start-from {asked}: the run in {out_dir} began with {folder}, and cannot be resumed without it "
            f"({reason}); restore it, or begin another run"
        )
    return folder


def find_checkpoint(path: Path, say: Callable[[str], None] = note) -> Path:
    """Return a checkpoint, or of a run's folder the last whole one, or else its fine-tuned model.

    `say` gets a line for each damaged checkpoint that is passed over. Raises ValueError, naming the path, if there is
    none.
    """
    name = f"--run.start-from {path}"
    if not path.is_dir():
        raise ValueError(f"{name}: {'a file' if path.exists() else 'no such folder'}; expected a checkpoint of a run")
    from .folders import find_damage, list_whole

    if (path / "state.json").exists():
        reason = find_damage(path)
        if reason is not None:
            raise ValueError(f"{name}: the checkpoint is damaged ({reason}); name another")
        return path
    whole = [path / "start"] if find_damage(path / "start") is None else []
    whole += [folder for _, folder in list_whole(path, say)]
    if not whole:
        hint = "for a model that no run saved there is --model.name"
        raise ValueError(f"{name}: neither a checkpoint nor the folder of a run that has a whole one; {hint}")
    return whole[-1]
