"""Careless spellings, tokens of formulas side by side, units, ellipses and labels, part by part."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rlvr.verifiers.math.compare.relations import is_label, names_value
from rlvr.verifiers.math.grammar.lex import to_latex, tokenize
from rlvr.verifiers.math.grammar.meaning import DOTS
from rlvr.verifiers.math.grammar.parse import parse
from rlvr.verifiers.math.grammar.vocabulary import is_noun
from rlvr.verifiers.math.values.tree import Num, Op, ParseError, Quantity, Rel, TooLarge


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
