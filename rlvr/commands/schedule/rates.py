"""A run's lengths and a machine's rates: from the run's own steps, or from its sampler, which is timed here."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np

from rlvr.config import Config, VLLMServerConfig
from rlvr.config.training import read_config
from rlvr.core.types import Ask, Completion, Sampler, Sampling
from rlvr.runs.folder import read_record
from rlvr.runs.reading import all_rollouts, check_run, read_lines
from rlvr.training.checkpoint.folders import list_checkpoints

from .simulation import RATES, Machine, Row, Schedule, Work, sample_slice

if TYPE_CHECKING:
    import torch

    from rlvr.model.load.policy import Policy

ROUNDS = 3  # of the trials of a sampler; the mean of their seconds counts, as in a run
AHEAD = 4  # steps whose groups the largest trial samples at once, as a schedule in slices may
Text = tuple[tuple[int, ...], tuple[int, ...]]  # the ids of a prompt and of a completion
TYPICAL = Machine(
    servers=8,
    seats=512,
    trainers=8,
    token_seconds=0.02,
    row_seconds=5e-5,
    train_seconds=1e-4,
    prefill_seconds=5e-5,
)
"""Eight GPUs that sample, and eight that train."""


@dataclass(frozen=True)
class Basis:
    """What flags leave open: groups of a step, their lengths where a run measured them, and the machine."""

    problems_per_step: int = 64
    group_size: int = 16
    machine: Machine = TYPICAL
    groups: Sequence[Sequence[int]] = ()


def measure(folder: Path) -> Basis:
    """Return lengths and rates of a run.

    Rates are least squares over its steps: seconds of sampling over decoding passes and tokens, those of training over
    trained tokens. Raises ValueError for a run without steps or one that sampled ahead.
    """
    config = read_settings(folder)
    steps = {row["step"]: row for row in read_lines(folder / "metrics.jsonl")}
    by_step: dict[int, dict[tuple[str, int], list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in all_rollouts(folder):
        if steps.get(row["step"], {}).get("seconds/sample") and row["tokens"]:
            by_step[row["step"]][row["problem"], row.get("round", 0)].append(row["tokens"])
    measured = sorted(by_step)[1:] or sorted(by_step)  # the first step warms caches up
    if not measured:
        raise ValueError(f"{folder}: no step with rollouts; expected a run that has trained")
    groups = [list(by_step[step].values()) for step in measured]
    servers = config.sampler if isinstance(config.sampler, VLLMServerConfig) else None
    count = len(servers.url) or servers.servers if servers else 1
    train_seconds = sum(steps[step]["seconds/train"] for step in measured) / sum(sum(map(sum, own)) for own in groups)
    seats = config.sampler.batch_size
    machine = Machine(count, seats, 1, 0.0, 0.0, train_seconds, contention=1.0 if servers else 2.0)
    work = [count_busiest([[(0, length) for length in group] for group in own], machine) for own in groups]
    a, b = fit([made[:2] for made in work], [steps[step]["seconds/sample"] for step in measured])
    return Basis(
        config.rollout.problems_per_step,
        config.rollout.group_size,
        replace(machine, token_seconds=a, row_seconds=b, prefill_seconds=b),
        [group for own in groups for group in own],
    )


def read_settings(folder: Path) -> Config:
    """Return the settings of a run. Raises ValueError for one that sampled ahead."""
    check_run(folder)
    record = read_record(folder / "config.json")
    if record is None:
        raise FileNotFoundError(f"{folder / 'config.json'}: no such file, which names the settings of the run")
    config = read_config(record)
    if config.sampler.max_staleness:
        raise ValueError(
            f"{folder} sampled ahead (sampler.max_staleness {config.sampler.max_staleness}), so that its steps do not "
            "say how long sampling takes; name a run with 0"
        )
    return config


def count_busiest(groups: Sequence[Sequence[tuple[int, int]]], on: Machine) -> Work:
    """Return the work of the server with the most passes, for rows that have some tokens and get some more."""
    pool = [[Row(tokens, ((-1, before),) if before else ()) for before, tokens in group] for group in groups]
    return max(sample_slice(pool, 0, Schedule(), on))


def fit(work: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Return rates >= 0 of each count with rates * work nearest to the seconds: least squares of the relative error."""
    shares = np.array(work, dtype=float) / np.array(seconds)[:, None]
    rates, kept = np.zeros(shares.shape[1]), list(range(shares.shape[1]))
    while kept:
        found = np.linalg.lstsq(shares[:, kept], np.ones(len(shares)), rcond=None)[0]
        if found.min() >= 0:
            rates[kept] = found
            break
        del kept[int(found.argmin())]
    return [float(rate) for rate in rates]


