"""Tokens, the cursor and the trees of careless spellings, units, ellipses, labels and phrases."""

from __future__ import annotations

import ast
from fractions import Fraction
from pathlib import Path

import pytest

from rlvr.verifiers.math.compare.relations import is_label, names_value
from rlvr.verifiers.math.grammar.cursor import MAX_DEPTH, Cursor
from rlvr.verifiers.math.grammar.lex import to_latex, tokenize
from rlvr.verifiers.math.grammar.meaning import DOTS
from rlvr.verifiers.math.grammar.parse import parse
from rlvr.verifiers.math.grammar.vocabulary import is_noun, numeral
from rlvr.verifiers.math.text.formulas import is_substance
from rlvr.verifiers.math.text.sentences import respell
from rlvr.verifiers.math.values.tree import Num, Op, ParseError, Quantity, Rel, TooLarge

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


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\\\frac{1}{2}", "\\frac{1}{2}"),
        ("5\\\\%", "5\\%"),
        ("\\\\begin{pmatrix}1\\\\\\\\2\\\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
        ("\\\\begin{pmatrix}1\\\\2\\\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
        ("x=1\\\\y=2", "x=1\\\\y=2"),
        ("\\frac{1}{2}\\\\pi", "\\frac{1}{2}\\\\pi"),
        ("\x0crac{1}{2}", "\\frac{1}{2}"),
        ("3\times 4".replace("\\t", "\t"), "3\\times 4"),
        ("42 🎉", "42 "),
        ("♠", "♠"),
        ("20℃", "20^\\circ C"),
    ],
)
def test_plain_spelling(text, expected):
    """Doubled backslashes are halved only where all are doubled; rows of matrices, systems and suits stay."""
    assert to_latex(text) == expected


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        ("x=1 \\quad y=2", ["y"]),
        ("$x=1$ $y=2$", ["y"]),
        ("\\(x=1\\) \\(y=2\\)", ["y"]),
        ("x=1\ny=2", ["y"]),
        ("x=1+\n2", []),
        ("$x$", []),
        ("$5$ cm", []),
        ("$$x=1$$", []),
        ("$3$, $4$", []),
    ],
)
def test_formulas_apart(text, apart):
    """A token that begins a formula of its own is marked."""
    assert [token.text for token in tokenize(text) if token.apart] == apart


@pytest.mark.parametrize("word", ["cats", "balls", "stars", "days", "plants", "DVDs", "pcs", "Jack"])
def test_nouns(word):
    """Words that could be products of letters."""
    assert is_noun(word)


@pytest.mark.parametrize("letters", ["abc", "xyz", "mgh", "pqr", "ab", "ABC", "aBc", "abcd", "bcd"])
def test_products(letters):
    """Letters in alphabetical order, without a vowel or in capitals are no word."""
    assert not is_noun(letters)


@pytest.mark.parametrize(
    ("text", "factor", "dims"),
    [
        ("1 \\text{ kJ/mol}", 10**6, {"length": 2, "mass": 1, "mole": -1, "time": -2}),
        ("1 m s^{-2}", 1, {"length": 1, "time": -2}),
        ("1\\,\\mathrm{J\\,kg^{-1}\\,K^{-1}}", 1, {"kelvin": -1, "length": 2, "time": -2}),
        ("1 \\text{ J/(kg}\\cdot\\text{K)}", 1, {"kelvin": -1, "length": 2, "time": -2}),
        ("1 \\frac{\\text{m}}{\\text{s}^2}", 1, {"length": 1, "time": -2}),
        ("1 \\text{ k}\\Omega", 10**6, {"ampere": -2, "length": 2, "mass": 1, "time": -3}),
        ("1\\,\\mu\\text{m}", Fraction(1, 10**6), {"length": 1}),
        ("1 [cm]", Fraction(1, 100), {"length": 1}),
        ("1 (sq. inches)", Fraction("0.0254") ** 2, {"length": 2}),
    ],
)
def test_units(text, factor, dims):
    """Powers, quotients, products and prefixes."""
    tree = parse(text)
    assert isinstance(tree, Quantity)
    assert tree.value == Num(Fraction(1))
    assert tree.unit.factor == factor
    assert dict(tree.unit.dims) == dims


@pytest.mark.parametrize("text", ["3 x", "3 mgh", "2 m g h", "5 kT", "5 fg", "3 m^2+1", "8 m^4 n"])
def test_variables_are_no_units(text):
    """Neither are letters of which one is no unit, nor those that are rather a product."""
    assert not isinstance(parse(text), Quantity)


