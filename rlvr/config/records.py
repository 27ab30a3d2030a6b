"""Read the settings of a run back from its config.json, in the present layout or an earlier one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlvr.algo.algorithms import ALGORITHMS
from rlvr.config import SAMPLERS, Config, CriticConfig, MonitorConfig, class_of
from rlvr.config.settings import groups_of, settings_of

Record = Mapping[str, Any]
# Earlier names: of a group's settings, and of their values.
NAMES = {
    "run": {"task_options": "task_option", "verifier_options": "verifier_option"},
    "algo": {"advantage": "name", "dpo_beta": "beta"},
    "monitor": {"options": "verifier_option"},
    "sampler": {"memory_share": "gpu_memory_utilization", "restarts": "max_restarts"},
}
WORDS = {
    ("algo", "name", "gae"): "ppo",
    ("eval", "verifier", "shadow"): "monitor",
    ("rollout", "truncated", "punish"): "penalize",
}
# Settings that earlier versions read with an algorithm that has them no more, and the values that mean the same.
FORMER = {("raft", "loss"): ("auto", "nll")}
SAMPLER_SETTINGS = ("batch_size", "max_staleness")  # which were in the group rollout


def present_layout(record: Record) -> dict[str, Any]:
    """Return a run's record in the present layout. What a record does not have is left out."""
    algo = record.get("algo", {})
    if "name" in algo:
        return dict(record)
    rollout = record.get("rollout", {})
    moved = {name: rollout[name] for name in SAMPLER_SETTINGS if name in rollout}
    sampler = {**record.get("vllm", {}), **moved, "name": rollout.get("sampler", "torch")}
    monitor = record.get("monitor", record.get("shadow", {}))
    groups = {
        **record,
        "sampler": sampler,
        "monitor": monitor if monitor.get("verifier") is not None else None,
        "rollout": {name: value for name, value in rollout.items() if name not in ("sampler", *SAMPLER_SETTINGS)},
    }
    for unknown in ("vllm", "shadow"):
        groups.pop(unknown, None)
    return {name: present_names(name, value) if isinstance(value, dict) else value for name, value in groups.items()}


def present_names(group: str, values: Record) -> dict[str, Any]:
    """Return a group's settings with the names and words that they have now."""
    renamed = {NAMES.get(group, {}).get(name, name): value for name, value in values.items()}
    return {name: WORDS.get((group, name, value), value) if isinstance(value, str) else value
            for name, value in renamed.items()}  # fmt: skip


def former_settings(record: Record) -> str | None:
    """Return the first setting of a run that its algorithm has no more, with its value; None where all are known."""
    algo = present_layout(record).get("algo", {})
    for (algorithm, name), same in FORMER.items():
        if algo.get("name") == algorithm and algo.get(name, same[0]) not in same:
            return f"algo.{name} {algo[name]!r}, which {algorithm} cannot have any more"
    return None


def config_of(record: Record) -> Config:
    """Return the config of a run's record. Settings that it lacks have their default, those that are unknown go.

    ValueError for an algorithm or a sampler that does not exist.
    """
    record = present_layout(record)
    algo, sampler = record.get("algo", {}).get("name", "grpo"), record.get("sampler", {}).get("name", "torch")
    if algo not in ALGORITHMS or sampler not in SAMPLERS:
        raise ValueError(
            f"config.json of a run with algo {algo!r} and sampler {sampler!r}: no such algorithm or sampler"
        )
    kinds: dict[str, type] = {name: type(value) for name, value in groups_of(Config())}
    kinds |= {"algo": class_of(algo), "sampler": SAMPLERS[sampler]}
    if ALGORITHMS[algo].critic:
        kinds["critic"] = CriticConfig
    if record.get("monitor"):
        kinds["monitor"] = MonitorConfig
    return Config(**{name: group_of(kind, record.get(name) or {}) for name, kind in kinds.items()})


def group_of(kind: type, values: Record) -> Any:
    """Return a group from JSON values: lists become tuples, texts paths where the setting is one."""
    hints = {setting.name: setting.hint for setting in settings_of(kind)}
    taken = [field.name for field in dataclasses.fields(kind) if field.init and field.name in values]
    return kind(**{name: in_python(values[name], hints[name]) for name in taken})


def in_python(value: Any, hint: Any) -> Any:
    """Return a JSON value as a setting of this type has it."""
    if isinstance(value, list):
        return tuple(value)
    return Path(value) if isinstance(value, str) and "Path" in str(hint) else value
