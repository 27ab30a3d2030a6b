"""`rlvr simulate-schedule [RUN]`: step time and idle shares of schedules, from a run's lengths or a log-normal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, median
from typing import Annotated

from rich import box
from rich.table import Table

from rlvr.config.settings import (
    COUNT,
    MOST,
    POSITIVE,
    SEED,
    TWO_OR_MORE,
    WEIGHT,
    WORKERS,
    Bound,
    Group,
    Rules,
    Used,
)

from ..arguments import Positional, parse
from ..console import Display
from .rates import Basis, calibrate, measure
from .simulation import RATES, Machine, Outcome, Schedule, simulate

WITHOUT_RUN = Used(lambda args: not args.run, "without a run")
WITH_RUN = Used(lambda args: bool(args.run), "with a run")


@dataclass(frozen=True)
class SimulateScheduleArgs(Group):
    """How long a step takes, and how long samplers and trainers wait, with each schedule of rollouts.

    Lengths are those of a run whose steps sampled first and trained then. Rates are fitted to its steps, or measured on
    its sampler. Without a run the lengths are log-normal, and the rates those of the flags.
    """

    run: Positional[tuple[Path, ...]] = ()
    """Folder of a run. None: a log-normal distribution of lengths."""
    median: Annotated[int, COUNT, WITHOUT_RUN] = 1000
    """Median of the log-normal lengths, in tokens."""
    longest: Annotated[int, COUNT, WITHOUT_RUN] = 16000
    """Length that the longest of a step's completions typically has: it sets how wide the log-normal is."""
    problems_per_step: Annotated[int | None, COUNT] = None
    """Problems of a step. None: the run's, or 64."""
    group_size: Annotated[int | None, COUNT] = None
    """Completions of each problem. None: the run's, or 16."""
    servers: Annotated[int | None, WORKERS] = None
    """Number of samplers; the groups are shared out among them. None: the run's, or 8."""
    seats: Annotated[int | None, COUNT] = None
    """Completions that a sampler decodes at once. None: the run's, or 512."""
    trainers: Annotated[int | None, WORKERS] = None
    """Number of trainers; each takes an equal share of the tokens. None: 1 with a run, otherwise 8."""
    contention: Annotated[float | None, Bound(1, MOST)] = None
    """How many times as long sampling and training take while both are under way: 1 on processors of their own, 2 where
    they take turns on one. None: as calibrated; with a run 2 in one process and 1 with servers, otherwise 1."""
    calibrate: Annotated[bool, WITH_RUN] = False
    """Time the run's sampler on this machine, with the weights of its newest checkpoint, instead of fitting rates to
    its steps. It takes about as long as twenty to thirty steps."""
    slice_tokens: Annotated[int | None, COUNT] = None
    """Tokens of a completion that are sampled between two updates. None: four times the median of the lengths."""
    staleness: Annotated[int, TWO_OR_MORE] = 2
    """Steps for which problems are drawn ahead (sampler.max_staleness)."""
    token_seconds: Annotated[float | None, WEIGHT] = None
    """Seconds of a decoding pass, besides those of its rows. None: measured on the run, or 0.02."""
    row_seconds: Annotated[float | None, WEIGHT] = None
    """Seconds that each row adds to a decoding pass. None: measured on the run, or 0.00005."""
    train_seconds: Annotated[float | None, POSITIVE] = None
    """Seconds in which a trainer trains a token. None: measured on the run, or 0.0001."""
    push_seconds: Annotated[float | None, WEIGHT] = None
    """Seconds in which all samplers get new weights. None: as calibrated, or 0."""
    request_seconds: Annotated[float | None, WEIGHT] = None
    """Seconds that each completion costs a sampler in each slice. None: as calibrated, or 0."""
    prefill_seconds: Annotated[float | None, WEIGHT] = None
    """Seconds in which a sampler reads a token that a cut completion has already. None: as calibrated, or as many as a
    row adds to a pass."""
    width_seconds: Annotated[float | None, WEIGHT] = None
    """Seconds that each row adds to a pass for each token of the longest row. None: as calibrated, or 0."""
    steps: Annotated[int, COUNT] = 50
    """Number of simulated steps."""
    seed: Annotated[int, SEED] = 0

    def rules(self, at: str) -> Rules:
        """Return rules about the lengths and the number of runs."""
        return [
            (len(self.run) <= 1, f"{len(self.run)} runs; expected one, or none"),
            (self.median < self.longest, f"{at}longest {self.longest}: expected more than {at}median, {self.median}"),
        ]


