r"""Sets of numbers by name: \mathbb{Z}, \mathbb{R}^+, \mathbb{N}_0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.tree import Node, Op, ParseError, Words

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

COMMANDS = ("reals", "integers", "naturals", "rationals", "complexes")
INTEGERS, REALS = Op("domain", (Words("integers"),)), Op("domain", (Words("reals"),))
_LETTERS = {"R": "reals", "Z": "integers", "N": "naturals", "Q": "rationals", "C": "complexes"}
# What an index or exponent leaves of a set: Z^+, Z_{>0}, Z_{\ge 0}, R^*.
_MARKS = {
    **dict.fromkeys(("+", ">0", "0<", ">=1"), "positive"),
    **dict.fromkeys((">=0", "0+", "+0"), "nonnegative"),
    **dict.fromkeys(("-", "<0", "<=-1"), "negative"),
    "<=0": "nonpositive",
    **dict.fromkeys(("!=0", "*", "\\ast", "\\times"), "nonzero"),
}
_SPELLINGS = {"\\geqslant": ">=", "\\geq": ">=", "\\ge": ">=", "≥": ">=", "\\gt": ">", "\\lt": "<", "\\leq": "<=",
              "\\le": "<=", "≤": "<=", "\\neq": "!=", "\\ne": "!="}  # fmt: skip
_NATURALS = {"0": "nonnegative", "*": "positive", "\\ast": "positive"}  # N_0, N^*


def domain(parser: Parser, text: str) -> Node:
    """Parse what follows the command of a set: its letter, and a mark such as ^+."""
    if text in COMMANDS:
        name = text
    else:
        letter = parser.argument_text()
        if letter not in _LETTERS:
            raise ParseError(f"the set {letter[:20]!r}")
        name = _LETTERS[letter]
    if parser.op() not in ("^", "_"):
        return Op("domain", (Words(name),))
    start = parser.mark()
    parser.advance()
    mark = parser.argument_text().replace(" ", "")
    for sign, spelling in _SPELLINGS.items():
        mark = mark.replace(sign, spelling)
    kind = (_NATURALS.get(mark) if name == "naturals" else None) or _MARKS.get(mark)
    if kind is None or name == "complexes" or (kind == "nonzero" and name == "integers"):
        parser.backtrack(start)
        return Op("domain", (Words(name),))
    if name == "naturals":
        name = "integers"
    return Op("domain", (Words(f"{kind} {name}"),))
