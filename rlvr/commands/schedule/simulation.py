"""Simulate the steps of a run from lengths of completions and a machine's rates.

What a server samples in a slice is counted (`Work`), and each count has a rate: seconds of a pass, of a row in a pass,
of a request, of a token that is read again, and of the width of the rows' context.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean
from typing import NamedTuple

import numpy as np

from rlvr.training.rollout.cuts import Runs, add_tokens


class Work(NamedTuple):
    """What a server does in a slice.

    passes: of decoding. tokens: that are sampled. requests: rows. read: tokens that cut rows have already, whose keys
    and values are computed anew. width: over all passes, rows times the tokens of the longest of them.
    """

    passes: float
    tokens: float
    requests: float
    read: float
    width: float


RATES = ("token_seconds", "row_seconds", "request_seconds", "prefill_seconds", "width_seconds")
"""The rate of a machine for each count of Work."""


@dataclass(frozen=True)
class Machine:
    """Samplers and trainers, with their rates in seconds.

    seats: rows that a server decodes at once. contention: how many times as long sampling and training take while both
    are under way: 1 on processors of their own, 2 where they take turns on one. train_seconds: per token of a trainer.
    push_seconds: per step, for new weights to all servers. The others are those of one server, for each count of its
    Work, while all servers sample.
    """

    servers: int
    seats: int
    trainers: int
    token_seconds: float
    row_seconds: float
    train_seconds: float
    contention: float = 1.0
    push_seconds: float = 0.0
    request_seconds: float = 0.0
    prefill_seconds: float = 0.0
    width_seconds: float = 0.0

    def sampling_seconds(self, work: Work) -> float:
        """Return the seconds that a server takes for its work."""
        return sum(getattr(self, rate) * count for rate, count in zip(RATES, work, strict=True))

    def overlap(self, sampling: float, training: float) -> float:
        """Return when both are done, which begin together and alone would take so many seconds."""
        return max(sampling, training) + (self.contention - 1) * min(sampling, training)


@dataclass(frozen=True)
class Schedule:
    """A way to schedule rollouts. staleness: steps for which problems are drawn ahead. 0: sample, then train.

    slice_tokens: tokens of a row that are sampled with one version of the weights; None: as many as it has.
    """

    staleness: int = 0
    slice_tokens: int | None = None


@dataclass(slots=True)
class Row:
    """A completion: tokens that are left to sample, and those that each version of the weights has sampled."""

    left: int
    versions: Runs = ()

    @property
    def num_sampled(self) -> int:
        """The number of tokens so far."""
        return sum(tokens for _, tokens in self.versions)

    def mean_age(self, step: int) -> float:
        """Return the mean age of the tokens in a step: updates between their weights and those that are trained."""
        return sum((step - version) * tokens for version, tokens in self.versions) / self.num_sampled


@dataclass
class Outcome:
    """What a simulated run was like."""

    steps: list[float] = field(default_factory=list)
    """Seconds of each step."""
    sampling: float = 0.0
    """Seconds in which a server samples, the mean over servers."""
    training: float = 0.0
    trained: list[list[Row]] = field(default_factory=list)
    """The completions of each step."""

    @property
    def step_seconds(self) -> float:
        """The mean seconds of a step."""
        return fmean(self.steps)

    @property
    def versions(self) -> list[int]:
        """The number of versions in each completion."""
        return [len(row.versions) for rows in self.trained for row in rows]

    @property
    def ages(self) -> list[float]:
        """The mean age of the tokens of each completion."""
        return [row.mean_age(step) for step, rows in enumerate(self.trained) for row in rows]

    def idle(self, busy: float) -> float:
        """Return the share of the time in which whoever is busy for so many seconds waits."""
        return 1 - busy / sum(self.steps)


def simulate(draw_group: Callable[[], Sequence[int]], problems: int, steps: int, how: Schedule, on: Machine) -> Outcome:
    """Return the outcome of some steps of `problems` groups each. draw_group returns the lengths of a group's rows.

    A step trains the groups that are whole and were drawn first. Groups of later steps are sampled while a step is
    trained. Where too few are whole when a step begins, sampling goes on alone.
    """
    outcome, drawn = Outcome(), 0
    pool: list[list[Row]] = []

    def draw_until(step: int) -> None:
        nonlocal drawn
        while drawn < step * problems:
            pool.append([Row(length) for length in draw_group()])
            drawn += 1

    def sample(version: int) -> float:
        seconds = [on.sampling_seconds(work) for work in sample_slice(pool, version, how, on)]
        outcome.sampling += fmean(seconds)
        return max(seconds)

    for step in range(steps):
        seconds = on.push_seconds
        draw_until(step + how.staleness if how.slice_tokens else step + 1)
        while sum(is_whole(group) for group in pool) < problems:
            seconds += sample(step)
        taken = [group for group in pool if is_whole(group)][:problems]
        pool = [group for group in pool if not any(group is other for other in taken)]
        rows = list(chain.from_iterable(taken))
        training = sum(row.num_sampled for row in rows) * on.train_seconds / on.trainers
        outcome.training += training
        outcome.trained.append(rows)
        beside = 0.0
        if how.staleness:
            draw_until(step + 1 + how.staleness)
            beside = sample(step)
        outcome.steps.append(seconds + on.overlap(beside, training))
    return outcome


def is_whole(group: Sequence[Row]) -> bool:
    """Return whether all of a group's completions are done."""
    return not any(row.left for row in group)


def sample_slice(pool: Sequence[Sequence[Row]], version: int, how: Schedule, on: Machine) -> list[Work]:
    """Sample a slice of each row that is not done; return the work of each server.

    Rows of a group begin on one server, and cut ones go on anywhere: on that with the fewest tokens to sample.
    """
    servers: list[list[tuple[int, int]]] = [[] for _ in range(on.servers)]
    loads = [0] * on.servers
    for group in pool:
        begun = [[row] for row in group if row.left and row.versions]
        for rows in [[row for row in group if not row.versions], *begun]:
            server = loads.index(min(loads))
            for row in rows:
                tokens = row.left if how.slice_tokens is None else min(row.left, how.slice_tokens)
                servers[server].append((row.num_sampled, tokens))
                loads[server] += tokens
                row.left -= tokens
                row.versions = add_tokens(row.versions, version, tokens)
    return [count_work(rows, on.seats) for rows in servers]


def count_work(rows: Sequence[tuple[int, int]], seats: int) -> Work:
    """Return what a server does for rows of which it has so many tokens, and samples so many."""
    lengths = [tokens for _, tokens in rows]
    read = sum(before for before, _ in rows)
    return Work(count_passes(lengths, seats), sum(lengths), len(rows), read, sum_width(rows))


def sum_width(rows: Sequence[tuple[int, int]]) -> float:
    """Return the sum over passes of rows times the tokens of the longest, for rows that all begin in the first pass."""
    if not rows:
        return 0.0
    before, ends = np.array(sorted(rows, key=lambda row: row[1]), dtype=float).T
    starts = np.concatenate([[0.0], ends[:-1]])
    longest = np.maximum.accumulate(before[::-1])[::-1]  # of the rows that are left
    left = np.arange(len(rows), 0, -1)
    return float((left * (longest * (ends - starts) + (ends**2 - starts**2) / 2)).sum())


def count_passes(lengths: Sequence[int], seats: int) -> int:
    """Return the number of decoding passes for rows of these lengths, at most `seats` of them at once."""
    ends = list(lengths[:seats])
    heapq.heapify(ends)
    for length in lengths[seats:]:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends, default=0)
