"""Sets of real numbers as sorted lists of intervals, and the inequalities whose solutions they are.

Solved here: rational functions with rational coefficients, and |u| against a number or |v|, whose numerators and
denominators split into rational roots and quadratics. Anything else raises NotASet.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

from .exact import Inexact, Undefined, exact, rational
from .identity import Undecided, base_points, same_value
from .numeric import FAILURES, Floats, compile_tree, try_evaluate
from .tree import (
    MINUS_OO,
    OO,
    Node,
    Num,
    Op,
    Quantity,
    Rel,
    Sym,
    TooLarge,
    Words,
    is_op,
    number,
    substitute,
    subtract,
    symbols,
    walk,
)

MAX_PIECES = 200
MAX_NESTED_SIGNS = 4  # plus-minus signs one below another
TURNED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class NotASet(ValueError):
    """Not a set of real numbers in explicit form."""


class End(NamedTuple):
    """An endpoint: its place as a float for sorting, its tree, whether it belongs to the piece."""

    place: float
    node: Node
    closed: bool


class Piece(NamedTuple):
    """An interval; a point where both ends are the same."""

    low: End
    high: End


LOWEST = End(float("-inf"), MINUS_OO, False)
HIGHEST = End(float("inf"), OO, False)
ALL = [Piece(LOWEST, HIGHEST)]


def signs(node: Node) -> list[Node]:
    """Return both values of an expression with plus-minus, else the expression itself.

    Signs side by side go together, upper with upper, as in a \\pm b \\mp c and in a tuple. Independent are one below
    another, as in a root after a sign, and those of a sum without \\mp: \\pm 1 \\pm \\sqrt2 has four values.
    """
    values = [node]
    for _ in range(MAX_NESTED_SIGNS):
        if not any(is_op(part, "pm", "mp") for part in walk(values[0])):
            break
        values = [_with_sign(value, upper) for value in values for upper in (True, False)]
    return values


def _with_sign(node: Node, upper: bool) -> Node:
    if isinstance(node, Rel):
        return Rel(node.ops, tuple(_with_sign(side, upper) for side in node.sides))
    if isinstance(node, Quantity):
        return Quantity(_with_sign(node.value, upper), node.unit)
    if not isinstance(node, Op):
        return node
    if node.head in ("pm", "mp"):
        first, second = node.args
        if node.head == "pm" and is_op(first, "pm"):
            return Op("add", (first, second if upper else Op("neg", (second,))))  # whose sign is its own
        plus = upper == (node.head == "pm")
        return Op("add", (_with_sign(first, upper), second if plus else Op("neg", (second,))))
    return Op(node.head, tuple(_with_sign(arg, upper) for arg in node.args))


_ZERO = number(0)
_DOMAINS = {
    "reals": Op("()", (MINUS_OO, OO)),
    "positive reals": Op("()", (_ZERO, OO)),
    "nonnegative reals": Op("[)", (_ZERO, OO)),
    "negative reals": Op("()", (MINUS_OO, _ZERO)),
    "nonpositive reals": Op("(]", (MINUS_OO, _ZERO)),
    "nonzero reals": Op("union", (Op("()", (MINUS_OO, _ZERO)), Op("()", (_ZERO, OO)))),
}


def real_set(node: Node) -> list[Piece]:
    """Return the sorted, disjoint pieces of a set. Raise NotASet."""
    if isinstance(node, Rel):
        return _relation(node)
    if not isinstance(node, Op):
        raise NotASet
    if node.head in ("()", "[]", "[)", "(]") and len(node.args) == 2:
        low, high = node.args
        return _piece(_end(low, node.head[0] == "["), _end(high, node.head[1] == "]"))
    if node.head == "both" or (node.head == "list" and all(isinstance(arg, Rel) for arg in node.args)):
        result = ALL
        for arg in node.args:
            result = intersection(result, real_set(arg))
        if result or node.head == "both":
            return result
    if node.head == "list" and isinstance(node.args[0], Rel) and node.args[0].ops == ("!=",):
        variable = node.args[0].sides[0]
        rest = (arg if isinstance(arg, Rel) else Rel(("!=",), (variable, arg)) for arg in node.args[1:])
        return real_set(Op("both", (node.args[0], *rest)))
    if node.head in ("union", "either", "list"):
        pieces: list[Piece] = []
        for arg in node.args:
            pieces += real_set(arg)
        return merge(pieces)
    if node.head == "inter":
        result = ALL
        for arg in node.args:
            result = intersection(result, real_set(arg))
        return result
    if node.head == "add" and len(node.args) == 2 and is_op(node.args[1], "neg"):
        node = Op("minus", (node.args[0], node.args[1].args[0]))  # R - {5}
    if node.head == "minus":
        return intersection(real_set(node.args[0]), _complement(real_set(node.args[1])))
    if node.head == "set":
        return merge([piece for arg in node.args for piece in _piece(_end(arg, True), _end(arg, True))])
    if node.head == "domain" and isinstance(node.args[0], Words) and node.args[0].text in _DOMAINS:
        return real_set(_DOMAINS[node.args[0].text])
    raise NotASet


def same_real_set(gold: list[Piece], answer: list[Piece], equal: Callable[[Node, Node], bool]) -> bool:
    """Whether two sets have the same pieces, with equal ends, open or closed alike."""
    return len(gold) == len(answer) and all(
        g.low.closed == a.low.closed
        and g.high.closed == a.high.closed
        and equal(g.low.node, a.low.node)
        and equal(g.high.node, a.high.node)
        for g, a in zip(gold, answer, strict=True)
    )


def _end(node: Node, closed: bool) -> End:
    if type(node) is not Num and node in (OO, MINUS_OO):
        if closed:
            raise NotASet
        return HIGHEST if node == OO else LOWEST
    if symbols(node):
        raise NotASet
    try:
        return End(float(exact(node)), node, closed)
    except Inexact:
        pass
    except (Undefined, TooLarge, OverflowError):
        raise NotASet from None
    found = try_evaluate(node, {}, Floats(False))
    if found is None or isinstance(found, complex):
        raise NotASet
    return End(float(found), node, closed)


def _piece(low: End, high: End) -> list[Piece]:
    if low.place > high.place or (low.place == high.place and not (low.closed and high.closed)):
        raise NotASet
    return [Piece(low, high)]


def merge(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces sorted, with touching pieces joined."""
    if len(pieces) > MAX_PIECES:
        raise NotASet
    pieces = sorted(pieces, key=lambda p: (p.low.place, not p.low.closed))
    result: list[Piece] = []
    for piece in pieces:
        if result:
            last = result[-1]
            if piece.low.place < last.high.place or (
                piece.low.place == last.high.place and (piece.low.closed or last.high.closed)
            ):
                high = max(last.high, piece.high, key=lambda end: (end.place, end.closed))
                result[-1] = Piece(last.low, high)
                continue
        result.append(piece)
    return result


