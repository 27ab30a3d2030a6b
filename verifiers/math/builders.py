r"""Sets by a condition: \{x \mid x > 2\}, \{2k + 1 : k \in \mathbb{Z}\}, \{x \in \mathbb{Z} : |x| < 3\}.

A condition on a real x or on a point (x, y) is the set itself. Anything else is `such`: an element and its conditions,
which are compared under other names of the bound variables, and as families where a variable is an integer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlvr.verifiers.math.inequalities import solution_set
from rlvr.verifiers.math.sets import NotASet, Piece, real_set
from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, Words, number, symbols, with_children

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules
    from rlvr.verifiers.math.parse import Parser

INTEGERS, REALS = Op("domain", (Words("integers"),)), Op("domain", (Words("reals"),))
MAX_ELEMENTS = 200


def by_condition(parser: Parser, element: Node) -> Node:
    """Parse the conditions of a set, up to its closing brace; return the set of the elements."""
    if isinstance(element, Rel) and element.ops == ("in",) and isinstance(element.sides[0], Sym):
        condition = parser.answer()
        return condition if element.sides[1] == REALS else _within(element, condition)
    if isinstance(element, Op) and element.head == "()" and all(isinstance(arg, Sym) for arg in element.args):
        return parser.answer()
    start = parser.mark()
    items = [parser.item()]
    while parser.separator() and parser.op() != "}}":
        items.append(parser.item())
    if not isinstance(element, Sym):
        return Op("such", (element, *items))
    values = [
        item.sides[1] for item in items if isinstance(item, Rel) and item.ops == ("=",) and item.sides[0] == element
    ]
    members = [item for item in items if member(item) not in ("", element.name)]
    if len(values) == 1 and members and len(items) == 1 + len(members):
        return Op("such", (values[0], *members))
    parser.backtrack(start)
    return parser.answer()


def member(node: Node) -> str:
    r"""Return the k of k \in \mathbb{Z}; "" for any other condition."""
    if isinstance(node, Rel) and node.ops == ("in",) and isinstance(node.sides[0], Sym):
        return node.sides[0].name
    return ""


def _within(element: Rel, condition: Node) -> Node:
    """The elements of a domain that meet a condition; integers in a bounded set are written out."""
    if element.sides[1] == INTEGERS and symbols(condition) == symbols(element.sides[0]):
        try:
            return Op("set", tuple(map(number, _integers(_pieces(condition)))))
        except NotASet:
            pass
    return Op("such", (element.sides[0], element, condition))


def _pieces(condition: Node) -> list[Piece]:
    try:
        return real_set(condition)
    except NotASet:
        if isinstance(condition, Rel):
            return solution_set(condition)
        raise


def _integers(pieces: list[Piece]) -> list[int]:
    found: set[int] = set()
    for low, high in pieces:
        if math.isinf(low.place) or math.isinf(high.place) or high.place - low.place > MAX_ELEMENTS:
            raise NotASet
        first, last = math.ceil(low.place), math.floor(high.place)
        first += first == low.place and not low.closed
        last -= last == high.place and not high.closed
        found.update(range(first, last + 1))
    return sorted(found)


def same_builders(gold: Op, answer: Node, rules: Rules) -> bool:
    """Whether two sets have the same element and conditions, under the names of the gold's variables."""
    if not isinstance(answer, Op) or answer.head != "such" or len(gold.args) != len(answer.args):
        return False
    wanted, given = _bound(gold), _bound(answer)
    if len(wanted) != len(given):
        return False
    names = dict(zip(given, wanted, strict=True))
    shown = [_renamed(part, names) for part in answer.args]
    if not rules.same(gold.args[0], shown[0]):
        return False
    rest = shown[1:]
    for condition in gold.args[1:]:
        place = next((n for n, other in enumerate(rest) if _same_condition(condition, other, rules)), None)
        if place is None:
            return False
        del rest[place]
    return True


def _same_condition(gold: Node, answer: Node, rules: Rules) -> bool:
    if not isinstance(gold, Rel) or not isinstance(answer, Rel) or not (member(gold) or member(answer)):
        return rules.same(gold, answer)
    return member(gold) == member(answer) and rules.same(gold.sides[1], answer.sides[1])


def _bound(builder: Op) -> list[str]:
    """The variables of the memberships, else those of the element, in order."""
    return [name for name in map(member, builder.args[1:]) if name] or sorted(symbols(builder.args[0]))


def _renamed(node: Node, names: dict[str, str]) -> Node:
    if isinstance(node, Sym):
        return Sym(names.get(node.name, node.name))
    below = node.args if isinstance(node, Op) else node.sides if isinstance(node, Rel) else ()
    return with_children(node, tuple(_renamed(part, names) for part in below)) if below else node
