"""Trees as sympy can build them: open intervals told from tuples, and what has no value, or no form, refused."""

from __future__ import annotations

from rlvr.verifiers.math.exact import Inexact, Undefined, exact
from rlvr.verifiers.math.ordered import is_transposed_letter
from rlvr.verifiers.math.to_sympy import OPEN_INTERVAL, NoSymbolicForm
from rlvr.verifiers.math.tree import Node, Op, Rel, TooLarge, children, with_children

_SETS = frozenset(("union", "inter", "minus"))
_OF_VALUES = frozenset(("add", "mul", "div", "neg", "pow", "root", "abs"))
_NO_VALUES = frozenset(("()", "[]", "[)", "(]", "set", "list", "either", "both", "such", *_SETS))


def prepared(node: Node) -> Node:
    """Return the tree for Converter.convert. Raise NoSymbolicForm for 0/0, A^T and arithmetic of sets."""
    if isinstance(node, Op):
        _check(node)
    below = tuple(map(prepared, children(node)))
    if isinstance(node, Op) and node.head in _SETS:
        below = tuple(map(_interval, below))
    elif isinstance(node, Rel):
        below = (
            *below[:1],
            *(_interval(side) if op in ("in", "notin") else side for op, side in zip(node.ops, below[1:], strict=True)),
        )
    return with_children(node, below) if below else node


def _check(node: Op) -> None:
    if node.head in ("div", "pow", "ln", "log"):
        try:
            exact(node)
        except Undefined as error:
            raise NoSymbolicForm(str(error)) from None
        except (Inexact, TooLarge):
            pass
    if node.head == "pow" and is_transposed_letter(node):
        raise NoSymbolicForm("the transpose of a letter has no form in sympy")
    if node.head in _OF_VALUES:
        heads = [arg.head if isinstance(arg, Op) else "" for arg in node.args]
        if not _NO_VALUES.isdisjoint(heads) or (node.head == "add" and "matrix" in heads and len(set(heads)) > 1):
            raise NoSymbolicForm("arithmetic of tuples, lists and sets has no form in sympy")


def _interval(node: Node) -> Node:
    return Op(OPEN_INTERVAL, node.args) if isinstance(node, Op) and node.head == "()" and len(node.args) == 2 else node
