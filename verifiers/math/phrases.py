"""Answers that are phrases: no solution, 1 in 6, 52 (base 8)."""

from __future__ import annotations

import re

from rlvr.verifiers.math.tree import OO, Node, Op, Words, number
from rlvr.verifiers.math.words import NUMBER_WORDS

_BASED = re.compile(r"\(?([0-9A-F]+)\)?(?:_\(?|\(?(?:in)?base)(\d{1,2}|[a-z]{3,9})\)?\Z", re.IGNORECASE)
_NAME_AND_FACTOR = re.compile(r"[A-Za-z]_|[^_]*_(?:\{[^{}]*\}|\w)[^\s)}]")  # A_{16}, c_1 3
_PREFIXED = re.compile(r"0([bB](?=[01]+\Z)|[oO](?=[0-7]+\Z)|[xX](?=[0-9A-Fa-f]+\Z))(\w+)\Z")
_RADIX = {"b": 2, "o": 8, "x": 16}
_BASE_MARKS = str.maketrans("", "", " ,-{}")

_NONE, _REALS = Op("set", ()), Op("domain", (Words("reals"),))
PHRASES: dict[str, Node] = {
    **dict.fromkeys(("no solution", "no solutions", "no real solution", "no real solutions", "empty set"), _NONE),
    **dict.fromkeys(("there is no solution", "there are no solutions", "none", "no such numbers exist"), _NONE),
    "infinite": OO,
    **dict.fromkeys(("no solution exists", "no solutions exist", "无解", "無解", "нет решений"), _NONE),
    **dict.fromkeys(("aucune solution", "pas de solution", "keine lösung", "sin solución", "解なし"), _NONE),
    **dict.fromkeys(("all real numbers", "all reals", "any real number", "every real number", "all real x"), _REALS),
}


_ODDS = re.compile(r"(\d{1,6}) (?:in|out of) (\d{1,9})\Z")


def odds(normal: str) -> Node | None:
    """Return the probability 1 in 6; None for another text."""
    match = _ODDS.match(normal) if " in " in normal or " out " in normal else None
    return None if match is None else Op("div", (number(int(match[1])), number(int(match[2]))))


def in_base(normal: str) -> Node | None:
    """Return a number in a base whose digits may be letters: 1A_{16}, 52 (base 8); None for another text."""
    if "_" not in normal and "base" not in normal:
        match = _PREFIXED.match(normal) if normal.startswith("0") else None
        return match and Op("based", (Words(match[2].upper().lstrip("0") or "0"), number(_RADIX[match[1].lower()])))
    if "_" in normal and "-" in normal:
        return None  # c_1 - 3
    match = _BASED.match(normal.translate(_BASE_MARKS))
    if match is None or ("_" in normal and _NAME_AND_FACTOR.match(normal)):
        return None
    digits, base = match[1].upper().lstrip("0") or "0", match[2].lower()
    radix = int(base) if base.isdigit() else NUMBER_WORDS.get(base, 0)
    if not 2 <= radix <= 36 or any(int(digit, 36) >= radix for digit in digits):
        return None
    return Op("based", (Words(digits), number(radix)))
