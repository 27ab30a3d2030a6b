"""The math parser's cursor: its interface, and that nothing else touches its state."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rlvr.verifiers.math.grammar.cursor import MAX_DEPTH, Cursor
from rlvr.verifiers.math.grammar.lex import tokenize
from rlvr.verifiers.math.values.tree import ParseError, TooLarge

MATH = Path(__file__).resolve().parents[2] / "verifiers" / "math"
STATE = {"_tokens", "_at", "_depth", "_bars", "_in_set"}


def touched(source: str, names: tuple[str, ...]) -> list[str]:
    """The lines of a module that assign or delete `name.x` or `name.x[...]`, or read a private `name._x`."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            node = node.value
            stored = True
        else:
            stored = isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names):
            continue
        if stored or node.attr.startswith("_"):
            lines.append(f"{node.lineno}: {ast.unparse(node)}")
    return lines


def test_only_the_parser_touches_its_state():
    """Grammar modules read and move the parser through methods; parse.py uses the cursor's methods too."""
    for path in sorted(MATH.rglob("*.py")):
        assert touched(path.read_text(), ("parser", "cursor")) == [], path.name
    own = touched((MATH / "grammar" / "parse.py").read_text(), ("self",))
    assert not [line for line in own if line.rpartition(".")[2] in STATE]


@pytest.mark.parametrize(
    "line", ["parser.at += 1", "parser.a, x = 1, 2", "parser.tokens[0] = t", "del parser.x", "print(parser._at)"]
)
def test_touching_would_be_found(line):
    """Assignments of all forms, and reads of a private field."""
    assert touched(line, ("parser",))
    assert not touched("parser.advance(1)\nx = parser.token\ny[parser.kind] = 1", ("parser",))


def test_cursor_moves_over_tokens():
    """Each method reads or moves as it says; beyond the end there is the last token."""
    cursor = Cursor(tokenize("x, y < 5"))
    assert (cursor.word(), cursor.kind, cursor.op()) == ("x", "name", "")
    assert cursor.advance().text == "x"
    assert cursor.before.text == "x"
    assert (cursor.op(), cursor.peek().text, cursor.op(2), cursor.peek(99).kind) == (",", "y", "<", "end")
    assert not cursor.take("<")
    assert cursor.take(",")
    assert cursor.skip_words({"y", "z"})
    assert not cursor.skip_words({"y", "z"})
    with pytest.raises(ParseError, match="expected > or =, found '<'"):
        cursor.expect(">", "=")
    assert cursor.expect("<", "=") == "<"
    assert cursor.advance().text == "5"
    assert (cursor.kind, cursor.word(), cursor.op()) == ("end", "", "")


def test_cursor_comes_back_to_a_mark():
    """The position, the depth and what is open; tokens that were replaced."""
    cursor = Cursor(tokenize("ab | c"))
    start = cursor.mark()
    cursor.replace(cursor.token._replace(text="b"))
    cursor.advance()
    cursor.deeper()
    with cursor.group(in_set=True):
        assert cursor.in_set
        cursor.start_condition()
        assert not cursor.in_set
        with cursor.bar():
            assert cursor.bars == 1
        assert (cursor.bars, cursor.in_set) == (0, False)
    cursor.backtrack(start)
    assert (cursor.token.text, cursor.mark()) == ("ab", start)
    for _ in range(MAX_DEPTH):
        cursor.deeper()
    with pytest.raises(TooLarge):
        cursor.deeper()
