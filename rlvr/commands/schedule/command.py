"""`rlvr simulate-schedule [RUN]`: step time and idle shares of schedules, from a run's lengths or a log-normal."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, median
from typing import Annotated

import numpy as np
from rich import box
from rich.table import Table

from rlvr.config.sampler import VLLMServerConfig
from rlvr.config.settings import COUNT, POSITIVE, SEED, TWO_OR_MORE, WEIGHT, WORKERS, Group, Rules, Used
from rlvr.config.training import read_config
from rlvr.runs.folder import read_record
from rlvr.runs.reading import all_rollouts, check_run, read_lines

from ..arguments import Positional, parse
from ..console import Display
from .simulation import Machine, Outcome, Schedule, count_passes, simulate

WITHOUT_RUN = Used(lambda args: not args.run, "without a run")
OF_MACHINE = ("servers", "seats", "trainers", "apart", "token_seconds", "row_seconds", "train_seconds")


@dataclass(frozen=True)
class SimulateScheduleArgs(Group):
    """How long a step takes, and how long samplers and trainers wait, with each schedule of rollouts.

    Lengths and rates are measured on a run whose steps sampled first and trained then. Without a run the lengths are
    log-normal, and the rates those of the flags.
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
    apart: bool | None = None
    """Samplers have processors of their own, and work while the trainers do. None: as in the run, or true."""
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
    push_seconds: Annotated[float, WEIGHT] = 0.0
    """Seconds in which all samplers get new weights."""
    prefill_seconds: Annotated[float | None, WEIGHT] = None
    """Seconds in which a sampler reads a token that a cut completion has already. None: as many as a row adds to a
    pass."""
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
class Basis:
    """What flags leave open: a run's settings, lengths by group and rates, or what is typical of eight GPUs."""

    problems_per_step: int = 64
    group_size: int = 16
    servers: int = 8
    trainers: int = 8
    seats: int = 512
    apart: bool = True
    token_seconds: float = 0.02
    row_seconds: float = 5e-5
    train_seconds: float = 1e-4
    groups: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Work:
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
    work = describe_work(args, measure(args.run[0]) if args.run else Basis())
    display, on = Display(), work.machine
    processors = "with processors of their own" if on.apart else "on the same processors"
    display.say(f"{work.problems} problems a step; {work.source}", wrap=True)
    display.say(f"samplers: {on.servers}, of {on.seats} rows each; trainers: {on.trainers}; {processors}", wrap=True)
    display.say(
        f"a decoding pass takes {on.token_seconds:.3g} s and {on.row_seconds:.3g} s for each row, training "
        f"{on.train_seconds:.3g} s a token",
        wrap=True,
    )
    display.print_table(make_table(compare_schedules(args, work)))
    return 0


def compare_schedules(args: SimulateScheduleArgs, work: Work) -> dict[str, Outcome]:
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


def describe_work(args: SimulateScheduleArgs, basis: Basis) -> Work:
    """Return what to simulate: the flags and, where they are not given, the basis."""
    given = {name: value for name, value in vars(args).items() if value is not None}
    problems, size = (given.get(name, getattr(basis, name)) for name in ("problems_per_step", "group_size"))
    of_machine = {name: given.get(name, getattr(basis, name)) for name in OF_MACHINE}
    machine = Machine(
        push_seconds=args.push_seconds,
        prefill_seconds=given.get("prefill_seconds", of_machine["row_seconds"]),
        **of_machine,
    )
    if not basis.groups:
        if problems * size < 2:
            raise ValueError("--problems-per-step 1 --group-size 1: --longest is that of several; expected 2 or more")
        width = math.log(args.longest / args.median) / NormalDist().inv_cdf(1 - 1 / (problems * size + 1))
        draw = partial(draw_log_normal, math.log(args.median), width, args.longest, size)
        return Work(draw, problems, args.median, f"log-normal lengths, median {args.median:,}", machine)
    lengths = list(chain.from_iterable(basis.groups))
    source = f"lengths of {len(lengths):,} completions of {args.run[0]}, median {median(lengths):,.0f}"
    return Work(partial(draw_as_measured, basis.groups, size), problems, median(lengths), source, machine)


def draw_log_normal(mu: float, width: float, longest: int, size: int, random: Random) -> list[int]:
    """Return the lengths of a group: exp of a normal distribution, from 1 to `longest` tokens."""
    return [min(longest, max(1, round(random.lognormvariate(mu, width)))) for _ in range(size)]


def draw_as_measured(groups: Sequence[Sequence[int]], size: int, random: Random) -> list[int]:
    """Return the lengths of a group: completions of one measured group, drawn with replacement."""
    return random.choices(random.choice(groups), k=size)


def measure(folder: Path) -> Basis:
    """Return lengths and rates of a run.

    Rates are least squares over its steps: seconds of sampling over decoding passes and tokens, those of training over
    trained tokens. Raises ValueError for a run without steps or one that sampled ahead.
    """
    check_run(folder)
    record = read_record(folder / "config.json")
    if record is None:
        raise FileNotFoundError(f"{folder / 'config.json'}: no such file, which names the settings of the run")
    config = read_config(record)
    steps = {row["step"]: row for row in read_lines(folder / "metrics.jsonl")}
    if config.sampler.max_staleness:
        raise ValueError(
            f"{folder} sampled ahead (sampler.max_staleness {config.sampler.max_staleness}), so that its steps do not "
            "say how long sampling takes; name a run with 0"
        )
    groups: dict[int, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in all_rollouts(folder):
        if steps.get(row["step"], {}).get("seconds/sample") and row["tokens"]:
            groups[row["step"]][row["problem"], row.get("round", 0)].append(row["tokens"])
    measured = sorted(groups)[1:] or sorted(groups)  # the first step warms caches up
    if not measured:
        raise ValueError(f"{folder}: no step with rollouts; expected a run that has trained")
    lengths = {step: [n for group in groups[step].values() for n in group] for step in measured}
    passes = [count_passes(lengths[step], config.sampler.batch_size) for step in measured]
    tokens = [sum(lengths[step]) for step in measured]
    token_seconds, row_seconds = fit(passes, tokens, [steps[step]["seconds/sample"] for step in measured])
    train_seconds = sum(steps[step]["seconds/train"] for step in measured) / sum(tokens)
    all_groups = [group for step in measured for group in groups[step].values()]
    servers = config.sampler if isinstance(config.sampler, VLLMServerConfig) else None
    return Basis(
        problems_per_step=config.rollout.problems_per_step,
        group_size=config.rollout.group_size,
        servers=len(servers.url) or servers.servers if servers else 1,
        trainers=1,
        seats=config.sampler.batch_size,
        apart=servers is not None,
        token_seconds=token_seconds,
        row_seconds=row_seconds,
        train_seconds=train_seconds,
        groups=all_groups,
    )


def fit(passes: Sequence[int], tokens: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return a, b >= 0 with a * passes + b * tokens nearest to the seconds: least squares of the relative error."""
    shares = np.array([passes, tokens], dtype=float).T / np.array(seconds)[:, None]
    a, b = np.linalg.lstsq(shares, np.ones(len(seconds)), rcond=None)[0]
    if a >= 0 and b >= 0:
        return float(a), float(b)
    alone = [float(column.sum() / (column @ column)) for column in shares.T]
    errors = [float(((value * column - 1) ** 2).sum()) for value, column in zip(alone, shares.T)]
    return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])
