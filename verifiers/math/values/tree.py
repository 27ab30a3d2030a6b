r"""The expression tree: six immutable node types, and how they are walked, bound and replaced.

Nothing here evaluates. The parser bounds the size of a tree (tokens, depth, digits), so that walking it is cheap.

| operation | arguments |
|---|---|
| sum, prod, int | body, variable, low, high |
| int | body, variable: an antiderivative, whose variable is free |
| lim | body, variable, target, side in words |
| diff | body, variable, order: the variable is free |

A bound variable is named by its level: the number of such operations on the longest path below it, `\#1` for the
innermost. Trees that differ only in the names of bound variables are therefore the same tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple, TypeGuard


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
    """An operation, a function or a structure. `head` names it; grammar/parse.py lists the heads."""

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
    """A physical or counted unit.

    factor: how many base units. dims: their names and powers. words: the text of an unknown unit. sense: "currency" for
    a pound, which is a mass or a currency.
    """

    factor: Fraction
    dims: tuple[tuple[str, int], ...]
    words: str = ""
    sense: str = ""


class Quantity(NamedTuple):
    """A value with a unit."""

    value: Node
    unit: Unit


Node = Num | Sym | Op | Words | Rel | Quantity

BOUND = "\\#"  # starts the names of bound variables: the k of a sum
PI, E, IMAGINARY, OO = Sym("\\pi"), Sym("\\e"), Sym("\\i"), Sym("\\infty")
MINUS_OO = Op("neg", (OO,))
CONSTANTS = frozenset({PI, E, IMAGINARY, OO})
_CONSTANT_NAMES = frozenset(constant.name for constant in CONSTANTS)
_NO_NAMES: frozenset[str] = frozenset()
_LEAVES = (Num, Sym, Words)


_SMALL = tuple(Num(Fraction(value)) for value in range(256))


def number(value: int) -> Num:
    """Return an integer node."""
    return _SMALL[value] if 0 <= value < 256 else Num(Fraction(value))


def walk(node: Node) -> Iterator[Node]:
    """Yield every node of the tree, the root first; iterative, so that depth costs no stack."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if type(node) is Op:
            stack += node.args
        elif type(node) is Rel:
            stack += node.sides
        elif type(node) is Quantity:
            stack.append(node.value)


def nodes(node: Node) -> list[Node]:
    """Return every node of the tree, those of a level before those below; several times as quick as `walk`."""
    found = [node]
    for part in found:  # which grows
        if type(part) is Op:
            found += part.args
        elif type(part) is Rel:
            found += part.sides
        elif type(part) is Quantity:
            found.append(part.value)
    return found


def has_kind(node: Node, kind: type) -> bool:
    """Whether a node of the tree is of a type."""
    return kind in map(type, nodes(node))


def heads(node: Node) -> set[str]:
    """Return the heads of the operations in the tree."""
    return {part.head for part in nodes(node) if type(part) is Op} if type(node) not in _LEAVES else set()


def is_op(node: Node, *heads: str) -> TypeGuard[Op]:
    """Whether a node is an operation with one of these heads."""
    return type(node) is Op and node.head in heads


def height(node: Node) -> int:
    """Return the length of the longest path from the root to a leaf; iterative."""
    deepest, level = 0, [node]
    while level:
        deepest += 1
        level = [child for parent in level if type(parent) not in _LEAVES for child in children(parent)]
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


def map_children(function: Callable[[Node], Node], node: Node) -> Node:
    """Return the node with a function applied to each node directly below."""
    below = children(node)
    return with_children(node, tuple(map(function, below))) if below else node


def symbols(node: Node) -> frozenset[str]:
    """Return the names of the free variables: neither constants nor bound variables."""
    if type(node) is Num:
        return _NO_NAMES
    names = [part.name for part in nodes(node) if type(part) is Sym]
    if not names:
        return _NO_NAMES
    return frozenset([name for name in names if name not in _CONSTANT_NAMES and not name.startswith(BOUND)])


def is_name(node: Node) -> bool:
    """Whether a side is a variable."""
    return isinstance(node, Sym) and bool(symbols(node))


def subtract(left: Node, right: Node) -> Op:
    """Return `left - right`."""
    return Op("add", (left, Op("neg", (right,))))


def flat(head: str, left: Node, right: Node) -> Node:
    """Return `left head right` as one n-ary node."""
    parts = left.args if isinstance(left, Op) and left.head == head else (left,)
    return Op(head, (*parts, right))


# --- bound variables --------------------------------------------------------------------------------------------------

CALCULUS_HEADS = frozenset(("sum", "prod", "int", "lim", "diff"))
_LETTERS = re.compile(r"[A-Za-z]+")


def is_binder(node: Node) -> bool:
    """Whether a node binds the variable that is its second argument."""
    return is_op(node, *CALCULUS_HEADS) and len(node.args) == 4


def is_unevaluated(node: Node) -> bool:
    """Whether a tree has a sum, product, integral, limit or derivative in it."""
    return not CALCULUS_HEADS.isdisjoint(heads(node))


def outermost(node: Node) -> Iterator[Op]:
    """Yield the sums, integrals, ... of a tree that are in no other one."""
    stack = [node]
    while stack:
        node = stack.pop()
        if is_op(node, *CALCULUS_HEADS):
            yield node
        else:
            stack.extend(children(node))


def bind(head: str, body: Node, name: str, *rest: Node) -> Op:
    """Return the operation that binds the variable `name` in `body`; "i" is also the imaginary unit there."""
    level = 1 + max((_level(part) for part in walk(body)), default=0)
    variable = Sym(f"{BOUND}{level}")
    return Op(head, (rename(body, name, variable), variable, *rest))


def _level(node: Node) -> int:
    variable = node.args[1] if isinstance(node, Op) and is_binder(node) else None
    return int(variable.name.removeprefix(BOUND)) if isinstance(variable, Sym) else 0


def open_body(node: Op, name: str) -> Node:
    """Return the body with `name`, which must not be used in it, for the bound variable."""
    variable = node.args[1]
    assert isinstance(variable, Sym)
    return rename(node.args[0], variable.name, Sym(name))


def rename(node: Node, old: str, new: Sym) -> Node:
    """Return the tree with the variable `new` for `old`, in indices too (x_k)."""
    if isinstance(node, Sym):
        if node.name == old or (old == "i" and node == IMAGINARY):
            return new
        name, mark, index = node.name.partition("_")
        return Sym(name + mark + _renamed_index(index, old, new.name)) if index else node
    return map_children(lambda child: rename(child, old, new), node)


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


def substitute(node: Node, values: Mapping[str, Node]) -> Node:
    """Return the tree with values for free variables."""
    if isinstance(node, Sym):
        return values.get(node.name, node)
    return map_children(lambda child: substitute(child, values), node)


def replace_parts(node: Node, values: dict[Node, Node]) -> Node:
    """Return the tree with other trees in the place of some of its subtrees."""
    found = values.get(node)
    if found is not None:
        return found
    return map_children(lambda child: replace_parts(child, values), node)
