"""The math verifier does bounded work in the caller's process and leaves the rest to a worker."""

from __future__ import annotations

import pytest

from rlvr.core.types import Problem
from rlvr.verifiers.math import MathVerifier, verify_math
from rlvr.verifiers.math.values.exact import BoundedWork, OutOfBudget, spend

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
