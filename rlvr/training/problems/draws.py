"""Which problems a step trains on: in epochs, by the shares of a mixture, or those whose groups are likely to carry
signal.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlvr.algo.advantages import is_flat
from rlvr.config import Config
from rlvr.core.files.jsonl import parse_object
from rlvr.core.seeding import derive_seed
from rlvr.core.types import PACK, Group, Problem

from .pass_rates import PassRates, read_profile

T = TypeVar("T")
Order = np.ndarray[Any, np.dtype[np.int64]]
Window = Callable[[int], tuple[int, int]]


def items_of_step(items: Sequence[T], count: int, *, seed: int, step: int) -> list[T]:
    """Return the `count` items of a step (from 0): a function of (seed, step). Each epoch is a permutation of all
    items.

    Where an epoch ends within a step, the next one fills it up with items that it does not have yet; with fewer items
    than `count` they repeat.
    """

    def window(draw: int) -> tuple[int, int]:
        return draw - draw % count, draw - draw % count + count

    epochs = Epochs(len(items), (seed,), window, known_orders(len(items), count, seed))
    return [items[index] for index in epochs.draws(step * count, (step + 1) * count)]


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

        It is the epoch's permutation, in which items are swapped so that the step in which the epoch begins repeats
        nothing that the end of the epoch before has given to that step. If that end was itself changed, the order
        depends on earlier epochs as well. The latest orders are kept, since epochs come in sequence.
        """
        if epoch in self.known:
            return self.known[epoch]
        first, changed = epoch, list[int]()
        while first not in self.known and (begun := self._count_begun(first)):
            changed.append(first)
            first -= 1
            if self._count_swappable(first) <= self.size - begun:
                break
        order = self.known[first] if first in self.known else _permutation(self.size, *self.key, first)
        for number in reversed(changed):
            permutation = _permutation(self.size, *self.key, number)
            order = _without_repeats(permutation, order, self._count_swappable(number), self._count_begun(number))
        for old in sorted(self.known)[:-1]:
            self.known.pop(old, None)
        self.known[epoch] = order
        return order

    def _count_begun(self, epoch: int) -> int:
        """Return how many draws of the epoch before are in the step in which the epoch begins; 0 if the step exceeds
        the items.
        """
        start, end = self.window(epoch * self.size)
        return epoch * self.size - start if end - start <= self.size else 0

    def _count_swappable(self, epoch: int) -> int:
        """Return the number of places at an epoch's beginning that may be swapped."""
        start, end = self.window(epoch * self.size)
        return end - start if self._count_begun(epoch) else 0


def further_problems(
    problems: Sequence[Problem], count: int, *, seed: int, step: int, round_number: int, used: set[str]
) -> list[Problem]:
    """Return a random sample of `count` problems for a round of dynamic sampling, without the ids in `used`."""
    chosen: dict[str, Problem] = {}
    for index in _stream(seed, "more", step, round_number).permutation(len(problems)):
        problem = problems[int(index)]
        if problem.id not in used:
            chosen.setdefault(problem.id, problem)
        if len(chosen) == count:
            break
    return list(chosen.values())


def _stream(*key: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(derive_seed(*key)))


@functools.lru_cache(maxsize=64)
def _permutation(size: int, seed: int, *key: int | str) -> Order:
    order = _stream(seed, "epoch", *key).permutation(size)
    order.flags.writeable = False
    return order


def _without_repeats(order: Order, before: Order, count: int, begun: int) -> Order:
    """Return an epoch's order, changed so that its first step repeats nothing.

    That step has `count` draws; the first `begun` of them are the last items of the epoch before. Items that would come
    again are swapped with the items right after the step that are no repetitions.
    """
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


_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


