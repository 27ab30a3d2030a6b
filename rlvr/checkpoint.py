"""Checkpoints: atomic, loadable by transformers, and enough for an exact resume.

A checkpoint is a folder `checkpoints/step-000050` with the model (safetensors, tokenizer), `optimizer.safetensors` and
`state.json`; with a critic also `critic.safetensors` and `critic_optimizer.safetensors`, with rollout.max_staleness
`ahead.jsonl`, the batches that are sampled already. Random choices are functions of (seed, step, problem, sample), so
nothing else has a state; the lengths of the run's logs are kept so that lines written after the checkpoint can be cut
off again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlvr.critic import Critic
from rlvr.policy import Policy
from rlvr.types import Completion, Group, Problem, Verdict

AHEAD = "ahead.jsonl"


def checkpoint_folder(out_dir: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return out_dir / "checkpoints" / f"step-{step:06d}"


def list_checkpoints(out_dir: Path) -> list[tuple[int, Path]]:
    """Complete checkpoints as (step, folder), oldest first."""
    found = []
    for folder in (out_dir / "checkpoints").glob("step-*"):
        match = re.fullmatch(r"step-(\d+)", folder.name)
        if match and (folder / "state.json").is_file():
            found.append((int(match[1]), folder))
    return sorted(found)


def save_checkpoint(
    folder: Path,
    step: int,
    policy: Policy,
    optimizer: torch.optim.Optimizer | None,
    state: Mapping[str, Any],
    critic: Critic | None = None,
    ahead: Mapping[int, Sequence[Group]] | None = None,
) -> None:
    """Writes a checkpoint beside its final place and renames it, so that an interruption leaves no half of one.

    `ahead`: batches of later steps that are sampled already, by their step.
    """
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    policy.save(partial)
    if optimizer is not None:
        save_file(optimizer_tensors(optimizer), partial / "optimizer.safetensors")
    if critic is not None:
        save_file(critic.tensors(), partial / "critic.safetensors")
        save_file(optimizer_tensors(critic.optimizer), partial / "critic_optimizer.safetensors")
    if ahead:
        write_groups(partial / AHEAD, ahead)
    (partial / "state.json").write_text(json.dumps({"step": step, **state}, indent=2))
    for path in partial.rglob("*"):
        if path.is_file():
            sync(path)
    sync(partial)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(partial, folder)
    sync(folder.parent)


def delete_old_checkpoints(out_dir: Path, keep: int) -> None:
    """Deletes all checkpoints but the last `keep`."""
    for _, folder in list_checkpoints(out_dir)[:-keep]:
        shutil.rmtree(folder)


def load_checkpoint(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer | None, critic: Critic | None = None
) -> dict[str, Any]:
    """Puts a checkpoint's weights and optimizer states in place and returns its state.json."""
    policy.load_weights(folder)
    if optimizer is not None:
        load_optimizer(optimizer, load_file(folder / "optimizer.safetensors"))
    if critic is not None:
        critic.load(load_file(folder / "critic.safetensors"))
        load_optimizer(critic.optimizer, load_file(folder / "critic_optimizer.safetensors"))
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def write_groups(path: Path, batches: Mapping[int, Sequence[Group]]) -> None:
    """Verified groups by their step, a line each. Problems are named by their ids."""
    with path.open("w", encoding="utf-8") as file:
        for step, groups in sorted(batches.items()):
            for group in groups:
                record = {
                    "step": step,
                    "problem": group.problem.id,
                    "prompt_ids": group.prompt_ids,
                    "completions": [dataclasses.asdict(completion) for completion in group.completions],
                    "verdicts": [{**dataclasses.asdict(v), "parts": dict(v.parts)} for v in group.verdicts],
                    "own_verdicts": [{**dataclasses.asdict(v), "parts": dict(v.parts)} for v in group.own_verdicts],
                }
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def read_groups(path: Path, problems: Iterable[Problem]) -> dict[int, list[Group]]:
    """What `write_groups` wrote, to the last bit. ValueError for a problem that is not among `problems`."""
    known = {problem.id: problem for problem in problems}
    batches: dict[int, list[Group]] = {}
    for line in path.read_text("utf-8").split("\n")[:-1]:
        record = json.loads(line)
        if record["problem"] not in known:
            raise ValueError(f"{path}: problem {record['problem']!r} is not among the task's")
        completions = [
            Completion(**{**c, "token_ids": tuple(c["token_ids"]), "logprobs": tuple(c["logprobs"])})
            for c in record["completions"]
        ]
        verdicts, own = (
            tuple(Verdict(**verdict) for verdict in record.get(name, ())) for name in ("verdicts", "own_verdicts")
        )
        group = Group(known[record["problem"]], tuple(record["prompt_ids"]), tuple(completions), verdicts, own)
        batches.setdefault(record["step"], []).append(group)
    return batches


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """The optimizer's state as named tensors: "<parameter number>.<name>"."""
    state = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": value.detach().contiguous().cpu().clone()
        for number, values in state.items()
        for name, value in values.items()
    }


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, torch.Tensor]) -> None:
    """Restores what `optimizer_tensors` gave."""
    whole = optimizer.state_dict()
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})


def sync(path: Path) -> None:
    """Flushes a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
