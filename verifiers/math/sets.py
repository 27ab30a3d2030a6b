"""Sets of real numbers: intervals, unions, differences and solved inequalities as sorted lists of pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlvr.verifiers.math.exact import Inexact, Undefined, exact
from rlvr.verifiers.math.numeric import evaluate
from rlvr.verifiers.math.systems import Numbers
from rlvr.verifiers.math.tree import OO, Node, Num, Op, Quantity, Rel, Sym, TooLarge, Words, number, symbols, walk

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


MINUS_OO = Op("neg", (OO,))
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
        if not any(isinstance(part, Op) and part.head in ("pm", "mp") for part in walk(values[0])):
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
        if node.head == "pm" and isinstance(first, Op) and first.head == "pm":
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
        return merged(pieces)
    if node.head == "inter":
        result = ALL
        for arg in node.args:
            result = intersection(result, real_set(arg))
        return result
    if node.head == "add" and len(node.args) == 2 and isinstance(node.args[1], Op) and node.args[1].head == "neg":
        node = Op("minus", (node.args[0], node.args[1].args[0]))  # R - {5}
    if node.head == "minus":
        return intersection(real_set(node.args[0]), _complement(real_set(node.args[1])))
    if node.head == "set":
        return merged([piece for arg in node.args for piece in _piece(_end(arg, True), _end(arg, True))])
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
    try:
        value = evaluate(node, {}, Numbers(False))[0]
    except (ValueError, OverflowError, ZeroDivisionError):
        raise NotASet from None
    if isinstance(value, complex):
        raise NotASet
    return End(float(value), node, closed)


def _piece(low: End, high: End) -> list[Piece]:
    if low.place > high.place or (low.place == high.place and not (low.closed and high.closed)):
        raise NotASet
    return [Piece(low, high)]


def merged(pieces: list[Piece]) -> list[Piece]:
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
        result = intersection(result, _reached(left, op, right))
    if len(names) != 1:
        raise NotASet
    return result


def _bare(node: Node) -> Sym | None:
    """The x of x, -x and |x|."""
    if isinstance(node, Op) and node.head in ("neg", "abs"):
        node = node.args[0]
    return node if isinstance(node, Sym) and symbols(node) else None


def _reached(left: Node, op: str, bound: Node) -> list[Piece]:
    """The numbers x for which x, -x or |x| has the relation to a bound."""
    opposite: Node = bound.args[0] if isinstance(bound, Op) and bound.head == "neg" else Op("neg", (bound,))
    if isinstance(left, Sym):
        return _half(op, bound)
    if isinstance(left, Op) and left.head == "neg":
        return _half(TURNED[op], opposite)
    if op in ("=", "!=") or _end(bound, True).place <= 0:
        raise NotASet
    above, below = _half(op, bound), _half(TURNED[op], opposite)
    return intersection(above, below) if op in ("<", "<=") else merged(below + above)


def _half(op: str, bound: Node) -> list[Piece]:
    if op in ("=", "!="):
        points = [point for one in signs(bound) for point in _piece(_end(one, True), _end(one, True))]
        return points if op == "=" else _complement(merged(points))
    end = _end(bound, op in ("<=", ">="))
    if op in ("<", "<="):
        return [Piece(LOWEST, end)]
    return [Piece(end, HIGHEST)]
