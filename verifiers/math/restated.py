"""A value that is repeated in brackets in another form: 1/2 (0.5), \\sqrt 2 (\\approx 1.414)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.exact import Inexact, Undefined, rational
from rlvr.verifiers.math.rounding import approximates
from rlvr.verifiers.math.tree import Node, Num, ParseError, Quantity, symbols
from rlvr.verifiers.math.units import UNITS
from rlvr.verifiers.math.words import NUMBER_WORDS

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

_MARKS = frozenset(("~", "="))
_FRACTIONS = frozenset(("\\frac", "\\dfrac", "\\tfrac"))
_WORDS = frozenset("or about approximately approx roughly i.e. ie".split())


def is_restated(parser: Parser, value: Node) -> bool:
    """Whether the bracket here repeats the value before it, and is no factor."""
    spelled = parser.before.kind == "name" and parser.before.text.lower() in NUMBER_WORDS
    if (parser.peek().text.lower() in NUMBER_WORDS or (spelled and parser.op(2) == ")")) and not symbols(value):
        return parser.peek().kind in ("name", "num")  # 42 (forty-two), five (5)
    written = parser.peek(2).kind == "num" or parser.op(2) in _FRACTIONS
    if parser.op(1) in _MARKS or (parser.peek().text in _WORDS and written):
        return not symbols(value)
    if not parser.token.spaced:
        return False
    first, second = parser.peek().number, parser.peek(3).number
    if first is None:
        return False
    if parser.op(2) == "%" and parser.op(3) == ")":  # 1/8 (12.5%)
        return approximates(value, Quantity(first, UNITS["%"]))
    if parser.op(2) == ")":  # 1/2 (0.5), \sqrt{2} (1.414)
        precise = bool(first.places) and (first.digits > 1 or rational(value) == first.value)
        return precise and not isinstance(value, Num) and not symbols(value) and approximates(value, first)
    quotient = second is not None and second.value and parser.op(2) == "/" and parser.op(4) == ")"  # 0.5 (1/2)
    if not quotient or second is None or not isinstance(value, Num) or value.places is None:
        return False
    return value.value == first.value / second.value


def restated(parser: Parser, value: Node) -> None:
    """Move over the bracket. Raise ParseError where it holds another value."""
    parser.expect("(")
    parser.skip(*_MARKS)
    parser.skip_words(_WORDS)
    parser.deeper()
    with parser.group():
        again = parser.side()
        parser.expect(")")
    parser.shallower()
    try:
        same = rational(again) is not None and rational(value) == rational(again)
        same = same or approximates(value, again)
    except (Inexact, Undefined):
        same = False
    if not same:
        raise ParseError("two different values side by side")
