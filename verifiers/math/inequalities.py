"""Inequalities: which numbers solve one in a single variable, and whether two differ by a factor only.

Solved here: rational functions with rational coefficients, and |u| against a number or |v|, whose numerators and
denominators split into rational roots and quadratics. Anything else is NotASet.
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

from rlvr.verifiers.math.compiled import compiled
from rlvr.verifiers.math.exact import Inexact, Undefined, rational
from rlvr.verifiers.math.identity import Undecided, same_value
from rlvr.verifiers.math.numeric import substituted
from rlvr.verifiers.math.points import UNDEFINED, base_points
from rlvr.verifiers.math.sets import ALL, HIGHEST, LOWEST, TURNED, End, NotASet, Piece, intersection, merged
from rlvr.verifiers.math.tree import Node, Num, Op, Rel, Sym, TooLarge, number, symbols

MAX_DEGREE = 8
MAX_COEFFICIENT = 100_000
MAX_CANDIDATES = 500
_POINTS = 12

_Polynomial = list[Fraction]  # coefficients, the constant first; no zeros at the end
_Quotient = tuple[_Polynomial, _Polynomial]


def solution_set(chain: Rel) -> list[Piece]:
    """Return the set of numbers for which a chain of inequalities in one variable holds. Raise NotASet."""
    names = sorted(frozenset().union(*(symbols(side) for side in chain.sides)))
    if len(names) != 1 or not set(chain.ops) <= set(TURNED):
        raise NotASet
    result = ALL
    for op, left, right in zip(chain.ops, chain.sides, chain.sides[1:], strict=False):
        result = intersection(result, _solved(op, left, right, names[0]))
    return result


def _solved(op: str, left: Node, right: Node, name: str) -> list[Piece]:
    if _is_abs(right):
        op, left, right = TURNED[op], right, left
    if _is_abs(left):
        bound = rational(right)
        if not _is_abs(right) and bound is None:
            raise NotASet
        if bound is not None and bound < 0:
            return [] if op in ("<", "<=", "=") else ALL
        left, right = (Op("pow", (_inside(side), number(2))) for side in (left, right))
    (a, b), (c, d) = _quotient(left, name), _quotient(right, name)
    top = _plus(_times(a, d), [-value for value in _times(c, b)])
    return _where(op, top, _times(b, d))


def _is_abs(node: Node) -> bool:
    return isinstance(node, Op) and node.head == "abs"


def _inside(node: Node) -> Node:
    return node.args[0] if isinstance(node, Op) and node.head == "abs" else node


# --- rational functions -----------------------------------------------------------------------------------------------


def _quotient(node: Node, name: str) -> _Quotient:
    """Return numerator and denominator of a rational function of one variable. Raise NotASet."""
    value = rational(node)
    if value is not None:
        return _trimmed([value]), [Fraction(1)]
    if node == Sym(name):
        return [Fraction(0), Fraction(1)], [Fraction(1)]
    if not isinstance(node, Op):
        raise NotASet
    if node.head == "pow":
        exponent = rational(node.args[1])
        if exponent is None or exponent.denominator != 1 or not 0 < exponent <= MAX_DEGREE:
            raise NotASet
        base = _quotient(node.args[0], name)
        result: _Quotient = ([Fraction(1)], [Fraction(1)])
        for _ in range(exponent.numerator):
            result = _times(result[0], base[0]), _times(result[1], base[1])
        return result
    if node.head not in ("add", "mul", "div", "neg"):
        raise NotASet
    parts = [_quotient(arg, name) for arg in node.args]
    top, bottom = parts[0]
    if node.head == "neg":
        return [-value for value in top], bottom
    for other_top, other_bottom in parts[1:]:
        if node.head == "div":
            other_top, other_bottom = other_bottom, other_top
        if node.head == "add":
            top = _plus(_times(top, other_bottom), _times(other_top, bottom))
        else:
            top = _times(top, other_top)
        bottom = _times(bottom, other_bottom)
    return top, bottom


def _trimmed(polynomial: _Polynomial) -> _Polynomial:
    while polynomial and not polynomial[-1]:
        polynomial = polynomial[:-1]
    if len(polynomial) > MAX_DEGREE + 1:
        raise NotASet
    return polynomial


def _plus(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    size = max(len(left), len(right))
    padded = [values + [Fraction(0)] * (size - len(values)) for values in (left, right)]
    return _trimmed([a + b for a, b in zip(*padded, strict=True)])


def _times(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    result = [Fraction(0)] * max(len(left) + len(right) - 1, 0)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            result[i + j] += a * b
    return _trimmed(result)


def _at(polynomial: _Polynomial, x: Fraction) -> Fraction:
    value = Fraction(0)
    for coefficient in reversed(polynomial):
        value = value * x + coefficient
    return value


# --- roots and signs --------------------------------------------------------------------------------------------------


def _where(op: str, top: _Polynomial, bottom: _Polynomial) -> list[Piece]:
    """Return where top / bottom op 0."""
    if not bottom:
        raise NotASet
    zeros, poles = _roots(top) if top else [], _roots(bottom)
    places: dict[float, tuple[Node, bool]] = {place: (node, False) for place, node in zeros}
    places.update((place, (node, True)) for place, node in poles)
    order = sorted(places)
    if any(high - low < 1e-9 * max(1.0, abs(low)) for low, high in itertools.pairwise(order)):
        raise NotASet
    ends = [End(place, places[place][0], False) for place in order]
    pieces: list[Piece] = []
    for low, high in zip([LOWEST, *ends], [*ends, HIGHEST], strict=True):
        x = Fraction(_between(low.place, high.place))
        value = _at(top, x) * _at(bottom, x)
        if _holds(op, value):
            pieces.append(Piece(low, high))
    for end in ends:
        if not places[end.place][1] and _holds(op, Fraction(0)):
            closed = end._replace(closed=True)
            pieces.append(Piece(closed, closed))
    return merged(pieces)


def _holds(op: str, value: Fraction) -> bool:
    sign = (value > 0) - (value < 0)
    return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0, "=": sign == 0, "!=": sign != 0}[op]


def _between(low: float, high: float) -> float:
    if low == -math.inf:
        return 0.0 if high == math.inf else high - 1
    return low + 1 if high == math.inf else (low + high) / 2


def _roots(polynomial: _Polynomial) -> list[tuple[float, Node]]:
    """Return the real roots as numbers and trees. Raise NotASet where a factor above degree 2 has no rational root."""
    scale = math.lcm(*(value.denominator for value in polynomial))
    whole = [int(value * scale) for value in polynomial]
    found: dict[Fraction, None] = {}
    while len(whole) > 3 or (len(whole) > 1 and not whole[0]):
        root = _rational_root(whole)
        found[root] = None
        whole = _divided(whole, root)
    roots: list[tuple[float, Node]] = [(float(root), Num(root)) for root in found]
    if len(whole) == 2:
        root = Fraction(-whole[0], whole[1])
        roots.append((float(root), Num(root)))
    elif len(whole) == 3:
        roots += _quadratic(*whole)
    return list(dict(roots).items())


def _rational_root(whole: list[int]) -> Fraction:
    if not whole[0]:
        return Fraction(0)
    if max(abs(whole[0]), abs(whole[-1])) > MAX_COEFFICIENT:
        raise NotASet
    tops, bottoms = _divisors(abs(whole[0])), _divisors(abs(whole[-1]))
    if len(tops) * len(bottoms) > MAX_CANDIDATES:
        raise NotASet
    degree = len(whole) - 1
    for q in bottoms:
        powers = [q ** (degree - k) for k in range(degree + 1)]
        for p in tops:
            for root in (p, -p):
                if not sum(value * root**k * powers[k] for k, value in enumerate(whole)):
                    return Fraction(root, q)
    raise NotASet


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _divided(whole: list[int], root: Fraction) -> list[int]:
    """Return the polynomial without one factor (x - root), with integer coefficients."""
    result: list[Fraction] = []
    value = Fraction(0)
    for coefficient in reversed(whole):
        value = value * root + coefficient
        result.append(value)
    quotient = result[:-1][::-1]
    scale = math.lcm(*(value.denominator for value in quotient))
    return [int(value * scale) for value in quotient]


def _quadratic(c: int, b: int, a: int) -> list[tuple[float, Node]]:
    discriminant = b * b - 4 * a * c
    if discriminant < 0:
        return []
    root = math.isqrt(discriminant)
    if root * root == discriminant:
        exact = [Fraction(-b - root, 2 * a), Fraction(-b + root, 2 * a)]
        return [(float(value), Num(value)) for value in exact]
    if discriminant > 10**30:
        raise NotASet
    radical = Op("root", (number(2), number(discriminant)))
    result: list[tuple[float, Node]] = []
    for sign in (-1, 1):
        top = Op("add", (number(-b), radical if sign > 0 else Op("neg", (radical,))))
        result.append(((-b + sign * math.sqrt(discriminant)) / (2 * a), Op("div", (top, number(2 * a)))))
    return result


# --- a common factor --------------------------------------------------------------------------------------------------


def same_up_to_factor(gold: Rel, answer: Rel) -> bool:
    """Whether left minus right of two inequalities differ by a constant factor, whose sign fits the signs."""
    op, other = gold.ops[0], answer.ops[0]
    if op not in TURNED or other not in TURNED:
        return False
    left, right = _difference(gold), _difference(answer)
    names = sorted(symbols(left) | symbols(right))
    try:
        found = _factor(left, right, names)
        if found is None:
            return False
        positive, g, a = found
        if other != (op if positive else TURNED[op]):
            return False
        return same_value(Op("mul", (left, a)), Op("mul", (right, g)))
    except (Inexact, Undefined, Undecided, TooLarge):
        return False


def _difference(chain: Rel) -> Op:
    return Op("add", (chain.sides[0], Op("neg", (chain.sides[1],))))


def _factor(left: Op, right: Op, names: list[str]) -> tuple[bool, Node, Node] | None:
    """Return whether left / right is positive, and both at one point; None where the quotient is not constant."""
    places = {name: place for place, name in enumerate(names)}
    functions = [compiled(tree, places) for tree in (left, right)]
    ratio = point = None
    for values in base_points(names, {}, [], random.Random(f"{left}|{right}"), _POINTS):
        values = tuple(round(value * 64) / 64 for value in values)
        try:
            g, a = (function(values) for function in functions)
            quotient = g / a
        except UNDEFINED:
            continue
        if not quotient or (ratio is not None and abs(quotient - ratio) > 1e-9 * abs(ratio)):
            return None
        if ratio is None:
            ratio, point = quotient, values
    if ratio is None or point is None:
        return None
    filled: dict[str, Node] = {name: Num(Fraction(value)) for name, value in zip(names, point, strict=True)}
    return ratio > 0, substituted(left, filled), substituted(right, filled)
