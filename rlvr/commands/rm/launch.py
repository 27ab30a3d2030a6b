"""Run the training of reward models: its folder, and checks of settings, names and files; then sample and train.

The checks need no torch; rlvr.commands.rm.training does the rest.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlvr.config import to_json
from rlvr.config.reward_model import PairsConfig, RewardConfig
from rlvr.config.settings import resumable_settings
from rlvr.core.types import Task, Verifier
from rlvr.reward_model.preferences import PreferencePair, read_pairs, split_by_prompt
from rlvr.runs.folder import REWARD_MODEL, Record, RunFolder, texts
from rlvr.runs.log import RunLog
from rlvr.training.supervision.signals import StopRequest
from rlvr.verifiers.runner.base import check_references

from ..machine import check_device, check_optimizer_extra
from ..task import apply_verifier, check_names, make_pack

TRAIN, HELD_OUT = "pairs.jsonl", "held_out.jsonl"


def launch_reward_model(config: RewardConfig) -> list[dict[str, Any]]:
    """Run a config from start to end, or from its last checkpoint on. Return the lines of eval.jsonl.

    These are each model's metrics on held-out pairs. Raises Stopped, a KeyboardInterrupt, where a signal ended it:
    after a checkpoint (the message says how to resume), or at once.
    """
    with StopRequest().handling_signals() as stop:
        stop.doing = "reading the pairs"
        stop.left = lambda: "nothing was written; run the same command again"
        config.check()
        sampled = prepare(config)
        given = read_pairs(config.pairs.file) if config.pairs.file is not None else []
        also = [pair for path in config.pairs.also for pair in read_pairs(path)]
        if sampled is None:
            split_by_prompt([*given, *also], config.pairs.held_out, seed=config.run.seed)  # raises where it cannot
        from .training import execute  # torch takes seconds, for which a wrong name does not wait

        return execute(config, sampled, [*given, *also], stop)


def prepare(config: RewardConfig) -> tuple[Task, Verifier] | None:
    """Return the pack that is sampled, and the verifier that tells its completions apart; None for pairs from a file.

    Raises ValueError or LookupError for names, options and a folder that cannot be used, and what the machine lacks.
    """
    check_device(config.model.device)
    check_optimizer_extra(config.optim)
    reward_folder(config).check()
    return pack(config.pairs) if config.pairs.file is None else None


def pack(config: PairsConfig) -> tuple[Task, Verifier]:
    """Return the pack that is sampled, and the verifier that tells its completions apart."""
    check_names(config, "--pairs.")
    task = apply_verifier(make_pack(config, "--pairs."), config, "--pairs.")
    if task.environment is not None:
        raise ValueError(f"task {config.task!r} has an environment; pairs are made of completions of one turn")
    if len(task.train) < 2:
        raise ValueError(f"task {config.task!r} has {len(task.train)} problems to train on; pairs need at least 2")
    if config.verifier is not None or config.verifier_option:
        check_references(task.verifier, task.train)
    return task, task.verifier


def with_policy(config: RewardConfig, policy: Path) -> RewardConfig:
    """Return the config with a policy to sample from, which is also the reward model's base unless one is named."""
    return dataclasses.replace(config, pairs=dataclasses.replace(config.pairs, policy=str(policy)))


# The folder: what is in it, and whether it is resumed


def model_folder(config: RewardConfig, number: int) -> Path:
    return config.run.out_dir / f"model-{number}"


def result_of(config: RewardConfig, number: int, log: RunLog) -> dict[str, Any] | None:
    """Return the line of eval.jsonl of a model that is complete; None where it is still to be trained."""
    folder = model_folder(config, number)
    found = [line for line in log.read("eval") if line["model"] == number] if folder.is_dir() else []
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
