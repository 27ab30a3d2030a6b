"""Small systems of constraints over integers for the verifier `smt`, in SMT-LIB; some have no solution.

(declare-const x Int)(declare-const y Int)(assert (= (+ x y) 12))(assert (= (- x y) 4))       x = 8, y = 4
(declare-const x Int)(assert (= (* 2 x) 7))                                                   unsat
"""

from __future__ import annotations

import random

from rlvr.core.registry import register_task
from rlvr.core.types import Problem, Task

from ..base import Demonstration, generate_task

System = tuple[str, str]  # constraints, answer


def _propose(stream: random.Random) -> tuple[str, System]:
    x, y, k = stream.randint(-30, 30), stream.randint(-30, 30), stream.randint(2, 9)
    rules = [f"(= (+ x (* {k} y)) {_number(x + k * y)})", f"(= (- x y) {_number(x - y)})"]
    answer = f"x = {x}, y = {y}"
    if stream.random() < 0.25:
        # x + k y and x - y differ by (k + 1) y: one more has no integer solution.
        rules[0] = f"(= (+ x (* {k} y)) {_number(x + k * y + 1)})"
        answer = "unsat"
    if stream.random() < 0.5:
        rules.append(f"(< x {_number(x + stream.randint(1, 9))})")
    text = "(declare-const x Int)\n(declare-const y Int)\n" + "\n".join(f"(assert {rule})" for rule in rules)
    return text, (text, answer)


def _number(value: int) -> str:
    return str(value) if value >= 0 else f"(- {-value})"


def _problem(name: str, system: System, stream: random.Random) -> Problem:
    ask = "Give a value for each constant, as in `x = 1, y = 2`, or answer `unsat`.\n"
    return Problem(name, f"{system[0]}\n{ask}", system[0])


def _demonstrate(name: str, system: System, stream: random.Random) -> Demonstration:
    return _problem(name, system, stream), system[1]


@register_task("constraints")
def constraints(*, seed: int = 0, num_train: int = 4096, num_test: int = 256, num_demonstrations: int = 4096) -> Task:
    """Small systems of integer constraints in SMT-LIB, a quarter without solution; answers as demonstrations."""
    sizes = num_train, num_test, num_demonstrations
    return generate_task("constraints", _propose, _problem, _demonstrate, seed=seed, sizes=sizes, verifier="smt")
