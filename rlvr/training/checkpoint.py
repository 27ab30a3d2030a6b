"""Checkpoints: atomic, loadable by transformers, and enough for an exact resume.

A checkpoint is a folder `checkpoints/step-000050` with the model (safetensors, tokenizer), `optimizer.safetensors` and
`state.json`; with a critic also `critic.safetensors` and `critic_optimizer.safetensors`, with rollout.max_staleness
`ahead.jsonl`, the batches that are sampled already. Random choices are functions of (seed, step, problem, sample), so
nothing else has a state; the lengths of the run's logs are kept so that lines written after the checkpoint can be cut
off again. state.json also lists the size of every other file, so that a damaged checkpoint is known without reading it.
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
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from rlvr.files.write import PARTIAL
from rlvr.model.critic import Critic
from rlvr.model.policy import Policy
from rlvr.types import Completion, Group, Problem, RunError, Verdict

AHEAD = "ahead.jsonl"
STEP = re.compile(r"step-(\d+)")
DAMAGED = ".damaged"


def checkpoint_folder(out_dir: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return out_dir / "checkpoints" / f"step-{step:06d}"


def list_checkpoints(out_dir: Path) -> list[tuple[int, Path]]:
    """Checkpoints as (step, folder), oldest first. Whether they are whole is not looked at (see `damage`)."""
    found = []
    for folder in (out_dir / "checkpoints").glob("step-*"):
        match = STEP.fullmatch(folder.name)
        if match:
            found.append((int(match[1]), folder))
    return sorted(found)


def newest_whole(out_dir: Path, say: Callable[[str], None], *, move: bool = True) -> tuple[int, Path] | None:
    """The newest checkpoint that is whole, as (step, folder); None where there is none of any kind.

    Newer ones that are damaged are told of, and renamed (`move`) so that nothing takes them for checkpoints.
    ValueError where all are damaged.
    """
    found = list_checkpoints(out_dir)
    damaged: list[tuple[Path, str]] = []
    for step, folder in reversed(found):
        why = damage(folder)
        if why is None:
            for other, reason in damaged:
                say(f"{other} is damaged ({reason}); going back to step {step}")
                if move:
                    set_aside(other)
            return step, folder
        damaged.append((folder, why))
    if damaged:
        raise ValueError(
            f"no checkpoint of {out_dir} is whole ({damaged[0][0].name}: {damaged[0][1]}); restore one from a copy, or "
            "--run.overwrite to begin anew"
        )
    return None


def damage(folder: Path) -> str | None:
    """What is wrong with a checkpoint, None where nothing is: a file that is missing or has not its size.

    Checked are the sizes that state.json lists, and those that the headers of safetensors files give.
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
    """The size that a safetensors file has by its own header (https://github.com/huggingface/safetensors, "Format").

    ValueError where the header is cut off or no JSON.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= path.stat().st_size - 8:
            raise ValueError(f"{path.name} has a header of {length} bytes")
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    return 8 + length + max(ends, default=0)


def set_aside(folder: Path) -> None:
    """Renames a damaged checkpoint."""
    aside = folder.with_name(folder.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)


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

    `ahead`: batches of later steps that are sampled already, by their step. RunError, in one line, where the disk is
    full or the like: what was written is removed, and the checkpoints before are as they were.
    """

    def safe() -> str:
        beside = sorted(path for path in folder.parent.glob("step-*") if STEP.fullmatch(path.name))
        whole = [path for path in beside if damage(path) is None]
        go_on = "the same command (without --run.overwrite) goes on from there"
        return f"the last whole checkpoint, {whole[-1]}, is safe: {go_on}" if whole else ""

    with written_whole(folder, safe) as partial:
        policy.save(partial)
        if optimizer is not None:
            save_file(optimizer_tensors(optimizer), partial / "optimizer.safetensors")
        if critic is not None:
            save_file(critic.tensors(), partial / "critic.safetensors")
            save_file(optimizer_tensors(critic.optimizer), partial / "critic_optimizer.safetensors")
        if ahead:
            write_groups(partial / AHEAD, ahead)
        written = sorted(path for path in partial.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(partial)): path.stat().st_size for path in written}
        (partial / "state.json").write_text(json.dumps({"step": step, **state, "files": sizes}, indent=2))


@contextmanager
def written_whole(folder: Path, safe: Callable[[], str] = lambda: "") -> Iterator[Path]:
    """Yields a folder to write into, which takes its final place when all is on the disk, instead of what is there.

    When anything fails it is removed; an error of the file system becomes a RunError in one line, to which `safe` adds
    what is left. (The Rust libraries beneath raise SafetensorError, and the tokenizers' a bare Exception.)
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
        if not isinstance(error, (OSError, SafetensorError)) and "os error" not in str(error):
            raise
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise RunError("; ".join(filter(None, (f"cannot save {folder}: {reason}", safe())))) from error


def delete_old_checkpoints(out_dir: Path, keep: int, others: Collection[int] = ()) -> None:
    """Deletes all checkpoints but the last `keep`, and but those of the steps `others`."""
    for step, folder in list_checkpoints(out_dir)[:-keep]:
        if step not in others:
            shutil.rmtree(folder)


def load_checkpoint(
    folder: Path, policy: Policy, optimizer: torch.optim.Optimizer | None, critic: Critic | None = None
) -> dict[str, Any]:
    """Puts a checkpoint's weights and optimizer states in place and returns its state.json.

    ValueError naming the folder where a file of tensors cannot be read, or does not fit.
    """
    try:
        policy.load_weights(folder)
        if optimizer is not None:
            load_optimizer(optimizer, load_file(folder / "optimizer.safetensors"))
        if critic is not None:
            critic.load(load_file(folder / "critic.safetensors"))
            load_optimizer(critic.optimizer, load_file(folder / "critic_optimizer.safetensors"))
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"checkpoint {folder} cannot be read: {error}") from error
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state


def write_groups(path: Path, batches: Mapping[int, Sequence[Group]]) -> None:
    """Verified groups by their step, a line each. Problems are named by their ids; durations are left out.

    A checkpoint is so the same bytes whenever it is written.
    """
    with path.open("w", encoding="utf-8") as file:
        for step, groups in sorted(batches.items()):
            for group in groups:
                record = {
                    "step": step,
                    "problem": group.problem.id,
                    "prompt_ids": group.prompt_ids,
                    "completions": [dataclasses.asdict(completion) for completion in group.completions],
                    "verdicts": [verdict_record(verdict) for verdict in group.verdicts],
                    "own_verdicts": [verdict_record(verdict) for verdict in group.own_verdicts],
                    "kept": group.kept,
                    "round": group.round,
                }
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def verdict_record(verdict: Verdict) -> dict[str, Any]:
    """A verdict without its duration, as JSON takes it."""
    record = {**dataclasses.asdict(verdict), "parts": dict(verdict.parts)}
    del record["seconds"]
    return record


def read_groups(path: Path, problems: Iterable[Problem]) -> dict[int, list[Group]]:
    """What `write_groups` wrote, to the last bit, in batches without durations.

    ValueError for a problem that is not among `problems`.
    """
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
