"""Records of stages, as JSON beside their folders: settings, what was made, what was measured.

A record names its seed's folder by a word, so that it holds for a folder that was moved, or is named by another path.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlvr.commands.task import check_names

RECORD = "stage.json"
SEED_FOLDER = "SEED_FOLDER"
KEYS: dict[str, Any] = {"settings": dict, "path": str, "measured": dict, "seconds": (int, float)}


def read_record(path: Path) -> dict[str, Any] | None:
    """Return a stage's record, None without one. Raises ValueError for a file that is not what a stage writes."""
    if not path.exists():
        return None
    try:
        held = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); restore it, or delete it and the stage's folder") from error
    wrong = [name for name, kind in KEYS.items() if not isinstance(held, dict) or not isinstance(held.get(name), kind)]
    if wrong:
        raise ValueError(
            f"{path} is not the record of a stage: it has no {wrong[0]!r}; restore it, or delete it and the stage's "
            "folder"
        )
    found: dict[str, Any] = held
    return {**found, "settings": portable(found["settings"], path.parent)}


def as_json(config: Any) -> Any:
    """Return settings as JSON has them."""
    held = dataclasses.asdict(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else config
    return json.loads(json.dumps(held, default=str))


def portable(settings: Any, folder: Path) -> Any:
    """Return settings with SEED_FOLDER for a folder, absolute or from the current one, wherever a text names it."""
    forms = {str(folder), str(folder.absolute()), os.path.relpath(folder)} - {"."}
    pattern = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, sorted(forms, key=len, reverse=True)))})(?=/|$)")

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(SEED_FOLDER, value)
        if isinstance(value, Mapping):
            return {key: renamed(held) for key, held in value.items()}
        return [renamed(held) for held in value] if isinstance(value, (list, tuple)) else value

    return renamed(settings)


def dependents(planned: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, for each stage, the stages that read what it makes, or what is made of that, in their order.

    planned: portable settings by name, in the stages' order; a stage reads those whose folders its settings name.
    """
    found: dict[str, list[str]] = {name: [] for name in planned}
    for later, settings in planned.items():
        text = json.dumps(settings)
        read = {name for name in planned if re.search(rf"{SEED_FOLDER}/{re.escape(name)}(?=[/,\s\"]|$)", text)}
        for name, others in found.items():
            if name != later and (name in read or read & {*others}):
                others.append(later)
    return found


def holds(path: Path) -> bool:
    """Return whether a path is there, and no empty folder."""
    return any(path.iterdir()) if path.is_dir() else path.exists()


def with_new_settings(held: Any, config: Any) -> Any:
    """Return recorded settings with the defaults of settings that there were not yet when they were recorded.

    `overwrite` is as it is now: it says nothing of what a stage makes.
    """
    if not dataclasses.is_dataclass(config) or not isinstance(held, dict):
        return held
    found = dict(held)
    for setting in dataclasses.fields(config):
        if setting.name == "overwrite":
            found[setting.name] = getattr(config, setting.name)
        elif setting.name in held:
            found[setting.name] = with_new_settings(held[setting.name], getattr(config, setting.name))
        elif setting.default is not dataclasses.MISSING:
            found[setting.name] = as_json(setting.default)
        elif setting.default_factory is not dataclasses.MISSING:
            found[setting.name] = as_json(setting.default_factory())
    return found


def first_difference(held: Any, wanted: Any, at: str = "") -> str:
    """Return where two settings differ: `group.name 1, now 2`."""
    if isinstance(held, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in held if key not in wanted)]:
            if held.get(key) != wanted.get(key):
                return first_difference(held.get(key), wanted.get(key), f"{at}.{key}" if at else key)
    return f"{at} {held!r:.60}, now {wanted!r:.60}"


def other_settings(records: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Return where one stage's settings differ between seeds, apart from the seed; None where they do not."""
    seeds: Sequence[str] = list(records)
    held = [without_seed(records[seed]["settings"]) for seed in seeds]
    for seed, settings in zip(seeds, held):
        if settings != held[0]:
            return f"{seeds[0]}: {first_difference(held[0], settings).replace(', now ', f', {seed}: ')}"
    return None


def without_seed(settings: Any) -> Any:
    """Return settings without any that is named seed."""
    if not isinstance(settings, Mapping):
        return settings
    return {name: without_seed(held) for name, held in settings.items() if name != "seed"}


# Settings of stages are checked before the first one runs: a later one may begin hours after it.

STAND_IN = "planned/model"  # has the form of a hub name
MODELS = ("name", "policy", "model")


def check_planned(name: str, config: Any, folder: Path) -> None:
    """Raise ValueError or LookupError, naming the stage, for settings that cannot work.

    folder: of the seed, where models and data sets will be that there are not yet.
    """
    try:
        with_stand_ins(config, folder).check()
        check_names(config)
    except (ValueError, LookupError) as error:
        raise ValueError(f"stage {name}: {error.args[0] if error.args else error}") from error
    data = getattr(getattr(config, "sft", None), "data", None)
    if data is not None and folder not in data.absolute().parents and not data.exists():
        raise ValueError(f"stage {name}: sft.data {data}: no such file")


def with_stand_ins(config: Any, folder: Path) -> Any:
    """Return settings with a name instead of each model in a folder."""
    changes: dict[str, Any] = {}
    for setting in dataclasses.fields(config):
        value = getattr(config, setting.name)
        if dataclasses.is_dataclass(value):
            changes[setting.name] = with_stand_ins(value, folder)
        elif setting.name in MODELS and isinstance(value, str) and folder in Path(value).parents:
            changes[setting.name] = STAND_IN
    return dataclasses.replace(config, **changes)
