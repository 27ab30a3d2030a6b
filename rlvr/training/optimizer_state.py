"""An optimizer's state on the disk: one file, or where it is in shards a folder into which every process writes.

Either is read by any number of processes, with weights in shards or whole. The tensors have the same names in both:
"<number of the parameter>.<name>".
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from rlvr.model.sharding import fill


def write_tensors(tensors: Mapping[str, Tensor], folder: Path, name: str, *, sharded: bool, group: Any = None) -> None:
    """Write what `optimizer_tensors` returned into a folder: NAME.safetensors; of shards the folder NAME.

    For the latter all processes must call this. group: of them, if not torch's own of all.
    """
    if sharded:
        with without_warnings():
            save(dict(sorted(tensors.items())), checkpoint_id=folder / name, process_group=group)
    else:
        save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, folder / f"{name}.safetensors")


def read_optimizer(optimizer: torch.optim.Optimizer, folder: Path, name: str) -> None:
    """Restore the state that `write_tensors` wrote, however many processes there were. All must call it."""
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
    """Return whether an optimizer's weights are in shards."""
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
