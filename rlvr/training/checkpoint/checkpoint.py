"""Checkpoints written and loaded: atomically, loadable by transformers, and enough for an exact resume.

A checkpoint is a folder `checkpoints/step-000050`:

- the model and tokenizer, as transformers writes them
- `optimizer.safetensors`; a critic's `critic.safetensors` and `critic_optimizer.safetensors`. Where the weights are in
  shards each rank writes its part of an optimizer's state into the folder `optimizer` or `critic_optimizer`
- `ahead.jsonl` (sampler.max_staleness): rollouts of later steps, also those that slices have cut; `pass_rates.json`
  (a curriculum or a profile); `reference.safetensors`, once the reference policy was reset; `teacher.safetensors` of a
  teacher that follows
- `state.json`: sizes of the run's logs, to drop later lines, and of every file here, to find damage without reading it

No random state is saved: every random choice is a function of (seed, step, problem, sample).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from rlvr.core.files.write import PARTIAL, advise
from rlvr.core.heartbeat import enter
from rlvr.core.types import Completion, Group, Problem, RunError, Turn, Verdict
from rlvr.distributed import Apart, gather, in_thread
from rlvr.model.logprobs.critic import Critic
from rlvr.model.optim.sharding import fill, leads

from ..problems.draws import STATE
from .folders import STEP, find_damage

AHEAD = "ahead.jsonl"
REFERENCE, TEACHER = "reference.safetensors", "teacher.safetensors"


class Weights(Protocol):
    """What is trained, as a checkpoint holds it: a policy, or a model with its trained weights alone.

    mesh: the device mesh of sharded weights, else None. All of its ranks must call `snapshot`, `save`, `load_weights`.
    """

    @property
    def mesh(self) -> DeviceMesh | None: ...

    def snapshot(self) -> Weights | None:
        """Return a copy, in the CPU's memory, with whole weights. Where they are in shards only the first gets it."""

    def save(self, folder: Path) -> None:
        """Write the weights into a folder, as safetensors files."""

    def load_weights(self, folder: Path) -> None:
        """Restore, bit for bit, what `save` wrote."""


def write_tensors(tensors: Mapping[str, Tensor], folder: Path, name: str, *, sharded: bool, group: Any = None) -> None:
    """Write an optimizer's tensors ("<number of the parameter>.<name>"): NAME.safetensors, or if sharded a folder NAME.

    If sharded, all ranks must call this. group: their process group, if it is not torch's default.
    """
    if sharded:
        with without_warnings():
            save(dict(sorted(tensors.items())), checkpoint_id=folder / name, process_group=group)
    else:
        save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, folder / f"{name}.safetensors")


def read_optimizer(optimizer: torch.optim.Optimizer, folder: Path, name: str) -> None:
    """Restore the state that `write_tensors` wrote, by any number of ranks, sharded or not. All must call this."""
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]

    def room(key: str, shape: Any, dtype: torch.dtype) -> Tensor:
        weight = weights[int(key.partition(".")[0])]
        alike = tuple(shape) == tuple(weight.shape)
        return torch.zeros_like(weight, dtype=dtype) if alike else torch.zeros(tuple(shape), dtype=dtype)

    file, shards = folder / f"{name}.safetensors", folder / name
    if shards.is_dir():
        held = FileSystemReader(shards).read_metadata().state_dict_metadata
        tensors = {
            key: room(key, entry.size, entry.properties.dtype)
            for key, entry in held.items()
            if isinstance(entry, TensorStorageMetadata)
        }
        with without_warnings():
            load(tensors, checkpoint_id=shards)
    elif is_sharded(optimizer):
        tensors = {}
        with safe_open(file, "pt") as stored:
            for key in stored.keys():  # noqa: SIM118
                whole = stored.get_tensor(key)  # read from the disk where it is used
                tensors[key] = room(key, whole.shape, whole.dtype)
                fill(tensors[key], whole)
    else:
        tensors = load_file(file)
    load_optimizer(optimizer, tensors)


