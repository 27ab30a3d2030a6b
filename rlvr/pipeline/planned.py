"""Settings of stages are checked before the first one runs: a later one may begin hours after it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from rlvr.commands.task import check_names

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
