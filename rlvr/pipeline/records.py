"""Records of stages: what a stage that is done was made with, what it measured, and how long it took."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.core.files.write import PARTIAL, write_whole
from rlvr.runs.folder import read_record

RECORD = "stage.json"
SEED_FOLDER = "SEED_FOLDER"
PLANNED = Path("planned")  # what stages make in it while they are planned; its paths have the form of a hub name
KEYS: dict[str, Any] = {"settings": dict, "path": str, "measured": dict, "seconds": (int, float)}


def read_stage(path: Path) -> dict[str, Any] | None:
    """Return a stage's record, None without one. Raises ValueError for a file that is not what a stage writes."""
    held = read_record(path)
    if held is None:
        return None
    wrong = [name for name, kind in KEYS.items() if not isinstance(held.get(name), kind)]
    if wrong:
        raise ValueError(
            f"{path} is not the record of a stage: it has no {wrong[0]!r}; restore it, or delete it and the stage's "
            "folder"
        )
    return {**held, "settings": replace_seed_folder(held["settings"], path.parent)}


def as_json(config: Any) -> Any:
    """Return settings as JSON has them, without `overwrite`, which says nothing of what a stage makes."""
    held = dataclasses.asdict(config) if dataclasses.is_dataclass(config) and not isinstance(config, type) else config

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: convert(one) for key, one in value.items() if key != "overwrite"}
        return [convert(one) for one in value] if isinstance(value, list | tuple) else value

    return json.loads(json.dumps(convert(held), default=str))


def list_changed(config: Any) -> list[str]:
    """Return the settings that differ from the defaults of their class, as `--set` takes them: group.name=value."""
    if not dataclasses.is_dataclass(config):
        return [f"{name}={json.dumps(value, default=str)}" for name, value in config.items()]
    found = []
    for item in dataclasses.fields(config):
        name, value = item.name.replace("_", "-"), getattr(config, item.name)
        default = item.default if item.default_factory is dataclasses.MISSING else item.default_factory()
        if dataclasses.is_dataclass(value):
            found += [f"{name}.{line}" for line in list_changed(value)]
        elif value != default:
            text = " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            found.append(f"{name}={text}")
    return found


def replace_seed_folder(settings: Any, folder: Path) -> Any:
    """Return settings in which SEED_FOLDER stands for a folder, wherever a text names it (absolute or relative)."""
    forms = {str(folder), str(folder.absolute()), os.path.relpath(folder)} - {"."}
    pattern = re.compile(rf"(?<![\w./-])(?:{'|'.join(map(re.escape, sorted(forms, key=len, reverse=True)))})(?=/|$)")

    def rename(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(SEED_FOLDER, value)
        if isinstance(value, Mapping):
            return {key: rename(held) for key, held in value.items()}
        return [rename(held) for held in value] if isinstance(value, (list, tuple)) else value

    return rename(settings)


def dependents(planned: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return, for each stage, the stages that depend on it, directly or by way of others, in their order.

    planned: settings by name, in the stages' order. A stage depends on those whose folders (in PLANNED) they name.
    """
    found: dict[str, list[str]] = {name: [] for name in planned}
    for later, settings in planned.items():
        text = json.dumps(settings)
        read = {name for name in planned if re.search(rf"{PLANNED}/{re.escape(name)}(?=[/,\s\"]|$)", text)}
        for name, others in found.items():
            if name != later and (name in read or read & {*others}):
                others.append(later)
    return found


def has_content(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists()


def first_difference(held: Any, wanted: Any, at: str = "") -> str:
    """Return where two settings differ: `group.name 1, now 2`."""
    if isinstance(held, dict) and isinstance(wanted, dict):
        for key in [*wanted, *(key for key in held if key not in wanted)]:
            if held.get(key) != wanted.get(key):
                return first_difference(held.get(key), wanted.get(key), f"{at}.{key}" if at else key)
    return f"{at} {held!r:.60}, now {wanted!r:.60}"


def other_settings(settings: Mapping[str, Any]) -> str:
    """Return where one stage's settings, by seed, differ between seeds, apart from the seed itself; else ""."""

    def without_seed(value: Any) -> Any:
        held = value.items() if isinstance(value, Mapping) else ()
        return {name: without_seed(one) for name, one in held if name != "seed"} if held else value

    (first, wanted), *others = [(seed, without_seed(held)) for seed, held in settings.items()] or [("", None)]
    for seed, held in others:
        if held != wanted:
            return f"{first}: {first_difference(wanted, held).replace(', now ', f', {seed}: ')}"
    return ""


class Tries:
    """How long a stage has worked over all its tries. One that was interrupted counts until it last wrote a file."""

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.tries.json"
        held = read_record(self.path) or {}
        files = [file for own in (name, name + PARTIAL) for file in (folder / own).rglob("*") if file.is_file()]
        last = max((file.stat().st_mtime for file in files), default=0.0)
        self.before = held.get("seconds", 0.0) + (max(last - held["begun"], 0.0) if held else 0.0)
        self.begun = time.time()
        write_whole(self.path, json.dumps({"seconds": self.before, "begun": self.begun}) + "\n")

    def seconds(self) -> float:
        return round(self.before + time.time() - self.begun, 1)
