"""The grammar of functions by cases, of determinants and of traces.

    piecewise (case (value, condition), ...)    a condition is a relation, several of them, or Words

Rows are cases where every one of them has a value and then a condition; else they are a list, as in a system of
equations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rlvr.verifiers.math.lex import Token
from rlvr.verifiers.math.operands import PREFIX
from rlvr.verifiers.math.tree import Node, Op, ParseError, Rel, Sym, Words

if TYPE_CHECKING:
    from rlvr.verifiers.math.parse import Parser

MAX_ROWS = 12
OTHERWISE = Words("otherwise")
_ENVIRONMENTS = frozenset("cases array dcases rcases".split())
_INTRODUCE = frozenset("if for when where".split())
_ELSE = frozenset("otherwise else elsewhere".split())
_FILLERS = frozenset("is are an a the".split())
_RELATIONS = frozenset(("=", "<", "<=", ">", ">=", "!=", "in", "notin"))
_BOUNDS = frozenset(("<", "<=", ">", ">="))
_OPENERS = frozenset(("(", "[", "{", "{{", "<(", "\\begin"))
_CLOSERS = frozenset((")", "]", "}", "}}", ")>", "\\end"))
_NAMES = {"\\det": "det", "det": "det", "\\tr": "trace", "tr": "trace", "trace": "trace"}
MATRIX_NAMES = frozenset((*_NAMES, "\\top"))


def matrix_name(parser: Parser) -> Node | None:
    """Parse the determinant or trace of a matrix, or the sign of a transpose; None where it is another name."""
    if parser.token.text == "\\top":
        parser.advance()
        return Sym("T")
    opener, inner = parser.op(1), parser.peek(2)
    of_names = opener == "(" and inner.kind == "name" and inner.text[0].isupper()
    if not of_names and (opener not in ("(", "{", "[", "\\begin") or "\\begin" not in (opener, inner.text)):
        return None
    head = _NAMES[parser.advance().text]
    return Op(head, (parser.prefix(),))


def _determinant(parser: Parser) -> Node:
    """The matrix of \\begin{vmatrix}, positioned at the name: its rows are those of a pmatrix."""
    tokens, count = _inside(parser)
    name = Token("name", "pmatrix")
    brace, close = Token("op", "{"), Token("op", "}")
    inner = parser.part([brace, name, close, *tokens, Token("op", "\\end"), brace, name, close])
    matrix = PREFIX["\\begin"](inner, "\\begin")
    parser.advance(count)
    return Op("det", (matrix,))


def _environment(parser: Parser, sign: str) -> Node:
    """\\begin{...}: cases, a determinant, or what operands reads."""
    name = parser.peek().text if parser.op() == "{" else ""
    if name == "vmatrix":
        return _determinant(parser)
    if name not in _ENVIRONMENTS:
        return PREFIX[sign](parser, sign)
    tokens, count = _inside(parser)
    halves = [_halves(row) for row in _split(tokens, "newline") if row]
    if not 0 < len(halves) <= MAX_ROWS or any(half is None for half in halves):
        return PREFIX[sign](parser, sign)
    parser.deeper()
    node = Op("piecewise", tuple(_case(parser, *half) for half in halves if half is not None))
    parser.shallower()
    parser.advance(count)
    return node


def _brace(parser: Parser, sign: str) -> Node:
    """\\left\\{ \\begin{array} ... \\right. of cases or of a system of equations; else a set."""
    if parser.op() != "\\begin" or parser.op(1) != "{":
        return PREFIX[sign](parser, sign)
    start = parser.mark()
    parser.advance()
    count = _inside(parser)[1]
    if parser.op(count) == "}}":
        parser.backtrack(start)
        return PREFIX[sign](parser, sign)
    node = _environment(parser, "\\begin")
    if isinstance(node, Op) and node.head == "matrix":
        rows = [row.args for row in node.args if isinstance(row, Op)]
        if len(rows[0]) != 1:
            raise ParseError("a brace that is not closed")
        return Op("list", tuple(row[0] for row in rows)) if len(rows) > 1 else rows[0][0]
    return node


def _inside(parser: Parser) -> tuple[list[Token], int]:
    """Return the tokens between \\begin{name} and its \\end, and how many tokens there are up to and with the latter.

    The position is after \\begin. The format of an array's columns is left out.
    """
    tokens: list[Token] = []
    level, offset = 1, 3
    if parser.peek().text == "array" and parser.op(3) == "{":
        while parser.op(offset) != "}":
            if parser.peek(offset).kind == "end":
                raise ParseError("a matrix that does not end")
            offset += 1
        offset += 1
    while True:
        token = parser.peek(offset)
        if token.kind == "end":
            raise ParseError("a matrix that does not end")
        if token.kind == "op":
            level += (token.text == "\\begin") - (token.text == "\\end")
        if not level:
            return tokens, offset + 4
        tokens.append(token)
        offset += 1


def _split(tokens: list[Token], sign: str) -> list[list[Token]]:
    """Cut tokens at a sign that is in no brackets."""
    parts: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind == "op":
            depth += (token.text in _OPENERS) - (token.text in _CLOSERS)
            if not depth and token.text == sign:
                parts.append([])
                continue
        parts[-1].append(token)
    return parts


def _halves(row: list[Token]) -> tuple[list[Token], list[Token]] | None:
    """Return the tokens of the value and of the condition of a row; None where it has no condition."""
    depth = 0
    for place, token in enumerate(row):
        if token.kind == "op":
            depth += (token.text in _OPENERS) - (token.text in _CLOSERS)
            if not depth and token.text in _RELATIONS:
                return None
        word = token.text.lower() if token.kind == "name" else ""
        if not depth and (token.text in ("&", ",") or word in _INTRODUCE or word in _ELSE):
            value, condition = row[:place], row[place:]
            break
    else:
        return None
    while condition and (condition[0].text in ("&", ",") or condition[0].text.lower() in _INTRODUCE):
        condition = condition[1:]
    while condition and condition[-1].text in (",", ";", "."):
        condition = condition[:-1]
    return (value, condition) if value and _is_condition(condition) else None


def _is_condition(tokens: list[Token]) -> bool:
    if not tokens or (tokens[0].kind == "op" and tokens[0].text in _RELATIONS):
        return False
    if tokens[0].kind == "op" and tokens[0].text in ("+", "-"):  # -1 <= x, but no column of an equation: & -y & = 3
        return any(token.text in _BOUNDS for token in tokens)
    return any(token.text in _RELATIONS for token in tokens) or _words(tokens) is not None


def _words(tokens: list[Token]) -> Words | None:
    """A condition in words: otherwise, "n is even"."""
    if any(token.kind != "name" for token in tokens) or max(len(token.text) for token in tokens) < 3:
        return None
    words = [token.text.lower() for token in tokens]
    if words[0] in _ELSE:
        return OTHERWISE
    return Words(" ".join(word for word in words if word not in _FILLERS))


def _case(parser: Parser, value: list[Token], condition: list[Token]) -> Op:
    inner = parser.part(value)
    node = inner.expression(0)
    if inner.kind != "end":
        raise ParseError(f"cannot read {inner.place()}")
    words = _words(condition)
    if words is not None:
        return Op("case", (node, words))
    inner = parser.part(condition)
    found = inner.answer()
    if isinstance(found, Op) and found.head == "list":
        found = Op("both", found.args)
    relations = found.args if isinstance(found, Op) and found.head in ("both", "either") else (found,)
    if inner.kind != "end" or not all(isinstance(relation, Rel) for relation in relations):
        raise ParseError("a case without its condition")
    return Op("case", (node, found))


CASES: dict[str, Callable[[Parser, str], Node]] = {"\\begin": _environment, "{{": _brace}
