"""What may stand around a value: words that introduce it, multipliers, a unit, harmless words after it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.verifiers.math.conditions import skip_condition
from rlvr.verifiers.math.tree import Node, Op, ParseError, Unit, number, symbols
from rlvr.verifiers.math.units import NO_UNIT, POWERS, SQUARED, UNITS, find_unit, power_of, product_of
from rlvr.verifiers.math.vocabulary import BLOCKED, LEAD, SEPARATORS
from rlvr.verifiers.math.words import MULTIPLIERS, NUMBER_WORDS

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

MAX_TAIL_WORDS = 8
CURRENCIES = frozenset("$£€¥₹¢")

# Verbs between a name and an answer: Janet makes $18.
_VERBS = frozenset("is are was has have had makes made needs gets got costs spent earns earned paid pays".split())


def lead(parser: Parser) -> None:
    """Moves over words that only introduce an answer."""
    start = parser.at = _after_label(parser)
    if parser.is_word(parser.token) and parser.token.text.istitle() and parser.tokens[start + 1].text in _VERBS:
        start = parser.at = start + 1 if parser.token.text.lower() not in BLOCKED else start
    while parser.kind == "name":
        text = parser.token.text.lower()
        following = parser.tokens[parser.at + 1]
        if text not in LEAD or (len(text) == 1 and not parser.token.upright) or following.kind == "end":
            break
        if text in ("i", "a") and following.kind != "name":
            break
        if following.kind == "op" and following.text in ("^", "_", "/", ")", ","):
            break
        parser.at += 1
        while parser.op() in (":", "=", "~") and parser.at > start:
            parser.at += 1


def _after_label(parser: Parser) -> int:
    """Where an answer goes on after a label in words: `Height = 5`, `The total cost: 5`."""
    at = parser.at
    while parser.is_word(parser.tokens[at]) and parser.tokens[at].text.lower() not in BLOCKED and at - parser.at < 6:
        at += 1
    token = parser.tokens[at]
    return at + 1 if at > parser.at and token.kind == "op" and token.text in ("=", ":") else parser.at


def tail(parser: Parser, value: Node) -> tuple[Node, Unit]:
    """The unit and the harmless words after a value."""
    unit = NO_UNIT
    parenthesis = parser.op() == "(" and parser.is_word(parser.tokens[parser.at + 1])
    if parser.kind != "name" and not parenthesis:
        if parser.op() in CURRENCIES and parser.op():
            unit = UNITS[parser.op()]
            parser.at += 1
        return value, unit
    word = parser.token.text.lower()
    while word in MULTIPLIERS and parser.kind == "name":
        value = Op("mul", (value, number(MULTIPLIERS[word])))
        parser.at += 1
        word = parser.token.text.lower()
    found = _unit(parser)
    words = _trailing_words(parser, symbols(value) | parser.named)
    if found is not None:
        return value, found
    return value, Unit(Fraction(1), (), " ".join(words)) if words else NO_UNIT


def _unit(parser: Parser) -> Unit | None:
    """A known unit at the position: powers, quotients and "square"."""
    total: Unit | None = None
    power = 1
    while True:
        start = parser.at
        if total is not None:
            if parser.op() in ("/", "*") or (parser.kind == "name" and parser.token.text.lower() == "per"):
                power = 1 if parser.op() == "*" else -1
                parser.at += 1
            elif not (parser.kind == "name" and parser.token.upright and find_unit(parser.token.text)):
                return total
            else:
                power = 1
        one = _simple_unit(parser)
        if one is None:
            parser.at = start
            return total
        total = product_of(total or NO_UNIT, power_of(one, power))


def _simple_unit(parser: Parser) -> Unit | None:
    if parser.kind != "name":
        return None
    word = parser.token.text
    if word.lower() == "per" and parser.tokens[parser.at + 1].text.lower() == "cent":
        parser.at += 2
        return UNITS["%"]
    squared = SQUARED.get(word.lower(), 1)
    start = parser.at
    if squared > 1:
        parser.at += 1
        parser.take(".")
        if parser.kind != "name":
            parser.at = start
            return None
        word = parser.token.text
    unit = find_unit(word)
    if unit is None:
        parser.at = start
        return None
    parser.at += 1
    power = 1
    if parser.op() == "^":
        parser.at += 1
        braced = parser.take("{")
        negative = parser.take("-")
        if parser.kind != "num" or parser.token.number is None or parser.token.number.value not in (1, 2, 3):
            raise ParseError("a unit to an odd power")
        power = int(parser.token.number.value) * (-1 if negative else 1)
        parser.at += 1
        if braced:
            parser.expect("}")
    elif parser.kind == "name" and parser.token.text.lower() in POWERS:
        power = POWERS[parser.token.text.lower()]
        parser.at += 1
    elif squared == 1 and word.lower() not in ("$",) and parser.op() == "." and parser.at + 1 < len(parser.tokens):
        parser.at += 1
    return power_of(unit, power * squared)


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
        parser.at += 1
        if len(words) > MAX_TAIL_WORDS:
            raise ParseError("a sentence where an answer should be")
    if depth:
        raise ParseError("an open parenthesis")
    return words
