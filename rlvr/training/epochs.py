"""Which problems a step trains on: epochs without replacement, and further problems for dynamic sampling."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from rlvr.seeding import derive_seed
from rlvr.types import Problem

T = TypeVar("T")
Order = np.ndarray[Any, np.dtype[np.int64]]


def items_of_step(items: Sequence[T], count: int, *, seed: int, step: int) -> list[T]:
    """Return the `count` items of a step (from 0). Each epoch is a permutation of all items, without replacement.

    A function of (seed, step) only. Where an epoch ends within a step, the next one fills the step up with items that
    it does not have yet; with fewer items than `count` they repeat.
    """
    size = len(items)
    chosen = []
    for position in range(step * count, (step + 1) * count):
        epoch, offset = divmod(position, size)
        order = _epoch_order(size, count, seed, epoch) if count <= size else _permutation(size, seed, epoch)
        chosen.append(items[int(order[offset])])
    return chosen


def further_problems(
    problems: Sequence[Problem], count: int, *, seed: int, step: int, round_number: int, used: set[str]
) -> list[Problem]:
    """Return a random sample of `count` problems for a round of dynamic sampling, without the ids in `used`."""
    order = np.random.Generator(np.random.Philox(derive_seed(seed, "more", step, round_number)))
    chosen: dict[str, Problem] = {}
    for index in order.permutation(len(problems)):
        problem = problems[int(index)]
        if problem.id not in used:
            chosen.setdefault(problem.id, problem)
        if len(chosen) == count:
            break
    return list(chosen.values())


@functools.lru_cache(maxsize=4)
def _permutation(size: int, seed: int, epoch: int) -> Order:
    order = np.random.Generator(np.random.Philox(derive_seed(seed, "epoch", epoch))).permutation(size)
    order.flags.writeable = False
    return order


def _epoch_order(size: int, count: int, seed: int, epoch: int) -> Order:
    """Return the epoch's permutation, changed so that the step in which the epoch begins has no item twice.

    If a step spans two epochs, items already drawn in it are swapped with later ones. With 3 items a step and the
    epochs 3 1 4 0 2 and 2 4 1 0 3, step 1 begins with 0 2; the second epoch would add 2 again, and becomes 4 2 1 0 3.

    The swaps are within the first `count` places, and depend on how the epoch before ends. That is as its permutation
    does if it has two steps or more; the order of a shorter epoch depends on all those since the last that began
    together with a step, at most `count`. The latest orders are cached, since epochs are asked for in sequence.
    """
    known = _known_orders(size, count, seed)
    if epoch in known:
        return known[epoch]
    period = count // math.gcd(size, count)
    first = epoch - epoch % period if size < 2 * count else max(epoch - 1, 0)
    order = _permutation(size, seed, first)
    for earlier in [e for e in sorted(known) if first < e < epoch] if size < 2 * count else []:
        first, order = earlier, known[earlier]
    for later in range(first + 1, epoch + 1):
        order = _without_repeats(_permutation(size, seed, later), order, count, later * size % count)
    for old in sorted(known)[:-1]:
        known.pop(old, None)
    known[epoch] = order
    return order


def _without_repeats(order: Order, before: Order, count: int, begun: int) -> Order:
    """Return the order with the items exchanged that its first step has from the epoch before: the last `begun`."""
    head = count - begun if begun else 0
    taken = np.zeros(len(order), dtype=bool)
    taken[before[len(before) - begun :]] = True
    repeated = np.flatnonzero(taken[order[:head]])
    others = head + np.flatnonzero(~taken[order[head:count]])[: len(repeated)]
    changed = order.copy()
    changed[repeated], changed[others] = order[others], order[repeated]
    return changed


@functools.lru_cache(maxsize=4)
def _known_orders(size: int, count: int, seed: int) -> dict[int, Order]:
    """Return the last orders by epoch: a dictionary that `_epoch_order` fills."""
    return {}