@dataclass(frozen=True)
class Workload:
    """What is simulated: lengths of a group's completions, groups of a step, the machine. source: of the lengths."""

    draw_group: Callable[[Random], Sequence[int]]
    problems: int
    median: float
    source: str
    machine: Machine


def main(argv: Sequence[str]) -> int:
    """Run `rlvr simulate-schedule [RUN] [flags]`."""
    args = parse(
        SimulateScheduleArgs, argv, prog="rlvr simulate-schedule", description=SimulateScheduleArgs.__doc__ or ""
    )
    args.check("--")
    basis = measure(args.run[0]) if args.run else Basis()
    work = describe_work(args, calibrate(args.run[0], basis) if args.calibrate else basis)
    display, on = Display(), work.machine
    display.say(f"{work.problems} problems a step; {work.source}", wrap=True)
    display.say(
        f"samplers: {on.servers}, of {on.seats} rows each; trainers: {on.trainers}; contention {on.contention:.3g}",
        wrap=True,
    )
    rates = {rate: getattr(on, rate) for rate in (*RATES, "train_seconds", "push_seconds")}
    display.say(", ".join(f"{rate} {value:.3g}" for rate, value in rates.items() if value), wrap=True)
    display.print_table(make_table(compare_schedules(args, work)))
    return 0


def compare_schedules(args: SimulateScheduleArgs, work: Workload) -> dict[str, Outcome]:
    """Return the outcome of each schedule, by its name. All of them draw the same lengths."""
    ahead, tokens = args.staleness, args.slice_tokens or max(1, round(4 * work.median))
    rebuilt, kept = work.machine, replace(work.machine, prefill_seconds=0.0)
    ways = {
        "sample, then train": (Schedule(), rebuilt),
        f"{ahead} ahead": (Schedule(ahead), rebuilt),
        f"slices of {tokens:,}, cache rebuilt": (Schedule(ahead, tokens), rebuilt),
        f"slices of {tokens:,}, cache kept": (Schedule(ahead, tokens), kept),
    }
    return {
        name: simulate(partial(work.draw_group, Random(args.seed)), work.problems, args.steps, how, on)
        for name, (how, on) in ways.items()
    }


def make_table(outcomes: Mapping[str, Outcome]) -> Table:
    """Return a table of schedules: seconds of a step, idle shares, versions in a completion, age of its tokens."""
    first = next(iter(outcomes.values())).step_seconds
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("schedule", no_wrap=True)
    for name in ("s a step", "ratio", "samplers idle", "trainers idle", "versions", "most", "age in updates"):
        table.add_column(name, justify="right")
    for name, found in outcomes.items():
        table.add_row(
            name,
            f"{found.step_seconds:.3g}",
            f"{found.step_seconds / first:.2f}",
            f"{found.idle(found.sampling):.0%}",
            f"{found.idle(found.training):.0%}",
            f"{fmean(found.versions):.2f}",
            str(max(found.versions)),
            f"{fmean(found.ages):.2f}",
        )
    return table


def describe_work(args: SimulateScheduleArgs, basis: Basis) -> Workload:
    """Return what to simulate: the flags and, where they are not given, the basis."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    problems, size = (given.get(name, getattr(basis, name)) for name in ("problems_per_step", "group_size"))
    given.setdefault("prefill_seconds", given.get("row_seconds", basis.machine.prefill_seconds))
    machine = replace(basis.machine, **{name: given[name] for name in vars(basis.machine) if name in given})
    if not basis.groups:
        if problems * size < 2:
            raise ValueError("--problems-per-step 1 --group-size 1: --longest is that of several; expected 2 or more")
        width = math.log(args.longest / args.median) / NormalDist().inv_cdf(1 - 1 / (problems * size + 1))
        draw = partial(draw_log_normal, math.log(args.median), width, args.longest, size)
        return Workload(draw, problems, args.median, f"log-normal lengths, median {args.median:,}", machine)
    lengths = list(chain.from_iterable(basis.groups))
    source = f"lengths of {len(lengths):,} completions of {args.run[0]}, median {median(lengths):,.0f}"
    return Workload(partial(draw_as_measured, basis.groups, size), problems, median(lengths), source, machine)


def draw_log_normal(mu: float, width: float, longest: int, size: int, random: Random) -> list[int]:
    """Return the lengths of a group: exp of a normal distribution, from 1 to `longest` tokens."""
    return [min(longest, max(1, round(random.lognormvariate(mu, width)))) for _ in range(size)]


def draw_as_measured(groups: Sequence[Sequence[int]], size: int, random: Random) -> list[int]:
    """Return the lengths of a group: completions of one measured group, drawn with replacement."""
    return random.choices(random.choice(groups), k=size)
