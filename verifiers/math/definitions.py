"""Definitions of functions and of the general terms of sequences, whose variable may have another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.binders import renamed
from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, symbols

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules

_FUNCTIONS = frozenset("fghyFGHP")


def _definition(chain: Rel) -> tuple[str, tuple[str, ...], Node] | None:
    """(f, (x,), value) of f(x) = value; (y, (), value) of y = value."""
    left, value = chain.sides[0], chain.sides[-1]
    if len(chain.sides) != 2:
        return None
    if isinstance(left, Sym) and left.name == "y" and left.name not in symbols(value):
        return left.name, (), value
    if not isinstance(left, Op) or left.head != "mul" or len(left.args) != 2:
        return None
    function, argument = left.args
    variables = argument.args if isinstance(argument, Op) and argument.head == "()" else (argument,)
    names = tuple(part.name for part in variables if isinstance(part, Sym))
    if isinstance(function, Sym) and function.name in _FUNCTIONS and len(set(names)) == len(variables):
        return function.name, names, value
    return None


def is_identity(chain: Rel) -> bool:
    """Whether a chain is f(x) = x, or another function that is one of its variables."""
    found = _definition(chain)
    return found is not None and isinstance(found[2], Sym) and found[2].name in found[1]


def same_definition(gold: Rel, answer: Rel, rules: Rules) -> bool:
    """Whether both define one function: f(x) = x^2 and f(t) = t^2, or y = x^2; f(x, y) = xy and f(u, v) = uv."""
    left, right = _definition(gold), _definition(answer)
    if left is None or right is None or not (left[1] or right[1]):
        return False
    value = right[2]
    if left[1] and right[1]:
        if left[0] != right[0] or len(left[1]) != len(right[1]):
            return False
        if left[1] != right[1]:
            if not symbols(value).isdisjoint(left[1]):
                return False
            for name, other in zip(left[1], right[1], strict=True):
                value = _renamed(value, other, name)
    return rules.same(left[2], value)


def renumbered(gold: Rel, answer: Rel) -> Rel | None:
    """Return a_k = 2k + 1 with the index of a_n = 2n + 1; None where there is nothing to rename."""
    first, second = gold.sides[0], answer.sides[0]
    if not isinstance(first, Sym) or not isinstance(second, Sym) or "_" not in first.name or first == second:
        return None
    (name, _, index), (other, _, old) = first.name.partition("_"), second.name.partition("_")
    if name != other or not (len(index) == len(old) == 1 and index.isalpha() and old.isalpha()):
        return None
    if old in symbols(gold) or index in symbols(answer):
        return None
    return Rel(answer.ops, tuple(renamed(side, old, Sym(index)) for side in answer.sides))


def _renamed(node: Node, old: str, new: str) -> Node:
    if isinstance(node, Sym):
        return Sym(new) if node.name == old else node
    return Op(node.head, tuple(_renamed(arg, old, new) for arg in node.args)) if isinstance(node, Op) else node
