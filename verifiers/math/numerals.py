"""Numbers in Chinese and Japanese signs: 五, 二十三, 百分之五十."""

from __future__ import annotations

import re

from rlvr.verifiers.math.tree import Node, Quantity, number
from rlvr.verifiers.math.units import UNITS

_DIGITS = {sign: value for value, signs in enumerate(("零〇", "一", "二两兩", "三", "四", "五", "六", "七", "八", "九"))
           for sign in signs}  # fmt: skip
_MULTIPLES = {"十": 10, "百": 100, "千": 1000}
_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_NUMERAL = re.compile(rf"(百分之)?([{''.join((*_DIGITS, *_MULTIPLES, *_LARGE))}]{{1,20}})")


def numeral(text: str) -> Node | None:
    """Return the number that a text is; None where it is more, or another text."""
    match = _NUMERAL.fullmatch(text)
    if match is None:
        return None
    value = number(_value(match[2]))
    return Quantity(value, UNITS["%"]) if match[1] else value


def _value(signs: str) -> int:
    """The value of 二十三 by its multiples, of 二三 by its digits."""
    if all(sign in _DIGITS for sign in signs):
        return int("".join(str(_DIGITS[sign]) for sign in signs))
    total = part = digit = 0
    for sign in signs:
        if sign in _DIGITS:
            digit = _DIGITS[sign]
        elif sign in _MULTIPLES:
            part, digit = part + (digit or 1) * _MULTIPLES[sign], 0
        else:
            total, part, digit = total + (part + digit or 1) * _LARGE[sign], 0, 0
    return total + part + digit
