"""Parts of the math verifier whose bounds and errors no verdict shows; the golden table math_values has others."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from rlvr.verifiers.math.answer import judge_answer
from rlvr.verifiers.math.compare.comparison import Comparator as Rules
from rlvr.verifiers.math.grammar.lex import to_latex, written_number
from rlvr.verifiers.math.grammar.parse import parse
from rlvr.verifiers.math.text.readings import read_reference
from rlvr.verifiers.math.values.exact import PRIMES, exact, residue
from rlvr.verifiers.math.values.identity import proportional
from rlvr.verifiers.math.values.numeric import Digits, Floats, evaluate
from rlvr.verifiers.math.values.tree import Num, ParseError, TooLarge


@pytest.mark.parametrize(
    "text", ["", "+", "1 2", "(1", "1)", "\\frac{1}", "\\foo", "x^", "\\text{hello}", "[1,2", "\\ldots", "5 (= 6)"]
)
def test_unreadable(text):
    """What is not of the grammar is refused."""
    with pytest.raises(ParseError):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ["(" * 60 + "1" + ")" * 60, "9" * 3000, "x+" * 3000 + "x", "1/" * 300 + "1", "1e99999", "5 m/(" * 400,
     "5 (= " * 400, "half of " * 400, "2[" * 400, "\\sqrt{2\\pm" * 400],
)  # fmt: skip
def test_too_large(text):
    """Depth, digits, tokens and exponents are bounded, whatever is nested."""
    with pytest.raises((ParseError, TooLarge)):
        parse(text)


@pytest.mark.parametrize("text", ["2^{100000}", "5000!", "\\binom{10^9}{10^6}", "9^{9^{9}}"])
def test_exact_values_are_bounded(text):
    """A number of more than MAX_BITS bits is never computed."""
    with pytest.raises(TooLarge):
        exact(parse(text))


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


def test_proportional():
    """Equations up to a factor, denominators cleared; zero is proportional to nothing."""
    assert proportional(parse("2x-y+3"), parse("4x-2y+6"))
    assert proportional(parse("y-\\frac1x"), parse("xy-1"))
    assert not proportional(parse("2x-y+3"), parse("2x-y-3"))
    assert not proportional(parse("2x-y+3"), parse("x-x"))


@pytest.mark.parametrize("numbers", [Floats(False), Digits(False, None, 30)])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("\\log_3 81", 4),
        ("\\sqrt{2}\\sqrt{8}", 4),
        ("\\sec 1", 1 / math.cos(1)),
        ("|3+4i|", 5),
        ("\\max(1, \\pi)", math.pi),
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
    """Numbers that need no grammar give the same tree as by it, with their digits."""
    assert repr(written_number(sign + text)) == repr(parse(sign + text))
    assert parse("3.50") == Num(Fraction(7, 2), 2, 3)


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
