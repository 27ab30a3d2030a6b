"""Answers with plus-minus inside a fraction, a product or an equation."""

from __future__ import annotations

from rlvr.verifiers.math.tree import Node, Op, Quantity, Rel, walk
from rlvr.verifiers.math.vocabulary import FUNCTIONS

_VALUES = frozenset("add mul div pow neg root abs".split()) | set(FUNCTIONS.values())


def two_valued(tree: Node) -> Node:
    """Return an answer with plus-minus inside as a list, so that both of its values are compared."""
    if isinstance(tree, Quantity):
        return Quantity(two_valued(tree.value), tree.unit)
    nested = isinstance(tree, Rel) or (isinstance(tree, Op) and tree.head in _VALUES)
    if not nested or not any(isinstance(node, Op) and node.head in ("pm", "mp") for node in walk(tree)):
        return tree
    return Op("list", (tree,))
