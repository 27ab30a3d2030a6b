"""What juxtaposition means: whether the token after an operand is a factor, a unit, or a word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.brackets import is_bracketed_factor
from rlvr.verifiers.math.lex import Token
from rlvr.verifiers.math.measures import is_unit_run, sign_is_unit
from rlvr.verifiers.math.restated import is_restated
from rlvr.verifiers.math.tree import Node, Op, ParseError, Sym
from rlvr.verifiers.math.units import CLEAR_UNITS, LETTER_UNITS, SQUARED, find_unit
from rlvr.verifiers.math.vocabulary import (
    BLOCKED,
    CONSTANT_NAMES,
    FUNCTIONS,
    GREEK,
    SEPARATORS,
    STOP,
    is_noun,
    is_product,
)
from rlvr.verifiers.math.words import MULTIPLIERS, NUMBER_WORDS

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

MAX_POWER_TOKENS = 8  # of the exponent of a unit
CJK = "\u2e80"  # from here on letters are words, never variables
_AFTER_NOUN = frozenset((",", ";", ")", "]", "}", "(", ".", "newline", "and", "or", "&"))
_ORDINALS = {"1": "st", "2": "nd", "3": "rd"}
_ARTICLES = frozenset(("a", "an"))
_OPENERS = frozenset(
    ("(", "{", "{{", "<(", "lfloor", "lceil", "\\frac", "\\dfrac", "\\tfrac", "\\cfrac", "\\sfrac", "\\nicefrac",
     "\\sqrt", "\\usqrt", "\\ucbrt", "\\uqdrt", "\\binom", "\\dbinom", "\\tbinom", "\\begin", "\\mathbb", "\\Bbb",
     "\\overline", "\\bar", "\\overrightarrow", "\\widehat", "\\dot", "\\ddot", "\\hat", "angle", "triangle", "overarc",
     "\\sum", "\\prod", "\\int", "\\lim")
)  # fmt: skip


def juxtaposable(parser: Parser, token: Token, left: Node) -> bool:
    """Whether the operand at the position is a factor of the one before it, `left`."""
    before = parser.before
    if token.apart:
        return False
    if token.kind == "num":
        power = before.text == "}" and parser.op(1) == "^"  # \\frac{1}{2}2^n
        if (before.kind == "num" or before.upright or before.text == "}") and not (power or _ends_in_power(left)):
            raise ParseError("two numbers side by side")
        return True
    if token.kind == "name":
        return is_factor(parser, token, before)
    if token.text == "|":
        return not parser.bars and not parser.in_set
    if token.text == "(":
        return not is_word(parser, parser.peek()) and not is_restated(parser, left)
    if token.text == "[":
        return is_bracketed_factor(parser)
    return token.text in _OPENERS


def is_word(parser: Parser, token: Token) -> bool:
    """Whether a name is a word or a unit rather than mathematics."""
    text = token.text
    if token.kind != "name" or len(text) < 2 or text.startswith("\\") or text in FUNCTIONS or text in CONSTANT_NAMES:
        return False
    if text.lower() in NUMBER_WORDS or text in GREEK:
        return False
    if token.upright or text[0] >= CJK or not is_product(text):
        return True
    return parser.units and (_is_unit(text) or is_noun(text))


def is_rate(parser: Parser) -> bool:
    """Whether the / here is a "per" between a number and a word: $160/week."""
    token = parser.peek()
    if not parser.units or parser.before.kind != "num" or token.kind != "name":
        return False
    return is_word(parser, token) or (token.text == "min" and parser.peek(2).kind == "end")


def is_factor(parser: Parser, token: Token, before: Token) -> bool:
    """Whether a name after an operand is a factor (a variable, a function), not a unit or a word."""
    text = token.text
    if (
        text in FUNCTIONS
        and (before.kind == "num" or before.text in ("}", ")"))
        and find_unit(text)
        and parser.op(1) not in ("(", "{", "^", "\\frac", "_")
    ):
        return parser.peek().kind == "name"  # 5 min, 5 sec; but 2 sec x
    if parser.units and text in ("\\Omega", "\\mu") and before.kind == "num" and sign_is_unit(parser):
        return False
    if text.startswith("\\") or text in FUNCTIONS or text in CONSTANT_NAMES or text in GREEK:
        return True
    if text.lower() in SEPARATORS or text.lower() in MULTIPLIERS or text.lower() in BLOCKED or text in STOP:
        return False
    if text[0] >= CJK:
        return False
    if token.upright:
        stuck = before.kind == "num" and before.upright and not token.spaced and text not in LETTER_UNITS
        return len(text) == 1 and (text in "ei" or stuck)
    if text in _ARTICLES and parser.units and token.spaced and parser.peek().spaced and is_word(parser, parser.peek()):
        return False  # $5 a day
    if len(text) > 1:
        if parser.units and (before.kind == "num" or before.text in ("}", ")")):
            if not token.spaced and _may_be_variables(text, before):
                return True
            return is_product(text) and not _is_unit(text) and not (token.spaced and _ends_in_noun(parser))
        return is_product(text)
    after_value = before.kind == "num" or (before.text == "}" and text in "JNWVKC")
    if parser.units and token.spaced and after_value and text in LETTER_UNITS:
        if parser.op(1) == "^":
            return _power_is_factor(parser) and not is_unit_run(parser)
        return parser.peek().kind != "end" and parser.op(1) not in ("/", ",") and not is_unit_run(parser)
    return True


def _power_is_factor(parser: Parser) -> bool:
    """Whether the power of a letter here, m^2, is followed by mathematics: a variable or a sign."""
    place = 3
    if parser.op(2) == "{":
        while parser.op(place) != "}" and parser.peek(place).kind != "end" and place < MAX_POWER_TOKENS:
            place += 1
        place += 1
    after = parser.peek(place)
    if after.kind == "op":
        return after.text not in _AFTER_NOUN and after.text != "/"
    return after.kind == "num" or (after.kind == "name" and not is_word(parser, after))


def _ends_in_noun(parser: Parser) -> bool:
    """Whether the letters here are a word at the end of a side: 42 cats, 42 black cats."""
    following = parser.peek()
    if not is_noun(parser.token.text) or following.kind == "num":
        return False
    return following.kind != "op" or following.text in _AFTER_NOUN or (following.text == "-" and not following.spaced)


def _ends_in_power(node: Node) -> bool:
    """Whether a product ends in a power or in a name (its exponent or index is not a factor): 2^3 3^2, x_1 100."""
    last = node.args[-1] if isinstance(node, Op) and node.head == "mul" else node
    return isinstance(last, Sym) or (isinstance(last, Op) and last.head == "pow")


def _may_be_variables(text: str, before: Token) -> bool:
    """Whether two letters that follow a value at once, 3mg or 2st, are a product and no unit or ordinal."""
    if text in _ORDINALS.values() or text == "th":
        last = before.text[-1:]
        return text != ("th" if before.text[-2:-1] == "1" else _ORDINALS.get(last, "th"))
    return len(text) == 2 and text not in CLEAR_UNITS and is_product(text)


def _is_unit(word: str) -> bool:
    """A unit, the start of one ("sq. ft."), or the end of an ordinal (12th)."""
    return find_unit(word) is not None or word.lower() in SQUARED or word in ("st", "nd", "rd", "th")
