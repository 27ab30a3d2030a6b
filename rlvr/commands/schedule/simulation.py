"""Simulate the steps of a run from lengths of completions and a machine's rates: a count of tokens, not of requests.

A server that decodes n rows at once takes `token_seconds + n * row_seconds` for a token of each of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean


@dataclass(frozen=True)
class Machine:
    """Samplers and trainers, with their rates. Seconds are those of one server, or of one trainer.

    seats: rows that a server decodes at once. apart: samplers and trainers have processors of their own, so that they
    can work at the same time. train_seconds: per token. push_seconds: per step, for new weights to all servers.
    prefill_seconds: per token that a cut row has already, where its keys and values are computed anew.
    """

    servers: int
    seats: int
    trainers: int
    apart: bool
    token_seconds: float
    row_seconds: float
    train_seconds: float
    push_seconds: float = 0.0
    prefill_seconds: float = 0.0


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
    versions: list[tuple[int, int]] = field(default_factory=list)

    @property
    def num_sampled(self) -> int:
        """The number of tokens so far."""
        return sum(tokens for _, tokens in self.versions)


@dataclass
class Outcome:
    """What a simulated run was like, in seconds of all its steps, and of the rows that it trained."""

    steps: int
    seconds: float = 0.0
    sampling: float = 0.0
    """Seconds in which a server decodes, the mean over servers."""
    training: float = 0.0
    versions: list[int] = field(default_factory=list)
    """The number of versions in each completion."""
    ages: list[float] = field(default_factory=list)
    """For each completion the mean age of its tokens: updates between their weights and those that are trained."""

    @property
    def step_seconds(self) -> float:
        """The mean seconds of a step."""
        return self.seconds / self.steps

    def idle(self, busy: float) -> float:
        """Return the share of the time in which whoever is busy for so many seconds waits."""
        return 1 - busy / self.seconds


def simulate(draw_group: Callable[[], Sequence[int]], problems: int, steps: int, how: Schedule, on: Machine) -> Outcome:
    """Return the outcome of some steps of `problems` groups each. draw_group returns the lengths of a group's rows.

    A step trains the groups that are whole and were drawn first. Groups of later steps are sampled while a step is
    trained. Where too few are whole when a step begins, sampling goes on alone.
    """
    outcome, drawn = Outcome(steps), 0
    pool: list[list[Row]] = []

    def draw_until(step: int) -> None:
        nonlocal drawn
        while drawn < step * problems:
            pool.append([Row(length) for length in draw_group()])
            drawn += 1

    def sample(version: int) -> float:
        seconds = sample_slice(pool, version, how, on)
        outcome.sampling += fmean(seconds)
        return max(seconds)

    for step in range(steps):
        draw_until(step + how.staleness if how.slice_tokens else step + 1)
        while sum(is_whole(group) for group in pool) < problems:
            outcome.seconds += sample(step)
        order = sorted(pool, key=lambda group: not is_whole(group))  # those drawn first stay first
        trained, pool = order[:problems], order[problems:]
        rows = list(chain.from_iterable(trained))
        training = sum(row.num_sampled for row in rows) * on.train_seconds / on.trainers
        outcome.training += training
        outcome.versions += [len(row.versions) for row in rows]
        outcome.ages += [sum((step - v) * tokens for v, tokens in row.versions) / row.num_sampled for row in rows]
        sampling = 0.0
        if how.staleness:
            draw_until(step + 1 + how.staleness)
            sampling = sample(step)
        outcome.seconds += on.push_seconds + (max(sampling, training) if on.apart else sampling + training)
    return outcome


def is_whole(group: Sequence[Row]) -> bool:
    """Return whether all of a group's completions are done."""
    return not any(row.left for row in group)


def sample_slice(pool: Sequence[Sequence[Row]], version: int, how: Schedule, on: Machine) -> list[float]:
    """Sample a slice of each row that is not done; return the seconds of each server. Groups are dealt out in turn."""
    servers: list[list[int]] = [[] for _ in range(on.servers)]
    prefill = [0.0] * on.servers
    for place, group in enumerate(group for group in pool if not is_whole(group)):
        server = place % on.servers
        for row in group:
            if not row.left:
                continue
            tokens = row.left if how.slice_tokens is None else min(row.left, how.slice_tokens)
            prefill[server] += row.num_sampled * on.prefill_seconds
            servers[server].append(tokens)
            row.left -= tokens
            row.versions.append((version, tokens))
    return [before + decode_seconds(lengths, on) for before, lengths in zip(prefill, servers, strict=True)]


def decode_seconds(lengths: Sequence[int], on: Machine) -> float:
    """Return the seconds in which a server decodes rows of these lengths; a row enters when a seat is free."""
    return on.token_seconds * count_passes(lengths, on.seats) + on.row_seconds * sum(lengths)


def count_passes(lengths: Sequence[int], seats: int) -> int:
    """Return the number of decoding passes for rows of these lengths, at most `seats` of them at once."""
    ends = list(lengths[:seats])
    heapq.heapify(ends)
    for length in lengths[seats:]:
        heapq.heappush(ends, heapq.heappop(ends) + length)
    return max(ends, default=0)
