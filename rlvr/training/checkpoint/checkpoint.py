"""Checkpoints: listed, checked, read and deleted; rlvr.training.checkpoint.snapshot writes them.

They are written atomically, loadable by transformers, and enough for an exact resume.
A checkpoint is a folder `checkpoints/step-000050` with the model (safetensors, tokenizer), `optimizer.safetensors` and
`state.json`; with a critic also `critic.safetensors` and `critic_optimizer.safetensors`, with sampler.max_staleness
`ahead.jsonl`, the rollouts of later steps that are already sampled, with a curriculum or a profile `pass_rates.json`,
and `reference.safetensors` once the reference policy has been reset. Where the weights are in shards, each process
writes its part of an optimizer's state into the folder `optimizer` or `critic_optimizer`. There is no random state to
save: every random choice is a function of (seed, step, problem, sample). state.json holds the sizes of the run's logs,
so that lines written after the checkpoint can be dropped, and of every other file of the checkpoint, so that damage is
found without reading them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh

from rlvr.core.files.write import PARTIAL, advice
from rlvr.core.types import Completion, Group, Problem, RunError, Turn, Verdict
from rlvr.model.critic import Critic
from rlvr.training.checkpoint.snapshot import read_optimizer

AHEAD = "ahead.jsonl"
REFERENCE = "reference.safetensors"
STEP = re.compile(r"step-(\d+)")
DAMAGED = ".damaged"
UNFINISHED = ".training"


def checkpoint_folder(out_dir: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step` steps."""
    return out_dir / "checkpoints" / f"step-{step:06d}"


class Weights(Protocol):
    """What is trained, as a checkpoint holds it: a policy, or a model with its trained weights alone.

    mesh: of the processes that hold the weights in shards; all of them must call `snapshot`, `save` and `load_weights`.
    """

    @property
    def mesh(self) -> DeviceMesh | None: ...

    def snapshot(self) -> Weights | None:
        """Return a copy, in the CPU's memory, with whole weights. Where they are in shards only the first gets it."""

    def save(self, folder: Path) -> None:
        """Write the weights into a folder, as safetensors files."""

    def load_weights(self, folder: Path) -> None:
        """Restore, bit for bit, what `save` wrote."""


def unfinished(made: Path) -> Path:
    """Return the folder that holds the checkpoints of a supervised training until its model is whole, in `made`."""
    return made.with_name(made.name + UNFINISHED)


def list_checkpoints(out_dir: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints as (step, folder), oldest first, damaged ones too (see `damage`)."""
    found = []
    for folder in (out_dir / "checkpoints").glob("step-*"):
        match = STEP.fullmatch(folder.name)
        if match:
            found.append((int(match[1]), folder))
    return sorted(found)


def list_whole(out_dir: Path, say: Callable[[str], None]) -> list[tuple[int, Path]]:
    """Return the checkpoints that are not damaged as (step, folder), oldest first. `say` gets a line for each other."""
    found = []
    for step, folder in list_checkpoints(out_dir):
        reason = damage(folder)
        if reason is None:
            found.append((step, folder))
        else:
            say(f"{folder} is damaged ({reason}), and left out")
    return found


def newest_whole(out_dir: Path, say: Callable[[str], None], *, move: bool = True) -> tuple[int, Path] | None:
    """Return the newest checkpoint that is not damaged, as (step, folder); None where there are no checkpoints.

    Newer, damaged ones are reported with `say`, and renamed (`move`) so that nothing takes them for checkpoints. Raises
    ValueError where all are damaged.
    """
    found = list_checkpoints(out_dir)
    damaged: list[tuple[Path, str]] = []
    for step, folder in reversed(found):
        reason = damage(folder)
        if reason is None:
            for other, other_reason in damaged:
                say(f"{other} is damaged ({other_reason}); going back to step {step}")
                if move:
                    set_aside(other)
            return step, folder
        damaged.append((folder, reason))
    if damaged:
        newest, reason = damaged[0][0].name, damaged[0][1]
        raise ValueError(
            f"every checkpoint of {out_dir} is damaged ({newest}: {reason}); restore one from a copy, or start "
            "again with --run.overwrite"
        )
    return None


def damage(folder: Path) -> str | None:
    """Return how a checkpoint is damaged, None where it is not: a file is missing or has the wrong size.

    Compares the sizes of files with those in state.json, and of safetensors files with their headers.
    """
    try:
        state = json.loads((folder / "state.json").read_text("utf-8"))
        for name, size in state.get("files", {}).items():
            found = (folder / name).stat().st_size
            if found != size:
                return f"{name} has {found} bytes of {size}"
        for path in sorted(folder.glob("*.safetensors")):
            expected = safetensors_size(path)
            if path.stat().st_size != expected:
                return f"{path.name} has {path.stat().st_size} bytes of {expected}"
        if not any(folder.glob("*.safetensors")):
            return "no weights"
    except FileNotFoundError as error:
        return f"no {Path(error.filename).name}"
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        return f"state.json or a header cannot be read: {error}"
    return None


def safetensors_size(path: Path) -> int:
    """Return the size that a safetensors file has by its header (github.com/huggingface/safetensors, "Format").

    Raises ValueError where the header is cut off or is not JSON.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8:
            raise ValueError(f"{path.name} has a header of {length} bytes")
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)


def set_aside(folder: Path) -> None:
    """Rename a damaged checkpoint, so that it no longer counts as one."""
    aside = folder.with_name(folder.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)


