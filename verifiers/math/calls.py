"""Functions without a formula: f(a + b) is no product, (f \\circ g)(x) is not (g \\circ f)(x).

    apply (name, argument)

The name of f is a function where it stands before a lone variable or number in brackets anywhere in the answer; that of
an expectation or a probability before capitals, E(X^2) and P(A). Elsewhere, as in mg(1 + \\mu) and P(1 + r)^t, it is
a factor. A side of an equation that is such a name alone, f(x) = 2x, stays a product, as `labels` reads it.

What is compared is its value in a model, one smooth function for each name, without symmetry and without zeros that
functions share; so f(x + 1) is f(1 + x), and f(2x) is not 2f(x).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.tree import Node, Num, Op, Rel, Sym, children, nodes, symbols, walk, with_children

if TYPE_CHECKING:
    from rlvr.verifiers.math.lex import Token
    from rlvr.verifiers.math.parse import Parser

_FUNCTIONS = frozenset(("f", "g", "h", "F", "G", "H", "phi", "psi"))
_WITH_VARIABLES = frozenset(("u", "S", "T", "delta", "zeta"))  # S(n), but no S(2)
_OF_EVENTS = frozenset(("E", "P"))
_EVENTS = frozenset(("union", "inter", "minus"))
_OPERATORS = frozenset(("pow", "fact", "percent"))


def may_be_called(name: str) -> bool:
    """Whether a function may have this name."""
    return name in _FUNCTIONS or name in _OF_EVENTS or name in _WITH_VARIABLES


def called(parser: Parser, node: Sym) -> Node:
    """Parse what follows the name of a function: primes, another function after \\circ, an argument in brackets."""
    start = parser.mark()
    name, following = node.name, parser.peek()
    if parser.op() == "deg" and following.kind == "name" and following.text in _FUNCTIONS and node.name in _FUNCTIONS:
        parser.advance(2)
        return Sym(f"{name}\u2218{following.text}")
    while parser.op() in ("'", "''"):
        name += parser.advance().text
    if parser.op() not in ("(", "[") or parser.token.apart or (parser.op() == "[" and node.name != "E"):
        parser.backtrack(start)
        return node
    argument = parser.prefix()
    if isinstance(argument, (Num, Sym)) or (isinstance(argument, Op) and argument.head not in ("()", "[]", "list")):
        return Op("apply", (Sym(name), argument))
    parser.backtrack(start)
    return node


def split_before_call(parser: Parser, token: Token) -> bool:
    """Whether a product of letters ends with the name of a function before its argument: xf(x)."""
    return parser.op(1) == "(" and may_be_called(token.text[-1])


def with_calls(tree: Node) -> Node:
    """Return a parsed answer with products for the calls that are none."""
    calls = [part for part in nodes(tree) if type(part) is Op and part.head == "apply"]
    if not calls:
        return tree
    kept = frozenset(name for call in calls if (name := _called_for_certain(call)))
    return _labels_as_products(_multiplied(tree, kept))


def as_products(tree: Node) -> Node:
    """Return the tree with products for all calls."""
    return _multiplied(tree, frozenset())


def _name(call: Op) -> str:
    function = call.args[0]
    assert isinstance(function, Sym)
    return function.name.rstrip("'")


def _called_for_certain(call: Op) -> str:
    name, argument = _name(call), call.args[1]
    while isinstance(argument, Op) and argument.head == "neg":
        argument = argument.args[0]
    if name in _OF_EVENTS:
        capitals = symbols(argument)
        return name if capitals and all(capital[0].isupper() for capital in capitals) else ""
    if name in _WITH_VARIABLES:
        return name if isinstance(argument, Sym) else ""
    plain = isinstance(argument, (Num, Sym)) or (isinstance(argument, Op) and argument.head == "apply")
    return name if plain or name == "f" or call.args[0] != Sym(name) else ""


def _multiplied(node: Node, kept: frozenset[str]) -> Node:
    below = tuple(_multiplied(child, kept) for child in children(node))
    if not isinstance(node, Op):
        return with_children(node, below) if below else node
    if node.head == "apply":
        if _name(node) in kept and _EVENTS & {part.head for part in walk(node) if isinstance(part, Op)}:
            return Sym(f"{_name(node)}({_spelled(node.args[1])})")
        return Op("mul" if _name(node) not in kept else "apply", below)
    first = node.args[0] if node.args else node
    if node.head in _OPERATORS and isinstance(first, Op) and first.head == "apply" and _name(first) not in kept:
        assert isinstance(below[0], Op)
        function, argument = below[0].args
        return Op("mul", (function, Op(node.head, (argument, *below[1:]))))  # P(1 + r)^t
    if node.head == "mul":
        pairs = zip(node.args, below, strict=True)
        factors = (
            part.args if _was_call(old) and isinstance(part, Op) and part.head == "mul" else (part,)
            for old, part in pairs
        )
        return Op("mul", tuple(factor for some in factors for factor in some))
    return Op(node.head, below)


def _spelled(event: Node) -> str:
    """An event in one spelling: that of A and B is that of B and A."""
    if not isinstance(event, Op):
        return event.name if isinstance(event, Sym) else str(event)
    parts = [_spelled(arg) for arg in event.args]
    return f"{event.head}({', '.join(sorted(parts) if event.head in ('union', 'inter') else parts)})"


def _was_call(node: Node) -> bool:
    """Whether a factor was read as a call, or as a power of one."""
    if isinstance(node, Op) and node.head in _OPERATORS:
        node = node.args[0]
    return isinstance(node, Op) and node.head == "apply"


def _labels_as_products(node: Node) -> Node:
    """Return equations with a product where one side is a call: f(x) = 2x."""
    if isinstance(node, Op) and node.head in ("list", "either"):
        return Op(node.head, tuple(map(_labels_as_products, node.args)))
    if not isinstance(node, Rel) or not set(node.ops) <= {"=", "~"}:
        return node
    for place in (0, -1):
        side, others = node.sides[place], [other for other in node.sides if other is not node.sides[place]]
        if isinstance(side, Op) and side.head == "apply" and not any(_name(side) in _called(one) for one in others):
            sides = list(node.sides)
            sides[place] = Op("mul", side.args)
            return Rel(node.ops, tuple(sides))
    return node


def _called(node: Node) -> frozenset[str]:
    return frozenset(_name(part) for part in walk(node) if isinstance(part, Op) and part.head == "apply")
