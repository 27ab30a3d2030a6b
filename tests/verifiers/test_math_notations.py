"""What letters and signs side by side mean: derivatives, functions, vectors, binomials, alternatives."""

from __future__ import annotations

import pytest

from rlvr.verifiers.math import parse_answer, verify_math
from tests.helpers.files import GOLDEN, lines
from tests.helpers.timing import processor_time
from tests.helpers.verifiers import holds

NOTATIONS = lines(GOLDEN / "math_notations.jsonl")


@pytest.mark.parametrize("category", sorted({row["category"] for row in NOTATIONS}))
def test_notations(category):
    """Each notation is read as what it means, not as a product of its letters."""
    rows = [row for row in NOTATIONS if row["category"] == category]
    assert [row for row in rows if holds(row["gold"], row["answer"]) is not row["expected"]] == []
    assert {row["expected"] for row in rows} == {True, False}


def test_matrix_products_are_bounded():
    """A long product of matrices with variables is refused before it is computed."""
    rows = "\\\\".join("&".join(letters) for letters in ("abcd", "efgh", "pqrs", "uvwz"))
    with processor_time() as taken:
        verdict = verify_math("42", "\\boxed{" + 12 * f"\\begin{{pmatrix}}{rows}\\end{{pmatrix}}" + "}", symbolic="off")
    assert not verdict.correct
    assert taken.seconds < 5


def test_nested_functions_take_no_time():
    """The value of f(f(...f(x))) is computed once for each level."""
    with processor_time() as taken:
        assert holds(8 * "f(" + "x+1" + 8 * ")", 8 * "f(" + "1+x" + 8 * ")")
    assert taken.seconds < 5


def test_functions_are_functions_of_sympy():
    """f(2x) is an applied function, not a product."""
    import sympy

    assert parse_answer("f(2x)") == sympy.Function("f")(2 * sympy.Symbol("x"))
