"""Number literals: integers, decimals, scientific notation and repeating decimals, with bounds on their digits."""

from __future__ import annotations

import re
from fractions import Fraction

from rlvr.verifiers.math.tree import Node, Num, Op, ParseError, TooLarge, number

MAX_DIGITS = 2_000
MAX_EXPONENT_DIGITS = 30


def decimal(text: str) -> Num:
    """An integer, decimal or scientific literal, without its thousands marks."""
    if text.isdigit():
        if len(text) > MAX_DIGITS:
            raise TooLarge(f"a number of {len(text)} digits; at most {MAX_DIGITS} are read")
        return number(int(text))
    mantissa, _, exponent = text.lower().partition("e")
    mantissa = "".join(c for c in mantissa if c.isdigit() or c == ".")
    if len(mantissa) > MAX_DIGITS or len(exponent) > MAX_EXPONENT_DIGITS:
        raise TooLarge(f"a number of {len(mantissa)} digits; at most {MAX_DIGITS} are read")
    power = int(exponent) if exponent else 0
    if abs(power) > MAX_DIGITS:
        raise TooLarge(f"a number with the exponent {power}; at most {MAX_DIGITS} is read")
    whole, _, fraction = mantissa.partition(".")
    value = Fraction(int(whole + fraction or "0"), 10 ** len(fraction)) * Fraction(10) ** power
    if not fraction and power == 0:
        return Num(value)
    return Num(value, max(0, len(fraction) - power), len((whole + fraction).lstrip("0")))


_WRITTEN = re.compile(
    r"([+-]?)(?:(\d{1,18}(?:\.\d{1,18})?)|(?:(\d{1,18}) ?)?\\[dt]?frac\{(\d{1,18})\}\{(\d{1,18})\})\Z", re.ASCII
)
_LAST = (*"0123456789}",)  # what such a number ends with


def written_number(text: str) -> Node | None:
    """Return the tree of an integer, decimal, fraction or mixed number, which needs no grammar; else None."""
    match = _WRITTEN.match(text) if text.endswith(_LAST) else None
    if match is None:
        return None
    sign, plain, whole, top, bottom = match.groups()
    if plain:
        tree: Node = decimal(plain)
    elif not whole:
        tree = Op("div", (number(int(top)), number(int(bottom))))
    elif 0 < int(top) < int(bottom):
        tree = Num(int(whole) + Fraction(int(top), int(bottom)))
    else:
        return None
    return Op("neg", (tree,)) if sign == "-" else tree


_BLOCK = re.compile(r"(\d*)\.(\d*?)(\d{1,12}?)\3{2,}\Z")
_HEAD = re.compile(r"(\d*)\.(\d*)")
_BARRED = re.compile(r"\\\w+\s*(?:\{(\d+)\}|(\d))(\d*)")
_LONG_BLOCK = re.compile(r"(\d*)\.(\d*?)(\d{2,12}?)\3+\Z")


def repeating(text: str) -> Num:
    """Read 0.1\\overline{6}, 0.1\\dot{6}, 0.\\dot{1}4\\dot{2}, 0.(3), 0.333... as exact numbers.

    Raises ParseError where the dots follow no repeated block."""
    if len(text) > MAX_DIGITS:
        raise TooLarge(f"a number of {len(text)} characters; at most {MAX_DIGITS} are read")
    text = "".join(text.split())
    if text.endswith(("...", "dots")):
        digits = text.removesuffix("...").rstrip() if text.endswith("...") else text[: text.rindex("\\")].rstrip()
        digits = digits[:40] if len(digits) > 40 else digits
        match = _BLOCK.match(digits) or _LONG_BLOCK.match(digits)
        if match is None:
            return decimal(digits)
        whole, fixed, block = match.groups()
    else:
        head = _HEAD.match(text)
        assert head is not None
        whole, fixed = head.groups()
        block = "".join(c for c in text[head.end() :] if c.isdigit())
        if "overline" in text or "bar" in text:
            inner = _BARRED.match(text, head.end())
            if inner is None or inner[3]:
                raise ParseError("digits after a repeating block")
    value = Fraction(int(whole + fixed or "0"), 10 ** len(fixed))
    value += Fraction(int(block), (10 ** len(block) - 1) * 10 ** len(fixed))
    return Num(value)
