"""The grammar of units after a value: powers, quotients, products, prefixes, and smaller units that follow."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.verifiers.math.operators import flat
from rlvr.verifiers.math.tree import Node, Num, Op, ParseError, Quantity, Unit
from rlvr.verifiers.math.units import (
    POWERS,
    SQUARED,
    UNITS,
    find_unit,
    power_of,
    product_of,
    scale_of,
    temperature,
    unit_of_two,
)

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

_DEGREE, _TIME = (("degree", 1),), (("time", 1),)
_DEGREES_OF_TIME = {60: 60, 1: 3600}  # seconds of time: parts of a degree
_CAPITALS = frozenset("NJWVC")
MAX_RUN = 24  # tokens of a unit without a multiplication sign


def unit(parser: Parser) -> Unit | None:
    """Parse a known unit: powers, quotients, products and "square"."""
    total: Unit | None = None
    while True:
        start = parser.mark()
        power = 1
        if total is not None:
            hyphenated = parser.op() == "-" and not parser.token.spaced and not parser.peek().spaced
            if parser.op() in ("/", "*") or parser.word() == "per" or hyphenated:
                power = 1 if parser.advance().text in ("*", "-") else -1
            elif not _goes_on(parser):
                return total
        one = _grouped(parser) if total is not None else None
        one = one or _simple_unit(parser, total is not None)
        if one is None:
            parser.backtrack(start)
            return total
        total = one if total is None else product_of(total, power_of(one, power))


def _goes_on(parser: Parser) -> bool:
    """Whether the name here is a further factor of a unit: kg m, J K^{-1}."""
    token = parser.token
    return token.kind == "name" and (token.upright or token.spaced) and find_unit(token.text, True) is not None


def _grouped(parser: Parser) -> Unit | None:
    """Parse the (kg K) of J/(kg K); None (and no move) where there is none."""
    start = parser.mark()
    if not parser.take("("):
        return None
    parser.deeper()
    inner = unit(parser)
    parser.shallower()
    if inner is None or not parser.take(")"):
        parser.backtrack(start)
        return None
    return inner


def _simple_unit(parser: Parser, within: bool) -> Unit | None:
    """Parse one unit with its power, and "square" or "cubic" before it; None (and no move) where there is none.

    `within`: it follows another unit."""
    if parser.word() == "per" and parser.peek().text.lower() == "cent":
        parser.advance(2)
        return UNITS["%"]
    start = parser.mark()
    squared = SQUARED.get(parser.word(), 1)
    if squared > 1:
        parser.advance()
        parser.take(".")
    found = _name(parser, within) if parser.kind == "name" else None
    if found is None:
        parser.backtrack(start)
        return None
    if parser.take("^"):
        return power_of(found, _unit_power(parser) * squared)
    if parser.word() in POWERS:
        return power_of(found, POWERS[parser.advance().text.lower()] * squared)
    if squared == 1:
        parser.take(".")
    return found if squared == 1 else power_of(found, squared)


def _name(parser: Parser, within: bool) -> Unit | None:
    """Parse the name of a unit; its prefix may be a token of its own: \\mu m, k\\Omega."""
    token, following = parser.token, parser.peek()
    hyphen = 1 if following.text == "-" else 0
    second = parser.peek(1 + hyphen)
    if second.kind == "name" and (two := unit_of_two(token.text, second.text)) is not None:
        parser.advance(2 + hyphen)
        return two
    if following.kind == "name" and (token.text == "\\mu" or following.text == "\\Omega"):
        found = find_unit(token.text.replace("\\mu", "μ") + following.text, True)
        if found is not None:
            parser.advance(2)
            return found
    found = find_unit(token.text, token.upright or within or token.text == "\\Omega")
    if found is not None:
        parser.advance()
        if found.dims == _DEGREE and parser.kind == "name" and (scale := scale_of(parser.token.text)):
            parser.advance()
            return temperature(scale)
    return found


def _unit_power(parser: Parser) -> int:
    """Parse the exponent of a unit: 1, 2, 3 or 4, with or without a minus."""
    braced = parser.take("{")
    negative = parser.take("-")
    exponent = parser.token.number
    if parser.kind != "num" or exponent is None or exponent.value not in (1, 2, 3, 4):
        raise ParseError("a unit to an odd power")
    parser.advance()
    if braced:
        parser.expect("}")
    return int(exponent.value) * (-1 if negative else 1)


def is_unit_run(parser: Parser) -> bool:
    """Whether letters that may be variables are a unit at the end of a side: N m, or m s^{-2} with a negative power."""
    negative = False
    count = 0
    capital = parser.token.text in _CAPITALS
    for offset in range(MAX_RUN):
        token = parser.peek(offset)
        if token.kind == "name":
            if find_unit(token.text, True) is None:
                return False
            count += 1
        elif token.kind == "op":
            negative |= token.text == "-"
            if token.text not in ("^", "{", "-", "}", "*", "/"):
                return (negative or (capital and count > 1)) and token.text in (",", ")", ";", "and", "or")
        elif token.kind == "end":
            return negative or (capital and count > 1)
        elif parser.peek(offset - 1).text not in ("^", "{", "-"):
            return False
    return False


def sign_is_unit(parser: Parser) -> bool:
    """Whether \\Omega or \\mu here, after a number, is a unit or its prefix, and nothing but units follows."""
    following = parser.peek()
    if parser.token.text == "\\Omega":
        return following.kind == "end" or parser.op(1) in (",", ")", "/")
    return (
        following.kind == "name"
        and (following.upright or parser.peek(2).kind == "end")
        and (find_unit("μ" + following.text, True) is not None)
    )


def smaller_units(parser: Parser, value: Node, first: Unit) -> Node:
    """Parse what follows a quantity, as in 5 feet 6 inches or 2 hours and 30 minutes; return the sum in the first."""
    size = Fraction(1)
    while first.dims:
        start = parser.mark()
        joined = parser.take("and") or (parser.word() == "and" and bool(parser.advance()))
        if parser.kind != "num":
            parser.backtrack(start)
            return value
        more, smaller = parser.quantity()
        part = _part(first, smaller)
        if part is None or part.value >= size:
            if not joined:
                raise ParseError("two quantities side by side")
            parser.backtrack(start)
            return value
        value = flat("add", value, Op("mul", (more, part)))
        size = part.value
    return value


def _part(whole: Unit, smaller: Unit) -> Num | None:
    """The size of the smaller unit in the larger; minutes and seconds after degrees are parts of a degree."""
    if whole.dims == smaller.dims and not smaller.words:
        return Num(smaller.factor / whole.factor)
    if whole.dims == _DEGREE and smaller.dims == _TIME and smaller.factor in _DEGREES_OF_TIME:
        return Num(whole.factor / _DEGREES_OF_TIME[int(smaller.factor)])
    return None


# The signs of the smaller unit, "" for none, and the names of both units.
_SHORT = {"'": (("", "''", '"'), "foot", "inch"), "h": (("m", "min"), "hour", "minute")}


def two_units(parser: Parser, whole: Num) -> Node | None:
    """Parse the rest of 5'6" and 2h30m after the first number; None (and no move) where another value stands here."""
    if parser.token.text not in _SHORT or parser.peek().kind != "num":
        return None
    seconds, first, second = _SHORT[parser.token.text]
    more, mark = parser.peek().number, parser.peek(2)
    count = 2 if mark.kind == "end" else 3
    if (mark.text not in seconds and mark.kind != "end") or more is None or parser.peek(count).kind != "end":
        return None
    if mark.kind == "end" and "" not in seconds:
        return None
    parser.advance(count)
    part = UNITS[second].factor / UNITS[first].factor
    return Quantity(Num(whole.value + more.value * part), UNITS[first])
