"""Operations in words: the square root of 42, half of 42."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.tree import Node, Op, ParseError, number

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

_ROOTS = {"root": 2, "square": 2, "cube": 3, "cubic": 3, "fourth": 4, "fifth": 5}
_SHARES = {"half": 2, "third": 3, "quarter": 4}
OPERATIONS = _ROOTS.keys() | _SHARES.keys()


def is_root_of(parser: Parser, offset: int) -> bool:
    """Whether "root of" stands here, before a value: the square root of 42."""
    following = parser.peek(offset + 2)
    operand = following.kind == "num" or following.text in ("(", "{", "\\frac", "\\sqrt", "-")
    return parser.peek(offset + 1).text == "of" and operand


def operation(parser: Parser) -> Node:
    """The (square, cube) root of 42, half of 42."""
    word = parser.token.text.lower()
    if word in _SHARES and parser.peek().text == "of":
        parser.advance(2)
        return Op("div", (parser.expression(30), number(_SHARES[word])))
    named = 0 if word == "root" else 1
    if word not in _ROOTS or parser.peek(named).text.lower() != "root" or not is_root_of(parser, named):
        raise ParseError(f"the word {word!r}")
    parser.advance(named + 2)
    return Op("root", (number(_ROOTS[word]), parser.expression(30)))
