"""Settings of the group `curriculum`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from rlvr.config.group import ADVANCED, Group, Rules, Used
from rlvr.config.quantities import POSITIVE, SHARE


def _draws_by_signal(config: Any) -> bool:
    return bool(config.curriculum.draw == "signal")


WITH_SIGNAL = Used(_draws_by_signal, "with --curriculum.draw signal")
WITH_RATES = Used(
    lambda config: _draws_by_signal(config) or config.curriculum.profile is not None,
    "with --curriculum.draw signal or --curriculum.profile",
)


@dataclass(frozen=True)
class CurriculumConfig(Group):
    """Which problems are trained on, by their pass rates: the mean score p of a problem's completions."""

    profile: Annotated[Path | None, ADVANCED] = None
    """File with the problems' pass rates before the run: profile.jsonl, which `rlvr profile` writes."""
    pass_rate: Annotated[tuple[float, ...], SHARE, ADVANCED] = (0.0, 1.0)
    """Train only on problems whose pass rate in the profile is from the first number to the second. With other numbers
    than 0 and 1 problems that are not in the profile are left out."""
    draw: Annotated[Literal["epochs", "signal"], ADVANCED] = "epochs"
    """How problems are drawn. epochs: each once before any comes again. signal: with a probability in proportion to
    the expected p(1-p), from the profile and the run's own outcomes. What is maximised is then the mean reward under
    that distribution, which follows the policy, not over all problems alike."""
    floor: Annotated[float, SHARE, ADVANCED, WITH_SIGNAL] = 0.1
    """Share of the probability that is spread over all problems alike, so that none is never drawn."""
    half_life: Annotated[float, POSITIVE, ADVANCED, WITH_RATES] = 50.0
    """Steps after which an outcome, or the profile, counts half: the policy has changed since."""

    def rules(self, at: str) -> Rules:
        """Return rules about the range of pass rates, and the profile that it needs."""
        low_high = len(self.pass_rate) == 2 and self.pass_rate[0] <= self.pass_rate[1]
        shown = " ".join(f"{rate:g}" for rate in self.pass_rate)
        return [
            *super().rules(at),
            (low_high, f"{at}pass_rate {shown}: expected two numbers, the lowest pass rate and the highest"),
            (
                self.profile is not None or not self.filters,
                f"{at}pass_rate {shown} without a profile to take the pass rates from; set --{at}profile too",
            ),
        ]

    @property
    def filters(self) -> bool:
        """Whether a range of pass rates was asked for."""
        return tuple(self.pass_rate) != (0.0, 1.0)

    @property
    def tracks(self) -> bool:
        """Whether the run keeps pass rates: to draw by them, or to predict the share of groups with signal."""
        return self.draw == "signal" or self.profile is not None
