"""Estimates of sums, integrals, limits and derivatives in floats, to show that a chain of equalities has no value.

5 = \\int_0^1 6 dx gives no value. An estimate is used only where two of a different fineness agree, and only to
refuse: what it cannot tell counts as no contradiction.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Mapping

from rlvr.verifiers.math.binders import opened, outermost, replaced, unevaluated
from rlvr.verifiers.math.compiled import compiled
from rlvr.verifiers.math.exact import Inexact
from rlvr.verifiers.math.tree import OO, Node, Op, Sym, TooLarge, Words, symbols

MAX_PARTS = 4
MAX_DEPTH = 2  # of integrals within integrals
APART = 1e-3  # relative difference of a contradiction
_POINTS = 2  # values of the free variables
_ORDERS = (12, 20)
_TERMS = 200  # of an infinite sum; twice as many must give the same
_MINUS_OO = Op("neg", (OO,))
_FAILURES = (ValueError, ZeroDivisionError, OverflowError, TypeError)

_Function = Callable[[float], float]
_Point = Mapping[str, float]


def contradicts_estimate(side: Node, value: Node, rounding: float) -> bool:
    """Whether a side that is not evaluated differs from a value, by more than its rounding, at two random points."""
    if unevaluated(value) or sum(1 for _ in outermost(side)) > MAX_PARTS:
        return False
    if isinstance(side, Op) and side.head == "int" and len(side.args) == 2 and not unevaluated(side.args[0]):
        return contradicts_estimate(Op("diff", (value, side.args[1])), side.args[0], rounding)
    names = sorted(symbols(side) | symbols(value))
    sums = [part for part in outermost(side) if part.head in ("sum", "prod")]
    counts = {name for part in sums for limit in part.args[2:] for name in symbols(limit)}
    rng = random.Random(f"{side}={value}")
    try:
        for _ in range(_POINTS):
            point = {name: rng.randrange(2, 12) if name in counts else 0.3 + 1.4 * rng.random() for name in names}
            left, right = _at(side, point), _at(value, point)
            if not abs(left - right) > rounding + APART * max(abs(left), abs(right), 1e-3):
                return False
    except (*_FAILURES, TooLarge, RecursionError):
        return False
    return True


def _at(node: Node, point: _Point, depth: int = 0) -> float:
    """Return the value of a tree at a point. Raise ValueError where there is no estimate."""
    values: dict[Node, Node] = {}
    filled = dict(point)
    for place, part in enumerate(dict.fromkeys(outermost(node))):
        name = f"part {depth} {place}"
        values[part], filled[name] = Sym(name), _estimate(part, point, depth + 1)
    tree = replaced(node, values) if values else node
    places = {name: place for place, name in enumerate(filled)}
    result = float(compiled(tree, places)(tuple(filled.values())))
    if not math.isfinite(result):
        raise ValueError("no number")
    return result


def _estimate(part: Op, point: _Point, depth: int) -> float:
    if depth > MAX_DEPTH:
        raise Inexact
    if part.head == "diff":
        return _derivative(part, point, depth)
    if len(part.args) != 4:
        raise Inexact
    height = _function(opened(part, f"bound {depth}"), f"bound {depth}", point, depth)
    if part.head == "lim":
        return _limit(height, part, point, depth)
    low, high = (_end(limit, point, depth) for limit in part.args[2:])
    return _integral(height, low, high) if part.head == "int" else _series(height, part.head, low, high)


def _function(body: Node, variable: str, point: _Point, depth: int) -> _Function:
    """Return the body as a function of its variable."""
    if unevaluated(body):
        return lambda x: _at(body, {**point, variable: x}, depth)
    closure = compiled(body, {name: place for place, name in enumerate((*point, variable))})
    values = tuple(point.values())
    return lambda x: float(closure((*values, x)))


def _end(limit: Node, point: _Point, depth: int) -> float:
    if limit in (OO, _MINUS_OO):
        return math.inf if limit == OO else -math.inf
    return _at(limit, point, depth)


def _agreed(first: float, second: float, tolerance: float) -> float:
    """Return the second estimate. Raise Inexact where the first is another."""
    if not abs(first - second) <= tolerance * max(abs(first), abs(second), 1e-6):
        raise Inexact
    return second


@functools.lru_cache(maxsize=4)
def _nodes(order: int) -> tuple[tuple[float, float], ...]:
    """The abscissas and weights of Gauss and Legendre on [-1, 1], by Newton's method on the polynomial."""
    found = []
    for k in range(order):
        x = math.cos(math.pi * (k + 0.75) / (order + 0.5))
        slope = 1.0
        for _ in range(50):
            before, value = 1.0, x
            for n in range(2, order + 1):
                before, value = value, ((2 * n - 1) * x * value - (n - 1) * before) / n
            slope = order * (x * value - before) / (x * x - 1)
            step = value / slope
            x -= step
            if abs(step) < 1e-15:
                break
        found.append((x, 2 / ((1 - x * x) * slope * slope)))
    return tuple(found)


def _integral(height: _Function, low: float, high: float) -> float:
    if math.isinf(low) or math.isinf(high):
        raise Inexact
    middle, half = (low + high) / 2, (high - low) / 2
    first, second = (half * sum(weight * height(middle + half * x) for x, weight in _nodes(order)) for order in _ORDERS)
    return _agreed(first, second, APART / 10)


def _series(height: _Function, head: str, low: float, high: float) -> float:
    if low != int(low):
        raise Inexact
    start = int(low)
    if math.isinf(high):
        first = _total(height, head, start, start + _TERMS)
        return _agreed(first, _total(height, head, start, start + 2 * _TERMS), 1e-9)
    if high != int(high) or not 0 <= high - low + 1 <= 2 * _TERMS:
        raise Inexact
    return _total(height, head, start, int(high) + 1)


def _total(height: _Function, head: str, start: int, end: int) -> float:
    terms = (height(k) for k in range(start, end))
    return sum(terms) if head == "sum" else math.prod(terms)


def _limit(height: _Function, part: Op, point: _Point, depth: int) -> float:
    """The value near the target, where it is the same at three distances from it."""
    target, side = _end(part.args[2], point, depth), part.args[3]
    if math.isinf(target):
        near = [math.copysign(size, target) for size in (1e3, 1e4, 1e5)]
    else:
        sign = -1 if isinstance(side, Words) and side.text in ("-", "below", "left") else 1
        near = [target + sign * size for size in (1e-2, 1e-3, 1e-4)]
    first, second, third = map(height, near)
    _agreed(first, second, 0.03)
    return _agreed(second, third, APART / 3)


def _derivative(part: Op, point: _Point, depth: int) -> float:
    variable = part.args[1]
    if not isinstance(variable, Sym) or (len(part.args) > 2 and _at(part.args[2], {}) != 1):
        raise Inexact
    place = point[variable.name]

    def slope(step: float) -> float:
        up, down = (_at(part.args[0], {**point, variable.name: place + sign * step}, depth) for sign in (1, -1))
        return (up - down) / (2 * step)

    return _agreed(slope(1e-3), slope(1e-4), APART / 3)
