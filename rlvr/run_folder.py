"""A run's folder: whose it is, and what was run in it."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from rlvr import __version__
from rlvr.config import Config, to_json

# Settings that may differ when a run is resumed: they do not change what a step computes.
RESUMABLE = {
    "run": {
        "out_dir",
        "steps",
        "save_every",
        "keep_checkpoints",
        "overwrite",
        "trackers",
        "sample_every",
        "tracker_project",
        "tracker_name",
        "dry_run",
    },
    "rollout": {"workers", "batch_size"},
    "model": {"device"},
    "shadow": {"stop"},
    "vllm": {
        "url",
        "timeout",
        "restarts",
        "memory_share",
        "max_model_len",
        "sync_check_every",
        "mismatch_alarm",
        "sleep",
    },
}


def check_folder(config: Config, fingerprint: str) -> None:
    """ValueError where the run's folder holds another run, or is a file. Writes nothing."""
    folder = config.run.out_dir
    stored = folder / "config.json"
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"run.out_dir {folder} is a file; expected a folder")
    if not stored.exists() or config.run.overwrite:
        return
    held = json.loads(stored.read_text())
    difference = first_difference(held, json.loads(to_json(config)))
    if held["fingerprint"] != fingerprint:
        difference = f"the task's problems (fingerprint {held['fingerprint']} there and {fingerprint} here)"
    if difference:
        raise ValueError(
            f"{folder} holds a run with other settings: {difference}; choose another --run.out-dir, or "
            "--run.overwrite to delete it"
        )


def claim_folder(config: Config, fingerprint: str) -> None:
    """Makes the run's folder and writes its config.json; with overwrite the run that is in it is deleted first."""
    folder = config.run.out_dir
    if config.run.overwrite and (folder / "config.json").exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    content = {**json.loads(to_json(config)), "fingerprint": fingerprint, **versions()}
    (folder / "config.json").write_text(json.dumps(content, indent=2))


def first_difference(held: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """The first setting that differs and matters to what a step computes."""
    for group, values in wanted.items():
        for name, value in values.items():
            old = held.get(group, {}).get(name)
            if old != value and name not in RESUMABLE.get(group, set()):
                return f"{group}.{name} is {old!r} there and {value!r} here"
    return None


def versions() -> dict[str, Any]:
    """What a result depends on besides the settings."""
    return {
        "versions": {
            "rlvr": __version__,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "threads": torch.get_num_threads(),
    }
