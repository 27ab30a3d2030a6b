"""Bounds that an answer is given under, and that the grammar drops: `x^2, x > 0` is not `x^2, x < 0`."""

from __future__ import annotations

import functools

from rlvr.verifiers.math.conditions import PARAMETERS
from rlvr.verifiers.math.parse import dropped_conditions
from rlvr.verifiers.math.sets import HIGHEST, LOWEST, NotASet, Piece, intersection, real_set
from rlvr.verifiers.math.tree import ParseError, TooLarge, symbols


def other_bounds(gold: str, answer: str) -> bool:
    """Whether both texts bound a variable, and differently; the parameter n may begin at 0 or 1."""
    if not (_has_sign(gold) and _has_sign(answer)):
        return False
    left, right = _bounds(gold), _bounds(answer)
    return any(name in right and _differ(name, pieces, right[name]) for name, pieces in left.items())


def _has_sign(text: str) -> bool:
    """Whether a text may have an inequality."""
    if "\\" in text and ("\\l" in text or "\\g" in text):
        return True
    return "<" in text or ">" in text or "≤" in text or "≥" in text


def _differ(name: str, left: list[Piece], right: list[Piece]) -> bool:
    if [(p.low[::2], p.high[::2]) for p in left] == [(p.low[::2], p.high[::2]) for p in right]:
        return False
    if name not in PARAMETERS:
        return True
    common = intersection(left, right)
    opposite = (left[0].low is LOWEST) != (right[0].low is LOWEST) and (left[-1].high is HIGHEST) != (
        right[-1].high is HIGHEST
    )
    return opposite or not common


@functools.lru_cache(maxsize=512)
def _bounds(text: str) -> dict[str, list[Piece]]:
    found: dict[str, list[Piece]] = {}
    try:
        conditions = dropped_conditions(text)
    except (ParseError, TooLarge):
        return found
    for condition in conditions:
        names = symbols(condition)
        if len(names) != 1 or "in" in condition.ops or "!=" in condition.ops:
            continue
        (name,) = names
        try:
            found[name] = real_set(condition)
        except NotASet:
            continue
    return found