def packs_of_draws(shares: Mapping[str, float], count: int, seed: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the packs of the first `count` draws, as places in `shares`: (count,).

    A low-discrepancy sequence: of any n draws in a row a pack has n times its share, up to a few.
    """
    offset = derive_seed(seed, "mixture") / 2**64 % 1.0
    points = (np.arange(count) * _GOLDEN + offset) % 1.0
    bounds = np.cumsum(list(shares.values()))[:-1]
    return np.searchsorted(bounds, points, side="right").astype(np.int64)


def by_pack(problems: Sequence[Problem], shares: Mapping[str, float]) -> dict[str, list[Problem]]:
    """Return the problems of each pack, and only packs that have some. Raise ValueError where none has."""
    found: dict[str, list[Problem]] = {pack: [] for pack in shares}
    for problem in problems:
        held = found.get(problem.info.get(PACK, ""))
        if held is not None:
            held.append(problem)
    kept = {pack: held for pack, held in found.items() if held}
    if not kept:
        raise ValueError("no pack of the mixture has problems to train on")
    return kept


def packs_of_steps(
    problems: Sequence[Problem], shares: Mapping[str, float], count: int, *, seed: int, step: int
) -> tuple[dict[str, list[Problem]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the problems of each pack, and the packs of all draws of steps 0 to `step`, as places among these packs.

    The draws are (step + 1, count): a function of (seed, step) only.
    """
    packs = by_pack(problems, shares)
    total = sum(shares[pack] for pack in packs)
    order = packs_of_draws({pack: shares[pack] / total for pack in packs}, (step + 1) * count, seed)
    return packs, order.reshape(step + 1, count)


def mixed_items(
    problems: Sequence[Problem], shares: Mapping[str, float], count: int, *, seed: int, step: int
) -> list[Problem]:
    """Return the `count` problems of a step (from 0): a function of (seed, step) only.

    Each pack goes through its problems in epochs of its own, without replacement. No step has a problem twice, unless
    it has more draws of a pack than the pack has problems.
    """
    packs, order = packs_of_steps(problems, shares, count, seed=seed, step=step)
    mixture = tuple((pack, len(held), shares[pack]) for pack, held in packs.items())
    drawn: list[Iterator[Problem]] = []
    for place, (pack, held) in enumerate(packs.items()):
        bounds = np.concatenate([[0], (order == place).sum(axis=1).cumsum()])
        known = known_orders(mixture, pack, count, seed)
        epochs = Epochs(len(held), (seed, pack), partial(_step_of, bounds), known)
        drawn.append(iter([held[index] for index in epochs.draws(bounds[step], bounds[step + 1])]))
    return [next(drawn[place]) for place in order[step]]


def _step_of(bounds: np.ndarray[Any, np.dtype[np.int64]], draw: int) -> tuple[int, int]:
    """Return the first draw of a pack in the step of a draw, and in the next; bounds: the first draw of each step."""
    following = int(np.searchsorted(bounds, draw, side="right"))
    return int(bounds[following - 1]), int(bounds[following])


def further_mixed(
    problems: Sequence[Problem],
    shares: Mapping[str, float],
    count: int,
    *,
    seed: int,
    step: int,
    round_number: int,
    used: set[str],
) -> list[Problem]:
    """Return `count` problems for a round of dynamic sampling by the shares, without the ids in `used`.

    Fewer where the packs have no more.
    """
    packs = by_pack([problem for problem in problems if problem.id not in used], shares) if problems else {}
    key = derive_seed(seed, "more", step, round_number)
    left = {pack: [held[int(i)] for i in _stream(key, pack).permutation(len(held))] for pack, held in packs.items()}
    chosen: dict[str, Problem] = {}
    while left and len(chosen) < count:
        total = sum(shares[pack] for pack in left)
        order = packs_of_draws({pack: shares[pack] / total for pack in left}, count, derive_seed(key, len(chosen)))
        names = list(left)
        for place in order:
            held = left[names[place]]
            if held and len(chosen) < count:
                problem = held.pop()
                chosen.setdefault(problem.id, problem)
        left = {pack: held for pack, held in left.items() if held}
    return list(chosen.values())


STATE = "pass_rates.json"  # in a checkpoint


class Draws:
    """Draws the problems of each step, as curriculum.draw says: a function of (seed, step, observed outcomes).

    Step s (from 0) is drawn from the outcomes of the steps before s - sampler.max_staleness, which trained the weights
    that it is sampled from. All ranks draw the same.

    shares: maps pack name to its fraction of drawn problems (sums to 1). Each pack has its share of any run of draws,
    however few problems it has; by signal only problems within a pack compete.
    """

    def __init__(self, config: Config, problems: Sequence[Problem], shares: Mapping[str, float] | None = None) -> None:
        self.problems, self.shares = problems, dict(shares or {})
        self.seed, self.count = config.run.seed, config.rollout.problems_per_step
        self.group_size = config.rollout.group_size
        settings = config.curriculum
        self.by_signal, self.floor = settings.draw == "signal", settings.floor
        self.rates: PassRates | None = None
        if settings.tracks:
            profile = read_profile(settings.profile)[0] if settings.profile is not None else {}
            self.rates = PassRates(problems, profile, settings.half_life)
        self._predicted: dict[int, list[float]] = {}  # by step, until it is described

    def of_step(self, step: int) -> list[Problem]:
        """Return the problems that a step (from 0) begins with."""
        if self.by_signal and self.shares:
            drawn = self._mixed_by_signal(step)
        elif self.by_signal:
            drawn = self._by_signal(("draw", step), self.count, set(), repeats=True)
        elif self.shares:
            drawn = mixed_items(self.problems, self.shares, self.count, seed=self.seed, step=step)
        else:
            drawn = items_of_step(self.problems, self.count, seed=self.seed, step=step)
        return self._note_prediction(step, drawn)

    def further(self, step: int, round_number: int, used: set[str]) -> list[Problem]:
        """Return problems for a round of dynamic sampling (from 0), without the ids in `used`; [] if none is left."""
        if self.by_signal:
            drawn = self._by_signal(("draw more", step, round_number), self.count, used, repeats=False)
        else:
            more = partial(further_mixed, shares=self.shares) if self.shares else further_problems
            drawn = more(
                self.problems, count=self.count, seed=self.seed, step=step, round_number=round_number, used=used
            )
        return self._note_prediction(step, drawn)

    def probabilities(self) -> np.ndarray:
        """Return the probability of each problem to be drawn first: by its expected p(1 - p), and the floor."""
        assert self.rates is not None
        weights = self.rates.variances()
        if not self.shares:
            return self._with_floor(weights)
        packs = np.array([problem.info.get(PACK, "") for problem in self.problems])
        result = np.zeros(len(weights))
        for pack, share in self.shares.items():
            if (places := packs == pack).any():
                result[places] = share * self._with_floor(weights[places])
        return result / result.sum()

    def _with_floor(self, weights: np.ndarray) -> np.ndarray:
        return (1 - self.floor) * weights / weights.sum() + self.floor / len(weights)

    def observe(self, groups: Sequence[Group]) -> None:
        """Learn from all groups that were sampled for a step, once it has been trained on."""
        if self.rates is not None:
            self.rates.observe(groups)

    def describe(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Return the share of a step's groups whose scores differ, predicted when they were drawn, and seen."""
        if self.rates is None:
            return {}
        predicted = self._predicted.pop(step)
        seen = [not is_flat([verdict.score for verdict in group.verdicts]) for group in groups]
        return {"signal/predicted": sum(predicted) / len(predicted), "signal/seen": sum(seen) / len(seen)}

    def state(self) -> str | None:
        """Return what a checkpoint keeps, as JSON; None without pass rates."""
        if self.rates is None:
            return None
        predicted = [[step, values] for step, values in sorted(self._predicted.items())]
        return json.dumps({"rates": self.rates.state(), "predicted": predicted})

    def restore(self, folder: Path) -> None:
        """Take up the state in a checkpoint's folder. Raises OSError or ValueError where it cannot be read."""
        if self.rates is not None:
            state = parse_object((folder / STATE).read_bytes(), str(folder / STATE))
            self.rates.restore(state["rates"])
            self._predicted = dict(state["predicted"])

    def _note_prediction(self, step: int, drawn: list[Problem]) -> list[Problem]:
        if self.rates is not None:
            self._predicted.setdefault(step, []).extend(self.rates.signal(drawn, self.group_size))
        return drawn

    def _mixed_by_signal(self, step: int) -> list[Problem]:
        """Draw the problems of a mixture: the packs as in epochs, and by signal within each."""
        held, order = packs_of_steps(self.problems, self.shares, self.count, seed=self.seed, step=step)
        names = list(held)
        packs = [names[place] for place in order[step]]
        left = {
            pack: self._by_signal(("draw", step, pack), number, set(), repeats=True, pack=pack)[::-1]
            for pack, number in Counter(packs).items()
        }
        return [left[pack].pop() for pack in packs]

    def _by_signal(
        self, key: tuple[str | int, ...], count: int, used: set[str], *, repeats: bool, pack: str | None = None
    ) -> list[Problem]:
        """Draw without replacement by the probabilities: the largest of log p + Gumbel noise (arXiv:1903.06059).

        With `repeats`, where there are fewer problems than are to be drawn, all are drawn before one comes again. With
        `pack` only its problems are drawn.
        """
        keys = np.log(np.maximum(self.probabilities(), np.finfo(float).tiny))
        if pack is not None:
            used = used | {problem.id for problem in self.problems if problem.info.get(PACK) != pack}
        drawn: list[Problem] = []
        while len(drawn) < count:
            noise = _stream(self.seed, *key, len(drawn)).gumbel(size=len(keys))
            before, ids = len(drawn), set(used)
            for place in np.argsort(-(keys + noise), kind="stable"):
                problem = self.problems[int(place)]
                if problem.id not in ids:
                    ids.add(problem.id)
                    drawn.append(problem)
                if len(drawn) == count:
                    return drawn
            if not repeats or len(drawn) == before:
                break
        return drawn