def is_sharded(optimizer: torch.optim.Optimizer) -> bool:
    return any(isinstance(weight, DTensor) for group in optimizer.param_groups for weight in group["params"])


@contextmanager
def without_warnings() -> Iterator[None]:
    """Run within without Python's warnings: torch warns of a single process, and of functions of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as tensors named "<parameter number>.<name>", not copied."""
    state = optimizer.state_dict()["state"]
    return {f"{number}.{name}": value.detach() for number, values in state.items() for name, value in values.items()}


def load_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned."""
    whole = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        number, _, name = key.partition(".")
        state.setdefault(int(number), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": whole["param_groups"]})


@dataclass(frozen=True)
class Snapshot:
    """What this rank writes of a checkpoint.

    weights: whole ones; None where another rank writes them. critic, held: weights by name, on the same rank; of `held`
    by the name of their file.
    optimizers: states by the name of their file or folder; this rank's part if `sharded`. state: what state.json holds
    besides sizes. draws: the state of rlvr.training.problems.draws, in JSON. together: all ranks write, as the weights
    are sharded.
    """

    step: int
    weights: Weights | None
    critic: Mapping[str, Tensor] | None
    optimizers: Mapping[str, Mapping[str, Tensor]]
    sharded: bool
    together: bool
    state: Mapping[str, Any] = field(default_factory=dict)
    ahead: Mapping[int, Sequence[Group]] = field(default_factory=dict)
    draws: str | None = None
    held: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)

    @property
    def main(self) -> bool:
        """Whether this process makes the folder, and renames it."""
        return leads() or not self.together

    def write(self, folder: Path, group: Any = None) -> None:
        """Write the checkpoint atomically: beside its final place, then renamed.

        group: the process group of the ranks that write, if not torch's default. If the disk is full or the like,
        raises RunError in one line; the partial checkpoint is removed and earlier ones stay.
        """

        def step() -> Any:
            return failing_together(folder, self.together, group)

        with (
            step(),  # and waiting, until it has its name
            write_folder_whole(folder, lambda: name_last_whole(folder))
            if self.main
            else partial_of_first(folder) as partial,
        ):
            with step():
                pass  # wait until there is a folder
            with step():
                if self.weights is not None:
                    self.weights.save(partial)
                if self.critic is not None:
                    save_file(dict(self.critic), partial / "critic.safetensors")
                for name, values in self.held.items():
                    save_file(dict(values), partial / name)
            for name, tensors in self.optimizers.items():
                write_tensors(tensors, partial, name, sharded=self.sharded, group=group)
            if self.main:
                self.complete(partial)

    def complete(self, partial: Path) -> None:
        """Write what only one process writes, and state.json, with the sizes of all files, last."""
        if self.ahead:
            write_groups(partial / AHEAD, self.ahead)
        if self.draws is not None:
            (partial / STATE).write_text(self.draws)
        written = sorted(path for path in partial.rglob("*") if path.is_file())
        sizes = {str(path.relative_to(partial)): path.stat().st_size for path in written}
        text = json.dumps({"step": self.step, **self.state, "files": sizes}, indent=2)
        (partial / "state.json").write_text(text)


def take_snapshot(
    step: int,
    weights: Weights,
    optimizer: torch.optim.Optimizer | None,
    state: Mapping[str, Any],
    critic: Critic | None = None,
    ahead: Mapping[int, Sequence[Group]] | None = None,
    draws: str | None = None,
    others: Mapping[str, Mapping[str, Tensor]] | None = None,
    *,
    copied: bool,
) -> Snapshot:
    """Return what a checkpoint after `step` steps holds. If the weights are sharded, all ranks must call it.

    ahead: rollouts of later steps, by step. others: further weights, by file and name. copied: a copy in the CPU's
    memory, which later updates do not change; else it shares the memory of what is trained.
    """
    together = weights.mesh is not None
    states = {"optimizer": optimizer, "critic_optimizer": critic.optimizer if critic is not None else None}
    held = {name: optimizer_tensors(found) for name, found in states.items() if found is not None}
    values = critic.tensors() if critic is not None else {}
    others = others or {}
    if copied:
        held = {
            name: {key: value.detach().to("cpu", copy=True) for key, value in tensors.items()}
            for name, tensors in held.items()
        }
        values = {name: value.clone() for name, value in values.items()}
        others = {file: {name: value.clone() for name, value in named.items()} for file, named in others.items()}
    written_here = leads() or not together
    return Snapshot(
        step,
        weights.snapshot() if copied or together else weights,
        values if critic is not None and written_here else None,
        held,
        any(is_sharded(found) for found in states.values() if found is not None),
        together,
        dict(state),
        {later: list(groups) for later, groups in (ahead or {}).items()},
        draws,
        others if written_here else {},
    )


def save_checkpoint(
    folder: Path,
    step: int,
    weights: Weights,
    optimizer: torch.optim.Optimizer | None,
    state: Mapping[str, Any],
    critic: Critic | None = None,
    ahead: Mapping[int, Sequence[Group]] | None = None,
) -> None:
    """Write a checkpoint, and return when it is on the disk. See `take_snapshot` and `Snapshot.write`.

    If the weights are sharded, all ranks must call it and see the same disk.
    """
    take_snapshot(step, weights, optimizer, state, critic, ahead, copied=False).write(folder)


def name_last_whole(folder: Path) -> str:
    """Return the end of the line that says why `folder` was not written: which checkpoint before it is whole."""
    beside = sorted(path for path in folder.parent.glob("step-*") if STEP.fullmatch(path.name))
    whole = [path for path in beside if find_damage(path) is None]
    resume = "run the same command (without --run.overwrite) to resume from it"
    return f"the last complete checkpoint, {whole[-1]}, is safe: {resume}" if whole else ""


@contextmanager
def failing_together(folder: Path, together: bool, group: Any = None) -> Iterator[None]:
    """Write a part of a checkpoint, then wait for the other ranks if they write `together`. If one cannot write, all
    raise.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        if not together or not cannot_write(caught):
            raise
        error = caught
    if not together:
        return
    told = "" if error is None else f"cannot save {folder}: {reason_of(error)}"
    told = str(error) if isinstance(error, RunError) else told
    reasons = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, told, group=group)
    if error is not None:
        raise error
    if any(reasons):
        raise RunError(max(reasons, key=bool))


