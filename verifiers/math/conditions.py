"""Conditions beside an answer, which restate the question: `2k + 2 for k >= 1`, `f(x) = 2x, x \\in \\mathbb{R}`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.tree import PI, Node, Op, ParseError, Rel, Sym, TooLarge, Words, symbols, walk

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

PARAMETERS = frozenset("jklmnKMN")
_INTEGERS = Op("domain", (Words("integers"),))
QUANTIFIERS = frozenset(("for", "where", "with", "when", "provided", "forall", "\\forall"))
_FILLERS = frozenset(
    "all any every each some real reals integer integers natural positive nonnegative nonzero number numbers value "
    "values of the that".split()
)
_COPULAS = frozenset("is are denotes denote".split())
_ADJECTIVES = frozenset("a an any the arbitrary some real positive nonzero non zero".split())
_KINDS = frozenset("constant constants integer integers parameter parameters number numbers real".split())
_BOUNDS = frozenset(("<", "<=", ">", ">=", "!=", "in"))


def skip_condition(parser: Parser, names: frozenset[str] | None = None) -> bool:
    """Move over a condition, if there is one here; return whether there was. It must bound only `names`, if given."""
    if parser.word() not in QUANTIFIERS or not parser.may_try_condition():
        return False
    start = parser.mark()
    quantifier = parser.advance()
    if explains(parser):
        return True
    filled = parser.skip_words(_FILLERS) or quantifier.text == "\\forall"
    try:
        condition = parser.item()
    except (ParseError, TooLarge):
        condition = Words("")
    bare = filled and isinstance(condition, Sym) and bool(symbols(condition))
    if bare:
        return True
    bounded = symbols(condition) if isinstance(condition, Rel) and set(condition.ops) <= _BOUNDS else frozenset()
    if bounded and (names is None or bounded <= names):
        if isinstance(condition, Rel):
            parser.dropped.append(condition)
        return True
    parser.backtrack(start)
    return False


def explains(parser: Parser) -> bool:
    """Move over `c is a constant` or `k an integer`; return whether it was there. A set of integers is a condition."""
    if parser.kind != "name" or len(parser.token.text) > 1:
        return False
    start = parser.mark()
    names = []
    while parser.kind == "name" and (len(parser.token.text) == 1 or parser.word() == "and"):
        if (token := parser.advance()).text != "and":
            names.append(token.text)
        if parser.take("_"):
            parser.argument_text()
        parser.take(",")
    parser.skip_words(_COPULAS)
    words = []
    while parser.word() in _ADJECTIVES | _KINDS:
        words.append(parser.advance().text.lower())
    described = names and words and words[-1] in _KINDS
    if not described or (parser.kind != "end" and parser.op() not in (",", ";", ")", "}")):
        parser.backtrack(start)
        return False
    if words[-1].startswith("integer"):
        integers = Op("domain", (Words("positive integers" if "positive" in words else "integers"),))
        for name in names:
            parser.dropped.append(Rel(("in",), (Sym(name), integers)))
    return True


def without_conditions(items: list[Node], dropped: list[Rel]) -> list[Node]:
    """Return the items without `x in R` and bounds on variables of the first item, where they come last.

    What is left out is added to `dropped`."""
    items = [_unbound(item, dropped) for item in items]
    while len(items) > 1 and _only_restricts(items[-1], items[0]):
        *items, condition = items
        if isinstance(condition, Rel):
            dropped.append(condition)
    return items


def _unbound(item: Node, dropped: list[Rel]) -> Node:
    """Return the formula of `k \\pi (k \\in \\mathbb{Z})`, parsed as a product; add its condition to `dropped`."""
    if isinstance(item, Rel) and item.sides:
        return Rel(item.ops, (*item.sides[:-1], _unbound(item.sides[-1], dropped)))
    if not isinstance(item, Op) or item.head not in ("mul", "add") or not isinstance(item.args[-1], (Rel, Op)):
        return item
    last, rest = item.args[-1], item.args[:-1]
    if item.head == "add":
        return Op("add", (*rest, _unbound(last, dropped)))
    if not isinstance(last, Rel) or not set(last.ops) <= _BOUNDS:
        return item
    dropped.append(last)
    return rest[0] if len(rest) == 1 else Op("mul", rest)


def _only_restricts(condition: Node, formula: Node) -> bool:
    if not isinstance(condition, Rel) or not set(condition.ops) <= _BOUNDS:
        return False
    names = symbols(condition)
    inequality = isinstance(formula, Rel) and not set(formula.ops) <= {"=", "~"}
    if condition.ops == ("in",):
        domain = condition.sides[1]
        if isinstance(domain, Op) and domain.head == "minus" and _is_finite(domain.args[1]):
            domain = domain.args[0]
        known = isinstance(domain, Op) and domain.head == "domain"
        if names <= PARAMETERS and domain != _INTEGERS and PI in walk(formula):
            return False  # k \\pi for a real or a natural k
        return known and names <= symbols(formula) and (not inequality or domain == Op("domain", (Words("reals"),)))
    if inequality or not isinstance(formula, (Rel, Op)) or not names:
        return False
    return names <= symbols(formula.sides[-1] if isinstance(formula, Rel) else formula)


def _is_finite(node: Node) -> bool:
    return isinstance(node, Op) and node.head == "set"