def calibrate(folder: Path, basis: Basis) -> Basis:
    """Return a run's basis with the rates of its sampler on this machine, with its newest weights.

    Raises ValueError for a run without a checkpoint.
    """
    from rlvr.model.cpu.processor import tuned_cpu
    from rlvr.model.load.policy import load_policy
    from rlvr.sampling.samplers import open_sampler

    config, checkpoints = read_settings(folder), list_checkpoints(folder)
    if not checkpoints:
        raise ValueError(f"{folder} has no checkpoint, whose weights could sample; leave out --calibrate")
    policy = load_policy(replace(config.model, name=str(checkpoints[-1][1])))
    groups: dict[tuple[int, str], list[Text]] = defaultdict(list)
    for row in all_rollouts(folder):
        ids = (tuple(policy.render(row["prompt"])), tuple(policy.encode(row["completion"])))
        groups[row["step"], row["problem"]].append(ids)
    texts = list(groups.values())[-AHEAD * basis.problems_per_step :]
    problems, sampling = basis.problems_per_step, config.sampling()
    with tuned_cpu(), open_sampler(config.sampler, policy) as sampler:
        machine = time_sampler(sampler, policy, texts, problems, sampling, basis.machine)
    if not config.sampler.has_own_weights:
        machine = replace(machine, contention=2.0)  # it never samples while the trainer changes the policy
    return replace(basis, machine=machine)


def time_sampler(
    sampler: Sampler,
    policy: Policy,
    groups: Sequence[Sequence[Text]],
    problems_per_step: int,
    sampling: Sampling,
    machine: Machine,
) -> Machine:
    """Return a machine with the rates of a sampler: few rows and many, new and half done, of one token and of many.

    groups: completions of `AHEAD` steps, or of fewer. Before each trial the weights are pushed, so that nothing is in a
    cache. The seconds of training, which include a push in a run, are less by so much. Contention is how much longer a
    trial takes while the trainer's device is kept busy.
    """
    most = sampling.max_new_tokens
    few, step = groups[: max(1, problems_per_step // 8)], groups[:problems_per_step]
    sizes = [(few, 1), (few, most), (step, 1), (step, most), (groups, max(1, most // 5))]
    trials = list(product(sizes, (False, True)))
    seconds: list[list[float]] = [[] for _ in trials]
    beside: list[float] = []
    work: list[Work] = []
    pushes: list[float] = []

    def attempt(texts: Sequence[Sequence[Text]], limit: int, begun: bool) -> tuple[float, Work]:
        start = time.perf_counter()
        sampler.load_weights(policy)
        pushes.append(time.perf_counter() - start)
        return time_slice(sampler, texts, replace(sampling, max_new_tokens=limit), begun, machine)

    attempt(step, 1, begun=False)  # warms up
    pushes.clear()
    for _ in range(ROUNDS):
        work.clear()
        for ((texts, limit), begun), own in zip(trials, seconds, strict=True):
            took, done = attempt(texts, limit, begun)
            own.append(took)
            work.append(done)
        with keep_busy(policy.device):
            beside.append(attempt(*sizes[-1], begun=True)[0])
    rates: dict[str, Any] = dict(zip(RATES, fit(work, [fmean(own) for own in seconds]), strict=True))
    push_seconds = fmean(pushes)
    per_step = sum(len(made) for group in step for _, made in group)
    return replace(
        machine,
        train_seconds=max(0.0, machine.train_seconds - push_seconds / per_step),
        contention=max(1.0, fmean(beside) / fmean(seconds[-1])),
        push_seconds=push_seconds,
        **rates,
    )


@contextmanager
def keep_busy(device: torch.device) -> Iterator[None]:
    """Multiply matrices on a device in a thread of its own, as a trainer would."""
    import torch

    done = Event()

    def multiply() -> None:
        matrix = torch.full((512, 512), 1 / 512, device=device)
        while not done.is_set():
            matrix = matrix @ matrix
            matrix[0, 0].item()  # waits for the device

    thread = Thread(target=multiply, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def time_slice(
    sampler: Sampler, groups: Sequence[Sequence[Text]], sampling: Sampling, begun: bool, machine: Machine
) -> tuple[float, Work]:
    """Return the seconds of a slice and its work. begun: the rows have the first half of their completions."""
    asks: list[Ask] = []
    made: dict[int, Completion] = {}
    for prompt, ids in chain.from_iterable(groups):
        done = ids[: len(ids) // 2] if begun else ()
        limit = max(1, sampling.max_new_tokens - len(done))
        asks.append(Ask((*prompt, *done), replace(sampling, max_new_tokens=limit), len(asks), len(done)))
    start = time.perf_counter()
    sampler.sample_rows(asks, made.__setitem__)
    seconds = time.perf_counter() - start
    rows = iter((ask.drawn, len(made[place].token_ids)) for place, ask in enumerate(asks))
    return seconds, count_busiest([[next(rows) for _ in group] for group in groups], machine)
