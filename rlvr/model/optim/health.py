"""Detect gradients, weights and probabilities that are not finite, and end a run that they would ruin."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlvr.core.types import RunError

from .sharding import full, local

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


def finite_everywhere(finite: bool, weights: Iterable[Tensor]) -> bool:
    """Return whether `finite` holds on all ranks, where weights are in shards; the same on each of them."""
    sharded = next((weight for weight in weights if isinstance(weight, DTensor)), None)
    if sharded is None:
        return finite
    flag = torch.tensor(float(finite), device=sharded.device)
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag)


@torch.no_grad()
def check_weights(named: Iterable[tuple[str, Tensor]], where: str) -> None:
    """Raise NotFinite, starting with `where`, if a weight is NaN or infinite; name the first of them."""
    weights = {name: weight for name, weight in named if weight.is_floating_point() and weight.numel()}
    parts = [part for part in map(local, weights.values()) if part.numel()]
    # The largest magnitude takes one pass, and is NaN if any weight is.
    finite = not parts or math.isfinite(torch.nn.utils.get_total_norm(parts, norm_type=math.inf))
    if finite_everywhere(finite, weights.values()):
        return
    broken = {name: whole for name, whole in zip(weights, map(full, weights.values())) if not whole.isfinite().all()}
    name, weight = next(iter(broken.items()))
    count = int((~weight.isfinite()).sum())
    raise NotFinite(
        f"{where}: {len(broken)} of {len(weights)} weights hold NaN or infinite numbers, the first of them {name} "
        f"({count} of {weight.numel()} numbers)"
    )