@contextmanager
def partial_of_first(folder: Path) -> Iterator[Path]:
    """Yield the folder of `write_folder_whole`, which the first process makes. RunError where it cannot be written."""
    try:
        yield folder.with_name(folder.name + PARTIAL)
    except (OSError, CheckpointException) as error:
        raise RunError(f"cannot save {folder}: {reason_of(error)}") from error


W = TypeVar("W", bound="SnapshotWriter")


class SnapshotWriter:
    """Writes checkpoints, one after the other. All ranks must make the same calls.

    beside: a thread writes a copy in the CPU's memory while the training goes on; the next checkpoint waits for it. It
    counts as saved once `check` or `finish` finds it whole on all ranks. sharded: all ranks write.
    """

    def __init__(self, accelerator: Accelerator, *, sharded: bool, beside: bool = False) -> None:
        self.accelerator = accelerator
        self.sharded = sharded
        self.beside = beside
        # The thread's gathers must not meet those of the training.
        self._group = Apart(accelerator).group if beside and sharded else None
        self._pending: Future[None] | None = None  # the checkpoint that is being written
        self._saved: Callable[[], None] = lambda: None  # called once it is whole on all ranks

    def __enter__(self: W) -> W:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.finish()
        elif self._pending is not None:  # other processes may have gone: what it ends with is not compared
            wait([self._pending])

    @property
    def writing(self) -> bool:
        return self._pending is not None and not self._pending.done()

    @property
    def writes(self) -> bool:
        """Whether this process writes a part of each checkpoint."""
        return self.sharded or self.accelerator.is_main_process

    def write(self, folder: Path, take: Callable[[], Snapshot | None], saved: Callable[[], None]) -> None:
        """Write what `take` returns (None where this process writes nothing), and call `saved` when all is whole.

        Raises RunError, in one line, where it or the one before cannot be written.
        """
        enter("checkpoint")
        self.finish()
        snapshot = take()
        written: Future[None] = Future()
        if snapshot is not None and self.beside:
            written = in_thread(lambda: snapshot.write(folder, self._group), "rlvr-checkpoint")
        else:
            if snapshot is not None:
                snapshot.write(folder)
            written.set_result(None)
        self._pending, self._saved = written, saved
        if not self.beside:
            self.finish()

    def check(self) -> None:
        """Complete the checkpoint that is being written if it is whole on all ranks. Raises RunError on all if one
        failed.
        """
        if self._pending is None:
            return
        told = gather([failure_of(self._pending)], self.accelerator)
        if any(told):
            pending, self._pending = self._pending, None
            if failure_of(pending):
                pending.result()  # raises
            raise RunError(max(filter(None, told)))
        if None not in told:
            self._pending = None
            self._saved()
            self.accelerator.wait_for_everyone()

    def finish(self) -> None:
        """Wait for the checkpoint that is being written. Raises as `check`."""
        if self._pending is not None:
            wait([self._pending])
            self.check()


