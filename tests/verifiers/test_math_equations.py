"""Random pairs of equations with constants: the verifier against sympy's algebra, which shares no code with it.

Both sides are sums of monomials in variables and in letters that are given data. The other equation has its sides
exchanged, a term moved, a side multiplied, a sign, a letter or a constant changed. Two equations are one where their
differences of sides are proportional. Left out are golds with arbitrary constants by their form, y = ... + C and
F(x, y) = C, of which the golden tables have rows.
"""

from __future__ import annotations

import random

import sympy

from rlvr.verifiers.math import verify_math

PAIRS = 400
SEED = 11
NAMES = sympy.symbols([*"yyyxzuvwAPSVTEQRrsmn"])
VARIABLES = sympy.symbols([*"xxxyztrsuvw"])
CONSTANTS = sympy.symbols([*"abcdkKCABDhpq", "c_1", "c_2", "C_1", "k_1"])
ARBITRARY = {*sympy.symbols("C C_1 c_1 A B")}

Equation = tuple[sympy.Expr, sympy.Expr]


def latex(equation: Equation) -> str:
    """An equation in LaTeX."""
    return "=".join(map(sympy.latex, equation))


def are_one(first: Equation, second: Equation) -> bool:
    """Whether the differences are proportional, and neither is zero."""
    left, right = (sympy.expand(one - other) for one, other in (first, second))
    return bool(left and right) and not sympy.cancel(left / right).free_symbols


def polynomial(rng: random.Random) -> sympy.Expr:
    """One to three monomials, a number and a constant alone."""
    side = sympy.Integer(0)
    for _ in range(rng.randrange(1, 4)):
        letters = [rng.choice(rng.choice((VARIABLES, CONSTANTS))) for _ in range(rng.randrange(1, 4))]
        side += rng.choice((1, 1, 1, 2, 3, 5, -1, -2)) * sympy.Mul(*set(letters))
    side += rng.randrange(1, 9) if rng.random() < 0.3 else 0
    return side + (rng.choice(CONSTANTS) if rng.random() < 0.35 or not side else 0)


def edit(equation: Equation, rng: random.Random) -> Equation:
    """The equation, changed in one way."""
    left, right = equation
    letters = sorted(left.free_symbols | right.free_symbols, key=str)
    one, other = rng.sample(letters, 2) if len(letters) > 1 else (letters[0], letters[0])
    term = rng.choice(sympy.Add.make_args(right))
    factor = rng.choice((2, 3, -1))
    exchanged = {one: other, other: one}
    return rng.choice(
        (
            (right, left),
            (left * factor, right * factor),
            (right * factor, left),
            (left, right + rng.randrange(1, 5)),
            (left + rng.choice((-1, -1, 1)) * term, right - term),
            tuple(side.subs(exchanged, simultaneous=True) for side in equation),
            (left.subs(one, CONSTANTS[0]), right.subs(one, CONSTANTS[0])),
            (left, right + rng.choice((-2, 1)) * term),
        )
    )


def has_arbitrary_constant(equation: Equation) -> bool:
    """Whether a gold has by its form an arbitrary constant: y = ... + C, or F(x, y) = C."""
    letters = equation[0].free_symbols | equation[1].free_symbols
    terms = {term for side in equation for term in sympy.Add.make_args(side)}
    solved = equation[0] in sympy.symbols("x y")
    return bool(ARBITRARY & letters) and (solved or (bool(ARBITRARY & terms) and sympy.Symbol("y") in letters))


def pair(rng: random.Random) -> tuple[Equation, Equation]:
    """A formula, a level set or another equation, and what one or two changes make of it."""
    kind = rng.randrange(4)
    right = polynomial(rng) if kind != 2 else rng.choice(CONSTANTS)
    names = [name for name in NAMES if name not in right.free_symbols]
    gold = (rng.choice(names) if kind < 2 else polynomial(rng), right)
    other = edit(gold, rng)
    return gold, edit(other, rng) if rng.random() < 0.3 else other


def test_equations_with_constants():
    """No equation is taken for another one, and forms of one equation are equal."""
    rng = random.Random(SEED)
    wrong, equal, judged = [], 0, 0
    while judged < PAIRS:
        gold, answer = pair(rng)
        if latex(gold) == latex(answer) or 0 in (*gold, *answer) or has_arbitrary_constant(gold):
            continue
        judged += 1
        same = are_one(gold, answer)
        equal += same
        if verify_math(latex(gold), f"\\boxed{{{latex(answer)}}}").correct is not same:
            wrong.append((latex(gold), latex(answer), same))
    assert wrong == []
    assert equal > PAIRS / 8
