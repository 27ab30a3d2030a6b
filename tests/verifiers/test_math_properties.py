"""Properties of the math verifier over random expressions, numbers, lists and bytes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlvr.core.types import Problem, Status
from rlvr.verifiers.math import MathVerifier, verify_math
from tests.helpers.machine import processor_time

sympy = pytest.importorskip("sympy")
X, Y = sympy.symbols("x y")
BOUND = 5.0  # seconds of processor time for one verdict

quick = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def box(text: str) -> str:
    return f"so \\boxed{{{text}}}"


def holds(gold: str, answer: str) -> bool:
    return verify_math(gold, box(answer)).correct


rationals = st.builds(sympy.Rational, st.integers(-20, 20), st.integers(1, 9))
polynomials = st.recursive(
    st.one_of(st.sampled_from([X, Y]), rationals),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, b: a - b, inner, inner),
        st.builds(lambda a: a**2, inner),
    ),
    max_leaves=6,
)
leaves = st.one_of(polynomials, st.sampled_from([sympy.pi, sympy.sqrt(2), sympy.sqrt(3), sympy.sqrt(5) + 1]))
functions = st.sampled_from(
    [sympy.sin, sympy.cos, sympy.atan, sympy.exp, lambda a: sympy.sqrt(a**2 + 1), lambda a: sympy.log(a**2 + 2)]
)
expressions = st.builds(lambda a, f, b, g: a * f(b) + g, leaves, functions, polynomials, leaves)


def rewrites(expression) -> list[str]:
    """The expression printed and transformed by sympy, whose name for Euler's number is E in plain text."""
    return [
        sympy.latex(expression),
        str(expression).replace("E", "e"),
        sympy.latex(sympy.expand(expression)),
        str(sympy.expand(expression)).replace("E", "e"),
        sympy.latex(sympy.together(expression)),
        sympy.latex(expression, fold_short_frac=True),
        sympy.latex(expression, order="rev-lex"),
        sympy.latex(expression, mul_symbol="dot"),
        sympy.latex(expression, mul_symbol="times"),
    ]


@quick
@given(polynomials)
def test_polynomials_equal_their_rewrites(polynomial):
    """Expanded, factored, reordered and reprinted, a polynomial is the same."""
    forms = [*rewrites(polynomial), sympy.latex(sympy.factor(polynomial)), str(sympy.factor(polynomial))]
    gold = sympy.latex(polynomial)
    assert [form for form in forms if not holds(gold, form)] == []


@quick
@given(expressions)
def test_expressions_equal_their_rewrites(expression):
    """So is an expression with roots and functions."""
    gold = sympy.latex(expression)
    assert [form for form in rewrites(expression) if not holds(gold, form)] == []


@quick
@given(expressions, st.sampled_from([sympy.Rational(1, 10**6), X / 1000, sympy.pi, -1, Y**2, sympy.sqrt(7)]))
def test_perturbations_differ(expression, change):
    """What is added to an expression is seen, whatever its size."""
    assert not holds(sympy.latex(expression), sympy.latex(expression + change))
    assert not holds(sympy.latex(expression), sympy.latex(sympy.expand(expression - change)))


@quick
@given(polynomials, polynomials)
def test_symmetry(left, right):
    """Gold and answer can change places where both are expressions."""
    one, other = sympy.latex(left), sympy.latex(right)
    assert holds(one, other) is holds(other, one) is bool(sympy.expand(left - right) == 0)


