"""Which problems a step trains on: epochs without replacement, and further problems for dynamic sampling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rlvr.seeding import derive_seed
from rlvr.types import Problem

T = TypeVar("T")
Order = np.ndarray[Any, np.dtype[np.int64]]
Window = Callable[[int], tuple[int, int]]


def items_of_step(items: Sequence[T], count: int, *, seed: int, step: int) -> list[T]:
    """Return the `count` items of a step (from 0). Each epoch is a permutation of all items, without replacement.

    A function of (seed, step) only. Where an epoch ends within a step, the next one fills the step up with items that
    it does not have yet; with fewer items than `count` they repeat.
    """
    epochs = Epochs(len(items), (seed,), partial(_equal_steps, count), known_orders(len(items), count, seed))
    return [items[index] for index in epochs.draws(step * count, (step + 1) * count)]


def _equal_steps(count: int, draw: int) -> tuple[int, int]:
    return draw - draw % count, draw - draw % count + count


@dataclass(frozen=True)
class Epochs:
    """Draws of `size` items in epochs: each a permutation of all, changed so that no step has an item twice.

    key: the run's seed, and what else tells these permutations from those of other items. window: maps a draw to the
    first draw of its step and the first of the next step. known: the latest orders by epoch, which `order` fills; one
    dictionary (`known_orders`) for each size, key and window.

    If a step spans two epochs, items already drawn in it are swapped with later ones. With 3 items a step and the
    epochs 3 1 4 0 2 and 2 4 1 0 3, step 1 begins with 0 2; the second epoch would add 2 again, and becomes 4 2 1 0 3.
    A step with more draws than there are items repeats some; there the permutations stay as they are.
    """

    size: int
    key: tuple[int | str, ...]
    window: Window
    known: dict[int, Order]

    def draws(self, start: int, end: int) -> list[int]:
        """Return the items of draws `start` to `end` (exclusive), as indices below `size`."""
        return [int(self.order(draw // self.size)[draw % self.size]) for draw in range(start, end)]

    def order(self, epoch: int) -> Order:
        """Return the order of an epoch.

        The swaps are within the places of the step in which the epoch begins, and depend on how the epoch before ends.
        That is as its permutation does unless its own swaps reach so far; then the order depends on all epochs since
        the last that did not. The latest orders are kept, since epochs are asked for in sequence.
        """
        if epoch in self.known:
            return self.known[epoch]
        first, changed = epoch, list[int]()
        while first not in self.known and (begun := self._begun(first)):
            changed.append(first)
            first -= 1
            if self._swapped(first) <= self.size - begun:
                break
        order = self.known[first] if first in self.known else _permutation(self.size, *self.key, first)
        for number in reversed(changed):
            permutation = _permutation(self.size, *self.key, number)
            order = _without_repeats(permutation, order, self._swapped(number), self._begun(number))
        for old in sorted(self.known)[:-1]:
            self.known.pop(old, None)
        self.known[epoch] = order
        return order

    def _begun(self, epoch: int) -> int:
        """Return how many draws of the epoch before are in the step in which the epoch begins; 0 where that step has
        more draws than there are items."""
        start, end = self.window(epoch * self.size)
        return epoch * self.size - start if end - start <= self.size else 0

    def _swapped(self, epoch: int) -> int:
        """Return the number of places at an epoch's beginning that may be swapped."""
        start, end = self.window(epoch * self.size)
        return end - start if self._begun(epoch) else 0


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


@functools.lru_cache(maxsize=64)
def _permutation(size: int, seed: int, *key: int | str) -> Order:
    order = np.random.Generator(np.random.Philox(derive_seed(seed, "epoch", *key))).permutation(size)
    order.flags.writeable = False
    return order


def _without_repeats(order: Order, before: Order, count: int, begun: int) -> Order:
    """Return the order with the items exchanged that its first step, of `count` draws, has from the epoch before: the
    last `begun`."""
    head = count - begun
    taken = np.zeros(len(order), dtype=bool)
    taken[before[len(before) - begun :]] = True
    repeated = np.flatnonzero(taken[order[:head]])
    others = head + np.flatnonzero(~taken[order[head:count]])[: len(repeated)]
    changed = order.copy()
    changed[repeated], changed[others] = order[others], order[repeated]
    return changed


@functools.lru_cache(maxsize=64)
def known_orders(*key: Hashable) -> dict[int, Order]:
    """Return the dictionary for `Epochs.known` of a size, seed and window, which `key` must tell apart."""
    return {}
