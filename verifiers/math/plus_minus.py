"""Answers with plus-minus inside a fraction, a product or an equation."""

from __future__ import annotations

from rlvr.verifiers.math.solutions import as_points, is_labelled, unknowns
from rlvr.verifiers.math.tree import Node, Op, Quantity, Rel, heads, nodes, number
from rlvr.verifiers.math.vocabulary import FUNCTIONS

_VALUES = frozenset("add mul div pow neg root abs () [] matrix".split()) | set(FUNCTIONS.values())


def two_valued(tree: Node) -> Node:
    """Return an answer with plus-minus inside as a list, so that both of its values are compared."""
    if isinstance(tree, Quantity):
        return Quantity(two_valued(tree.value), tree.unit)
    if isinstance(tree, Op) and tree.head == "pm" and tree.args[0] == number(0):
        vector = tree.args[1]
        if any(map(_is_point, nodes(vector))):
            return Op("list", (vector, Op("neg", (vector,))))
    if isinstance(tree, Op) and _has_tied_signs(tree):
        return Op("list", tuple(as_points([Op("()", tree.args)], [])))
    nested = isinstance(tree, Rel) or (isinstance(tree, Op) and tree.head in _VALUES)
    if not nested or heads(tree).isdisjoint(("pm", "mp")):
        return tree
    return Op("list", (tree,))


def _has_tied_signs(tree: Op) -> bool:
    r"""Whether a tree is x = \pm 1, y = \mp 2, whose upper signs go together, as in a point."""
    if tree.head not in ("list", "both") or not is_labelled(tree) or len(unknowns(tree)) < len(tree.args):
        return False
    return sum(not heads(item).isdisjoint(("pm", "mp")) for item in tree.args) > 1


def _is_point(node: Node) -> bool:
    return isinstance(node, Op) and node.head == "()"
