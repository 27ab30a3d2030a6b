"""The settings of a pipeline of stages (`rlvr pipeline`). The text under a field is its `--help`."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from rlvr.core.files.models import check_path

from .settings import require

SETTING = re.compile(r"(?![^=]*\.help(-all)?=)[^.=]+(\.[^.=]+){1,2}=")
FLAG = re.compile(r"--[a-z]")  # within a value it would set another setting
FOLDER = re.compile(r"^[^=]*\bout[-_]dir=")


@dataclass(frozen=True)
class PipelineConfig:
    """Where a pipeline writes, with which model it begins, and which settings of the recipe its stages change."""

    out_dir: Path = Path("runs/pipeline")
    """Output folder: report.html, and per seed a folder seed-N with one for each stage. What is done is skipped."""
    seeds: tuple[int, ...] = (0,)
    """Seeds. Each is a pipeline of its own: commands with other seeds may run in the same folder at the same time."""
    model: str | None = None
    """Hub name or folder of the model that stages without an earlier policy begin with. None: the recipe's."""
    set: tuple[str, ...] = ()
    """Settings of stages, as STAGE.SETTING=value (sft.sft.steps=200), several values quoted ("sft.eval.k=1 8");
    `--stages` names them."""
    stages: bool = False
    """Print the stages and their settings, and exit."""

    def check(self) -> None:
        check_path(self.model)
        require(
            [
                (bool(self.seeds), "seeds: expected one seed or more"),
                (len({*self.seeds}) == len(self.seeds), f"seeds {self.seeds}: one is there twice"),
                *[(n >= 0, f"seeds {n}: expected numbers of 0 or more") for n in self.seeds],
                *[(is_setting(item), f"set {item!r:.80}: expected STAGE.SETTING=value") for item in self.set],
                *[
                    (not FOLDER.match(item), f"set {item!r:.80}: each stage has its own folder; leave it out")
                    for item in self.set
                ],
            ]
        )

    def of_stage(self, name: str) -> list[str]:
        """Return the flags that `set` holds for a stage, as its command takes them."""
        flags = []
        for item in self.set:
            place, _, value = item.partition("=")
            stage, _, setting = place.partition(".")
            if stage == name:
                flags += [f"--{setting.replace('_', '-')}", *shlex.split(value)]
        return flags


def is_setting(item: str) -> bool:
    """Return whether a text is STAGE.setting=value, or STAGE.group.setting=value, and the value sets no other."""
    try:
        words = shlex.split(item.partition("=")[2])
    except ValueError:  # a quote that is not closed
        return False
    return bool(SETTING.match(item)) and not any(FLAG.match(word) for word in words)
