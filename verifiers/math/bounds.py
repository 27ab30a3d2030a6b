"""Conditions that an answer is given under, and that the grammar drops: `x^2, x > 0` is not `x^2, x < 0`."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from itertools import product
from typing import NamedTuple

from rlvr.verifiers.math.conditions import PARAMETERS
from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.numeric import evaluate
from rlvr.verifiers.math.parse import dropped_conditions
from rlvr.verifiers.math.sets import TURNED, NotASet, Piece, real_set
from rlvr.verifiers.math.systems import Numbers
from rlvr.verifiers.math.tree import PI, Node, Op, ParseError, Rel, Sym, TooLarge, Words, symbols, walk

MAX_JOINT = 3  # variables of a condition that is tried at points
_FEW_REALS = (-2.3, -1.0, 0.4, 1.0, 3.3)
_SAMPLE = range(-64, 65)
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}
_FIRST = frozenset((0, 1))
_FROM_TWO = frozenset(range(2, 65))
_REALS = (-1e6, -97.3, -9.4, -3.3, -1.6, -0.7, -0.2, 0.3, 0.8, 1.4, 2.6, 4.7, 11.3, 64.9, 1e6)
# The least and the greatest integer of a set.
_INTEGERS: dict[str, tuple[tuple[float, float], ...]] = {
    "integers": ((-64, 64),),
    "positive integers": ((1, 64),),
    "nonnegative integers": ((0, 64),),
    "negative integers": ((-64, -1),),
    "naturals": ((0, 64), (1, 64)),
}


class _Condition(NamedTuple):
    """What a condition on one variable leaves.

    The pieces of the reals, None where they are not known; the sets of integers that it may mean; some reals that it
    leaves out.
    """

    pieces: list[Piece] | None
    integers: tuple[frozenset[int], ...]
    outside: tuple[float, ...]


def other_bounds(gold: str, answer: str, tree: Node) -> bool:
    """Whether an answer bounds a variable that the gold does not bound so. `tree`: of the gold.

    The parameter of a formula may begin at 0 or 1 alike, that of a set of solutions, (n, n + 1), not. A bound that the
    gold has not may only say what holds anyway: k >= 1, x > 0 beside \\ln x.
    """
    if not _SIGN.search(answer):
        return False
    left, right = _bounds(gold) if _SIGN.search(gold) else {}, _bounds(answer)
    everywhere = _FOR_ALL.match(answer) is not None
    return any(
        _differ(name, left[name], found, _is_solution_set(tree))
        if name in left
        else not (everywhere or _holds_anyway(name, found, tree))
        for name, found in right.items()
    ) or any(not _relates_anyway(condition, tree) for condition in _joint(answer) - _joint(gold))


_SIGN = re.compile(r"[<>≤≥≠∈]|\\(?:[lg](?:e|eq|eqq|eqslant|t)|neq?|in|notin)(?![A-Za-z])|integer")
_FOR_ALL = re.compile(r"[\s$]*(?:\\forall|∀|for\s+(?:all|every|any)\b)")
_SOLUTIONS = frozenset(("()", "list", "either", "set", "such"))


def _is_solution_set(tree: Node) -> bool:
    """Whether a tree with a parameter is a set of points or angles, not a formula."""
    return (isinstance(tree, Op) and tree.head in _SOLUTIONS) or PI in walk(tree)


def _holds_anyway(name: str, found: _Condition, tree: Node) -> bool:
    """Whether a bound leaves out nothing but the first integers, or points at which the gold has no value."""
    if name in PARAMETERS:
        if found.integers:
            return any(_has_no_value(name, _FROM_TWO - integers, tree) for integers in found.integers)
        return found.pieces is None or any(piece.low.place <= 2 and piece.high.place > 64 for piece in found.pieces)
    return not found.outside or _has_no_value(name, found.outside, tree)


def _has_no_value(name: str, places: Iterable[float], tree: Node) -> bool:
    """Whether a formula in a variable has no value at some places of it."""
    value = tree.sides[-1] if isinstance(tree, Rel) else tree
    others = dict.fromkeys(symbols(value), 1.7)
    places = list(places)
    if not places or name not in others or not any(_has_value(value, {**others, name: x}) for x in _REALS):
        return not places
    return not any(_has_value(value, {**others, name: x}) for x in places)


def _relates_anyway(condition: Rel, tree: Node) -> bool:
    r"""Whether a formula has no value where a condition on several variables does not hold: a >= b of \sqrt{a - b}."""
    value = tree.sides[-1] if isinstance(tree, Rel) else tree
    names = sorted(symbols(condition))
    if PARAMETERS.issuperset(names) or len(names) > MAX_JOINT or not set(names) <= symbols(value):
        return PARAMETERS.issuperset(names)
    others = dict.fromkeys(symbols(value), 1.7)
    places = product(_FEW_REALS, repeat=len(names))
    points = [
        point for place in places if _has_value(value, point := {**others, **dict(zip(names, place, strict=True))})
    ]
    return bool(points) and not any(_is_outside(condition, point) for point in points)


def _is_outside(condition: Rel, point: dict[str, float]) -> bool:
    try:
        values = [evaluate(side, point, Numbers(True))[0] for side in condition.sides]
    except (ValueError, OverflowError, ZeroDivisionError):
        return False
    return all(isinstance(value, float) for value in values) and not _holds(condition.ops, values)


def _has_value(node: Node, place: dict[str, float]) -> bool:
    try:
        evaluate(node, place, Numbers(True))
    except (ValueError, OverflowError, ZeroDivisionError):
        return False
    return True


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


def _bounds(text: str) -> dict[str, _Condition]:
    found: dict[str, _Condition] = {}
    for condition in _conditions(text):
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
        outside = _outside(condition, pieces)
        if before := found.get(name):  # n in Z, n > 2
            pieces = None
            integers = tuple(one & other for one in before.integers for other in integers)
            outside = before.outside + outside
        found[name] = _Condition(pieces, integers, outside)
    return found


def _joint(text: str) -> frozenset[Rel]:
    """The inequalities of a text in several variables, with < in them."""
    found = [each for each in _conditions(text) if len(symbols(each)) > 1 and {"in", "!="}.isdisjoint(each.ops)]
    return frozenset(
        Rel(tuple(TURNED.get(op, op) for op in reversed(each.ops)), each.sides[::-1]) if ">" in each.ops[0] else each
        for each in found
    )


@functools.lru_cache(maxsize=512)
def _conditions(text: str) -> tuple[Rel, ...]:
    try:
        return tuple(dropped_conditions(text))
    except (ParseError, TooLarge):
        return ()


def _outside(condition: Rel, pieces: list[Piece] | None) -> tuple[float, ...]:
    """Some reals that a condition on one variable leaves out, single points aside; none where they are not known."""
    if pieces is not None:
        return tuple(x for x in _REALS if not any(piece.low.place <= x <= piece.high.place for piece in pieces))
    domain = condition.sides[-1]
    numbers = domain.args[0] if isinstance(domain, Op) and domain.head == "domain" else None
    discrete = isinstance(numbers, Words) and (numbers.text in _INTEGERS or numbers.text == "rationals")
    return tuple(_REALS) if discrete else ()


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


def _holds(ops: tuple[str, ...], values: Sequence[float | Fraction]) -> bool:
    return all(_ORDERS[op](left, right) for op, left, right in zip(ops, values, values[1:], strict=False))
