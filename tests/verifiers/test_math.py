"""The verifier `math`: its options and reasons, its quick path, and the bounds on its work."""

from __future__ import annotations

import asyncio
import math
import pickle
import subprocess
import sys

import pytest

from rlvr.core.registry import make_verifier
from rlvr.core.types import Problem, Status
from rlvr.verifiers.math import MathVerifier, parse_answer, verify_math, verify_math_async, verify_math_batch
from rlvr.verifiers.math.values.exact import BoundedWork, OutOfBudget, spend
from tests.helpers.machine import processor_time

# --- options ----------------------------------------------------------------------------------------------------------


def test_options_from_the_command_line():
    """Options given as text are converted, and a wrong one is named."""
    assert make_verifier("math", digits="5", extract="strict") == MathVerifier(digits=5, extract="strict")
    with pytest.raises(LookupError, match="did you mean digits"):
        make_verifier("math", digit="5")


@pytest.mark.parametrize(
    ("gold", "completion", "status", "reason"),
    [
        ("5", "\\boxed{5 or 6}", Status.INCORRECT, "2 alternatives, not a number"),
        ("5", "\\boxed{5, 6}", Status.INCORRECT, "2 values, not a number"),
        ("5", "\\boxed{6}", Status.INCORRECT, "6, not 5"),
        ("x^2", "\\boxed{2x}", Status.INCORRECT, "not equal"),
        ("(0,1]", "\\boxed{5}", Status.INCORRECT, "a number, not an interval"),
        ("5", "I think so", Status.NO_ANSWER, "no boxed or marked answer"),
        ("5", "\\boxed{}", Status.NO_ANSWER, "no boxed or marked answer"),
        ("5", "<think>\\boxed{5}", Status.NO_ANSWER, "unterminated <think> block"),
        ("5", "\\boxed{\\text{your answer}}", Status.NO_ANSWER, "placeholder"),
        ("5", "\\boxed{5 (or maybe 6)}", Status.UNPARSEABLE, "'or'"),
        ("5", "\\boxed{" + "(" * 100 + "5" + ")" * 100 + "}", Status.LIMIT, "nested deeper"),
        ("5", "\\boxed{" + "5" * 3000 + "}", Status.LIMIT, "3000 digits"),
        ("5", "\\boxed{9^{9^{9^{9}}}}", Status.LIMIT, "bits"),
        ("", "\\boxed{5}", Status.BAD_REFERENCE, "no answer"),
        (None, "\\boxed{5}", Status.BAD_REFERENCE, "the reference is null"),
    ],
)
def test_the_verdict_says_why(gold, completion, status, reason):
    """Every verdict has its status and a reason that names the cause."""
    verdict = verify_math(gold, completion)
    assert verdict.status is status
    assert reason in verdict.reason


def test_references():
    """A reference may be a number, a solution that ends with ####, or a text with a box."""
    assert verify_math(18, "\\boxed{18}").correct
    assert verify_math(0.5, "\\boxed{\\frac12}").correct
    assert verify_math("She sells 9 eggs. #### 18", "\\boxed{18}").correct
    assert verify_math("Hence $\\boxed{\\frac{1}{2}}$.", "\\boxed{0.5}").correct
    MathVerifier().check_reference("\\text{Evelyn}")
    with pytest.raises(ValueError, match="holds no answer"):
        MathVerifier().check_reference("  ")
    with pytest.raises(ValueError, match="list"):
        MathVerifier().check_reference(["18"])


def test_quick_leaves_long_answers_to_the_pool():
    """What could take longer than milliseconds is not decided in the caller's process."""
    verifier = MathVerifier()
    long = "\\boxed{" + "+".join(["\\sin x"] * 400) + "}"
    assert verifier.fast_path(Problem("", "", "400 \\sin x"), long) is None
    assert verifier(Problem("", "", "400 \\sin x"), long).correct
    quick = verifier.fast_path(Problem("", "", "5"), "\\boxed{5}")
    assert quick is not None
    assert quick.correct


def test_verifier_survives_pickling():
    """A verifier can be sent to a worker process."""
    verifier = MathVerifier(digits=4)
    verifier(Problem("", "", "5"), "\\boxed{5}")
    assert pickle.loads(pickle.dumps(verifier)) == verifier


PAIRS = [("\\frac12", "\\boxed{0.5}"), ("5", "\\boxed{6}"), ("", "\\boxed{6}")]
EXPECTED = [Status.CORRECT, Status.INCORRECT, Status.BAD_REFERENCE]


def test_batch():
    """The batch form keeps the order, and the async form gives the same verdicts."""
    assert [verdict.status for verdict in verify_math_batch(PAIRS)] == EXPECTED
    assert [verdict.status for verdict in asyncio.run(verify_math_async(PAIRS))] == EXPECTED


