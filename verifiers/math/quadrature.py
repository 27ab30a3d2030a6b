"""Integrals and series as numbers of 11 digits, which decide about an answer where sympy has no time for the gold.

A value is given only where two computations agree to TRUSTED: an integral over one interval and over two, a sum whose
terms vanish. Integrals over a finite interval are by the tanh-sinh rule at 30 digits (Takahasi and Mori 1974), those
to infinity where it converges, else panel by panel until the panels vanish.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.binders import opened, outermost, replaced, unevaluated
from rlvr.verifiers.math.numeric import evaluate
from rlvr.verifiers.math.systems import Digits
from rlvr.verifiers.math.tree import OO, Node, Num, Op, Sym, walk

DIGITS = 30
TRUSTED = 1e-14  # relative difference of two computations of one value
EQUAL, APART = 1e-11, 1e-6  # relative differences of equal and of different values
MAX_NODES = 60  # of a body
MAX_PARTS = 3
PANEL = math.pi / 2
MAX_PANELS = 80
MAX_TERMS = 400
_POINT = "bound of an estimate"
_MINUS_OO = Op("neg", (OO,))
_FAILURES = (ValueError, ArithmeticError, TypeError)

_Function = Callable[[Any], Any]


def agrees(gold: Node, answer: Node) -> bool | None:
    """Whether a gold with integrals and series has the value of an answer without; None where no value tells."""
    wanted = value_of(gold)
    try:
        found = None if wanted is None else _number(answer)
    except _FAILURES:
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
    parts = list(dict.fromkeys(outermost(node)))
    if not parts or len(parts) > MAX_PARTS:
        return None
    try:
        values = {part: _part(part) for part in parts}
        if None in values.values():
            return None
        names: dict[Node, Node] = {part: Sym(f"part {place}") for place, part in enumerate(parts)}
        point = {f"part {place}": values[part] for place, part in enumerate(parts)}
        return _number(replaced(node, names), point)
    except _FAILURES:
        return None


def _number(node: Node, point: Mapping[str, Any] | None = None) -> Any:
    if unevaluated(node):
        raise ValueError("not evaluated")
    return evaluate(node, point or {}, Digits(True, None, DIGITS))[0]


def _part(part: Op) -> Any:
    body = part.args[0]
    if part.head not in ("int", "sum") or len(part.args) != 4 or unevaluated(body):
        return None
    if sum(1 for _ in walk(body)) > MAX_NODES:
        return None
    numbers = Digits(True, None, DIGITS)
    opened_body = opened(part, _POINT)

    def height(x: Any) -> Any:
        return evaluate(opened_body, {_POINT: x}, numbers)[0]

    low, high = (_end(limit, numbers) for limit in part.args[2:])
    if part.head == "sum":
        return _series(height, low, numbers) if high == math.inf and low == int(low) else None
    sign = 1
    if low > high:
        low, high, sign = high, low, -1
    try:
        found = _by_rule(height, low, high, numbers)
    except _FAILURES:
        found = None  # e^{-x^2} far away
    if found is None and math.isinf(high) and not math.isinf(low):
        found = _by_panels(height, low, numbers)
    return None if found is None else sign * found


def _end(limit: Node, numbers: Digits) -> Any:
    if limit in (OO, _MINUS_OO):
        return math.inf if limit == OO else -math.inf
    return _number(limit) if not isinstance(limit, Num) else numbers.of(limit.value)


def _by_rule(height: _Function, low: Any, high: Any, numbers: Digits) -> Any:
    context = numbers.context
    if math.isinf(low):
        middle = context.mpf(0.3) if math.isinf(high) else high - 1.3
    else:
        middle = low + 1.3 if math.isinf(high) else low + (high - low) * 0.4375
    whole, error = context.quad(height, [low, high], error=True, maxdegree=7)
    if not error <= TRUSTED * abs(whole):
        return None
    halves, error = context.quad(height, [low, middle, high], error=True, maxdegree=7)
    return whole if max(error, abs(whole - halves)) <= TRUSTED * abs(whole) else None


def _by_panels(height: _Function, low: Any, numbers: Digits) -> Any:
    """The integral to infinity of what vanishes quickly, as sin^9 x / x^9 does."""
    context = numbers.context
    total, quiet = context.mpf(0), 0
    for place in range(MAX_PANELS):
        start = low + place * PANEL
        rule = "gauss-legendre" if place else "tanh-sinh"  # of which the second bears a pole at the lower limit
        part, error = context.quad(height, [start, start + PANEL], error=True, maxdegree=6, method=rule)
        total += part
        if error > TRUSTED * abs(total):
            return None
        # What is left is about the size of the panel times its place, where it falls as 1/x^2 or faster.
        quiet = quiet + 1 if abs(part) * (place + 1) <= TRUSTED * abs(total) / 10 else 0
        if quiet == 6:
            return total
    return None


def _series(height: _Function, low: Any, numbers: Digits) -> Any:
    """The sum of terms that fall at least as a geometric series of ratio 3/4."""
    total, before, quiet = numbers.context.mpf(0), None, 0
    for k in range(int(low), int(low) + MAX_TERMS):
        term = height(Fraction(k))
        total += term
        falls = before is not None and abs(term) <= 0.75 * abs(before)
        quiet = quiet + 1 if falls and abs(term) <= TRUSTED * abs(total) / 10 else 0
        if quiet == 6:
            return total
        before = term
    return None
