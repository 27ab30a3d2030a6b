"""Settings of the group `monitor`, which exists where a monitor is asked for (`--monitor NAME`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from rlvr.config.group import ADVANCED, Group, Rules
from rlvr.config.quantities import CORRELATION, COUNT, POSITIVE, WEIGHT


@dataclass(frozen=True)
class MonitorConfig(Group):
    """A second verifier that scores the same rollouts but never enters the reward; an alarm is raised when reward and
    monitor diverge (reward hacking)."""

    verifier: str
    """Second verifier that scores the same rollouts but never enters the reward, to detect reward hacking: a
    registered name or module:attribute. none: no monitor."""
    verifier_option: tuple[str, ...] = ()
    """Options of the monitor's verifier, as key=value."""
    window: Annotated[int, COUNT] = 10
    """Number of steps over which reward and monitor are averaged before they are compared."""
    margin: Annotated[float, POSITIVE, ADVANCED] = 0.25
    """Divergence between reward and monitor, in score standard deviations, that counts as suspicious."""
    noise: Annotated[float, WEIGHT, ADVANCED] = 3.0
    """Significance threshold, in standard errors."""
    rank: Annotated[float, CORRELATION, ADVANCED] = 0.1
    """Rank correlation within groups below which reward and monitor count as unrelated."""
    patience: Annotated[int, COUNT, ADVANCED] = 5
    """Consecutive suspicious steps that raise the alarm; where the monitor falls fast, two do."""
    on_alarm: Literal["warn", "stop", "rollback"] = "warn"
    """What to do when the alarm is raised: warn; stop after a checkpoint; or go back to the best checkpoint up to the
    monitor's best steps and on with a quarter of the learning rate (three times at most)."""

    def rules(self, at: str) -> Rules:
        """Return rules about the verifier's name."""
        return [(bool(self.verifier.strip()), "the monitor's verifier has an empty name; expected one of `rlvr list`")]
