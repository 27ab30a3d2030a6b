"""The parts of the math verifier: grammar, exact and numeric values, sets, words."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from rlvr.verifiers.math.answer import judge_answer, kind
from rlvr.verifiers.math.compare.comparison import Comparator as Rules
from rlvr.verifiers.math.grammar.lex import written_number
from rlvr.verifiers.math.grammar.parse import parse
from rlvr.verifiers.math.grammar.vocabulary import number_words
from rlvr.verifiers.math.text.normal import calendar_date, clock_time, normal_text, same_time
from rlvr.verifiers.math.text.readings import read_reference
from rlvr.verifiers.math.values.exact import MAX_BITS, PRIMES, Inexact, Undefined, exact, rational, residue
from rlvr.verifiers.math.values.identity import proportional, same_value
from rlvr.verifiers.math.values.numeric import Digits, Floats, evaluate
from rlvr.verifiers.math.values.sets import NotASet, real_set
from rlvr.verifiers.math.values.tree import Num, Op, ParseError, Quantity, Sym, TooLarge, height, symbols
from rlvr.verifiers.math.values.units import UNITS


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1+2*3", 7),
        ("2^3^2", 512),
        ("-2^2", -4),
        ("6/2/3", 1),
        ("2-3-4", -5),
        ("1\\frac{1}{2}", Fraction(3, 2)),
        ("\\frac12", Fraction(1, 2)),
        ("\\frac{1}{2}\\cdot\\frac{1}{3}", Fraction(1, 6)),
        ("2(3+4)", 14),
        ("3!", 6),
        ("\\binom{5}{2}", 10),
        ("10^{-3}", Fraction(1, 1000)),
        ("\\sqrt[3]{-27}", -3),
        ("8^{2/3}", 4),
        ("\\sqrt[5]{3^{500}}", 3**100),
        ("\\log_2 8", 3),
        ("|{-5}|", 5),
        ("\\lfloor -2.5 \\rfloor", -3),
        ("\\gcd(12, 18)", 6),
        ("0.1\\overline{6}", Fraction(1, 6)),
        ("1.5e-3", Fraction(3, 2000)),
        ("twenty-one", 21),
        ("25\\% \\cdot 8", 2),
    ],
)
def test_exact_values(text, value):
    """Worked by hand."""
    assert exact(parse(text)) == value


@pytest.mark.parametrize(
    "text", ["", "+", "1 2", "(1", "1)", "\\frac{1}", "\\foo", "5 or", "x^", "\\text{hello}", "[1,2"]
)
def test_unreadable(text):
    """What is not of the grammar is refused."""
    if text == "5 or":
        assert parse(text) == parse("5")  # a separator at the end separates nothing
        return
    with pytest.raises(ParseError):
        parse(text)


@pytest.mark.parametrize(
    "text", ["(" * 60 + "1" + ")" * 60, "9" * 3000, "x+" * 3000 + "x", "1/" * 300 + "1", "1e99999"]
)
def test_too_large(text):
    """Depth, digits, tokens and exponents are bounded."""
    with pytest.raises(TooLarge):
        parse(text)


@pytest.mark.parametrize("text", ["2^{100000}", "5000!", "\\binom{10^9}{10^6}", "9^{9^{9}}"])
def test_exact_values_are_bounded(text):
    """A number of more than MAX_BITS bits is never computed."""
    assert MAX_BITS < 100_000
    with pytest.raises(TooLarge):
        exact(parse(text))


@pytest.mark.parametrize("text", ["1/0", "0/0", "0^0", "0^{-1}"])
def test_undefined(text):
    """A division by zero is no number."""
    with pytest.raises(Undefined):
        exact(parse(text))
    assert rational(parse(text)) is None


def test_inexact():
    """Irrational numbers have no rational value."""
    with pytest.raises(Inexact):
        exact(parse("\\sqrt{2}"))


def test_primes():
    """The moduli are prime (Fermat, twenty bases), leave 1 modulo 4, and come with a square root of -1."""
    for prime, root in PRIMES:
        assert prime % 4 == 1
        assert all(pow(base, prime - 1, prime) == 1 for base in range(2, 22))
        assert root * root % prime == prime - 1


def test_residues():
    """(x + 1)^2 and i^2 modulo a prime."""
    prime, root = PRIMES[0]
    assert residue(parse("(x+1)^2"), {"x": 4}, prime, root) == (25, 1)
    assert residue(parse("i^2"), {}, prime, root) == (prime - 1, 1)
    top, bottom = residue(parse("\\frac{x}{3}"), {"x": 6}, prime, root)
    assert top * pow(bottom, -1, prime) % prime == 2


@pytest.mark.parametrize("numbers", [Floats(False), Digits(False, None, 30)])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\\sin\\frac{\\pi}{6}", 0.5),
        ("e^{\\ln 3}", 3.0),
        ("\\log_3 81", 4.0),
        ("\\sqrt{2}\\sqrt{8}", 4.0),
        ("\\cos 60^\\circ", 0.5),
        ("\\sec 1", 1 / math.cos(1)),
        ("|3+4i|", 5.0),
        ("\\max(1, \\pi)", math.pi),
        ("\\lfloor \\pi \\rfloor", 3.0),
    ],
)
def test_numeric_values(text, value, numbers):
    """Values agree with the standard library's."""
    assert complex(evaluate(parse(text), {}, numbers)) == pytest.approx(value, rel=1e-14)


