"""Several passes at once on a CPU, each in a thread of its own with its share of torch's threads.

The operations of a small model are too short for two threads to share, and the next one waits for Python. Two passes
side by side keep two cores busy: on an AMD EPYC forward and backward of the tiny model take three fifths of the time,
of one with 48M weights four fifths. What each thread computes follows from the batch, so equal runs stay equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# Measured with two. Python runs in one thread at a time, so that many passes would wait for each other.
MOST = 4


def passes_at_once(device: torch.device) -> int:
    """Return how many passes a device runs best at once: on a CPU one for each of torch's threads, up to MOST."""
    return min(torch.get_num_threads(), MOST) if device.type == "cpu" else 1


def run_at_once(works: Sequence[Callable[[], T]], meanwhile: Callable[[], object] = lambda: None) -> list[T]:
    """Call each function in a thread of its own, a single one in this thread; return what they return.

    Threads have the caller's setting of gradients, and no autocast of it. The first exception of any is raised when all
    have ended. This thread calls `meanwhile` while several run.
    """
    if len(works) == 1:
        return [works[0]()]
    threads, with_gradients = torch.get_num_threads(), torch.is_grad_enabled()

    def run(work: Callable[[], T]) -> T:
        torch.set_num_threads(max(threads // len(works), 1))
        with torch.set_grad_enabled(with_gradients):
            return work()

    try:
        with ThreadPoolExecutor(len(works)) as pool:
            running = [pool.submit(run, work) for work in works]
            meanwhile()
            return [future.result() for future in running]
    finally:
        torch.set_num_threads(threads)  # torch gives the last number that was set to threads that begin


class GradientSum:
    """The sum of the gradients of losses, which one thread computes. `weights` do not change meanwhile."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights = weights
        self.sums: list[Tensor | None] = [None] * len(weights)
        self._own: set[int] = set()  # sums that nobody else holds: autograd may return one tensor for two weights

    def add(self, loss: Tensor) -> None:
        """Add the gradient of a loss (a scalar)."""
        found: Sequence[Any] = torch.autograd.grad(loss, list(self.weights), allow_unused=True)
        for i, gradient in enumerate(found):
            before = self.sums[i]
            if gradient is None or before is None:
                self.sums[i] = before if gradient is None else gradient
            elif i in self._own:
                before.add_(gradient)
            else:
                self.sums[i] = before + gradient
                self._own.add(i)


@torch.no_grad()
def add_to_weights(sums: Sequence[GradientSum]) -> None:
    """Add sums of gradients of the same weights to the weights' `grad`, in the order of the sums."""
    for i, weight in enumerate(sums[0].weights):
        found = [x for one in sums if (x := one.sums[i]) is not None]
        for gradient in found:
            weight.grad = gradient.clone() if weight.grad is None else weight.grad.add_(gradient)
