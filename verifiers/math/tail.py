"""The words around a value: those that introduce it, multipliers and parts, a unit, harmless words after it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.verifiers.math.conditions import skip_condition
from rlvr.verifiers.math.factors import is_rate
from rlvr.verifiers.math.lex import Token
from rlvr.verifiers.math.measures import unit
from rlvr.verifiers.math.restated import is_restated
from rlvr.verifiers.math.spoken import is_root_of
from rlvr.verifiers.math.tree import Node, Op, ParseError, Unit, number, symbols
from rlvr.verifiers.math.units import NO_UNIT, UNITS
from rlvr.verifiers.math.vocabulary import ALTERING, BLOCKED, LEAD, SEPARATORS
from rlvr.verifiers.math.words import ABBREVIATED, MAGNITUDES, MULTIPLIERS, NO_MAGNITUDE, NUMBER_WORDS, PARTS

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

MAX_TAIL_WORDS = 8
MAX_LABEL_WORDS = 6
MAX_LABEL_TOKENS = 16
_MATRIX_NUMBERS = frozenset(("\\det", "\\dim", "\\rank", "\\deg", "\\tr", "\\ker"))
_PROPERTIES = frozenset("odd even prime composite rational irrational large small".split())  # n odd
_ORDINAL = frozenset(("st", "nd", "rd", "th"))
_MULTIPLE = frozenset(("double", "repeated", "triple"))
_ROOTS = frozenset("root roots zero solution".split())
_NOTATIONS = frozenset("binary octal hexadecimal hex ternary".split())
_RELATIONS = frozenset(("=", "~", "<", "<=", ">", ">=", "!=", "in"))
CURRENCIES = frozenset("$£€¥₹¢")

# Verbs between a name and an answer: Janet makes $18.
_VERBS = frozenset("is are was has have had makes made needs gets got costs spent earns earned paid pays".split())


def lead(parser: Parser) -> str:
    """Move over words that only introduce an answer; return the label among them, "" without one."""
    if parser.kind != "name":
        return ""
    label = _skip_label(parser)
    named = parser.is_word(parser.token) and parser.token.text.istitle() and parser.word() not in BLOCKED
    if named and parser.peek().text in _VERBS:
        label = label or parser.word()
        parser.advance()
    while parser.word() in LEAD and _introduces(parser.token, parser.peek()) and not _is_mathematics(parser):
        parser.advance()
        parser.skip(":", "=", "~")
    return label


def _is_mathematics(parser: Parser) -> bool:
    """Whether a word of LEAD is a product within brackets (e^{it}), or the root of what follows."""
    token = parser.token
    if parser.in_group and len(token.text) <= 2 and not token.upright:
        return True
    return token.text.lower() == "root" and (parser.peek().kind == "num" or is_root_of(parser, 0))


def _introduces(token: Token, following: Token) -> bool:
    """Whether a word of LEAD introduces an answer; before some tokens it is a variable, or the answer itself."""
    if (len(token.text) == 1 and not token.upright) or following.kind == "end":
        return False
    if token.text.lower() in ("i", "a") and following.kind != "name":
        return False
    return following.kind != "op" or following.text not in ("^", "_", "/", ")", ",")


def _skip_label(parser: Parser) -> str:
    """Move over a label in words, and return it: `Height = 5`, `The total cost: 5`, `rank(A) = 5`."""
    words = 0
    while words < MAX_LABEL_WORDS and parser.is_word(token := parser.peek(words)) and token.text.lower() not in BLOCKED:
        words += 1
    if words == 1 or parser.token.text in _MATRIX_NUMBERS:
        words = _past_argument(parser)
    if not words or parser.op(words) not in ("=", ":"):
        return ""
    label = " ".join(parser.peek(place).text.lower() for place in range(words))
    parser.advance(words + 1)
    return label.removeprefix("the ").removeprefix("and ")


def _past_argument(parser: Parser) -> int:
    """Return the number of tokens of a name and its argument: rank(A), \\det A."""
    if parser.op(1) != "(":
        return 2 if parser.token.text in _MATRIX_NUMBERS and parser.peek().kind == "name" else 1
    for place in range(2, MAX_LABEL_TOKENS):
        if parser.op(place) in ("(", "=") or parser.peek(place).kind == "end":
            break
        if parser.op(place) == ")":
            return place + 1
    return 1


def tail(parser: Parser, value: Node) -> tuple[Node, Unit]:
    """Parse multipliers, a unit and harmless words after a value; return the value and its unit."""
    _skip_multiplicity(parser)
    parenthesis = parser.op() in ("(", "[") and parser.is_word(parser.peek()) and not is_restated(parser, value)
    if parser.op() == "/" and is_rate(parser):
        parser.advance()
        return value, Unit(Fraction(1), (), " ".join(("per", *_trailing_words(parser, frozenset()))))
    if parser.kind != "name" and not parenthesis:
        return value, UNITS[parser.advance().text] if parser.op() in CURRENCIES else NO_UNIT
    if parser.token.apart and not parser.is_word(parser.token):
        return value, NO_UNIT
    if parser.word() in _ORDINAL and not parser.token.spaced and parser.is_word(parser.peek()):
        raise ParseError("an ordinal")
    while scale := _multiplier(parser):
        value = Op("mul", (value, number(scale)))
    if (part := parser.word()) in PARTS or (
        f"{part}s" in PARTS and (value == number(1) or parser.peek().kind == "end")
    ):
        if part not in PARTS and value != number(1):
            raise ParseError(f"the word {part!r} beside a value")
        value = Op("div", (value, number(PARTS.get(part) or PARTS[f"{part}s"])))
        parser.advance()
    found = _parenthesised_unit(parser) if parenthesis else unit(parser)
    words = _trailing_words(parser, symbols(value) | parser.named)
    if found is not None:
        return value, found
    if words and (parser.named or symbols(value)) and not _PROPERTIES.isdisjoint(words):
        raise ParseError(f"the word {words[0]!r} beside a name")
    return value, Unit(Fraction(1), (), " ".join(words)) if words else NO_UNIT


def _skip_multiplicity(parser: Parser) -> None:
    """Move over `(double root)`."""
    if parser.op() == "(" and parser.peek().text in _MULTIPLE:
        closing = 3 if parser.peek(2).text in _ROOTS else 2
        if parser.op(closing) == ")":
            parser.advance(closing + 1)


def _multiplier(parser: Parser) -> int:
    """Move over a word of magnitude after a number (42 million, 42万), and return it; 0 where there is none."""
    token, word = parser.token, parser.word()
    if word in MULTIPLIERS:
        parser.advance()
        return MULTIPLIERS[word]
    if token.text in ABBREVIATED and (token.upright or len(word) > 3) and parser.peek().kind == "end":
        parser.advance()
        return ABBREVIATED[word]
    if word[:1] in MAGNITUDES and not word.startswith(NO_MAGNITUDE):
        if len(word) > 1:
            parser.replace(token._replace(text=word[1:]))
        else:
            parser.advance()
        return MAGNITUDES[word[0]]
    return 0


def _parenthesised_unit(parser: Parser) -> Unit | None:
    """Parse 36 (sq. inches), 5 [cm]; None (and no move) where the brackets hold other words."""
    start = parser.mark()
    closer = ")" if parser.advance().text == "(" else "]"
    found = unit(parser)
    if found is None or not parser.take(closer):
        parser.backtrack(start)
        return None
    return found


def _trailing_words(parser: Parser, names: frozenset[str]) -> list[str]:
    """Move over words to the end of the side, and return them. Raise ParseError for one that changes the answer."""
    words: list[str] = []
    before = parser.before.text
    depth = 0
    while True:
        token = parser.token
        if token.apart and words and not parser.is_word(token):
            break
        if token.kind == "name":
            word = token.text.lower()
            joins = word == "and" and bool(words) and parser.is_word(parser.peek())  # 7 cats and dogs
            if depth == 0 and not joins and (word in SEPARATORS or skip_condition(parser, names)):
                break
            if joins:
                parser.advance()
                continue
            conditional = word == "only" and parser.peek().text in ("when", "if", "for")
            if conditional or word in BLOCKED or word in ALTERING or word in NUMBER_WORDS or word.startswith("\\"):
                raise ParseError(f"the word {token.text[:40]!r} beside a value")
            letter = len(token.text) == 1 and token.text.isascii() and not token.upright
            if letter and (parser.op(1) in _RELATIONS if words else not token.spaced):  # 5 with R = 1
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
    if words[-1:] == ["negative"] or (words and words[-1] in _NOTATIONS and "in" in (*words[-2:-1], before)):
        raise ParseError(f"the word {words[-1]!r} beside a value")
    return words
