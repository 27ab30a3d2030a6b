"""The folder of a reward model's training: what is in it, and whether it is resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.config import to_json
from rlvr.config.reward_model import RewardConfig
from rlvr.config.settings import resumable_settings
from rlvr.core.types import Task
from rlvr.reward_model.preferences import PreferencePair, read_pairs
from rlvr.runs.folder import REWARD_MODEL, Record, RunFolder, texts
from rlvr.runs.log import RunLog

TRAIN, HELD_OUT = "pairs.jsonl", "held_out.jsonl"


def model_folder(config: RewardConfig) -> Path:
    return config.run.out_dir / "model-0"


def result_of(config: RewardConfig, log: RunLog) -> dict[str, Any] | None:
    """Return the model's line of eval.jsonl where it is complete; None where it is still to be trained."""
    folder = model_folder(config)
    found = log.read("eval") if folder.is_dir() else []
    return {**found[-1], "folder": str(folder)} if found else None


def read_split(folder: RunFolder) -> tuple[list[PreferencePair], list[PreferencePair]] | None:
    """Return the pairs that a run sampled before it was interrupted; None where there are none to go on with."""
    paths = folder.path / TRAIN, folder.path / HELD_OUT
    if not folder.resumes() or not all(path.exists() for path in paths):
        return None
    return read_pairs(paths[0]), read_pairs(paths[1])


def fingerprint_of(task: Task | None, pairs: Sequence[PreferencePair]) -> str:
    """Return a hash of the task that is sampled, if any, and of the pairs of files."""
    content = [task.fingerprint if task else "", [dataclasses.astuple(pair) for pair in pairs]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def reward_folder(config: RewardConfig, fingerprint: str | None = None) -> RunFolder:
    """Return the folder of a reward model's training. A training with the same settings and pairs is resumed.

    Another training is overwritten if it has neither a model nor a checkpoint; else it is refused without
    run.overwrite. fingerprint: of the task and the pairs; None: not known yet, and not compared.
    """
    wanted: Record = {**json.loads(to_json(config)), "fingerprint": fingerprint}
    folder, resumable = config.run.out_dir, resumable_settings(config)

    def record(held: Record | None) -> Record:
        from rlvr.training.checkpoint.resume import current_versions  # imports torch

        return {**wanted, **current_versions()}

    def difference(held: Record) -> str | None:
        for group, values in json.loads(to_json(config)).items():
            for name, after in values.items():
                before = held.get(group, {}).get(name)
                if before != after and (group, name) not in resumable:
                    found = f"{group}.{name} is {before!r} there and {after!r} here"
                    return f"a run already, with other settings: {found}"
        there = held.get("fingerprint")
        if fingerprint is not None and there != fingerprint:
            found = f"the task or the pairs (fingerprint {there} there and {fingerprint} here)"
            return f"a run already, with other settings: {found}"
        return None

    return RunFolder(
        folder,
        REWARD_MODEL,
        flag="--run.out-dir",
        record=record,
        difference=difference,
        loses=lambda held: any(folder.glob("model-*")),
        overwrite=config.run.overwrite,
        inputs=texts({**wanted, "run": {}}),
    )
