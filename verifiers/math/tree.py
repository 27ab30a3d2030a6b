"""The expression tree of the math verifier: five immutable node types, built by rlvr.verifiers.math.parse.

Nothing here evaluates. A tree's size is bounded by the parser (tokens, depth, digits), so that walking it is cheap.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple


class ParseError(ValueError):
    """The text is not an answer of the grammar."""


class TooLarge(ValueError):
    """A text or a number exceeds the bounds; raised before the work is done."""


class Num(NamedTuple):
    """An exact number as written. `places`: digits after the decimal point; None for integers and repeating decimals.
    `digits`: significant digits as written (0 where `places` is None)."""

    value: Fraction
    places: int | None = None
    digits: int = 0


class Sym(NamedTuple):
    """A variable, or one of the constants `pi`, `e`, `i`, `oo` (spelled with a leading backslash: `\\pi`)."""

    name: str


class Op(NamedTuple):
    """An operation, a function or a structure. `head` names it; rlvr.verifiers.math.parse lists the heads."""

    head: str
    args: tuple[Node, ...]


class Words(NamedTuple):
    """Plain text, normalised."""

    text: str


class Rel(NamedTuple):
    """A chain of relations: sides[0] ops[0] sides[1] ops[1] ... (`=`, `~` for approximately, `<`, `<=`, `>`, `>=`,
    `!=`, `in`)."""

    ops: tuple[str, ...]
    sides: tuple[Node, ...]


class Unit(NamedTuple):
    """A physical or counted unit: `factor` base units of `dims` ((name, power), ...); `words`: of an unknown one."""

    factor: Fraction
    dims: tuple[tuple[str, int], ...]
    words: str = ""


class Quantity(NamedTuple):
    """A value with a unit."""

    value: Node
    unit: Unit


Node = Num | Sym | Op | Words | Rel | Quantity

BOUND = "\\#"  # starts the names of bound variables: the k of a sum, see rlvr.verifiers.math.binders
PI, E, IMAGINARY, OO = Sym("\\pi"), Sym("\\e"), Sym("\\i"), Sym("\\infty")
CONSTANTS = frozenset({PI, E, IMAGINARY, OO})


def number(value: int) -> Num:
    """Return an integer node."""
    return Num(Fraction(value))


def walk(node: Node) -> Iterator[Node]:
    """Yield every node of the tree, the root first; iterative, so that depth costs no stack."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(children(node))


def height(node: Node) -> int:
    """Return the length of the longest path from the root to a leaf; iterative."""
    deepest, level = 0, [node]
    while level:
        deepest += 1
        level = [child for parent in level for child in children(parent)]
    return deepest


def children(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below."""
    if isinstance(node, Op):
        return node.args
    if isinstance(node, Rel):
        return node.sides
    return (node.value,) if isinstance(node, Quantity) else ()


def with_children(node: Node, below: tuple[Node, ...]) -> Node:
    """Return the node with other nodes directly below."""
    if isinstance(node, Op):
        return Op(node.head, below)
    if isinstance(node, Rel):
        return Rel(node.ops, below)
    return Quantity(below[0], node.unit) if isinstance(node, Quantity) else node


def symbols(node: Node) -> frozenset[str]:
    """Return the names of the free variables: neither constants nor bound variables."""
    return frozenset(
        n.name for n in walk(node) if isinstance(n, Sym) and n not in CONSTANTS and not n.name.startswith(BOUND)
    )