@quick
@given(st.fractions(min_value=-1000, max_value=1000, max_denominator=60))
def test_rational_numbers_in_all_spellings(value):
    """A rational number equals its spellings, and no spelling of its neighbour."""
    n, d = value.numerator, value.denominator
    spellings = [f"{n}/{d}", f"\\frac{{{n}}}{{{d}}}", f"\\dfrac{{{2 * n}}}{{{2 * d}}}", f"-\\frac{{{-n}}}{{{d}}}"]
    whole, rest = divmod(abs(n), d)
    if whole and rest:
        spellings.append(f"{'-' if n < 0 else ''}{whole}\\frac{{{rest}}}{{{d}}}")
    if d == 1:
        spellings += [f"{n:,}", f"{n}.0", f"{n:,}".replace(",", "{,}"), f"{n:,}".replace(",", "\\,")]
    neighbour = value + Fraction(1, 1000)
    gold = str(value)
    assert [spelling for spelling in spellings if not holds(gold, spelling)] == []
    assert not holds(gold, f"\\frac{{{neighbour.numerator}}}{{{neighbour.denominator}}}")
    assert holds(gold, repeating_decimal(value))


def repeating_decimal(value: Fraction) -> str:
    """The decimal expansion, its period under a bar."""
    sign, value = "-" if value < 0 else "", abs(value)
    whole, rest = divmod(value.numerator, value.denominator)
    digits, seen = "", {}
    while rest and rest not in seen:
        seen[rest] = len(digits)
        digit, rest = divmod(rest * 10, value.denominator)
        digits += str(digit)
    if not rest:
        return f"{sign}{whole}.{digits}" if digits else f"{sign}{whole}"
    return f"{sign}{whole}.{digits[: seen[rest]]}\\overline{{{digits[seen[rest] :]}}}"


@quick
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6), st.randoms(use_true_random=False))
def test_lists_in_any_order(values, random):
    """A list of solutions equals its permutations; with an element more, fewer or other it does not."""
    gold = ", ".join(map(str, values))
    shuffled = list(values)
    random.shuffle(shuffled)
    answer = ", ".join(map(str, shuffled))
    assert holds(gold, answer)
    assert not holds(gold, f"{answer}, 51")
    assert not holds(gold, ", ".join(map(str, shuffled[1:])))
    assert not holds(gold, ", ".join(map(str, [shuffled[0] + 1, *shuffled[1:]])))
    assert holds(f"({gold})", f"({', '.join(map(str, values))})")
    if shuffled != values:
        assert not holds(f"({gold})", f"({answer})")


@quick
@given(st.text(max_size=300))
def test_any_text_gives_a_verdict(text):
    """No completion raises, none is an error, none takes long."""
    judge = MathVerifier(extract="lenient")
    for gold in ("5", "x^2", "(1,2]", "\\text{east}"):
        for completion in (text, box(text), f"The answer is {text}"):
            with processor_time() as taken:
                verdict = judge(Problem("", "", gold), completion)
            assert taken.seconds < BOUND
            assert verdict.status not in (Status.ERROR, Status.BAD_REFERENCE)


_COMMANDS = (
    r"\frac \sqrt \left \right \{ \} \text{ \boxed{ \pm \pi \infty \circ \log_ \begin{pmatrix} \end{pmatrix} \sin \\",
    r"or and cm \cup \le \in \overline{ \binom 10^9 !! 1e9 0.\dot \mathbb{R} e^ \times \ldots </think> \( #### **",
)
PIECES = st.sampled_from([*"0123456789+-*/^_(){}[]|,.;:!'%$&~=<>xyeiAn \\√½²≤", *" ".join(_COMMANDS).split(), "9" * 20])


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(PIECES, max_size=30).map("".join), st.lists(PIECES, max_size=12).map("".join))
def test_any_mathematics_gives_a_verdict(answer, gold):
    """Whatever is strung together from the grammar's own pieces is judged within the bound, as a gold as well."""
    with processor_time() as taken:
        assert verify_math("\\frac{1}{2}", box(answer)).status is not Status.ERROR
        assert verify_math(gold, box(answer)).status is not Status.ERROR
    assert taken.seconds < BOUND


@quick
@given(st.binary(max_size=400))
def test_any_bytes_give_a_verdict(data):
    """Bytes decoded in any way are judged."""
    for text in (data.decode("latin-1"), data.decode("utf-8", "replace"), data.decode("utf-8", "surrogateescape")):
        assert verify_math("5", box(text)).status is not Status.ERROR
        assert verify_math("5", text).status is not Status.ERROR