def failure_of(written: Future[None]) -> str | None:
    """Return why a checkpoint could not be written; "" where it was, None where it is being written."""
    if not written.done():
        return None
    error = written.exception()
    return "" if error is None else str(error) or type(error).__name__


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
def write_folder_whole(folder: Path, safe: Callable[[], str] = lambda: "") -> Iterator[Path]:
    """Yield a folder to write into, then move it to its final place, replacing what is there.

    If anything fails it is removed. An error of the file system becomes a RunError in one line, which ends with what
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
        then = safe() or advise(cause_of(error))
        raise RunError("; ".join(filter(None, (f"cannot save {folder}: {reason_of(error)}", then)))) from error


def load_checkpoint(
    folder: Path, weights: Weights, optimizer: torch.optim.Optimizer | None, critic: Critic | None = None
) -> dict[str, Any]:
    """Load a checkpoint's weights and optimizer states in place; return its state.json.

    Any number of ranks may load it, sharded or not. If the weights are sharded, all ranks must call this. Raises
    ValueError, naming the folder, for tensors that cannot be read or do not fit.
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
    """Write verified groups by step, one line each: problems by id, no durations, so that bytes can be compared."""
    with path.open("w", encoding="utf-8") as file:
        for step, groups in sorted(batches.items()):
            for group in groups:
                record = {"step": step, **to_record(group), "problem": group.problem.id}
                file.write(json.dumps(record, ensure_ascii=False) + "\n")


def to_record(value: Any) -> Any:
    """Return what a group is made of as JSON has it, without the durations of verdicts."""
    if dataclasses.is_dataclass(value):
        names = (field.name for field in dataclasses.fields(value) if field.name not in ("problem", "seconds"))
        return {name: to_record(getattr(value, name)) for name in names}
    return list(map(to_record, value)) if isinstance(value, tuple) else value


def to_completion(record: Mapping[str, Any]) -> Completion:
    parts: dict[str, Any] = {name: tuple(record[name]) for name in ("token_ids", "logprobs")}
    parts["turns"] = tuple(Turn(**turn) for turn in record.get("turns", ()))
    parts["verdict"] = Verdict(**given) if (given := record.get("verdict")) else None
    parts["versions"] = tuple(map(tuple, record.get("versions", ())))
    return Completion(**{**record, **parts})


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
        step, parts = record.pop("step"), dict[str, Any](problem=known[record["problem"]])
        parts |= {name: tuple(Verdict(**verdict) for verdict in record[name]) for name in ("verdicts", "own_verdicts")}
        parts |= {
            "prompt_ids": tuple(record["prompt_ids"]),
            "completions": tuple(map(to_completion, record["completions"])),
        }
        batches.setdefault(step, []).append(Group(**{**record, **parts}))
    return batches


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