def test_import_stays_light():
    """Importing the verifier imports neither sympy nor mpmath nor torch."""
    code = "import sys, rlvr.verifiers.math; print([m for m in ('sympy', 'mpmath', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("digits", [2.5, True, 0, "3"]),
        ("exact_digits", [4.0]),
        ("rel_tol", [math.inf, math.nan, -0.1]),
        ("symbolic_seconds", [math.nan, False, 0]),
        ("symbolic", ["always"]),
    ],
)
def test_values_that_are_refused(name, values):
    """The message names the option."""
    for value in values:
        with pytest.raises(ValueError, match=name):
            MathVerifier(**{name: value})


FORMULAS = {
    "powers": r"\max(" + ",".join(f"x^{i}y^{i + 1}z" for i in range(8)) + ")",
    "minima": r"\min(" + ",".join(f"x+{i}y" for i in range(20)) + ")",
    "nested": "|" * 20 + "x" + "".join(f"-{i}|" for i in range(1, 21)),
    "towers": "+".join(f"(x+{i})^{{y}}" for i in range(10)),
    "factorials": "+".join(rf"\sin(n!+{i})" for i in range(14)),
    "large": "+".join(["2999!"] * 100),
    "long": r"\max(" + ",".join(f"x^{i}y^{i + 1}z" for i in range(60)) + ")",
}


@pytest.mark.parametrize("formula", FORMULAS.values(), ids=list(FORMULAS))
def test_the_caller_does_little_work(formula: str) -> None:
    verifier = MathVerifier()
    assert verifier.fast_path(Problem("", "", "|x|"), r"\boxed{|x-1|}") is not None
    for reference, answer in (
        (formula, f"{formula}+0"),
        ("|x|", f"|x|+0({formula})"),
        (r"\max(x,1)", rf"\max(x,1)+{formula}-({formula})"),
    ):
        # Without the bound on its work it would have a verdict.
        assert verifier.fast_path(Problem("", "", reference), rf"\boxed{{{answer}}}") is None


def test_what_is_left_to_the_worker_is_decided_there() -> None:
    formula = FORMULAS["powers"]
    problem, answer = Problem("", "", formula), rf"\boxed{{{formula}+0}}"
    assert MathVerifier().fast_path(problem, answer) is None
    assert verify_math(formula, answer).correct
    other = answer.replace("x^7", "x^6")
    assert not verify_math(formula, other).correct


def test_long_completions_are_searched_in_the_worker() -> None:
    problem = Problem("", "", "5")
    assert MathVerifier().fast_path(problem, "and so on " * 20_000 + r"\boxed{5}") is None
    verdict = MathVerifier().fast_path(problem, "and so on " * 1_000 + r"\boxed{5}")
    assert verdict is not None
    assert verdict.correct


def test_work_is_counted_only_inside() -> None:
    spend(1e9)
    with BoundedWork(10):
        spend(9)
        with pytest.raises(OutOfBudget):
            spend(2)
    spend(1e9)


SLOW = [
    (r"\lceil \cosh(x)\rceil", r"\lceil\cosh(x)+0\rceil"),
    (r"\lfloor \sinh x \rfloor \lceil \cosh y \rceil", r"\lfloor \sinh x \rfloor \lceil \cosh(-y) \rceil"),
    (r"\sum_{k=1}^{1000} \frac{1}{k!}", r"\sum_{j=1}^{999} \frac{1}{j!}+\frac{1}{1000!}"),
    (r"|x|", r"|x|+0\cdot(\max(" + ",".join(f"x^{k}y^{k}z" for k in range(60)) + "))"),
]


@pytest.mark.parametrize(("gold", "answer"), SLOW)
def test_the_caller_is_not_kept(gold, answer):
    """What takes long is left to the worker pool, which can be killed."""
    verifier, problem = MathVerifier(), Problem("1", "", gold)
    verifier.fast_path(problem, r"\boxed{\lfloor x \rfloor + \sin x}")
    with processor_time() as taken:
        verifier.fast_path(problem, f"\\boxed{{{answer}}}")
    assert taken.seconds < 2


MATRIX = "\\\\".join("&".join(letters) for letters in ("abcd", "efgh", "pqrs", "uvwz"))


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("42", 12 * f"\\begin{{pmatrix}}{MATRIX}\\end{{pmatrix}}", False),
        (8 * "f(" + "x+1" + 8 * ")", 8 * "f(" + "1+x" + 8 * ")", True),
    ],
)
def test_long_products_and_nested_functions_take_no_time(gold, answer, expected):
    """A product of matrices is refused before it is computed; f(f(...f(x))) is computed once for each level."""
    with processor_time() as taken:
        assert verify_math(gold, f"\\boxed{{{answer}}}", symbolic="off").correct is expected
    assert taken.seconds < 5


def test_functions_are_functions_of_sympy():
    """f(2x) is an applied function, not a product."""
    import sympy

    assert parse_answer("f(2x)") == sympy.Function("f")(2 * sympy.Symbol("x"))