def cannot_write(error: BaseException) -> bool:
    """Return whether an error is the file system's. Of Rust libraries, tokenizers raises a bare Exception."""
    known = (OSError, SafetensorError, CheckpointException, RunError)
    return isinstance(error, known) or "os error" in str(error)


def cause_of(error: BaseException) -> BaseException:
    """Return the error of a process, where torch has collected those of all."""
    return next(iter(error.failures.values()))[0] if isinstance(error, CheckpointException) else error


def reason_of(error: BaseException) -> str:
    """Return one line: why a file could not be written."""
    error = cause_of(error)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


@contextmanager
def written_whole(folder: Path, safe: Callable[[], str] = lambda: "") -> Iterator[Path]:
    """Yield a folder to write into; when all is on the disk, move it to its final place, replacing what is there.

    When anything fails it is removed. An error of the file system becomes a RunError in one line, which ends with what
    `safe` returns.
    """
    partial = folder.with_name(folder.name + PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        yield partial
        for path in sorted(partial.rglob("*")):
            if path.is_file():
                sync(path)
        sync(partial)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(partial, folder)
        sync(folder.parent)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, RunError) or not cannot_write(error):
            raise
        then = safe() or advice(cause_of(error))
        raise RunError("; ".join(filter(None, (f"cannot save {folder}: {reason_of(error)}", then)))) from error


def delete_old_checkpoints(out_dir: Path, keep: int, others: Collection[int] = ()) -> None:
    """Delete all checkpoints but the last `keep` and those of the steps `others`."""
    for step, folder in list_checkpoints(out_dir)[:-keep]:
        if step not in others:
            shutil.rmtree(folder)


def load_checkpoint(
    folder: Path, weights: Weights, optimizer: torch.optim.Optimizer | None, critic: Critic | None = None
) -> dict[str, Any]:
    """Load a checkpoint's weights and optimizer states in place; return its state.json.

    The number of processes that wrote it, and whether their weights were in shards, does not matter; with weights in
    shards all processes must call this. Raises ValueError, naming the folder, where a file of tensors cannot be read or
    does not fit.
    """
    try:
        weights.load_weights(folder)
        if optimizer is not None:
            read_optimizer(optimizer, folder, "optimizer")
        if critic is not None:
            critic.load(load_file(folder / "critic.safetensors"))
            read_optimizer(critic.optimizer, folder, "critic_optimizer")
    except (SafetensorError, ValueError, CheckpointException, UnpicklingError, EOFError) as error:
        raise ValueError(f"checkpoint {folder} cannot be read: {error}") from error
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def write_groups(path: Path, batches: Mapping[int, Sequence[Group]]) -> None:
    """Write verified groups by step, one line each. Problems are named by id, durations are left out.

    So a checkpoint has the same bytes whenever it is written.
    """
    with path.open("w", encoding="utf-8") as file:
        for step, groups in sorted(batches.items()):
            for group in groups:
                record = {
                    "step": step,
                    "problem": group.problem.id,
                    "prompt_ids": group.prompt_ids,
                    "completions": [completion_record(completion) for completion in group.completions],
                    "verdicts": [verdict_record(verdict) for verdict in group.verdicts],
                    "own_verdicts": [verdict_record(verdict) for verdict in group.own_verdicts],
                    "kept": group.kept,
                    "round": group.round,
                }
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def completion_record(completion: Completion) -> dict[str, Any]:
    """Return a completion as JSON; turns and the environment's verdict where it has any."""
    record = {**dataclasses.asdict(completion), "verdict": completion.verdict and verdict_record(completion.verdict)}
    return {name: value for name, value in record.items() if value or name not in ("turns", "verdict")}


def completion_of(record: Mapping[str, Any]) -> Completion:
    """Return the completion that `completion_record` wrote."""
    given = record.get("verdict")
    return Completion(
        record["text"],
        tuple(record["token_ids"]),
        tuple(record["logprobs"]),
        record["finish_reason"],
        tuple(Turn(**turn) for turn in record.get("turns", ())),
        given and Verdict(**given),
    )


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON, without its duration."""
    record = {**dataclasses.asdict(verdict), "parts": dict(verdict.parts)}
    del record["seconds"]
    return {name: value for name, value in record.items() if value or name != "steps"}


def read_groups(path: Path, problems: Iterable[Problem]) -> dict[int, list[Group]]:
    """Return the groups that `write_groups` wrote, by step, equal to the last bit but for durations.

    Raises ValueError for a problem that is not among `problems`.
    """
    known = {problem.id: problem for problem in problems}
    batches: dict[int, list[Group]] = {}
    for line in path.read_text("utf-8").split("\n")[:-1]:
        record = json.loads(line)
        if record["problem"] not in known:
            raise ValueError(f"{path}: problem {record['problem']!r} is not among the task's")
        completions = [completion_of(c) for c in record["completions"]]
        verdicts, own = (
            tuple(Verdict(**verdict) for verdict in record.get(name, ())) for name in ("verdicts", "own_verdicts")
        )
        group = Group(
            known[record["problem"]],
            tuple(record["prompt_ids"]),
            tuple(completions),
            verdicts,
            kept=record.get("kept", True),
            round=record.get("round", 0),
            own_verdicts=own,
        )
        batches.setdefault(record["step"], []).append(group)
    return batches


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
