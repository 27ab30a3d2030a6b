"""Detect gradients, weights and probabilities that are not finite, and end a run that they would ruin."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlvr.types import RunError

PATIENCE = 3  # consecutive steps with a gradient that is not finite, after which a run ends


class NotFinite(RunError):
    """Weights, gradients or probabilities are NaN or infinite, and work cannot go on."""


def python_warning(text: str) -> None:
    """Warn by way of Python's warnings."""
    warnings.warn(text, RuntimeWarning, stacklevel=3)


@dataclass
class GradientWatch:
    """Counts the consecutive steps in which an update was dropped because its gradient was not finite.

    warn: called with one line for each such step. look_at: the settings that the error names. streak: the count so far.
    """

    warn: Callable[[str], None]
    look_at: str
    streak: int = 0

    def observe(self, step: int, skipped: float | None, what: str = "gradient") -> None:
        """Count a step's dropped updates (None: it had no update to make, and does not count).

        Raises NotFinite at the third consecutive step with dropped ones.
        """
        if skipped is None:
            return
        if not skipped:
            self.streak = 0
            return
        self.streak += 1
        if self.streak >= PATIENCE:
            raise NotFinite(
                f"stopped at step {step}: the {what} was NaN or infinite in {self.streak} steps in a row, the first of "
                f"them step {step - self.streak + 1}; their updates were dropped. Look at {self.look_at}"
            )
        self.warn(
            f"step {step}: the {what} is NaN or infinite in {skipped:.0f} of its updates, which are dropped; the run "
            f"stops after {PATIENCE} such steps in a row"
        )


def dropped_updates(metrics: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return from a step's metrics how many updates were dropped (None: it made none), and whose gradient it was."""
    if "skipped_updates" not in metrics:
        return None, "gradient"
    policy, critic = (metrics.get(name, 0.0) for name in ("skipped_updates", "critic/skipped_updates"))
    return policy + critic, "gradient" if policy or not critic else "critic's gradient"


def streak_of(rows: Iterable[Mapping[str, Any]]) -> int:
    """Return from the steps' metrics how many of the last consecutive steps dropped an update."""
    streak = 0
    for dropped, _ in map(dropped_updates, rows):
        if dropped is not None:
            streak = streak + 1 if dropped else 0
    return streak


def count_not_finite(norms: Iterable[float]) -> float:
    """Return how many of the gradient norms are NaN or infinite."""
    return float(sum(not math.isfinite(norm) for norm in norms))


@torch.no_grad()
def check_weights(named: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Raise NotFinite, starting with `where`, if a weight is NaN or infinite; name the first of them."""
    weights = {name: weight for name, weight in named if weight.is_floating_point() and weight.numel()}
    # The largest magnitude of all: one pass, and NaN where any is.
    if not weights or math.isfinite(torch.nn.utils.get_total_norm(list(weights.values()), norm_type=math.inf)):
        return
    broken = {name: weight for name, weight in weights.items() if not bool(weight.isfinite().all())}
    name, weight = next(iter(broken.items()))
    count = int((~weight.isfinite()).sum())
    raise NotFinite(
        f"{where}: {len(broken)} of {len(weights)} weights hold NaN or infinite numbers, the first of them {name} "
        f"({count} of {weight.numel()} numbers)"
    )
