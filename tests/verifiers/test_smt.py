"""The verifier `smt` with the real z3: assignments are checked as data, and only what holds passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.core.registry import make_task, make_verifier
from rlvr.core.types import Problem
from rlvr.verifiers.smt import constants_of, literal, z3_program
from tests.helpers.timing import processor_time

Z3 = pytest.mark.skipif(z3_program() is None, reason="z3 is not installed (pip install z3-solver)")
XY = "(declare-const x Int)(declare-const y Int)(assert (= (+ x y) 12))(assert (= (- x y) 4))"
HARD = (
    "(declare-const x Int)(declare-const y Int)(declare-const z Int)(assert (= (+ (* x x x) (* y y y) (* z z z)) 42))"
)


def verdict(reference: object, completion: str):
    return make_verifier("smt", timeout=1.0)(Problem("p", "", reference), completion)


@Z3
@pytest.mark.parametrize(
    ("reference", "completion", "status"),
    [
        (XY, "x = 8, y = 4", "correct"),
        (XY, '```json\n{"x": 8, "y": 4}\n```', "correct"),
        (XY, "x = 4, y = 8", "incorrect"),
        (XY, "unsat", "incorrect"),
        (XY + "(assert (> x 8))", "unsat", "correct"),
        (XY + "(assert (> x 8))", "x = 8, y = 4", "incorrect"),
        ("(declare-const r Real)(assert (= (* 3.0 r) (- 1.0)))", "r = -1/3", "correct"),
        ("(declare-const b Bool)(assert (not b))", "b = false", "correct"),
        ("(declare-const v (_ BitVec 4))(assert (= (bvadd v #x1) #x0))", "v = 15", "correct"),
        (XY, "x = 8", "unparseable"),
        (XY, "x = 8, y = 4, x = 9", "unparseable"),
        (XY, "x = 8, y = 4, z = 1", "unparseable"),
        (XY, "x = 8, y = 4) (assert false", "unparseable"),
        (XY, "(assert false)", "unparseable"),
        (XY, "x = true, y = 4", "unparseable"),
        (XY, "x = 1/2, y = 4", "unparseable"),
        (XY, "x = 8, y = 4/0", "unparseable"),
        (XY, "x = " + "9" * 2000 + ", y = 4", "unparseable"),
        (XY, "", "no_answer"),
        ("(declare-const x Int)(assert (= x nosuch))", "x = 1", "bad_reference"),
        (HARD, "unsat", "error"),
        (XY, "x = 8, y = 4.", "correct"),
        (XY, '<think>x = 1, y = 2</think>\n```json\r\n{"x": "8", "y": 4}\r\n```', "correct"),
        (XY, "x = 8 = y = 4", "unparseable"),
        (XY, "x = 8, y = x", "unparseable"),
        (XY, 'x = 8, y = 4\n(echo "sat")', "unparseable"),
        (XY, "x = 8, y = 4 (set-option :print-success true)", "unparseable"),
        (XY, "x = 8, y = 4, sat", "unparseable"),
        (XY, "unsat\nx = 8, y = 4", "unparseable"),
        ("(declare-const v (_ BitVec 8))(assert (bvuge v #x00))", "v = 256", "unparseable"),
        ("(declare-const x Int)(assert (= 5 (mod (^ 3 x) 7)))", "x = " + "9" * 900, "timeout"),
        ("(declare-const x Int)(assert (= 5 (mod (^ 3 x) 7)))", "x = 5", "correct"),
    ],
)
def test_verdicts(reference: str, completion: str, status: str) -> None:
    found = verdict(reference, completion)
    assert found.status == status, found.reason


DIVIDED = "(declare-const x Int)(declare-const y Int)(assert (> x 100))"


@Z3
@pytest.mark.parametrize(
    ("constraint", "divisor", "status"),
    [
        ("(= (div x y) 5)", 0, "incorrect"),
        ("(= (div x y) 5)", 20, "correct"),
        ("(= (mod x y) 3)", 0, "incorrect"),
        ("(= (mod x y) 3)", 7, "correct"),
        ("(= (mod x 7) 3)", 0, "correct"),
        ("(= (/ (to_real x) (to_real y)) 2.0) ; (assert", 0, "incorrect"),
        ("(! (= (div x (- y 1)) 7) :named big)", 1, "incorrect"),
        ("(=> (not (= y 0)) (= (div x y) 5))", 0, "correct"),
        ("(= (div x y) (div x y))", 0, "correct"),
    ],
)
def test_a_division_by_zero_gives_no_value_that_suits(constraint: str, divisor: int, status: str) -> None:
    """Both halves of the constraints count, and "assert" in a comment or behind a guard is not the solver's."""
    found = verdict(f"{DIVIDED}(assert {constraint}\n)", f"x = 101, y = {divisor}")
    assert found.status == status, found.reason


@pytest.mark.parametrize("text", ["a", "a ", 'a"', "a=", "a= ", "a=1 b", "x.", "=", '"'])
def test_time_grows_with_the_answer_and_not_its_square(text: str) -> None:
    def seconds(size: int) -> float:
        taken = []
        for _ in range(3):
            with processor_time() as time:
                verdict(XY, text * (size // len(text)) + "!")
            taken.append(time.seconds)
        return min(taken)

    small, large = seconds(20_000), seconds(80_000)
    assert large < 9 * small + 0.05, (small, large)


@Z3
def test_answers_of_the_pack_pass_and_others_do_not() -> None:
    task = make_task("constraints", num_demonstrations=20)
    rows = [task.demonstrations[index] for index in range(20)]
    verifier = make_verifier("smt")
    assert all(found.correct for found in verifier.verify_batch(rows))
    wrong = [(problem, "x = 100, y = 100" if answer == "unsat" else "unsat") for problem, answer in rows]
    assert [found.score for found in verifier.verify_batch(wrong)] == [0.0] * 20


@pytest.mark.parametrize(
    "reference",
    [
        1,
        "",
        "(check-sat)",
        XY + ")",
        "(declare-fun f (Int) Int)",
        "(declare-const s String)",
        XY + "(get-model)",
        "(declare-const |a b| Int)",
        "(declare-const x-y Int)",
        '(include "/etc/passwd")' + XY,
    ],
)
def test_references_that_cannot_be_used_are_refused(reference: object) -> None:
    with pytest.raises(ValueError, match=r"reference|close|function|sort|constant|name"):
        constants_of(reference)


@pytest.mark.parametrize("value", ["1)", "(+ 1 1)", "x", "", "1e9", "0x10", "#b1", "--1"])
def test_values_are_literals_only(value: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        literal(value, "Int")


def test_a_missing_solver_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlvr.verifiers.smt.z3_program", lambda: None)
    found = verdict(XY, "x = 8, y = 4")
    assert found.status == "error"
    assert "pip install" in found.reason
