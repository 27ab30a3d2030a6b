"""Definitions of functions and of the general terms of sequences, whose variable may have another name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from rlvr.verifiers.math.binders import renamed
from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, number, symbols

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules

_FUNCTIONS = frozenset("fghyFGHP")
_INVERSE = Op("neg", (number(1),))


_LEIBNIZ = re.compile(r"d(\d?)([fghyFGH])/d([a-z])")


class _Definition(NamedTuple):
    """f'(x) = value: the function f, what is said of it ("'", "''" or "-1"), its variables and the value."""

    name: str
    mark: str
    names: tuple[str, ...]
    value: Node


def _definition(chain: Rel) -> _Definition | None:
    """The definition that f(x) = value, f^{-1}(x) = value, dy/dx = value or y = value is."""
    left, value = chain.sides[0], chain.sides[-1]
    if len(chain.sides) != 2:
        return None
    if isinstance(left, Sym) and (derivative := _LEIBNIZ.fullmatch(left.name)):
        return _Definition(derivative[2], "'" * int(derivative[1] or 1), (), value)
    if isinstance(left, Sym):
        name = left.name.rstrip("'")
        bare = name in _FUNCTIONS if name != left.name else name == "y"
        return _Definition(name, left.name[len(name) :], (), value) if bare and name not in symbols(value) else None
    if not isinstance(left, Op) or left.head != "mul" or len(left.args) != 2:
        return None
    function, argument = left.args
    mark = ""
    if isinstance(function, Op) and function.head == "pow" and function.args[1] == _INVERSE:
        function, mark = function.args[0], "-1"
    variables = argument.args if isinstance(argument, Op) and argument.head == "()" else (argument,)
    names = tuple(part.name for part in variables if isinstance(part, Sym))
    if not isinstance(function, Sym) or len(set(names)) != len(variables):
        return None
    name = function.name.rstrip("'")
    return _Definition(name, mark or function.name[len(name) :], names, value) if name in _FUNCTIONS else None


def is_identity(chain: Rel) -> bool:
    """Whether a chain is f(x) = x, or another function that is one of its variables."""
    found = _definition(chain)
    return found is not None and isinstance(found.value, Sym) and found.value.name in found.names


def same_definition(gold: Rel, answer: Rel, rules: Rules) -> bool:
    """Whether both define one function: f(x) = x^2 and f(t) = t^2, or y = x^2; f(x, y) = xy and f(u, v) = uv.

    f'(x) = 2x is f'(t) = 2t, y' = 2x and dy/dx = 2x; f^{-1}(x) is y only.
    """
    left, right = _definition(gold), _definition(answer)
    if left is None or right is None or not (left.names or right.names):
        return False
    if left.mark != right.mark and {left.mark, right.mark} != {"", "-1"}:
        return False
    if left.mark != right.mark and (left.names and right.names):
        return False  # f(x) and f^{-1}(x)
    if left.name != right.name and "y" not in (left.name, right.name):
        return False
    value = right.value
    if left.names and right.names:
        if left.name != right.name or len(left.names) != len(right.names):
            return False
        if left.names != right.names:
            if not symbols(value).isdisjoint(left.names):
                return False
            for name, other in zip(left.names, right.names, strict=True):
                value = _renamed(value, other, name)
    return rules.same(left.value, value)


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
