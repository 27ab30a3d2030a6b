"""What tensors a computation makes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """The elements of the largest storage that an operation within makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


class BytesAlive(torch.utils._python_dispatch.TorchDispatchMode):
    """How many bytes the storages have that operations within made, while they are there. peak: the most so far."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._made: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {place(value) for value in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(tensor, Tensor) and place(tensor) not in given:  # views make no storage
                self._made[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        self.peak = max(self.peak, self.now())
        return out

    def now(self) -> int:
        """Return the bytes of the storages that are still there."""
        self._made = {storage: size for storage, size in self._made.items() if not storage.expired()}
        return sum(self._made.values())


def place(tensor: Tensor) -> int:
    """Return the address of a tensor's storage."""
    return tensor.untyped_storage().data_ptr()
