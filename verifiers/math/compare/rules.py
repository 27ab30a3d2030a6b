"""What counts as equal, and the comparison itself as the parts of this folder call it for the parts of an answer."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

from ..values.tree import Node


@dataclass(frozen=True)
class Rules:
    """The options of MathVerifier that affect comparison. `rlvr.verifiers.math.compare.comparison` compares by them."""

    digits: int | None = None
    rel_tol: float | None = None
    exact_digits: int = 10
    units: Literal["convert", "ignore", "value"] = "convert"  # "value": 50% is 0.5 only
    unevaluated: Literal["auto", "accept", "reject"] = "accept"
    quick: bool = False  # whether long sums are left to the worker pool
    declared: bool = False  # whether a parameter is said to be an integer
    shifted: bool = True  # whether families of numbers with a parameter may be shifted
    whole: bool = True  # whether the whole answer is compared, whose letters may be arbitrary constants

    @functools.cached_property
    def within(self) -> Rules:
        """The rules for a part of an answer, in which a letter is given data."""
        return replace(self, whole=False)

    def matches(self, gold: Node, answer: Node) -> bool:
        """Whether the answer equals the gold. Raises TooLarge or Undecided."""
        raise NotImplementedError

    def matches_value(self, gold: Node, answer: Node) -> bool:
        """Whether two expressions are equal, exactly or to the digits that the options require."""
        raise NotImplementedError
