"""Brackets: whether [ opens a factor, and what a bracket around a quantity leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.tree import Node, Op, Quantity
from rlvr.verifiers.math.units import UNITS

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

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


def without_sign(node: Node) -> Node:
    """Return 30° or 50% within brackets as a value that may be reckoned with, not as a quantity."""
    if isinstance(node, Quantity) and node.unit in _SIGN_HEADS:
        return Op(_SIGN_HEADS[node.unit], (node.value,))
    return node
