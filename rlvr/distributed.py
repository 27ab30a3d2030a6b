"""Several ranks: each samples and trains its share; all hold the same groups and gradients. One rank: no-ops.

Groups are gathered, so that every rank computes the same advantages and minibatches. Gradients are summed, and the loss
has the whole minibatch's denominator, so that the weights are those of a single rank up to rounding.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor
from torch.distributed.tensor import DTensor

T = TypeVar("T")


class Processes(Protocol):
    """Which of how many processes this is: an Accelerator, or `Apart`."""

    @property
    def num_processes(self) -> int: ...

    @property
    def process_index(self) -> int: ...


def count_ranks() -> int:
    """Return how many ranks the run has."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class Apart:
    """A process group of its own, for gathers in a thread beside the training. All ranks must make it at the same time.

    In one shared group, two calls that ranks make in different orders would wait for each other forever.
    """

    def __init__(self, processes: Processes) -> None:
        self.num_processes, self.process_index = processes.num_processes, processes.process_index
        self.group = dist.new_group(backend="gloo") if self.num_processes > 1 else None


BUCKET_ELEMENTS = 2**24


def share(items: Sequence[T], accelerator: Processes) -> Sequence[T]:
    """This process's contiguous part."""
    n, rank, world = len(items), accelerator.process_index, accelerator.num_processes
    return items[n * rank // world : n * (rank + 1) // world]


def gather(items: Sequence[T], accelerator: Processes) -> list[T]:
    """The parts of all processes, in their order."""
    if accelerator.num_processes == 1:
        return list(items)
    if isinstance(accelerator, Apart):
        parts: list[list[T]] = [[] for _ in range(accelerator.num_processes)]
        dist.all_gather_object(parts, list(items), group=accelerator.group)
        return [item for part in parts for item in part]
    return list(gather_object(list(items)))


def sum_tensor(tensor: Tensor, accelerator: Accelerator) -> Tensor:
    """The sum over processes."""
    return tensor if accelerator.num_processes == 1 else accelerator.reduce(tensor, "sum")


def sum_gradients(parameters: Iterable[Tensor], accelerator: Accelerator) -> None:
    """Add up the gradients of all processes, in buckets; those of weights in shards are sums already."""
    if accelerator.num_processes == 1:
        return
    bucket: list[Tensor] = []

    def flush() -> None:
        flat = sum_tensor(torch.cat([p.grad.reshape(-1) for p in bucket]), accelerator)  # type: ignore[union-attr]
        for p, part in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
            p.grad.copy_(part.view_as(p))  # type: ignore[union-attr]
        bucket.clear()

    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p, dtype=p.grad_dtype)
        if isinstance(p, DTensor):
            continue
        if bucket and (
            bucket[0].grad_dtype != p.grad_dtype or sum(q.numel() for q in bucket) + p.numel() > BUCKET_ELEMENTS
        ):
            flush()
        bucket.append(p)
    if bucket:
        flush()


def sum_stats(stats: Mapping[str, float], accelerator: Accelerator, device: Any) -> dict[str, float]:
    """Named sums over all processes. Every process passes the same names."""
    if accelerator.num_processes == 1:
        return dict(stats)
    names = sorted(stats)
    total = sum_tensor(torch.tensor([stats[name] for name in names], dtype=torch.float64, device=device), accelerator)
    return dict(zip(names, total.tolist(), strict=True))


def in_thread(work: Callable[[], T], name: str = "rlvr-sampling") -> Future[T]:
    """Run `work` in a daemon thread of this name, which does not keep the process alive; return its future."""
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return future
