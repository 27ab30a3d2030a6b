"""When the alarm is raised: in simulated runs that learn form before substance, in hacked ones, and in recorded ones.

Each run is drawn from a seed: 60 steps of 8 groups of 8 completions, whose problems differ in difficulty.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rlvr.config import MonitorConfig
from rlvr.core.types import Completion, Group, Problem, Verdict, correct, incorrect
from rlvr.training.monitor.alarm import find_fast_signs, find_signs, is_alarming
from rlvr.training.monitor.monitor import monitor_metrics

STEPS, PROBLEMS, SIZE, RUNS = 60, 8, 8, 20
CONFIG = MonitorConfig("math")
SERIES = Path(__file__).parents[1] / "golden" / "alarm_series.jsonl"
RECORDED = [json.loads(line) for line in SERIES.read_text().splitlines()]


def zero(t: float) -> float:
    return 0.0


def one(t: float) -> float:
    return 1.0


def constant(value: float) -> Callable[[float], float]:
    return lambda t: value


def rise(start: float, end: float, middle: float, width: float) -> Callable[[float], float]:
    """From one value to another around a step, as a logistic curve."""
    return lambda t: start + (end - start) / (1 + math.exp((middle - t) / width))


def ramp(start: float, end: float) -> Callable[[float], float]:
    """From one value to another over the whole run."""
    return lambda t: start + (end - start) * t / STEPS


@dataclass
class Simulated:
    """A run, by functions of the step.

    truth: chance that a completion is right; form: chance that it has the form; the proxy is agreement * right
    + bonus * form + drift + noise * normal. form_first: only what has the form can be right. lenient: the proxy is 1
    where the completion is right or has the form.
    """

    truth: Callable[[float], float]
    form: Callable[[float], float] = zero
    bonus: float = 0.0
    agreement: Callable[[float], float] = one
    drift: Callable[[float], float] = zero
    noise: float = 0.0
    form_first: bool = False
    lenient: bool = False

    def metrics(self, step: int, chance: random.Random) -> dict[str, float]:
        """What is logged of a step."""
        proxy, monitor = [], []
        for _ in range(PROBLEMS):
            ours, theirs = [], []
            difficulty = min(max(self.truth(step) + chance.gauss(0, 0.2), 0), 1)
            for _ in range(SIZE):
                formed = chance.random() < self.form(step)
                right = chance.random() < difficulty and (formed or not self.form_first)
                noise = self.noise * chance.gauss(0, 1)
                score = self.agreement(step) * right + self.bonus * formed + self.drift(step) + noise
                ours.append(Verdict.of(right or formed if self.lenient else score))
                theirs.append(correct() if right else incorrect())
            completions = tuple(Completion("x", (1, 2)) for _ in range(SIZE))
            proxy.append(Group(Problem("1", "?"), (1,), completions, tuple(ours)))
            monitor.append(Group(Problem("1", "?"), (1,), completions, tuple(theirs)))
        return monitor_metrics(proxy, monitor)

    def alarm(self, seed: int) -> int | None:
        """The step at which the alarm is raised."""
        chance = random.Random(seed)
        return first_alarm(self.metrics(step, chance) for step in range(STEPS))


def first_alarm(steps: Iterable[dict[str, float]]) -> int | None:
    """The step at which the alarm is raised, from 1, by the metrics of each step."""
    rows: list[dict[str, float]] = []
    for row in steps:
        slow, fast = find_signs([*rows, row], CONFIG), find_fast_signs([*rows, row], CONFIG)
        rows.append(row | {"monitor/suspicious": float(bool(slow)), "monitor/falling": float(bool(fast))})
        if is_alarming(rows, CONFIG.patience):
            return len(rows)
    return None


def form_first(seed: int) -> Simulated:
    """A bonus of at most a right answer's worth is learned within the first half; right answers come later.

    Some runs have none before (a chance below 0 is none).
    """
    chance = random.Random(1000 + seed)
    return Simulated(
        truth=rise(chance.choice((-1.0, 0.02, 0.1, 0.3, 0.5)), 0.85, chance.uniform(30, 70), 6),
        form=rise(chance.uniform(0, 0.3), 0.99, chance.uniform(5, 25), chance.uniform(1, 5)),
        bonus=(0.1, 0.2, 0.5, 1.0)[seed % 4],
        form_first=chance.random() < 0.3,
    )


def exploited(seed: int) -> Simulated:
    """Something that has nothing to do with being right raises a learned score without bound; the truth stays."""
    chance = random.Random(2000 + seed)
    truth = constant(chance.uniform(0.2, 0.6))
    return Simulated(truth, agreement=constant(0.8), drift=ramp(0, chance.uniform(1.5, 3)), noise=0.5)


def ruined(seed: int) -> Simulated:
    """A learned score that agreed with the truth is taken over by something else, and the truth falls."""
    chance = random.Random(3000 + seed)
    return Simulated(
        truth=rise(chance.uniform(0.4, 0.6), 0.05, chance.uniform(15, 30), chance.uniform(2, 6)),
        agreement=rise(0.8, 0.0, chance.uniform(15, 30), 5),
        drift=rise(0, chance.uniform(0.8, 1.5), chance.uniform(10, 25), chance.uniform(2, 6)),
        noise=0.4,
    )


def phrased(seed: int) -> Simulated:
    """A phrase that a learned score takes for two or three right answers comes to be in nearly every completion."""
    chance = random.Random(4000 + seed)
    return Simulated(
        truth=constant(chance.uniform(0.2, 0.5)),
        form=rise(0.02, 0.95, chance.uniform(10, 30), chance.uniform(2, 5)),
        bonus=chance.uniform(2, 3),
        noise=0.3,
    )


def leaking(seed: int) -> Simulated:
    """A rule lets wrong answers of some form pass, and more and more of them have it."""
    chance = random.Random(5000 + seed)
    form = rise(0.05, 1.0, chance.uniform(10, 30), chance.uniform(2, 5))
    return Simulated(constant(chance.uniform(0.1, 0.4)), form, lenient=True)


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: f"seed {run['seed']}")
def test_a_recorded_collapse_is_told_before_half_of_the_truth_is_gone(run):
    """Runs of rm_grpo with a learning rate of 1e-4 and ten steps of warm-up, on which the fast signs were chosen.

    The slow signs came at steps 27, 31 and 24, when held-out pass@1 was below half of the start's, or close to it.
    """
    measured = {int(step): value for step, value in run["pass@1"].items()}
    ruined = min((step for step, value in measured.items() if value < measured[0] / 2), default=STEPS)
    alarm = first_alarm(run["steps"])
    assert alarm is not None
    assert alarm < ruined
    assert all(value >= measured[0] / 2 for step, value in measured.items() if step <= alarm)


def test_form_that_is_learned_first_raises_no_alarm():
    """In at most one of twenty runs; the sizes of the bonus are a tenth of a right answer's worth to the whole."""
    alarms = {seed: form_first(seed).alarm(seed) for seed in range(RUNS)}
    assert sum(step is not None for step in alarms.values()) <= 1, alarms


@pytest.mark.parametrize("kind", [exploited, ruined, phrased, leaking])
def test_a_run_that_is_hacked_does(kind):
    """In every one of six runs of each kind."""
    alarms = {seed: kind(seed).alarm(seed) for seed in range(6)}
    assert all(alarms.values()), alarms
