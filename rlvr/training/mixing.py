"""Which problems a step of a mixture trains on: each pack has its share of the draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rlvr.seeding import derive_seed
from rlvr.training.epochs import Epochs, known_orders
from rlvr.types import PACK, Problem

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
    left = {
        pack: [
            held[int(i)] for i in np.random.Generator(np.random.Philox(derive_seed(key, pack))).permutation(len(held))
        ]
        for pack, held in packs.items()
    }
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