def _complement(pieces: list[Piece]) -> list[Piece]:
    result: list[Piece] = []
    low = LOWEST
    for piece in pieces:
        high = piece.low._replace(closed=not piece.low.closed)
        if low.place < high.place or (low.place == high.place and low.closed and high.closed):
            result.append(Piece(low, high))
        low = piece.high._replace(closed=not piece.high.closed)
        if piece.high is HIGHEST:
            return result
    result.append(Piece(low, HIGHEST))
    return result


def intersection(left: list[Piece], right: list[Piece]) -> list[Piece]:
    """Return the pieces that belong to both sets."""
    result: list[Piece] = []
    for a in left:
        for b in right:
            low = max(a.low, b.low, key=lambda end: (end.place, not end.closed))
            high = min(a.high, b.high, key=lambda end: (end.place, end.closed))
            if low.place < high.place or (low.place == high.place and low.closed and high.closed):
                result.append(Piece(low, high))
    if len(result) > MAX_PIECES:
        raise NotASet
    return result


def _relation(chain: Rel) -> list[Piece]:
    """A solved inequality (x, -x or |x| on one side or in the middle), or `x in S`."""
    if chain.ops in (("in",), ("notin",)) and isinstance(chain.sides[0], Sym):
        inner = real_set(chain.sides[1])
        return inner if chain.ops == ("in",) else _complement(inner)
    result = ALL
    names = set()
    for op, left, right in zip(chain.ops, chain.sides, chain.sides[1:], strict=False):
        if op not in TURNED:
            raise NotASet
        if symbols(right) and _bare(right) is not None:
            op, left, right = TURNED[op], right, left
        variable = _bare(left)
        if variable is None or symbols(right):
            raise NotASet
        names.add(variable.name)
        result = intersection(result, _solve_bare(left, op, right))
    if len(names) != 1:
        raise NotASet
    return result


def _bare(node: Node) -> Sym | None:
    """The x of x, -x and |x|."""
    if is_op(node, "neg", "abs"):
        node = node.args[0]
    return node if isinstance(node, Sym) and symbols(node) else None


def _solve_bare(left: Node, op: str, bound: Node) -> list[Piece]:
    """The numbers x for which x, -x or |x| has the relation to a bound."""
    opposite: Node = bound.args[0] if is_op(bound, "neg") else Op("neg", (bound,))
    if isinstance(left, Sym):
        return _half(op, bound)
    if is_op(left, "neg"):
        return _half(TURNED[op], opposite)
    if op in ("=", "!=") or _end(bound, True).place <= 0:
        raise NotASet
    above, below = _half(op, bound), _half(TURNED[op], opposite)
    return intersection(above, below) if op in ("<", "<=") else merge(below + above)


def _half(op: str, bound: Node) -> list[Piece]:
    if op in ("=", "!="):
        points = [point for one in signs(bound) for point in _piece(_end(one, True), _end(one, True))]
        return points if op == "=" else _complement(merge(points))
    end = _end(bound, op in ("<=", ">="))
    if op in ("<", "<="):
        return [Piece(LOWEST, end)]
    return [Piece(end, HIGHEST)]


