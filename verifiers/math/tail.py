"""What may stand around a value: words that introduce it, multipliers, a unit, harmless words after it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.verifiers.math.conditions import skip_condition
from rlvr.verifiers.math.lex import Token
from rlvr.verifiers.math.tree import Node, Op, ParseError, Unit, number, symbols
from rlvr.verifiers.math.units import NO_UNIT, POWERS, SQUARED, UNITS, find_unit, power_of, product_of
from rlvr.verifiers.math.vocabulary import BLOCKED, LEAD, SEPARATORS
from rlvr.verifiers.math.words import MULTIPLIERS, NUMBER_WORDS

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

MAX_TAIL_WORDS = 8
MAX_LABEL_WORDS = 6
CURRENCIES = frozenset("$£€¥₹¢")

# Verbs between a name and an answer: Janet makes $18.
_VERBS = frozenset("is are was has have had makes made needs gets got costs spent earns earned paid pays".split())


def lead(parser: Parser) -> None:
    """Move over words that only introduce an answer."""
    _skip_label(parser)
    named = parser.is_word(parser.token) and parser.token.text.istitle() and parser.word() not in BLOCKED
    if named and parser.peek().text in _VERBS:
        parser.advance()
    while parser.word() in LEAD and _introduces(parser.token, parser.peek()):
        parser.advance()
        parser.skip(":", "=", "~")


def _introduces(token: Token, following: Token) -> bool:
    """Whether a word of LEAD introduces an answer; before some tokens it is a variable, or the answer itself."""
    if (len(token.text) == 1 and not token.upright) or following.kind == "end":
        return False
    if token.text.lower() in ("i", "a") and following.kind != "name":
        return False
    return following.kind != "op" or following.text not in ("^", "_", "/", ")", ",")


def _skip_label(parser: Parser) -> None:
    """Move over a label in words: `Height = 5`, `The total cost: 5`."""
    words = 0
    while words < MAX_LABEL_WORDS and parser.is_word(token := parser.peek(words)) and token.text.lower() not in BLOCKED:
        words += 1
    if words and parser.op(words) in ("=", ":"):
        parser.advance(words + 1)


def tail(parser: Parser, value: Node) -> tuple[Node, Unit]:
    """The unit and the harmless words after a value."""
    parenthesis = parser.op() == "(" and parser.is_word(parser.peek())
    if parser.kind != "name" and not parenthesis:
        return value, UNITS[parser.advance().text] if parser.op() in CURRENCIES else NO_UNIT
    while parser.word() in MULTIPLIERS:
        value = Op("mul", (value, number(MULTIPLIERS[parser.word()])))
        parser.advance()
    found = _unit(parser)
    words = _trailing_words(parser, symbols(value) | parser.named)
    if found is not None:
        return value, found
    return value, Unit(Fraction(1), (), " ".join(words)) if words else NO_UNIT


def _unit(parser: Parser) -> Unit | None:
    """A known unit at the position: powers, quotients and "square"."""
    total: Unit | None = None
    while True:
        start = parser.mark()
        power = 1
        if total is not None:
            if parser.op() in ("/", "*") or parser.word() == "per":
                power = 1 if parser.advance().text == "*" else -1
            elif not (parser.kind == "name" and parser.token.upright and find_unit(parser.token.text)):
                return total
        one = _simple_unit(parser)
        if one is None:
            parser.backtrack(start)
            return total
        total = product_of(total or NO_UNIT, power_of(one, power))


def _simple_unit(parser: Parser) -> Unit | None:
    """A unit with its power and "square" or "cubic" before it; None, with the position where it was, without one."""
    if parser.word() == "per" and parser.peek().text.lower() == "cent":
        parser.advance(2)
        return UNITS["%"]
    start = parser.mark()
    squared = SQUARED.get(parser.word(), 1)
    if squared > 1:
        parser.advance()
        parser.take(".")
    unit = find_unit(parser.token.text) if parser.kind == "name" else None
    if unit is None:
        parser.backtrack(start)
        return None
    parser.advance()
    if parser.take("^"):
        return power_of(unit, _unit_power(parser) * squared)
    if parser.word() in POWERS:
        return power_of(unit, POWERS[parser.advance().text.lower()] * squared)
    if squared == 1:
        parser.take(".")
    return power_of(unit, squared)


def _unit_power(parser: Parser) -> int:
    """The exponent of a unit: 1, 2 or 3, with or without a minus."""
    braced = parser.take("{")
    negative = parser.take("-")
    exponent = parser.token.number
    if parser.kind != "num" or exponent is None or exponent.value not in (1, 2, 3):
        raise ParseError("a unit to an odd power")
    parser.advance()
    if braced:
        parser.expect("}")
    return int(exponent.value) * (-1 if negative else 1)


def _trailing_words(parser: Parser, names: frozenset[str]) -> list[str]:
    """Words to the end of the side, none of which changes the answer."""
    words: list[str] = []
    depth = 0
    while True:
        token = parser.token
        if token.kind == "name":
            word = token.text.lower()
            if depth == 0 and (word in SEPARATORS or skip_condition(parser, names)):
                break
            if word in BLOCKED or word in NUMBER_WORDS or word.startswith("\\"):
                raise ParseError(f"the word {token.text[:40]!r} beside a value")
            if len(token.text) == 1 and token.text.isascii() and not token.upright and not words and not token.spaced:
                raise ParseError(f"the letter {token.text!r} beside a value")
            words.append(word)
        elif token.kind == "op" and token.text == "(" and depth == 0:
            depth = 1
        elif token.kind == "op" and token.text == ")" and depth == 1:
            depth = 0
        elif token.kind == "op" and token.text in ("-", "/", "'", ".") and words:
            pass
        else:
            break
        parser.advance()
        if len(words) > MAX_TAIL_WORDS:
            raise ParseError("a sentence where an answer should be")
    if depth:
        raise ParseError("an open parenthesis")
    return words
