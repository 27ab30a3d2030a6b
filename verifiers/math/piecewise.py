"""Comparison of functions by cases: `\\begin{cases}x & x \\ge 0\\\\ -x & x < 0\\end{cases}` is |x|.

The line is cut at the ends of all conditions. Both sides must be defined on the same parts, and equal there: at a point
by the values, on an interval as functions of a variable that runs through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.binders import substituted
from rlvr.verifiers.math.cases import OTHERWISE
from rlvr.verifiers.math.sets import ALL, HIGHEST, LOWEST, End, NotASet, Piece, real_set
from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, Words, number, symbols

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules

MAX_ENDS = 40
_VARIABLE = Sym("inner variable")

_Case = tuple[Node, Node]  # value, condition


def is_piecewise(node: Node) -> bool:
    """Whether a node is a function by cases."""
    return isinstance(node, Op) and node.head == "piecewise"


def same_piecewise(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether two functions are equal, at least one of which is given by cases."""
    gold, answer = without_parity(gold), without_parity(answer)
    if not is_piecewise(gold) and not is_piecewise(answer):
        return rules.values(gold, answer)
    left, right = _cases(gold), _cases(answer)
    names = frozenset(name for _, condition in left + right for name in symbols(condition))
    by_words = any(isinstance(c, Words) and c != OTHERWISE for _, c in left + right)
    if len(names) != 1 or by_words:
        return is_piecewise(gold) and is_piecewise(answer) and _same_cases(left, right, rules)
    (name,) = names
    try:
        gold_parts = [(value, _where(condition)) for value, condition in left]
        parts = [(value, _where(condition)) for value, condition in right]
    except NotASet:
        return is_piecewise(gold) and is_piecewise(answer) and _same_cases(left, right, rules)
    ends = _ends([pieces for _, pieces in gold_parts + parts])
    if len(ends) > MAX_ENDS:
        return False
    for end in ends:
        if not _same_at(_value_at(gold_parts, end.place), _value_at(parts, end.place), {name: end.node}, rules):
            return False
    for low, high in zip([LOWEST, *ends], [*ends, HIGHEST], strict=True):
        place = _between(low.place, high.place)
        inside = {name: _running(low, high)}
        if not _same_at(_value_at(gold_parts, place), _value_at(parts, place), inside, rules):
            return False
    return True


def without_parity(node: Node) -> Node:
    """Return cases for even and for odd n as one expression with (-1)^n; another node as it is."""
    if not is_piecewise(node) or len(cases := _cases(node)) != 2:
        return node
    first, second = (_parity(condition) for _, condition in cases)
    if first is None or (second is None and cases[1][1] != OTHERWISE) or (second is not None and second[0] != first[0]):
        return node
    name, odd = first
    if second is not None and second[1] == odd:
        return node
    even_value, odd_value = (cases[1][0], cases[0][0]) if odd else (cases[0][0], cases[1][0])
    sign = Op("pow", (Op("neg", (number(1),)), Sym(name)))
    total, difference = Op("add", (even_value, odd_value)), Op("add", (even_value, Op("neg", (odd_value,))))
    return Op("div", (Op("add", (total, Op("mul", (sign, difference)))), number(2)))


def _parity(condition: Node) -> tuple[str, bool] | None:
    r"""The variable of n even, n odd or n \equiv 1 \pmod 2, and whether it is odd."""
    if isinstance(condition, Words):
        name, _, word = condition.text.partition(" ")
        return (name, word == "odd") if len(name) == 1 and word in ("even", "odd") else None
    if not isinstance(condition, Rel) or condition.ops != ("=",):
        return None
    left, right = condition.sides
    if not isinstance(left, Sym) or not isinstance(right, Op) or right.head != "mod" or right.args[1] != number(2):
        return None
    return (left.name, right.args[0] == number(1)) if right.args[0] in (number(0), number(1)) else None


def _cases(node: Node) -> list[_Case]:
    """The values and conditions, "otherwise" last; a function without cases has one that always holds."""
    if not isinstance(node, Op) or node.head != "piecewise":
        return [(node, OTHERWISE)]
    cases = [(case.args[0], case.args[1]) for case in node.args if isinstance(case, Op)]
    return sorted(cases, key=lambda case: case[1] == OTHERWISE)


def _where(condition: Node) -> list[Piece]:
    """The set of a condition. "Otherwise" is everywhere: the first case that holds counts."""
    return ALL if condition == OTHERWISE else real_set(condition)


def _ends(sets: list[list[Piece]]) -> list[End]:
    """The finite ends of the pieces, each place once, in order."""
    found = {end.place: end for pieces in sets for piece in pieces for end in piece if abs(end.place) != float("inf")}
    return [found[place] for place in sorted(found)]


def _value_at(parts: list[tuple[Node, list[Piece]]], place: float) -> Node | None:
    """The value of the first case that holds at a place; None where none does."""
    for value, pieces in parts:
        for low, high in pieces:
            above = low.place < place or (low.place == place and low.closed)
            if above and (place < high.place or (place == high.place and high.closed)):
                return value
    return None


def _between(low: float, high: float) -> float:
    if low == float("-inf"):
        return high - 1 if high != float("inf") else 0.0
    return low + 1 if high == float("inf") else (low + high) / 2


def _running(low: End, high: End) -> Node:
    """An expression whose values are the points between two ends: low + t^2, high - t^2 or a mean of both."""
    square = Op("pow", (_VARIABLE, number(2)))
    below, above = low.place == float("-inf"), high.place == float("inf")
    if below and above:
        return _VARIABLE
    if above:
        return Op("add", (low.node, square))
    if below:
        return Op("add", (high.node, Op("neg", (square,))))
    share = Op("div", (square, Op("add", (number(1), square))))
    width = Op("add", (high.node, Op("neg", (low.node,))))
    return Op("add", (low.node, Op("mul", (width, share))))


def _same_at(gold: Node | None, answer: Node | None, values: dict[str, Node], rules: Rules) -> bool:
    if gold is None or answer is None:
        return gold is answer
    return gold == answer or rules.values(substituted(gold, values), substituted(answer, values))


def _same_cases(left: list[_Case], right: list[_Case], rules: Rules) -> bool:
    """Whether the cases can be paired, by their conditions, of the same variables, and then their values."""
    rest = list(right)
    for value, condition in left:
        named = (case for case in rest if symbols(case[1]) == symbols(condition))
        match = next((case for case in named if rules.same(condition, case[1]) and rules.same(value, case[0])), None)
        if match is None:
            return False
        rest.remove(match)
    return not rest
