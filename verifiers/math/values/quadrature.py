"""Values of integrals, sums, products, limits and derivatives as numbers of 11 digits.

A value counts only where two computations of it agree to a tolerance. Integrals over a finite interval are by the
tanh-sinh rule at 30 digits (Takahasi and Mori 1974); those to infinity too where it converges, else panel by panel.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from .exact import Inexact
from .numeric import FAILURES, Digits, compile_tree, evaluate
from .tree import MINUS_OO, OO, Node, Op, Sym, Words, is_unevaluated, open_body, outermost, replace_parts, walk

DIGITS = 30
TRUSTED = 1e-14  # relative difference of two computations of one value
EQUAL, APART = 1e-11, 1e-6  # relative differences of equal and of different values
MAX_NODES = 60  # of a body
MAX_PARTS = 4
PANEL = math.pi / 2
MAX_PANELS = 80
MAX_TERMS = 400
MAX_VARIABLES = 4  # and bound ones, of a part within another

_Function = Callable[[Any], Any]
_Point = Mapping[str, Any]


def agrees(gold: Node, answer: Node) -> bool | None:
    """Whether a gold with integrals and series has the value of an answer without; None where no value tells."""
    wanted = value_of(gold)
    try:
        found = None if wanted is None else evaluate(answer, {}, Digits(digits=DIGITS))
    except FAILURES:
        return None
    if wanted is None or found is None:
        return None
    distance = abs(wanted - found)
    if distance <= EQUAL * abs(wanted):
        return True
    return False if distance > APART * max(abs(wanted), 1e-3) else None


@functools.lru_cache(maxsize=1024)
def value_of(node: Node) -> Any:
    """Return the value of a tree with integrals and series, None where there is none to be trusted."""
    heads = {part.head for part in outermost(node)}
    try:
        return estimate(node, {}, TRUSTED) if heads and heads <= {"int", "sum"} else None
    except FAILURES:
        return None


def estimate(node: Node, point: _Point, tolerance: float) -> Any:
    """Return the value of a tree with integrals, series, ... at a point. Raise one of FAILURES where there is none."""
    numbers = Digits(digits=DIGITS)
    parts = list(dict.fromkeys(outermost(node)))
    if len(parts) > MAX_PARTS:
        raise Inexact
    names: dict[Node, Node] = {part: Sym(f"part {place}") for place, part in enumerate(parts)}
    values = {f"part {place}": _part(part, point, numbers, tolerance) for place, part in enumerate(parts)}
    return evaluate(replace_parts(node, names), {**point, **values}, numbers)


def _part(part: Op, point: _Point, numbers: Digits, tolerance: float) -> Any:
    variable = part.args[1]
    if sum(1 for _ in walk(part.args[0])) > MAX_NODES or not isinstance(variable, Sym):
        raise Inexact
    if part.head == "diff" and variable.name in point:
        order = evaluate(part.args[2], {}, numbers) if len(part.args) > 2 else 1
        height = _function(part.args[0], variable.name, point, numbers, tolerance)
        return numbers.context.diff(height, point[variable.name], order)
    bound = f"bound {len(point)}"
    if len(part.args) != 4:
        raise Inexact
    height = _function(open_body(part, bound), bound, point, numbers, tolerance)
    if part.head == "lim":
        return _limit(height, _end(part.args[2], point, numbers), part.args[3], tolerance)
    low, high = (_end(limit, point, numbers) for limit in part.args[2:])
    if part.head != "int":
        return _total(height, part.head, low, high)
    if low > high:
        return -_integral(height, high, low, numbers, tolerance)
    return _integral(height, low, high, numbers, tolerance)


def _function(body: Node, name: str, point: _Point, numbers: Digits, tolerance: float) -> _Function:
    """Return a body as a function of its variable. Parts within parts are only estimated."""
    if is_unevaluated(body):
        if tolerance <= TRUSTED or len(point) > MAX_VARIABLES:
            raise Inexact
        return lambda x: estimate(body, {**point, name: x}, tolerance)
    closure = compile_tree(body, {key: place for place, key in enumerate((*point, name))}, numbers)
    values = tuple(map(numbers.of, point.values()))
    return lambda x: closure((*values, x))


def _end(limit: Node, point: _Point, numbers: Digits) -> Any:
    if limit in (OO, MINUS_OO):
        return math.inf if limit == OO else -math.inf
    return evaluate(limit, point, numbers)


def _require_agreement(first: Any, second: Any, tolerance: float) -> Any:
    """Return the second value. Raise Inexact where the first is another."""
    if not abs(first - second) <= tolerance * max(abs(first), abs(second)):
        raise Inexact
    return second


def _integral(height: _Function, low: Any, high: Any, numbers: Digits, tolerance: float) -> Any:
    try:
        return _by_rule(height, low, high, numbers, tolerance)
    except FAILURES:  # e^{-x^2} far away
        if not math.isinf(high) or math.isinf(low):
            raise
    return _by_panels(height, low, numbers, tolerance)


def _by_rule(height: _Function, low: Any, high: Any, numbers: Digits, tolerance: float) -> Any:
    context = numbers.context
    if tolerance > TRUSTED and not math.isinf(high - low):
        rule = functools.partial(context.quad, height, error=True, method="gauss-legendre", maxdegree=4)
    else:
        rule = functools.partial(context.quad, height, error=True, maxdegree=7)
    if math.isinf(low):
        middle = context.mpf(0.3) if math.isinf(high) else high - 1.3
    else:
        middle = low + 1.3 if math.isinf(high) else low + (high - low) * context.mpf(0.4375)
    whole, error = rule([low, high])
    if not error <= tolerance * abs(whole):
        raise Inexact
    halves, error = rule([low, middle, high])
    if not error <= tolerance * abs(whole):
        raise Inexact
    return _require_agreement(halves, whole, tolerance)


def _by_panels(height: _Function, low: Any, numbers: Digits, tolerance: float) -> Any:
    """The integral to infinity of what vanishes quickly, as sin^9 x / x^9 does."""
    context = numbers.context
    total, quiet = context.mpf(0), 0
    for place in range(MAX_PANELS):
        start = low + place * PANEL
        rule = "gauss-legendre" if place else "tanh-sinh"  # of which the second bears a pole at the lower limit
        part, error = context.quad(height, [start, start + PANEL], error=True, maxdegree=6, method=rule)
        total += part
        if error > tolerance * abs(total):
            break
        # What is left is about the size of the panel times its place, where it falls as 1/x^2 or faster.
        quiet = quiet + 1 if abs(part) * (place + 1) <= tolerance * abs(total) / 10 else 0
        if quiet == 6:
            return total
    raise Inexact


def _total(height: _Function, head: str, low: Any, high: Any) -> Any:
    """The sum or product of a few terms, or the sum of terms that fall at least as a geometric series of ratio 3/4."""
    if low != int(low) or (head == "prod" and math.isinf(high)):
        raise Inexact
    if not math.isinf(high):
        if high != int(high) or not 0 <= high - low + 1 <= MAX_TERMS:
            raise Inexact
        terms = [height(k) for k in range(int(low), int(high) + 1)]
        return sum(terms) if head == "sum" else math.prod(terms)
    total, before, quiet = Fraction(0), None, 0
    for k in range(int(low), int(low) + MAX_TERMS):
        term = height(k)
        total += term
        falls = before is not None and abs(term) <= 0.75 * abs(before)
        quiet = quiet + 1 if falls and abs(term) <= TRUSTED * abs(total) / 10 else 0
        if quiet == 6:
            return total
        before = term
    raise Inexact


def _limit(height: _Function, target: Any, side: Node, tolerance: float) -> Any:
    """The value near the target, where it is the same at three distances from it."""
    if math.isinf(target):
        near = [math.copysign(size, target) for size in (1e3, 1e4, 1e5)]
    else:
        sign = -1 if isinstance(side, Words) and side.text in ("-", "below", "left") else 1
        near = [target + sign * size for size in (1e-2, 1e-3, 1e-4)]
    first, second, third = map(height, near)
    _require_agreement(first, second, 100 * tolerance)
    return _require_agreement(second, third, tolerance)