def test_cancellation_shows_in_the_error():
    """Where digits cancel, the bound says how little is left; where nearly all do, the sum is zero."""
    numbers = Digits(True, None, 60)
    value = evaluate(parse("\\sqrt{10^{30}+1} - 10^{15}"), {}, numbers)
    assert abs(value - 5e-16) < 1e-25
    assert 0 < numbers.error(value) < 1e-20
    assert evaluate(parse("\\sqrt2\\sqrt3-\\sqrt6"), {}, numbers) == 0


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("\\sqrt{5+2\\sqrt6}", "\\sqrt2+\\sqrt3", True),
        ("\\sqrt{10^{16}+1} - 10^8", "\\frac{1}{\\sqrt{10^{16}+1} + 10^8}", True),
        ("e^{\\pi\\sqrt{163}}", "262537412640768744", False),
        ("2^{1000000}", "2^{1000000}+1", False),
        ("2^{1000001}-2^{1000000}", "2^{1000000}", True),
        ("\\sqrt{x^2}", "|x|", True),
        ("\\sqrt{x^2}", "x", False),
        ("\\sqrt{x}\\sqrt{y}", "\\sqrt{xy}", True),
        ("(-1)^n", "\\cos(n\\pi)", True),
        ("\\tan 2x", "\\frac{2\\tan x}{1-\\tan^2 x}", True),
    ],
)
def test_same_value(left, right, equal):
    """Identities, and near misses of 30 digits."""
    assert same_value(parse(left), parse(right)) is equal


def test_proportional():
    """Equations up to a factor, denominators cleared; zero is proportional to nothing."""
    assert proportional(parse("2x-y+3"), parse("4x-2y+6"))
    assert proportional(parse("y-\\frac1x"), parse("xy-1"))
    assert not proportional(parse("2x-y+3"), parse("2x-y-3"))
    assert not proportional(parse("2x-y+3"), parse("x-x"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1,2]\\cup[2,3]", "[1,3]"),
        ("x\\ne 2", "(-\\infty,2)\\cup(2,\\infty)"),
        ("\\mathbb{R}\\setminus[0,1)", "x<0 \\text{ or } x\\ge 1"),
        ("(0,5)\\cap(2,9)", "2<x<5"),
        ("\\{x : x\\le 3\\}", "]-\\infty,3]"),
        ("\\{1\\}\\cup(1,2)", "[1,2)"),
    ],
)
def test_real_sets(one, other):
    """Sets of real numbers in two ways of writing have the same pieces."""
    pieces = [
        [(p.low.place, p.low.closed, p.high.place, p.high.closed) for p in real_set(parse(s))] for s in (one, other)
    ]
    assert pieces[0] == pieces[1]


@pytest.mark.parametrize("text", ["2x>4", "(2,1)", "(1,1)", "[2,\\infty]", "x>y", "5"])
def test_not_a_written_set(text):
    """Unsolved inequalities and empty or malformed intervals are no sets."""
    with pytest.raises(NotASet):
        real_set(parse(text))


def test_units():
    """Units have factors and dimensions; squares and quotients combine."""
    quantity = parse("12\\text{ cm}^2")
    assert isinstance(quantity, Quantity)
    assert quantity.unit.dims == (("length", 2),)
    assert quantity.unit.factor == Fraction(1, 10_000)
    speed = parse("60\\text{ miles per hour}")
    assert isinstance(speed, Quantity)
    assert speed.unit == UNITS["mph"]


