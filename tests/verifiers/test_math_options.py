"""Options of the math verifier beside their common values."""

from __future__ import annotations

import math

import pytest

from rlvr.verifiers.math import MathVerifier, verify_math


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        (r"\boxed{5}... \boxed{x=5}", "correct"),
        (r"\boxed{10/2} = \boxed{5}", "correct"),
        (r"\boxed{5.0} and \boxed{5}", "correct"),
        (r"\boxed{\frac{10}{2}}. So \boxed{ 5 }", "correct"),
        (r"\boxed{6}, \boxed{12/2}", "incorrect"),
        (r"\boxed{6} and \boxed{5}", "no_answer"),
        (r"\boxed{5} and \boxed{\text{five or six}}", "no_answer"),
        (r"\boxed{x+1} and \boxed{5}", "no_answer"),
    ],
)
def test_equal_boxes_are_no_conflict(completion: str, expected: str) -> None:
    assert verify_math("5", completion, conflict="reject").status == expected


@pytest.mark.parametrize(
    ("gold", "answer", "expected"),
    [
        ("1.5,1.6", "1.55,1.55", False),
        ("1.5,1.6", "1.55,1.56", True),
        ("1.0,1.1", "1.09,0.92", True),  # the first gold is near both, the second near one
        ("1.0,1.1", "0.92,0.93", False),
        ("1.5,1.5,1.6", "1.5,1.6", False),
    ],
)
def test_tolerance_of_lists(gold: str, answer: str, expected: bool) -> None:
    """Each value needs an answer of its own."""
    assert verify_math(gold, rf"\boxed{{{answer}}}", rel_tol=0.1).correct is expected


@pytest.mark.parametrize(
    "options",
    [
        {"digits": 2.5},
        {"digits": True},
        {"digits": 0},
        {"digits": "3"},
        {"exact_digits": 4.0},
        {"rel_tol": math.inf},
        {"rel_tol": math.nan},
        {"rel_tol": -0.1},
        {"symbolic_seconds": math.nan},
        {"symbolic_seconds": False},
    ],
)
def test_values_that_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        MathVerifier(**options)