def test_numbers_that_share_a_token_are_read_again():
    """The digits that \\frac took are given back where its fraction is no part of a mixed number."""
    assert parse("5\\frac32x") == parse("5\\cdot\\frac{3}{2}\\cdot x")
    assert parse("5\\frac12") == Num(Fraction(11, 2))
    assert parse("\\frac12x") == parse("\\frac{1}{2}x")


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("1,2,\\ldots,5", [1, 2, 3, 4, 5]),
        ("1,3,...,9", [1, 3, 5, 7, 9]),
        ("2,4,8,\\dots,64", [2, 4, 8, 16, 32, 64]),
        ("10,8,\\ldots,2", [10, 8, 6, 4, 2]),
        ("1,2,\\ldots,9,10", list(range(1, 11))),
    ],
)
def test_ellipses_are_filled(text, terms):
    """Of arithmetic and geometric progressions whose last term is there."""
    assert parse(text) == Op("list", tuple(Num(Fraction(term)) for term in terms))


@pytest.mark.parametrize(
    "text", ["1,2,\\ldots,n", "1,4,9,\\ldots,100", "2,\\ldots,10", "1,2,\\ldots", "1,2,\\ldots,10^9"]
)
def test_other_ellipses_stay(text):
    """Those of other sequences, endless ones, and very long ones."""
    tree = parse(text)
    assert isinstance(tree, Op)
    assert DOTS in tree.args


@pytest.mark.parametrize("text", ["\\ldots", "\\ldots,\\ldots", "5 (= 6)", "2 (\\approx 3)", "1/2 (= 0.4)"])
def test_no_answers(text):
    """An ellipsis alone, and two different values side by side."""
    with pytest.raises(ParseError):
        parse(text)


@pytest.mark.parametrize("text", ["5 m/(" * 400, "5 (= " * 400, "half of " * 400, "2[" * 400, "\\sqrt{2\\pm" * 400])
def test_depth_is_bounded(text):
    """Whatever is nested."""
    with pytest.raises((ParseError, TooLarge)):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ["f(3)=10", "|AB|=1", "|z|=5", "\\sin A=\\frac12", "AB:BC=2:3", "A\\cap B=\\{1\\}", "m+n=25", "AB^2+BC^2=25",
     "x_1+x_2=5", "\\frac{dy}{dx}=2x", "y(x)=x^2", "\\log_6 216=3", "f'(2)=5", "\\max f(x)=2"],
)  # fmt: skip
def test_labels(text):
    """Names of a value, which answers without them."""
    gold = parse(text)
    assert isinstance(gold, Rel)
    assert names_value(gold)


@pytest.mark.parametrize(
    "text",
    ["x^2+y^2=25", "x+y=5", "xy=6", "x^2=9", "|x|=5", "2x=10", "x/y=2", "x+y=0", "y''+y=0", "y'+ry=0", "ax+by+c=0",
     "3a=12", "\\sqrt{x}=2", "e^x=5", "\\sin x=\\cos x", "r^2=3"],
)  # fmt: skip
def test_equations_are_no_labels(text):
    """Curves, equations to be solved, differential equations."""
    gold = parse(text)
    assert isinstance(gold, Rel)
    assert not names_value(gold)


def test_label_of_one_side():
    """A quotient of differentials is one, of other products not."""
    assert is_label(parse("\\frac{d^2y}{dx^2}"))
    assert not is_label(parse("\\frac{2y}{x}"))


@pytest.mark.parametrize(
    "text",
    [
        "probably all real numbers except 2", "all real numbers except 2 or maybe 3", "not all n >= 3",
        "x if x > 0", "5 if A is true, 6 otherwise if B", "1 if n is odd or even, 0 if n is even",
        r"\operatorname{not}A=5", r"\operatorname{wrong}=5", "f(x)=cx for any constant I guess",
        "1, 2 and maybe y 3",
    ],
)  # fmt: skip
def test_doubts_are_no_phrases(text):
    """Words that are no part of a known phrase leave a text unread."""
    assert respell(text) is None


def test_numerals():
    """Chinese signs, by their multiples or as digits; nothing but a numeral."""
    values = {"五": 5, "十二": 12, "二十": 20, "一百零五": 105, "三万二千": 32000, "二〇二四": 2024}
    assert {text: int(numeral(text).value) for text in values} == values
    assert [numeral(text) for text in ("不是五", "五个", "a五", "第五")] == [None] * 4


def test_substances():
    """Only what is made of elements is a formula; variables with indices are none."""
    assert all(map(is_substance, (r"\mathrm{H_2O}", r"\ce{CaCO3}", "1s^2 2s^2", r"\text{Na}^+", "C_6H_{12}O_6")))
    assert not any(map(is_substance, ("x_1", r"A_1A_2", r"\text{Yes}", r"\text{Evelyn}", "2^{10}", r"x \to 0")))