# --- inequalities -----------------------------------------------------------------------------------------------------

MAX_DEGREE = 8
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
        result = intersection(result, _solve(op, left, right, names[0]))
    return result


def solve_any(node: Node) -> list[Piece]:
    """Return the set that a node is or, of an inequality to be solved, has as its solutions. Raise NotASet."""
    try:
        return real_set(node)
    except NotASet:
        if isinstance(node, Rel):
            return solution_set(node)
        raise


def _solve(op: str, left: Node, right: Node, name: str) -> list[Piece]:
    if is_op(right, "abs"):
        op, left, right = TURNED[op], right, left
    if is_op(left, "abs"):
        bound = rational(right)
        if not is_op(right, "abs") and bound is None:
            raise NotASet
        if bound is not None and bound < 0:
            return [] if op in ("<", "<=", "=") else ALL
        left, right = (Op("pow", (_inside(side), number(2))) for side in (left, right))
    (a, b), (c, d) = _quotient(left, name), _quotient(right, name)
    top = _plus(_times(a, d), [-value for value in _times(c, b)])
    return _where(op, top, _times(b, d))


def _inside(node: Node) -> Node:
    return node.args[0] if is_op(node, "abs") else node


# --- rational functions -----------------------------------------------------------------------------------------------


def _quotient(node: Node, name: str) -> _Quotient:
    """Return numerator and denominator of a rational function of one variable. Raise NotASet."""
    value = rational(node)
    if value is not None:
        return _trim([value]), [Fraction(1)]
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


def _trim(polynomial: _Polynomial) -> _Polynomial:
    while polynomial and not polynomial[-1]:
        polynomial = polynomial[:-1]
    if len(polynomial) > MAX_DEGREE + 1:
        raise NotASet
    return polynomial


def _plus(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    size = max(len(left), len(right))
    padded = [values + [Fraction(0)] * (size - len(values)) for values in (left, right)]
    return _trim([a + b for a, b in zip(*padded, strict=True)])


def _times(left: _Polynomial, right: _Polynomial) -> _Polynomial:
    result = [Fraction(0)] * max(len(left) + len(right) - 1, 0)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            result[i + j] += a * b
    return _trim(result)


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
        x = Fraction(between(low.place, high.place))
        value = _at(top, x) * _at(bottom, x)
        if _holds(op, value):
            pieces.append(Piece(low, high))
    for end in ends:
        if not places[end.place][1] and _holds(op, Fraction(0)):
            closed = end._replace(closed=True)
            pieces.append(Piece(closed, closed))
    return merge(pieces)


def _holds(op: str, value: Fraction) -> bool:
    sign = (value > 0) - (value < 0)
    return {"<": sign < 0, "<=": sign <= 0, ">": sign > 0, ">=": sign >= 0, "=": sign == 0, "!=": sign != 0}[op]


def between(low: float, high: float) -> float:
    """Return a number between two ends of the line."""
    if low == -math.inf:
        return 0.0 if high == math.inf else high - 1
    return low + 1 if high == math.inf else (low + high) / 2


def _roots(polynomial: _Polynomial) -> list[tuple[float, Node]]:
    """Return the real roots as numbers and trees. Raise NotASet above degree 2, powers of the variable aside."""
    scale = math.lcm(*(value.denominator for value in polynomial))
    whole = [int(value * scale) for value in polynomial]
    zeros = next(power for power, value in enumerate(whole) if value)
    roots: list[tuple[float, Node]] = [(0.0, number(0))] if zeros else []
    whole = whole[zeros:]
    if len(whole) > 3:
        raise NotASet
    if len(whole) == 2:
        root = Fraction(-whole[0], whole[1])
        roots.append((float(root), Num(root)))
    elif len(whole) == 3:
        roots += _quadratic(*whole)
    return roots


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
    left, right = (subtract(*chain.sides[:2]) for chain in (gold, answer))
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


def _factor(left: Op, right: Op, names: list[str]) -> tuple[bool, Node, Node] | None:
    """Return whether left / right is positive, and both at one point; None where the quotient is not constant."""
    places = {name: place for place, name in enumerate(names)}
    functions = [compile_tree(tree, places) for tree in (left, right)]
    ratio = point = None
    for values in base_points(names, {}, [], random.Random(f"{left}|{right}"), _POINTS):
        values = tuple(round(value * 64) / 64 for value in values)
        try:
            g, a = (function(values) for function in functions)
            quotient = g / a
        except FAILURES:
            continue
        if not quotient or (ratio is not None and abs(quotient - ratio) > 1e-9 * abs(ratio)):
            return None
        if ratio is None:
            ratio, point = quotient, values
    if ratio is None or point is None:
        return None
    filled: dict[str, Node] = {name: Num(Fraction(value)) for name, value in zip(names, point, strict=True)}
    return ratio > 0, substitute(left, filled), substitute(right, filled)
