r"""The grammar of sums, products, integrals, limits and derivatives: `\sum_{k=1}^n`, `\int_0^1 ... dx`,
`\lim_{x\to0}`, `\frac{d}{dx}`.

A sum reaches over the factors that follow, an integral up to its differential. Where more terms with the same variable
follow a sum or a derivative, what it reaches over is not clear, and the text is no answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ..values.tree import (
    CONSTANTS,
    IMAGINARY,
    OO,
    Node,
    Op,
    ParseError,
    Rel,
    Sym,
    Words,
    bind,
    children,
    is_op,
    number,
    with_children,
)
from .cursor import Parser
from .lex import Token
from .meaning import as_products
from .operands import PREFIX, argument, constant_or_name
from .vocabulary import GREEK

MAX_AHEAD = 400  # tokens between an integral sign and its differential
MAX_ORDER = 8  # of a derivative
_TERM, _ALL_TERMS = 20, 15  # what `Parser.expression` reads: factors, or terms too
_OPENERS = frozenset(("(", "[", "{", "{{", "<(", "lfloor", "lceil", "\\begin"))
_CLOSERS = frozenset((")", "]", "}", "}}", ")>", "rfloor", "rceil", "\\end"))
_STOPS = frozenset(
    ("=", "~", "<", "<=", ">", ">=", "!=", "in", "notin", ",", ";", "newline", "and", "land", "lor", "&")
)
_FRACTIONS = ("\\frac", "\\dfrac", "\\tfrac")
_DIFFERENTIAL = "\\d"
_DIFFERENTIALS = re.compile(r"([A-Za-z]*?)((?:d[A-Za-z])*)(d?)")


def _is_variable(token: Token) -> bool:
    bare = token.text.removeprefix("\\")
    return token.kind == "name" and ((len(bare) == 1 and bare.isalpha() and token.text == bare) or bare in GREEK)


def _name_of_variable(token: Token) -> str:
    """The name of the variable that a token is."""
    if not _is_variable(token):
        raise ParseError(f"expected a variable, found {token.text[:20]!r}")
    return token.text.removeprefix("\\").removeprefix("var")


def _group(parser: Parser) -> list[Token]:
    """Pass a group in braces; return its tokens."""
    tokens = _group_at(parser, 0)
    if not tokens:
        raise ParseError(f"expected a group, found {parser.place()}")
    parser.advance(len(tokens))
    return tokens[1:-1]


def _parse_all(inner: Parser) -> Node:
    """Parse an expression that takes all tokens."""
    node = inner.expression(0)
    if inner.kind != "end":
        raise ParseError(f"cannot read {inner.place()}")
    return node


# --- sums and products ------------------------------------------------------------------------------------------------


def _sum(parser: Parser, sign: str) -> Node:
    head = sign.removeprefix("\\")
    found: dict[str, Node] = {}
    lower: list[Token] = []
    while parser.op() in ("_", "^"):
        mark = parser.advance().text
        if mark in found:
            raise ParseError(f"two limits of a {head}")
        if mark == "_":
            lower = _group(parser)
            found[mark] = number(0)
        else:
            found[mark] = argument(parser)
    if not lower:
        raise ParseError(f"a {head} without its variable")
    name, low, high = _range(parser.part(lower), found.get("^"))
    body = parser.expression(_TERM)
    if _follows(parser, name):
        raise ParseError(f"what the {head} reaches over")
    return bind(head, body, name, low, high)


def _range(inner: Parser, high: Node | None) -> tuple[str, Node, Node]:
    """Return variable, low and high of `k=1` with the upper limit `high`, or of `1 \\le k \\le n`."""
    condition = inner.item()
    if inner.kind != "end" or not isinstance(condition, Rel):
        raise ParseError("a sum without its range")
    sides, ops = condition.sides, condition.ops
    if ops == ("=",) and high is not None:
        return _name_of(sides[0]), sides[1], high
    if ops in (("<=", "<="), (">=", ">=")) and high is None:
        low, top = (sides[0], sides[2]) if ops[0] == "<=" else (sides[2], sides[0])
        return _name_of(sides[1]), low, top
    if ops == (">=",) and high in (None, OO):
        return _name_of(sides[0]), sides[1], OO
    raise ParseError("a sum without its range")


def _name_of(node: Node) -> str:
    if node == IMAGINARY:
        return "i"
    if not isinstance(node, Sym) or node in CONSTANTS or "_" in node.name:
        raise ParseError("a sum over something that is no variable")
    return node.name


def _follows(parser: Parser, name: str) -> bool:
    """Whether more terms of this expression have the variable in them."""
    depth = 0
    for offset in range(MAX_AHEAD):
        token = parser.peek(offset)
        if token.kind == "op":
            depth += (token.text in _OPENERS) - (token.text in _CLOSERS)
            if depth < 0 or (not depth and token.text in _STOPS) or token.text in CALCULUS:
                return False
        if token.kind == "end":
            return False
        if token.kind == "name" and (
            token.text.removeprefix("\\") == name or (len(token.text) == 2 and name in token.text)
        ):
            return True
    return True


# --- integrals --------------------------------------------------------------------------------------------------------


class _Placed(NamedTuple):
    """A token of an integrand, and the number of tokens of the answer up to and with it."""

    token: Token
    end: int


def _integral(parser: Parser, _: str) -> Node:
    limits: dict[str, Node] = {}
    while parser.op() in ("_", "^"):
        mark = parser.advance().text
        if mark in limits:
            raise ParseError("two limits of an integral")
        limits[mark] = argument(parser)
    if len(limits) == 1:
        raise ParseError("an integral with one limit")
    placed = _with_differentials(parser)
    place = _own_differential(placed)
    name = _name_of_variable(placed[place + 1].token)
    integrand = [token for token, _end in placed[:place]]
    parser.advance(placed[place + 1].end)
    if not integrand and parser.kind in ("num", "name"):
        raise ParseError("an integrand after its differential")
    body = as_products(_parse_all(parser.part(integrand))) if integrand else number(1)
    for letter in _functions_of(name, integrand):
        body = _with_calls(body, letter, name)
    if limits:
        return bind("int", body, name, limits["_"], limits["^"])
    return Op("int", (body, constant_or_name(name)))


def _functions_of(name: str, tokens: list[Token]) -> set[str]:
    """The letters before the variable in parentheses: a of a(t)."""
    texts = [token.text.removeprefix("\\") for token in tokens]
    places = range(len(texts) - 3)
    return {texts[k] for k in places if texts[k + 1 : k + 4] == ["(", name, ")"] and _is_variable(tokens[k])}


def _with_calls(node: Node, letter: str, name: str) -> Node:
    """Return the tree with a_(t), the term of a sequence whose terms are not known, for the product of a and t."""
    below = tuple(_with_calls(child, letter, name) for child in children(node))
    if not is_op(node, "mul"):
        return with_children(node, below) if below else node
    factors: list[Node] = []
    for factor in below:
        if factors and factors[-1] == Sym(letter) and factor == constant_or_name(name):
            factors[-1] = Sym(f"{letter}_({name})")
        else:
            factors.append(factor)
    return factors[0] if len(factors) == 1 else Op("mul", tuple(factors))


def _own_differential(placed: list[_Placed]) -> int:
    """Return the place of the mark that belongs to this integral, not to one within it."""
    level = 1
    for place, (token, _) in enumerate(placed):
        level += (token.text == "\\int") - (token.text == _DIFFERENTIAL)
        if not level:
            return place
    raise ParseError("an integral without its differential")


def _with_differentials(parser: Parser) -> list[_Placed]:
    """Return the tokens ahead, up to the end of the expression, with a mark before each variable of integration.

    The differential of a fraction's numerator (\\int \\frac{dx}{x}) comes after the fraction.
    """
    placed: list[_Placed] = []
    offset = depth = 0
    while offset < MAX_AHEAD and (token := parser.peek(offset)).kind != "end":
        if token.kind == "op":
            depth += (token.text in _OPENERS) - (token.text in _CLOSERS)
            if depth < 0 or (not depth and token.text in _STOPS):
                break
        if not depth and token.text in _FRACTIONS and (fraction := _fraction_of_differential(parser, offset)):
            placed += fraction
            offset = fraction[-1].end
            continue
        if not depth and token.text == _DIFFERENTIAL:
            placed += [_Placed(token, offset + 1), _Placed(parser.peek(offset + 1), offset + 2)]
            offset += 2
            continue
        parts, used = _split(token, parser.peek(offset + 1)) if not depth else ([token], 1)
        offset += used
        placed += [_Placed(part, offset) for part in parts]
    return placed


def _split(token: Token, following: Token) -> tuple[list[Token], int]:
    """Return the tokens of a name that ends with differentials (xdx, r d\\theta), and how many tokens they take."""
    match = _DIFFERENTIALS.fullmatch(token.text) if token.kind == "name" else None
    if match is None or not (match[2] or match[3]):
        return [token], 1
    tokens = [token._replace(text=match[1])] if match[1] else []
    for letter in match[2][1::2]:
        tokens += _differential_of(token._replace(text=letter, upright=False))
    if not match[3]:
        return tokens, 1
    if not _is_variable(following):
        return [token], 1
    return tokens + _differential_of(following), 2


def _differential_of(variable: Token) -> list[Token]:
    return [Token("op", _DIFFERENTIAL, True), variable]


def _fraction_of_differential(parser: Parser, offset: int) -> list[_Placed]:
    """Return the tokens of \\frac{x dx}{...} with the differential after it; none for another fraction."""
    top = _group_at(parser, offset + 1)
    bottom = _group_at(parser, offset + 1 + len(top))
    if not top or not bottom:
        return []
    inside = top[1:-1]
    for length in (1, 2):
        parts, used = _split(inside[-length], inside[-1]) if len(inside) >= length else ([], 0)
        marks = [place for place, token in enumerate(parts) if token.text == _DIFFERENTIAL]
        if used == length and marks:
            above = inside[:-length] + parts[: marks[0]] or [Token("num", "1", number=number(1))]
            end = offset + 1 + len(top) + len(bottom)
            tokens = [parser.peek(offset), top[0], *above, top[-1], *bottom, *parts[marks[0] :]]
            return [_Placed(token, end) for token in tokens]
    return []


def _group_at(parser: Parser, offset: int) -> list[Token]:
    """Return the tokens of the group in braces at an offset; none where there is no group."""
    level = 0
    tokens: list[Token] = []
    for place in range(offset, offset + MAX_AHEAD):
        token = parser.peek(place)
        level += {"{": 1, "}": -1}.get(token.text, 0) if token.kind == "op" else 0
        if not tokens and not level:
            return []
        tokens.append(token)
        if not level:
            return tokens
    return []


# --- limits and derivatives -------------------------------------------------------------------------------------------


def _limit(parser: Parser, _: str) -> Node:
    parser.expect("_")
    tokens = _group(parser)
    side = ""
    for end in (["^", "{", "{}", "}"], ["^", "{}"]):
        shape = [token.text if token.text not in ("+", "-") else "{}" for token in tokens[-len(end) :]]
        if shape == end:
            side = next(token.text for token in tokens[-len(end) :] if token.text in ("+", "-"))
            tokens = tokens[: -len(end)]
            break
    if len(tokens) < 3 or tokens[1].text != "to":
        raise ParseError("a limit without its variable")
    name = _name_of_variable(tokens[0])
    target = _parse_all(parser.part(tokens[2:]))
    start = parser.mark()
    body = parser.expression(_TERM)
    if _follows(parser, name):
        parser.backtrack(start)
        body = parser.expression(_ALL_TERMS)
    return bind("lim", body, name, target, Words(side))


def _derivative_or_fraction(parser: Parser, sign: str) -> Node:
    """\\frac{d}{dx} before an operand, \\frac{d^2}{dx^2}; else a fraction."""
    if parser.op() != "{" or parser.peek().text not in ("d", "\\partial"):
        return PREFIX[sign](parser, sign)
    top = _group_at(parser, 0)
    bottom = _group_at(parser, len(top))
    order = _order(top[2:-1])
    parts = _split(bottom[1], bottom[2]) if len(bottom) > 2 and bottom[1].kind == "name" else ([], 0)
    if len(bottom) > 3 and bottom[1].text == "\\partial" == top[1].text and _is_variable(bottom[2]):
        parts = _differential_of(bottom[2]), 2
    if not order or len(parts[0]) != 2 or _order(bottom[1 + parts[1] : -1]) != order:
        return PREFIX[sign](parser, sign)
    operand = parser.peek(len(top) + len(bottom))
    if operand.kind == "end" or (operand.kind == "op" and operand.text not in _OPENERS and operand.text not in PREFIX):
        return PREFIX[sign](parser, sign)
    name = _name_of_variable(parts[0][1])
    parser.advance(len(top) + len(bottom))
    body = parser.expression(_TERM)
    if _follows(parser, name):
        raise ParseError("what the derivative reaches over")
    return Op("diff", (body, Sym(name), number(order)))


def _order(tokens: list[Token]) -> int:
    """The order that ^2 or ^{2} gives: 1 for none, 0 for another text."""
    texts = [token.text for token in tokens if token.text not in ("{", "}")]
    if not texts:
        return 1
    if len(texts) == 2 and texts[0] == "^" and texts[1].isdigit() and 1 <= int(texts[1][:3]) <= MAX_ORDER:
        return int(texts[1])
    return 0


CALCULUS: dict[str, Callable[[Parser, str], Node]] = {
    **dict.fromkeys(("\\sum", "\\prod"), _sum),
    **dict.fromkeys(_FRACTIONS, _derivative_or_fraction),
    "\\int": _integral,
    "\\lim": _limit,
}
