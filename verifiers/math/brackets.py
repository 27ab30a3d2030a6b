"""Brackets: whether [ opens a factor, and what a bracket around a quantity leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.tree import Node, Num, Op, Quantity, Sym, heads, symbols
from rlvr.verifiers.math.units import UNITS

if TYPE_CHECKING:
    from rlvr.verifiers.math.lex import Token
    from rlvr.verifiers.math.parse import Parser

_BROKEN = frozenset(("div", "root", "log", "logb", "ln"))
_PRODUCTS = _BROKEN | {"mul", "neg"}
_SIGN_HEADS = {UNITS["°"]: "deg", UNITS["%"]: "percent"}
# A factor does not begin with these signs.
_NO_START = frozenset(("cup", "cap", "setminus", ",", ";", ")", "]", "}", "}}", "=", "~", "<", ">", "<=", ">=", "!=",
                       "in", "and", "or", "newline", "*", "/", "^", "&", "!", ":"))  # fmt: skip


def is_bracketed_factor(parser: Parser) -> bool:
    """Whether [ opens a factor, as in 2[x + 1], and not an interval that is written ]0, 1[."""
    first = parser.peek()
    if parser.is_word(first) or first.kind == "end" or (first.kind == "op" and first.text in _NO_START):
        return False
    level, offset = 0, 1
    while (token := parser.peek(offset)).kind != "end":
        if token.kind == "op":
            if token.text in ("(", "[", "{", "{{"):
                level += 1
            elif token.text in (")", "]", "}", "}}"):
                if not level:
                    return token.text == "]"
                level -= 1
            elif not level and token.text in (",", ";", "newline", "&"):
                return False
        offset += 1
    return False


def is_integer_part(inner: Node, before: Token) -> bool:
    r"""Whether square brackets around one expression are Gauss's, [n/2], [x] or [an]: needless as a group.

    A group needs them around a sum that is a factor, and around what has brackets of its own; after a function's name
    they hold its argument, as after \frac{d}{dx}.
    """
    if not symbols(inner) or before.kind == "name" or before.text == "}" or not isinstance(inner, (Sym, Op)):
        return False
    if isinstance(inner, Sym):
        return True
    alone = before.text not in ("*", "/", "-", ")", "]") and before.kind != "num"
    if inner.head == "add":
        return alone and any(map(_may_be_broken, inner.args))
    return inner.head in _PRODUCTS and (_may_be_broken(inner) or (alone and "add" not in heads(inner)))


def _may_be_broken(node: Node) -> bool:
    """Whether a term is a fraction, a root or a logarithm, or has such a factor: it is seldom an integer."""
    if isinstance(node, Num):
        return node.value.denominator > 1
    if not isinstance(node, Op):
        return False
    return node.head in _BROKEN or (node.head in _PRODUCTS and any(map(_may_be_broken, node.args)))


def without_sign(node: Node) -> Node:
    """Return 30° or 50% within brackets as a value that may be reckoned with, not as a quantity."""
    if isinstance(node, Quantity) and node.unit in _SIGN_HEADS:
        return Op(_SIGN_HEADS[node.unit], (node.value,))
    return node
