"""The verifier `smt`: what is no row of golden/verdicts.jsonl."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlvr.core.registry import make_task, make_verifier
from rlvr.core.types import Problem
from rlvr.verifiers.smt import literal, z3_program
from tests.helpers.machine import processor_time

Z3 = pytest.mark.skipif(z3_program() is None, reason="z3 is not installed (pip install z3-solver)")
XY = "(declare-const x Int)(declare-const y Int)(assert (= (+ x y) 12))(assert (= (- x y) 4))"


def verdict(reference: object, completion: str):
    return make_verifier("smt", timeout=1.0)(Problem("p", "", reference), completion)


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


@pytest.mark.parametrize("value", ["1)", "(+ 1 1)", "x", "", "1e9", "0x10", "#b1", "--1"])
def test_values_are_literals_only(value: str) -> None:
    with pytest.raises(ValueError, match="not a number"):
        literal(value, "Int")


def test_a_missing_solver_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rlvr.verifiers.smt.z3_program", lambda: None)
    found = verdict(XY, "x = 8, y = 4")
    assert found.status == "error"
    assert "pip install" in found.reason
