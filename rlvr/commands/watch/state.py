"""What `rlvr watch` knows of a run: read from its files, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rlvr.runs.folder import holder, is_locked, read_record
from rlvr.runs.reading import Record, RolloutReader, Tail
from rlvr.runs.records import is_number, masks_of, number_since_best, pass_names

RECENT = 20  # steps that the time of a step is averaged over
STALLED = 10  # times a step's usual duration without a sign
SHORTEST_STALL = 60.0  # seconds


@dataclass(frozen=True)
class Choice:
    """Which rollouts are shown: of a step (None: the last), of a problem, with one of some statuses."""

    step: int | None = None
    problem: str | None = None
    verdicts: tuple[str, ...] = ()

    def takes(self, record: Mapping[str, Any]) -> bool:
        """Return whether a rollout of the chosen step is shown."""
        right_problem = self.problem is None or str(record.get("problem")) == self.problem
        return right_problem and (not self.verdicts or record.get("status") in self.verdicts)


class WatchedRun:
    """The logs of a run as far as they are written. `refresh` reads what is new, also after a resume that cut lines.

    arrived: (step, clock) of the steps that came while watching. generation: how often lines that were read before
    were taken back.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self.clock = folder, clock
        self.metrics: list[Record] = []
        self.evaluations: list[Record] = []
        self.alarms: list[Record] = []
        self.rollouts = RolloutReader(folder)
        self.masks = masks_of(folder)
        self.arrived: list[tuple[int, float]] = []
        self.generation = 0
        self._tails = {name: Tail(folder / f"{name}.jsonl") for name in ("metrics", "eval", "alarms")}
        self.refresh()

    def refresh(self) -> None:
        """Read what has been written since the last call."""
        held = {"metrics": self.metrics, "eval": self.evaluations, "alarms": self.alarms}
        for name, tail in self._tails.items():
            again, new = tail.records()
            self.generation += again
            if again:
                held[name].clear()
            held[name].extend(row for row in new if is_number(row.get("step")))
            if name == "metrics" and again:
                self.arrived.clear()
        if self.metrics and (not self.arrived or self.arrived[-1][0] != self.step):
            self.arrived = [*self.arrived, (self.step, self.clock())][-RECENT - 1 :]
        self.settings = self._settings()
        self.running = is_locked(self.folder)
        self.process = holder(self.folder) if self.running else ""

    @property
    def step(self) -> int:
        """The last step that is logged; 0 without any."""
        return int(self.metrics[-1]["step"]) if self.metrics else 0

    @property
    def steps(self) -> int | None:
        """The number of steps that the run is to do; None where config.json does not say."""
        asked = (self.settings.get("run") or {}).get("steps")
        return asked if isinstance(asked, int) else None

    @property
    def num_damaged(self) -> int:
        """The number of damaged lines that were left out."""
        return sum(tail.num_damaged for tail in self._tails.values()) + self.rollouts.num_damaged

    @property
    def ended_early(self) -> bool:
        """Whether the run ended because evaluations got no better (eval.patience)."""
        patience = (self.settings.get("eval") or {}).get("patience") or 0
        measured = [row for row in self.evaluations if pass_names([row])]
        return 0 < patience <= number_since_best(measured) and measured[-1]["step"] == self.step

    def step_seconds(self) -> float | None:
        """Return the seconds of a step: as steps arrived while watching, else the sum of the logged phases, or None."""
        if len(self.arrived) > 2:
            (first, begun), (last, ended) = self.arrived[1], self.arrived[-1]
            if last > first and ended > begun:
                return (ended - begun) / (last - first)
        sums = [sum(phases(row).values()) for row in self.metrics[-RECENT:] if phases(row)]
        return fmean(sums) if sums else None

    def seconds_left(self) -> float | None:
        """Return the seconds that the steps still to come take at this pace; None where it is not known."""
        pace = self.step_seconds()
        return None if pace is None or self.steps is None else pace * max(self.steps - self.step, 0)

    def silence(self, now: float | None = None) -> float | None:
        """Return the seconds since a log or the settings were last written; None where there is none."""
        names = ("metrics.jsonl", "eval.jsonl", "rollouts.jsonl", "alarms.jsonl", "config.json")
        times = [path.stat().st_mtime for name in names if (path := self.folder / name).exists()]
        return max((time.time() if now is None else now) - max(times), 0.0) if times else None

    def stall(self) -> str:
        """Return a line where a run has written nothing for much longer than a step takes; "" otherwise."""
        pace, silence = self.step_seconds(), self.silence()
        if not self.running or pace is None or silence is None or silence < max(STALLED * pace, SHORTEST_STALL):
            return ""
        limit = (self.settings.get("run") or {}).get("stall_timeout")
        ends = f"; without any progress the run ends itself after {limit:g} s" if is_number(limit) else ""
        return (
            f"nothing logged for {silence:.0f} s, and a step takes {pace:.3g} s: it evaluates, saves, or stalls{ends}"
        )

    def _settings(self) -> Mapping[str, Any]:
        try:
            return read_record(self.folder / "config.json") or {}
        except (ValueError, OSError):
            return {}


def phases(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the seconds of a step's phases, by name. Phases that run beside the training overlap others."""
    return {name[8:]: value for name, value in row.items() if name.startswith("seconds/") and is_number(value)}
