"""Which problems a step trains on: in epochs, or those whose groups are likely to carry signal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from rlvr.algo.advantages import is_flat
from rlvr.config import Config
from rlvr.seeding import derive_seed
from rlvr.training.epochs import further_problems, items_of_step
from rlvr.training.mixing import further_mixed, mixed_items, packs_of_steps
from rlvr.training.pass_rates import PassRates, read_profile, read_state
from rlvr.types import PACK, Group, Problem

STATE = "pass_rates.json"  # in a checkpoint


class Draws:
    """Draws the problems of each step, as curriculum.draw says; a function of (seed, step, observed outcomes).

    A step s (from 0) is drawn from the outcomes of the steps before s - sampler.max_staleness: those that the weights
    that it is sampled from were trained on, whatever the timing. All processes draw the same, since all have all
    groups. Without a curriculum and a profile there are no pass rates, and nothing to observe.

    `shares`: of the packs of a mixture. Each pack has its share of any run of draws, however few problems it has; by
    signal only the problems within a pack compete.
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
        else:
            drawn = self._in_epochs(step)
        return self._noted(step, drawn)

    def further(self, step: int, round_number: int, used: set[str]) -> list[Problem]:
        """Return problems for a round of dynamic sampling (from 0), without the ids in `used`; [] if none is left."""
        if self.by_signal:
            drawn = self._by_signal(("draw more", step, round_number), self.count, used, repeats=False)
        else:
            more = partial(further_mixed, shares=self.shares) if self.shares else further_problems
            drawn = more(
                self.problems, count=self.count, seed=self.seed, step=step, round_number=round_number, used=used
            )
        return self._noted(step, drawn)

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
            state = read_state(folder / STATE)
            self.rates.restore(state["rates"])
            self._predicted = dict(state["predicted"])

    def _in_epochs(self, step: int) -> list[Problem]:
        if self.shares:
            return mixed_items(self.problems, self.shares, self.count, seed=self.seed, step=step)
        return items_of_step(self.problems, self.count, seed=self.seed, step=step)

    def _noted(self, step: int, drawn: list[Problem]) -> list[Problem]:
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
            noise = np.random.Generator(np.random.Philox(derive_seed(self.seed, *key, len(drawn)))).gumbel(
                size=len(keys)
            )
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
