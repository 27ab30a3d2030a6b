"""Answers with plus-minus inside a fraction, a product or an equation."""

from __future__ import annotations

from rlvr.verifiers.math.tree import Node, Op, Quantity, Rel, heads, number
from rlvr.verifiers.math.vocabulary import FUNCTIONS

_VALUES = frozenset("add mul div pow neg root abs () [] matrix".split()) | set(FUNCTIONS.values())


def two_valued(tree: Node) -> Node:
    """Return an answer with plus-minus inside as a list, so that both of its values are compared."""
    if isinstance(tree, Quantity):
        return Quantity(two_valued(tree.value), tree.unit)
    if isinstance(tree, Op) and tree.head == "pm" and tree.args[0] == number(0) and _is_point(tree.args[1]):
        point = tree.args[1]
        assert isinstance(point, Op)
        return Op("list", (point, Op("()", tuple(Op("neg", (entry,)) for entry in point.args))))
    nested = isinstance(tree, Rel) or (isinstance(tree, Op) and tree.head in _VALUES)
    if not nested or heads(tree).isdisjoint(("pm", "mp")):
        return tree
    return Op("list", (tree,))


def _is_point(node: Node) -> bool:
    return isinstance(node, Op) and node.head == "()"
