"""sympy behind the math verifier: the option `symbolic`, its limits in time and size, and the public conversion."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sympy

from rlvr.core.types import Problem, Status
from rlvr.verifiers import Runner
from rlvr.verifiers.math import MathVerifier, parse_answer, verify_math
from rlvr.verifiers.math.grammar.parse import parse
from rlvr.verifiers.math.symbolic import OutOfTime, difference_vanishes, evaluate_parts, time_limit
from rlvr.verifiers.math.values.quadrature import value_of
from rlvr.verifiers.runner.blame import Blame

x, n, a = sympy.symbols("x n a")
ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "tests" / "golden" / "math_symbolic.txt"
ROWS = [line.split(" | ") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
HARD = r"\int_0^1 \frac{\ln(1+x^5)\sqrt{1+x^3}}{\sqrt{2+\sin x}}\,dx"  # sympy works on it for minutes
HARD_AND_OPEN = HARD.replace("2+", "a+")  # and it is no number


def box(answer: str) -> str:
    return f"The answer is $\\boxed{{{answer}}}$."


@pytest.mark.parametrize("symbolic", ["off", "gold", "both"])
def test_table(symbolic):
    """Every pair of the table has the verdict that it names for the option."""
    wrong = [
        (gold, answer)
        for gold, answer, right in ROWS
        if verify_math(gold, box(answer), symbolic=symbolic).correct is not (symbolic in right.split())
    ]
    assert wrong == []


def test_table_is_balanced():
    """About half of the pairs are right under some option."""
    right = sum(options != "none" for _, _, options in ROWS)
    assert len(ROWS) > 200
    assert 0.4 < right / len(ROWS) < 0.6


def test_golds_equal_themselves_in_trivial_respellings():
    """An unevaluated gold, and a right answer, are equal to themselves with other spaces, braces and sizes."""
    texts = [text for gold, answer, options in ROWS for text in (gold, answer) if options != "none"]
    for text in texts:
        spelled = text.replace("\\frac", "\\dfrac").replace("\\,", " ").replace("{n}", "{ n }")
        assert verify_math(text, box(spelled), symbolic="off").correct, spelled


def test_the_fast_path_leaves_sympy_to_the_pool():
    """It decides what rules decide, and None what sympy may change."""
    verifier = MathVerifier()
    problem = Problem("p", "", r"\sum_{k=1}^{\infty} \frac{1}{k^2}")
    same = verifier.fast_path(problem, box(r"\sum_{j=1}^{\infty} \frac{1}{j^2}"))
    assert same is not None
    assert same.correct
    assert verifier.fast_path(problem, box(r"\frac{\pi^2}{6}")) is None
    off = MathVerifier(symbolic="off").fast_path(problem, box(r"\frac{\pi^2}{6}"))
    assert off is not None
    assert off.status is Status.INCORRECT


def test_the_fast_path_imports_no_sympy():
    """Neither for numbers and formulas nor for sums that are equal by rules."""
    code = (
        "import sys; from rlvr.core.types import Problem; from rlvr.verifiers.math import MathVerifier as M\n"
        "for gold, answer in (('x^2-1', '(x-1)(x+1)'), ('\\\\sum_{k=1}^n k', '\\\\sum_{j=1}^n j')):\n"
        "    assert M().fast_path(Problem('p', '', gold), '\\\\boxed{' + answer + '}').correct\n"
        "print('sympy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_in_the_pool():
    """The pool evaluates a gold; one that takes too long costs its own limit, not the deadline of the item."""
    with Runner(MathVerifier(symbolic_seconds=0.5), workers=1, timeout=60) as runner:
        pairs = [
            (Problem("1", "", r"\int_0^{\infty} e^{-x^2}\,dx"), box(r"\frac{\sqrt\pi}{2}")),
            (Problem("2", "", HARD_AND_OPEN), box("3")),
            (Problem("2", "", HARD_AND_OPEN), box("4")),
        ]
        start = time.monotonic()
        verdicts = runner.verify(pairs)
    assert [verdict.status for verdict in verdicts] == [Status.CORRECT, Status.BAD_REFERENCE, Status.BAD_REFERENCE]
    assert verdicts[1].reason == "the reference is not evaluated within 0.5 s"
    assert time.monotonic() - start < 30


def test_numbers_decide_before_sympy():
    """Right and wrong answers to a gold for which sympy has no time, told by its numeric value."""
    quick = MathVerifier(symbolic_seconds=0.2)
    slow = r"\int_0^\infty\frac{\sin^{9}x}{x^{9}}\,dx"
    for gold, answer, status in (
        (slow, r"\frac{259723\pi}{1146880}", "correct"),
        (slow, r"\frac{259722\pi}{1146880}", "incorrect"),
        (slow, "0.71144659316", "correct"),
        (slow, "0.7114", "incorrect"),
        (HARD, "5", "incorrect"),
        (r"2\int_0^1\frac{\ln x}{\sqrt x}dx+\int_0^1 x\,dx", r"-7.5", "correct"),
        (r"\sum_{n=0}^\infty\frac{1}{n!}", "e", "correct"),
    ):
        verdict = quick(Problem("", "", gold), box(answer))
        assert (gold, answer, verdict.status) == (gold, answer, status)
    assert MathVerifier(symbolic_seconds=0.2, digits=4)(Problem("", "", slow), box("0.7114")).correct


def test_divergent_golds_have_no_number():
    """Integrals over a pole and series that do not converge have no value, however fine the points."""
    integrals = [r"_{-1}^1\frac1x\,dx", r"_0^2\frac{1}{(x-1)^2}\,dx", r"_0^\pi\tan x\,dx", r"_0^1\frac1x\,dx",
                 r"_0^\infty\sin x\,dx", r"_0^\infty\frac{1}{1+x}dx"]  # fmt: skip
    series = [r"_{n=1}^\infty\frac1n", r"_{n=0}^\infty(-1)^n"]
    for gold in [r"\int" + text for text in integrals] + [r"\sum" + text for text in series]:
        assert value_of(parse(gold)) is None


def test_a_gold_that_ends_its_worker_is_not_tried_again(monkeypatch):
    """What a worker was killed for is left alone by the next one, so that answers do not cost the deadline each."""
    killed = []
    report = Blame.report_deadline
    monkeypatch.setattr(
        Blame, "report_deadline", lambda hangs, item, *given: killed.append(item) or report(hangs, item, *given)
    )
    with Runner(MathVerifier(symbolic_seconds=600), workers=1, timeout=3) as runner:
        pairs = [(Problem(str(k), "", HARD_AND_OPEN), box(str(k))) for k in range(8)]
        verdicts = runner.verify(pairs)
    assert [verdict.status for verdict in verdicts] == [Status.TIMEOUT] + 7 * [Status.BAD_REFERENCE]
    assert len(killed) == 1


def test_time_limit():
    """It ends a computation in the main thread, also where the computation catches Exceptions."""

    def compute() -> None:
        with time_limit(0.2):
            while True:
                with contextlib.suppress(Exception):
                    sum(range(1000))

    with pytest.raises(OutOfTime):
        compute()


@pytest.mark.parametrize(
    "gold",
    [r"\lim_{n\to\infty} n^{n^n}", r"\sum_{k=1}^{50} 2^{2^k}", r"\sum_{k=1}^{50} (k^{10})!", r"\prod_{k=1}^{50} k!!",
     r"\sum_{k=1}^{10^9} k^k", r"\int_0^1 x^{10^9}\,dx", r"\int_0^1 2^{10^{10^{10}}x}\,dx"],
)  # fmt: skip
def test_sizes_are_bounded_before_sympy(gold):
    """Towers, long sums and large powers are not handed to it."""
    start = time.monotonic()
    assert not verify_math(gold, box("5")).correct
    assert time.monotonic() - start < 30  # sympy would not end at all


@pytest.mark.parametrize(
    "gold, answer",
    [
        (r"\int_a^b f(x)\,dx", r"\frac{f}{2}(b^2-a^2)"),
        (r"\int_0^1 a(t)\,dt", r"\frac{a}{2}"),
        (r"\lim_{h\to0}\frac{f(x+h)-f(x)}{h}", "f"),
        (r"\sum_{k=1}^{n} a_k", r"n a_k"),
        (r"\sum_{k=5}^{1} k", "-9"),  # as sympy has it
        (r"\int_{-1}^{1} \frac{dx}{x}", "0"),
        (r"\lim_{x\to0}\frac{|x|}{x}", "1"),
        (r"\sum_{n=0}^{\infty} (-1)^n", r"\frac12"),
    ],
)
def test_what_has_no_value_is_not_evaluated(gold, answer):
    """Unknown functions, empty ranges, divergent integrals and limits that do not exist."""
    assert not verify_math(gold, box(answer), symbolic="both").correct


def test_bound_variables_are_not_free():
    """The variable of a sum names nothing outside of it, even where it is i; that of a derivative does."""
    assert parse_answer(r"\sum_{k=1}^{n} k x^k").free_symbols == {n, x}
    assert parse_answer(r"\sum_{i=1}^{n} i^2").free_symbols == {n}
    assert parse_answer(r"\int_0^{a} t^2\,dt").free_symbols == {a}
    assert parse_answer(r"\frac{d}{dx} x^2").free_symbols == {x}
    assert parse(r"\sum_{k=1}^{n}\sum_{j=1}^{k} j") == parse(r"\sum_{a=1}^{n}\sum_{b=1}^{a} b")
    assert parse(r"\sum_{k=1}^{n}\sum_{j=1}^{k} j") != parse(r"\sum_{a=1}^{n}\sum_{b=1}^{a} a")


@pytest.mark.parametrize(
    "text, expected",
    [
        (r"\frac{x^2-1}{2}", (x**2 - 1) / 2),
        (r"2\sqrt{3}", 2 * sympy.sqrt(3)),
        (r"0.25", sympy.Rational(1, 4)),
        (r"\sqrt[3]{-8}", sympy.Integer(-2)),
        (r"e^{i\pi}", sympy.Integer(-1)),
        (r"\log_2 (x)", sympy.log(x, 2)),
        (r"\binom{n}{2}", sympy.binomial(n, 2)),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", sympy.ImmutableMatrix([[1, 2], [3, 4]])),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{T}", sympy.ImmutableMatrix([[1, 3], [2, 4]])),
        (r"50\%", sympy.Rational(1, 2)),
    ],
)
def test_parse_answer(text, expected):
    """It gives the object that sympy has for the answer."""
    assert parse_answer(text) == expected


@pytest.mark.parametrize(
    "text",
    ["0^0", "0/0", r"\frac{x}{0}", r"\ln 0", r"\infty-\infty", r"\sqrt[0]{2}", r"\tan\frac\pi2", "(AB)^T", "2(1,2)",
     r"\begin{pmatrix}1&2\end{pmatrix}+1",
     r"\begin{cases}1&x>0\\0&x<1\end{cases}", "x = 5", r"\max(i,2)", r"\pm 2", "5 or 6",
     r"\det\begin{pmatrix}1&2\end{pmatrix}", "5 cm", "Paris (France", r"\{1, 2\}", "2^{10^{9}}"],
)  # fmt: skip
def test_what_has_no_form_is_a_value_error(text):
    """No other exception, no nan, and nothing with another meaning."""
    with pytest.raises(ValueError):  # noqa: PT011 - sympy's own, too
        parse_answer(text)


def test_parse_answer_leaves_calculus_unevaluated():
    """Integrals and sums are objects to be evaluated by doit."""
    assert parse_answer(r"\int_0^1 x^2\,dx").doit() == sympy.Rational(1, 3)
    assert parse_answer(r"\lim_{x\to0}\frac{\sin x}{x}").doit() == 1
    assert parse_answer(r"\sum_{k=1}^{3} k") == parse_answer(r"\sum_{j=1}^{3} j")
    assert parse_answer(r"\frac{d}{dx}\sin x").doit() == sympy.cos(x)


def test_difference_vanishes():
    """Equality that values leave open is decided by simplification."""
    assert difference_vanishes(parse(r"\sin^2 x + \cos^2 x"), parse("1"), None) is True
    assert difference_vanishes(parse("x"), parse("x+10^{-300}"), None) is False
    assert difference_vanishes(parse("(1, 2)"), parse("1"), None) is None


def test_evaluated_replaces_parts_only():
    """What is not a sum or an integral stays as it is written."""
    assert evaluate_parts(parse(r"2x+\int_0^1 6t\,dt"), None) == parse("2x+3")


def test_a_matrix_is_no_number():
    """Also where the entries of its power are left to sympy."""
    entries = r"\\".join("&".join(f"x+{4 * row + column}" for column in range(4)) for row in range(4))
    power = rf"\begin{{pmatrix}}{entries}\end{{pmatrix}}"
    for answer in (rf"{power}^{{12}}", rf"{power}^{{-1}}"):
        assert verify_math("42", box(answer)).status in (Status.INCORRECT, Status.LIMIT)
