"""Conditions that an answer is given under, and that the grammar drops: `x^2, x > 0` is not `x^2, x < 0`."""

from __future__ import annotations

import functools
import operator
from fractions import Fraction
from typing import NamedTuple

from rlvr.verifiers.math.conditions import PARAMETERS
from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.parse import dropped_conditions
from rlvr.verifiers.math.sets import NotASet, Piece, real_set
from rlvr.verifiers.math.tree import Node, Op, ParseError, Rel, Sym, TooLarge, Words, symbols

_SAMPLE = range(-64, 65)
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}
_FIRST = frozenset((0, 1))
# The least and the greatest integer of a set.
_INTEGERS: dict[str, tuple[tuple[float, float], ...]] = {
    "integers": ((-64, 64),),
    "positive integers": ((1, 64),),
    "nonnegative integers": ((0, 64),),
    "negative integers": ((-64, -1),),
    "naturals": ((0, 64), (1, 64)),
}


class _Condition(NamedTuple):
    """The pieces of the reals, None where they are not known, and the sets of integers that it may mean."""

    pieces: list[Piece] | None
    integers: tuple[frozenset[int], ...]


def other_bounds(gold: str, answer: str, strict: bool) -> bool:
    """Whether both texts bound a variable, and differently.

    The parameter of a formula may begin at 0 or 1 alike; `strict`: not one of a set of solutions, (n, n + 1).
    """
    if not (_has_sign(gold) and _has_sign(answer)):
        return False
    left, right = _bounds(gold), _bounds(answer)
    return any(name in right and _differ(name, found, right[name], strict) for name, found in left.items())


def _has_sign(text: str) -> bool:
    """Whether a text may have an inequality or a domain."""
    if "\\" in text and ("\\l" in text or "\\g" in text or "\\n" in text or "\\in" in text):
        return True
    return "<" in text or ">" in text or (not text.isascii() and any(sign in text for sign in "≤≥≠∈"))


def _differ(name: str, left: _Condition, right: _Condition, strict: bool) -> bool:
    if left.pieces is not None and right.pieces is not None:
        ends, others = ([(p.low[::2], p.high[::2]) for p in side.pieces or ()] for side in (left, right))
        if ends == others:
            return False
        if name not in PARAMETERS:
            return True
    elif name not in PARAMETERS:
        return False
    differences = [one ^ other for one in left.integers for other in right.integers]
    return bool(differences) and not any(not one or (not strict and one <= _FIRST) for one in differences)


@functools.lru_cache(maxsize=512)
def _bounds(text: str) -> dict[str, _Condition]:
    found: dict[str, _Condition] = {}
    try:
        conditions = dropped_conditions(text)
    except (ParseError, TooLarge):
        return found
    for condition in conditions:
        names = symbols(condition)
        if len(names) != 1:
            continue
        (name,) = names
        pieces = None
        if "in" not in condition.ops and "!=" not in condition.ops:
            try:
                pieces = real_set(condition)
            except NotASet:
                continue
        integers = _integers(condition) if name in PARAMETERS else ()
        if before := found.get(name):  # n in Z, n > 2
            pieces = None
            integers = tuple(one & other for one in before.integers for other in integers)
        found[name] = _Condition(pieces, integers)
    return found


def _integers(condition: Rel) -> tuple[frozenset[int], ...]:
    """The sets of integers of the sample that a condition on a parameter may leave; none where it cannot be told."""
    if condition.ops == ("in",):
        domain = condition.sides[1]
        name = domain.args[0] if isinstance(domain, Op) and domain.head == "domain" else None
        spans = _INTEGERS.get(name.text, ()) if isinstance(name, Words) else ()
        return tuple(frozenset(n for n in _SAMPLE if low <= n <= high) for low, high in spans)
    sides = [None if isinstance(side, Sym) else _value(side) for side in condition.sides]
    if any(op not in _ORDERS for op in condition.ops) or any(
        value is None and not isinstance(side, Sym) for value, side in zip(sides, condition.sides, strict=True)
    ):
        return ()
    if any(value is not None and abs(value) > _SAMPLE[-2] for value in sides):
        return ()
    return (frozenset(n for n in _SAMPLE if _holds(condition.ops, [n if v is None else v for v in sides])),)


def _value(side: Node) -> Fraction | None:
    return rational(side)


def _holds(ops: tuple[str, ...], values: list[Fraction | int]) -> bool:
    return all(_ORDERS[op](left, right) for op, left, right in zip(ops, values, values[1:], strict=False))
