"""Which problems a step of a mixture trains on: each pack has its share of the draws."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlvr.seeding import derive_seed
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
) -> tuple[dict[str, list[Problem]], list[str]]:
    """Return the problems of each pack, and the packs of all draws up to the end of a step (from 0) of `count` draws.

    A function of (seed, step) only; the packs of the step itself are the last `count`.
    """
    packs = by_pack(problems, shares)
    total = sum(shares[pack] for pack in packs)
    order = packs_of_draws({pack: shares[pack] / total for pack in packs}, (step + 1) * count, seed)
    names = list(packs)
    return packs, [names[place] for place in order]


def mixed_items(
    problems: Sequence[Problem], shares: Mapping[str, float], count: int, *, seed: int, step: int
) -> list[Problem]:
    """Return the `count` problems of a step (from 0): a function of (seed, step) only.

    Each pack goes through its problems in epochs of its own, without replacement.
    """
    packs, order = packs_of_steps(problems, shares, count, seed=seed, step=step)
    drawn = Counter(order[: step * count])
    chosen = []
    for pack in order[step * count :]:
        held = packs[pack]
        epoch, offset = divmod(drawn[pack], len(held))
        chosen.append(held[int(_order(len(held), seed, pack, epoch)[offset])])
        drawn[pack] += 1
    return chosen


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


@functools.lru_cache(maxsize=64)
def _order(size: int, seed: int, pack: str, epoch: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    order = np.random.Generator(np.random.Philox(derive_seed(seed, "epoch", pack, epoch))).permutation(size)
    order.flags.writeable = False
    return order
