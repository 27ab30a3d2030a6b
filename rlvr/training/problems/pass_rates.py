"""Pass rates of problems: the profile of a model before the run, and what the run's own outcomes say since.

The pass rate p of a problem is the mean score of its completions, which are from 0 to 1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rlvr.config.run import CurriculumConfig
from rlvr.core.files.jsonl import read_objects
from rlvr.core.printable import printable
from rlvr.core.types import Group, Problem, Task

Floats = np.ndarray[Any, np.dtype[np.float64]]
Profile = Mapping[str, tuple[float, float]]  # by the problem's id: the sum of its scores, and of 1 less the score
FORGOTTEN = 1e-6  # outcomes that count less than this part of one are dropped


def read_profile(path: Path) -> tuple[dict[str, tuple[float, float]], str]:
    """Return the profile that `rlvr profile` wrote, and the fingerprint of its task.

    Raises OSError for a path that is not a file, and ValueError with file and line for a line that is no such profile.
    """
    found: dict[str, tuple[float, float]] = {}
    fingerprint = ""
    for number, row in read_objects(path):
        where = f"{path}, line {number}"
        name, samples, score = row.get("id"), row.get("samples"), row.get("score")
        if not isinstance(name, str) or not isinstance(row.get("fingerprint"), str):
            raise ValueError(f"{where}: no id or no fingerprint; expected profile.jsonl of `rlvr profile`")
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ValueError(f"{where}: samples {samples!r:.40}; expected the number of scored samples, 1 or more")
        if isinstance(score, bool) or not isinstance(score, int | float) or not 0 <= score <= 1:
            raise ValueError(f"{where}: score {score!r:.40}; expected a mean score from 0 to 1, as pass rates are")
        if name in found:
            raise ValueError(f"{where}: problem {printable(name)!r:.80} is there twice; expected it once")
        if fingerprint and row["fingerprint"] != fingerprint:
            raise ValueError(f"{where}: of another task (another fingerprint) than the lines before")
        fingerprint = row["fingerprint"]
        found[name] = (samples * score, samples * (1 - score))
    if not found:
        raise ValueError(f"{path} is empty; expected profile.jsonl of `rlvr profile`")
    return found, fingerprint


def describe_origin(path: Path) -> str:
    """Return whose pass rates a profile has: a model, perhaps judged by another verifier; "" if it does not say."""
    row = next((row for _, row in read_objects(path)), {})
    model, verifier = row.get("model"), row.get("verifier")
    judged = f" judged by {printable(verifier)!s:.200}" if isinstance(verifier, str) else ""
    return f"profile of {printable(model)!s:.200}{judged}: " if isinstance(model, str) else ""


def choose_problems(task: Task, config: CurriculumConfig) -> tuple[Task, str]:
    """Return the task with the problems that curriculum.pass_rate leaves, and a line that counts them and names the
    model.

    The line is "" without a profile. The profile becomes part of the fingerprint, so that a run is not resumed with
    another one. Raises ValueError if the profile is of another task, or no problem is left.
    """
    if config.profile is None:
        return task, ""
    profile, fingerprint = read_profile(config.profile)
    if fingerprint not in (task.fingerprint, task.whole_fingerprint):
        raise ValueError(
            f"{config.profile} is a profile of other problems (fingerprint {fingerprint}, and task {task.name!r} has "
            f"{task.fingerprint}); run `rlvr profile` with the task and the options of this run"
        )
    content = json.dumps([task.fingerprint, sorted(profile.items())])
    digest = hashlib.sha256(content.encode()).hexdigest()[: len(fingerprint)]
    whose = describe_origin(config.profile)
    rates = {name: right / (right + wrong) for name, (right, wrong) in profile.items()}
    places = {problem.id: place for place, problem in enumerate(task.train)}
    there = [name for name in places if name in rates]
    missing = f"{len(places) - len(there)} of {len(places)} problems are not in the profile"
    if not there:
        raise ValueError(f"{config.profile}: none of its problems is trained on; profile the split train")
    if not config.filters:
        return replace(task, fingerprint=digest), f"{whose}{missing}: their pass rates begin unknown"
    low, high = config.pass_rate
    kept = [problem for problem in task.train if low <= rates.get(problem.id, -1) <= high]
    hard, easy = sum(rates[name] < low for name in there), sum(rates[name] > high for name in there)
    told = f"{whose}pass rates from {low:g} to {high:g}: {len(kept)} of {len(places)} problems are trained on"
    told += f" ({hard} below, {easy} above; {missing}, and left out)"
    if not kept:
        raise ValueError(f"{told}; widen --curriculum.pass-rate, or profile more problems (--max-problems)")
    return replace(task, train=kept, fingerprint=digest), told


class PassRates:
    """Beta posteriors over the pass rates of problems; older outcomes count less (MoPPS, arXiv:2507.04632, without
    sampling).

    The prior is Beta(1, 1). Scores s and 1 - s are added to its parameters, those of a profile first, and what was
    added is multiplied by 2^(-1 / half_life) each step.
    """

    def __init__(self, problems: Sequence[Problem], profile: Profile, half_life: float) -> None:
        self.names: dict[str, int] = {}
        self.places = np.array([self.names.setdefault(p.id, len(self.names)) for p in problems], dtype=np.int64)
        self.keeps = 2 ** (-1 / half_life)
        self.added = np.zeros((2, len(self.names)))  # sums of scores and of 1 - score
        for name, outcomes in profile.items():
            if name in self.names:
                self.added[:, self.names[name]] = outcomes

    def observe(self, groups: Sequence[Group]) -> None:
        """Add the scores of a step's groups. Raises ValueError for a score that is not from 0 to 1."""
        self.added *= self.keeps
        self.added[self.added < FORGOTTEN] = 0.0
        for group in groups:
            for verdict in group.verdicts:
                if verdict.score is None:
                    continue
                if not 0 <= verdict.score <= 1:
                    raise ValueError(
                        f"problem {printable(group.problem.id)!r:.80} has a score of {verdict.score:g}; pass rates "
                        "need scores from 0 to 1: leave out --curriculum.draw and --curriculum.profile"
                    )
                self.added[:, self.names[group.problem.id]] += verdict.score, 1 - verdict.score

    def variances(self) -> Floats:
        """Return the expected p(1 - p) of each problem, in the order in which they were given."""
        a, b = 1 + self.added
        return (a * b / ((a + b) * (a + b + 1)))[self.places]

    def signal(self, problems: Sequence[Problem], group_size: int) -> list[float]:
        """Return the expected 1 - p^n - (1 - p)^n of each problem: the chance that n scores of 0 or 1 differ."""
        a, b = 1 + self.added[:, [self.names[problem.id] for problem in problems]]
        counts = np.arange(group_size)[:, None]
        all_right = ((a + counts) / (a + b + counts)).prod(axis=0)
        all_wrong = ((b + counts) / (a + b + counts)).prod(axis=0)
        return [float(value) for value in 1 - all_right - all_wrong]

    def state(self) -> list[list[float]]:
        """Return what is not zero, as [number of the problem, sum of scores, sum of 1 - score]."""
        return [[int(i), *map(float, self.added[:, i])] for i in np.flatnonzero(self.added.any(axis=0))]

    def restore(self, state: Sequence[Sequence[float]]) -> None:
        self.added[:] = 0.0
        for i, right, wrong in state:
            self.added[:, int(i)] = right, wrong
