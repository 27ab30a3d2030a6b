"""Bounds of numeric settings, written beside the field: `lr: Annotated[float, LEARNING_RATE] = 1e-6`.

Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MOST = 10**9  # of anything that is counted; a larger number is a mistake


@dataclass(frozen=True)
class Bound:
    """Numbers from `least` to `most`, without `least` itself where it is `above`, and 0 with `or_zero`.

    NaN and infinities are in none.
    """

    least: float
    most: float
    above: bool = False
    or_zero: bool = False

    def holds(self, value: float) -> bool:
        """Return whether a number lies within."""
        if self.or_zero and value == 0:
            return True
        return (value > self.least if self.above else value >= self.least) and value <= self.most

    def __str__(self) -> str:
        least = f"above {self.least:,} and up to" if self.above else f"from {self.least:,} to"
        return f"{'0 or ' if self.or_zero else ''}{least} {self.most:,}"


COUNT = Bound(1, MOST)
COUNT_OR_NONE = Bound(0, MOST)
TWO_OR_MORE = Bound(2, MOST)
SHARE = Bound(0, 1)
POSITIVE_SHARE = Bound(0, 1, above=True)
POSITIVE = Bound(0, MOST, above=True)
WEIGHT = Bound(0, MOST)
SCORE = Bound(-MOST, MOST)
CORRELATION = Bound(-1, 1)
LEARNING_RATE = Bound(0, 1)
ADAM_DECAY = Bound(0, 1 - 1e-9)  # AdamW divides by 1 - beta
SECONDS = Bound(0, 10**6, above=True)  # threading accepts no more than some centuries
WORKERS = Bound(1, 1024)
# Below, logits divided by it leave float32; above, every token is as likely as any other.
TEMPERATURE = Bound(0.001, 1000)
GREEDY_OR_TEMPERATURE = Bound(0.001, 1000, or_zero=True)
SEED = Bound(-(2**63), 2**63 - 1)  # the range that torch accepts


def check_bounds(settings: Mapping[str, Any], bounds: Mapping[str, Bound], prefix: str = "") -> None:
    """Raise ValueError for the first setting outside its bounds. None, where a setting may be that, has none."""
    for name, bound in bounds.items():
        message = why_out(f"{prefix}{name.replace('_', '-') if prefix else name}", settings[name], bound)
        if message:
            raise ValueError(message)


def why_out(name: str, value: Any, bound: Bound) -> str | None:
    """Return the line that says why a setting (a number, several, or None) does not fit; None where it does."""
    for number in value if isinstance(value, tuple | list) else [value]:
        if number is None:
            continue
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"{name} {number!r:.80}: expected a number"
        if isinstance(number, float) and not math.isfinite(number):
            return f"{name} {number}: expected a finite number {bound}"
        if not bound.holds(number):
            return f"{name} {number!r:.80}: expected a number {bound}"
    return None
