"""Expressions that bind a variable: sums, products, definite integrals and limits, as trees.

    sum, prod, int (body, variable, low, high)    int (body, variable): an antiderivative, whose variable is free
    lim (body, variable, target, side in words)   diff (body, variable, order): the variable is free

A bound variable is named by its level, the number of binders on the longest path below it: `\\#1` is innermost. So
trees that differ in the names of bound variables only are the same tree, and what is put into a body is not captured.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from rlvr.verifiers.math.tree import BOUND, IMAGINARY, Node, Op, Sym, children, heads, walk, with_children

CALCULUS_HEADS = frozenset(("sum", "prod", "int", "lim", "diff"))
_LETTERS = re.compile(r"[A-Za-z]+")


def is_binder(node: Node) -> bool:
    """Whether a node binds the variable that is its second argument."""
    return isinstance(node, Op) and node.head in CALCULUS_HEADS and len(node.args) == 4


def unevaluated(node: Node) -> bool:
    """Whether a tree has a sum, product, integral, limit or derivative in it."""
    return not CALCULUS_HEADS.isdisjoint(heads(node))


def outermost(node: Node) -> Iterator[Op]:
    """Yield the sums, integrals, ... of a tree that are in no other one."""
    stack = [node]
    while stack:
        node = stack.pop()
        if isinstance(node, Op) and node.head in CALCULUS_HEADS:
            yield node
        else:
            stack.extend(children(node))


def bind(head: str, body: Node, name: str, *rest: Node) -> Op:
    """Return the operation that binds the variable `name` in `body`; "i" is also the imaginary unit there."""
    level = 1 + max((_level(part) for part in walk(body)), default=0)
    variable = Sym(f"{BOUND}{level}")
    return Op(head, (renamed(body, name, variable), variable, *rest))


def _level(node: Node) -> int:
    variable = node.args[1] if isinstance(node, Op) and is_binder(node) else None
    return int(variable.name.removeprefix(BOUND)) if isinstance(variable, Sym) else 0


def opened(node: Op, name: str) -> Node:
    """Return the body with `name`, which must not be used in it, for the bound variable."""
    variable = node.args[1]
    assert isinstance(variable, Sym)
    return renamed(node.args[0], variable.name, Sym(name))


def renamed(node: Node, old: str, new: Sym) -> Node:
    """Return the tree with the variable `new` for `old`, in indices too (x_k)."""
    if isinstance(node, Sym):
        if node.name == old or (old == "i" and node == IMAGINARY):
            return new
        name, mark, index = node.name.partition("_")
        return Sym(name + mark + _renamed_index(index, old, new.name)) if index else node
    below = children(node)
    return with_children(node, tuple(renamed(child, old, new) for child in below)) if below else node


def _renamed_index(index: str, old: str, new: str) -> str:
    """k + 1 for i + 1 and kj for ij; longer runs of letters are words."""
    if old.startswith(BOUND):
        return index.replace(f"({old})", new)
    bound = f"({new})" if new.startswith(BOUND) else new

    def letters(match: re.Match[str]) -> str:
        run = match[0]
        if run == old:
            return bound
        return "".join(bound if c == old else c for c in run) if len(run) == 2 else run

    return _LETTERS.sub(letters, index)


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """Return the tree with values for free variables."""
    if isinstance(node, Sym):
        return values.get(node.name, node)
    below = children(node)
    return with_children(node, tuple(substituted(child, values) for child in below)) if below else node


def replaced(node: Node, values: dict[Node, Node]) -> Node:
    """Return the tree with other trees in the place of some of its subtrees."""
    found = values.get(node)
    if found is not None:
        return found
    below = children(node)
    return with_children(node, tuple(replaced(child, values) for child in below)) if below else node