def test_words():
    """Numbers in words, and how many words they take."""
    assert number_words("one hundred and five apples".split()) == (105, 4)
    assert number_words("three quarters of".split()) == (Fraction(3, 4), 2)
    assert number_words("two million three thousand".split()) == (2_003_000, 4)
    assert number_words("apples".split()) is None


def test_dates_and_times():
    """Clock times and dates in their spellings."""
    assert clock_time("4:30 p.m.") == (4, 30, 0, "pm")
    assert clock_time("25:00") is None
    assert same_time((16, 30, 0, ""), (4, 30, 0, "pm"))
    assert not same_time((16, 30, 0, ""), (4, 30, 0, "am"))
    assert calendar_date("june 20th, 2024") == calendar_date("2024-06-20") == (2024, 6, 20)
    assert calendar_date("june") is None


def test_normal_text_keeps_braces_that_matter():
    """1/23 is not 12/3."""
    assert normal_text("\\text{ The  Ellipse. }") == "Ellipse"
    assert normal_text("\\frac{1}{23}") != normal_text("\\frac{12}{3}")


def test_trees():
    """Variables are told from constants, and height from size."""
    tree = parse("2\\pi r + e^{ix}")
    assert symbols(tree) == {"r", "x"}
    assert height(parse("((x+1)^2+1)^2")) == 5
    assert isinstance(tree, Op)
    assert parse("x") == Sym("x")
    assert parse("3.50") == Num(Fraction(7, 2), 2, 3)


def test_references_and_kinds():
    """A reference is read once; its kind can be named."""
    assert read_reference("18") is read_reference("18")
    assert not read_reference("\\text{Evelyn}").readings
    assert read_reference("(B)").read.choice == "B"
    assert kind(parse("x=5")) == "an equation"
    assert kind(parse("1,2,3")) == "3 values"
    assert kind(parse("x+1")) == "an expression"


def test_a_reference_is_read_when_an_answer_differs():
    """A plain gold is only parsed for an answer with another text; what may be no answer is refused at once."""
    gold = read_reference("\\frac{x}{17}")
    assert judge_answer(gold, "\\frac{x}{17}", Rules()).correct
    assert "read" not in vars(gold)
    assert judge_answer(gold, "\\frac{2x}{34}", Rules()).correct
    assert "read" in vars(gold)
    for text in ("", "{}", "1e99999", "(" * 25 + "1", "1" + "+(" * 18 + "1", "9" * 3_000):
        with pytest.raises(ValueError, match="the reference"):
            read_reference(text)


@pytest.mark.parametrize("sign", ["", "-", "+"])
@pytest.mark.parametrize(
    "text",
    ["0", "007", "42", "123456789012345678", "0.50", "3.14", "1.0", "\\frac{3}{4}", "\\dfrac{6}{4}", "\\tfrac{0}{0}",
     "2\\frac{1}{2}", "12 \\frac{3}{5}", "0\\frac{1}{2}", ".5", "\\frac12", "5\\frac12"],
)  # fmt: skip
def test_written_numbers_are_read_as_by_the_grammar(sign, text):
    """Numbers that need no grammar give the same tree as by it."""
    tree = written_number(sign + text)
    assert tree == parse(sign + text)
    assert repr(tree) == repr(parse(sign + text))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "2\\frac{5}{3}",
        "2\\frac{0}{3}",
        "2.5\\frac{1}{2}",
        "1,234",
        "1 2",
        "1.",
        "\\frac123",
        "\\frac{-1}{2}",
        "1e5",
    ],
)
def test_other_texts_are_no_written_numbers(text):
    """Products, lists and what has other spellings are left to the grammar."""
    assert written_number(text) is None


@pytest.mark.parametrize(
    ("left", "right", "value"),
    [
        ("\\frac{2}{4}", "\\frac{1}{2}", True),
        ("1/3", "2/6", True),
        ("-1/3", "\\frac{1}{-3}", True),
        ("0/0", "0/0", False),
        ("1/3", "1/4", False),
    ],
)
def test_exact_numbers(left, right, value):
    """Quotients of integers are compared as such; 0/0 has no value."""
    assert Rules().matches(parse(left), parse(right)) is value
