"""Quotients, products and sums of letters that are one thing: dy/dx, \\Delta x, the vector i + 2j + 3k."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlvr.verifiers.math.binders import replaced
from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.ordered import with_bold_products
from rlvr.verifiers.math.tree import Node, Op, ParseError, Rel, Sym, children, number, symbols, walk, with_children
from rlvr.verifiers.math.vocabulary import FUNCTIONS, GREEK, is_product

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

_UNITS = ("\\uniti", "\\unitj", "\\unitk")
_MARKED = re.compile(r"\\(?:mathbf|boldsymbol|bm|hat|widehat|vec|pmb|overrightarrow|mathrm)")
_DIFFERENTIALS = ("d", "partial")
_DERIVATIVE = re.compile(r"(?:d|partial )(\d?)(.+)/(?:d|partial )(.+)")


def with_names(text: str, tree: Node) -> Node:
    """Return the tree with names for derivatives, and tuples for sums of unit vectors. `text`: what was parsed."""
    if ("d" in text or "partial" in text or "∂" in text) and ("frac" in text or "/" in text or "over" in text):
        tree = _with_derivatives(tree)
    return with_bold_products(text, _with_vectors(tree)) if _MARKED.search(text) else tree


def _with_derivatives(node: Node) -> Node:
    if isinstance(node, Op) and node.head == "div" and (name := _derivative(*node.args)):
        return Sym(name)
    below = children(node)
    return with_children(node, tuple(map(_with_derivatives, below))) if below else node


def _derivative(top: Node, bottom: Node) -> str:
    """The name of dy/dx or d^2y/dx^2, which parse as quotients of products; "" for another quotient."""
    above, below = _differential(top), _differential(bottom)
    if above is None or below is None:
        return ""
    (sign, order, function, power), (same_sign, one, variable, times) = above, below
    if sign != same_sign or order != times or one != 1 or power != 1:
        return ""
    mark = "partial " if sign == "partial" else "d"
    return f"{mark}{order if order > 1 else ''}{function}/{mark}{variable}"


def _differential(node: Node) -> tuple[str, int, str, int] | None:
    """(d, 1, y, 1) of d y, (d, 2, y, 1) of d^2 y, (d, 1, x, 2) of d x^2."""
    if not isinstance(node, Op) or node.head != "mul" or len(node.args) != 2:
        return None
    (sign, order), (name, power) = map(_power, node.args)
    if not isinstance(sign, Sym) or sign.name not in _DIFFERENTIALS or not isinstance(name, Sym) or not symbols(name):
        return None
    return sign.name, order, name.name, power


def _power(node: Node) -> tuple[Node, int]:
    if not isinstance(node, Op) or node.head != "pow":
        return node, 1
    value = rational(node.args[1])
    return (node.args[0], int(value)) if value is not None and value in range(2, 9) else (node, 1)


def _with_vectors(tree: Node) -> Node:
    """Return vectors as they are written in numbers; of two coordinates where no k is there."""
    names = {part.name for part in walk(tree) if isinstance(part, Sym)}
    if names.isdisjoint(_UNITS):
        return tree
    size = 3 if _UNITS[2] in names else 2
    values: dict[Node, Node] = {
        Sym(name): Op("()", tuple(number(int(n == place)) for n in range(size)))
        for place, name in enumerate(_UNITS[:size])
    }
    return replaced(tree, values)


def with_primes(gold: Rel, answer: Rel) -> tuple[Rel, Rel]:
    """Return both with the names of derivatives that the other one uses: V' for dV/dt."""
    return _primed(gold, symbols(answer)), _primed(answer, symbols(gold))


def _primed(node: Rel, others: frozenset[str]) -> Rel:
    values: dict[Node, Node] = {}
    for name in symbols(node):
        match = _DERIVATIVE.fullmatch(name)
        if match is None:
            continue
        order = int(match[1] or 1)
        if name.startswith("partial"):
            values |= {Sym(name): Sym(short) for short in (f"{match[2]}_{match[3] * order}",) if short in others}
            continue
        for short in (match[2] + "'" * order, f"{'d' * (order - 1)}dot {match[2]}"):
            if short in others and not any(other.partition("/")[0] == name.partition("/")[0] for other in others):
                values[Sym(name)] = Sym(short)
    return Rel(node.ops, tuple(replaced(side, values) for side in node.sides)) if values else node


def change(parser: Parser, mark: str) -> Node:
    """Parse what follows \\Delta: the change of x is no product."""
    parser.advance()
    following = parser.token
    bare = following.text.removeprefix("\\")
    if following.upright or bare in FUNCTIONS or (len(bare) > 1 and not (bare in GREEK or is_product(bare))):
        return Sym(mark)
    if bare in GREEK or len(bare) == 1:
        parser.advance()
        return Sym(f"{mark} {bare}")
    parser.replace(following._replace(text=bare[1:], spaced=False))
    return Sym(f"{mark} {bare[0]}")


def partial(parser: Parser, _: str) -> Node:
    r"""The \partial of \frac{\partial f}{\partial x}."""
    return Sym("partial")


def gradient(parser: Parser, _: str) -> Node:
    """The gradient of a function by name."""
    if parser.kind != "name" or len(parser.token.text) > 1:
        raise ParseError("a gradient of something that is no name")
    return Sym(f"nabla {parser.advance().text}")
