"""Random pairs of equations with constants: the verifier against exact values, which share no code with it.

Both sides are sums of monomials in variables and in letters that are given data. The other equation has its sides
exchanged, a term moved, a side multiplied, a sign, a letter or a constant changed. Two equations are one where their
differences of sides are proportional at random rational points. Left out are golds with arbitrary constants by their
form, y = ... + C and F(x, y) = C, which `test_math_families.py` has.
"""

from __future__ import annotations

import random
from fractions import Fraction
from typing import NamedTuple

from rlvr.verifiers.math import verify_math

PAIRS = 400
SEED = 11
NAMES = [*"yyyxzuvwAPSVTEQRrsmn"]
VARIABLES = [*"xxxyztrsuvw"]
CONSTANTS = [*"abcdkKCABDhpq", "c_1", "c_2", "C_1", "k_1"]


class Term(NamedTuple):
    """A number times letters; a letter may come several times."""

    factor: int
    letters: tuple[str, ...]

    def times(self, factor: int) -> Term:
        return Term(factor * self.factor, self.letters)

    def renamed(self, names: dict[str, str]) -> Term:
        return Term(self.factor, tuple(names.get(letter, letter) for letter in self.letters))


Side = list[Term]
Equation = tuple[Side, Side]


def latex(side: Side) -> str:
    """A sum in LaTeX."""
    text = ""
    for factor, letters in side:
        number = str(abs(factor)) if abs(factor) != 1 or not letters else ""
        powers = (f"{name}^2" if letters.count(name) > 1 and "_" not in name else name for name in letters)
        text += ("-" if factor < 0 else "+" if text else "") + number + " ".join(dict.fromkeys(powers))
    return text


def shown(equation: Equation) -> str:
    """An equation in LaTeX."""
    return f"{latex(equation[0])}={latex(equation[1])}"


def difference(equation: Equation, point: dict[str, Fraction]) -> Fraction:
    """Left minus right at a point."""
    total = Fraction(0)
    for sign, side in ((1, equation[0]), (-1, equation[1])):
        for factor, letters in side:
            value = Fraction(sign * factor)
            for letter in dict.fromkeys(letters):
                value *= point[letter] ** (2 if letters.count(letter) > 1 and "_" not in letter else 1)
            total += value
    return total


def are_one(first: Equation, second: Equation, rng: random.Random) -> bool:
    """Whether the differences are proportional, and neither is zero."""
    letters = sorted({*NAMES, *VARIABLES, *CONSTANTS})
    points = [{name: Fraction(rng.randrange(1, 10**6), rng.randrange(1, 99)) for name in letters} for _ in range(4)]
    pairs = [(difference(first, point), difference(second, point)) for point in points]
    left, right = pairs[0]
    return bool(left and right) and all(a * right == b * left for a, b in pairs)


def monomial(rng: random.Random) -> Term:
    """Up to three letters with a factor."""
    letters = [rng.choice(rng.choice((VARIABLES, CONSTANTS))) for _ in range(rng.randrange(1, 4))]
    return Term(rng.choice((1, 1, 1, 2, 3, 5, -1, -2)), tuple(letters))


def polynomial(rng: random.Random) -> Side:
    """One to three monomials, a number and a constant alone."""
    side = [monomial(rng) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.3:
        side.append(Term(rng.randrange(1, 9), ()))
    if rng.random() < 0.35:
        side.append(Term(1, (rng.choice(CONSTANTS),)))
    rng.shuffle(side)
    return side


def edited(equation: Equation, rng: random.Random) -> Equation:
    """The equation, changed in one way."""
    left, right = list(equation[0]), list(equation[1])
    place, kind = rng.randrange(len(right)), rng.randrange(8)
    letters = sorted({letter for side in equation for term in side for letter in term.letters})
    if kind == 0:
        return right, left
    if kind == 1:
        factor = rng.choice((2, 3, -1))
        return [term.times(factor) for term in left], [term.times(factor) for term in right]
    if kind == 2:
        return [term.times(rng.choice((2, -1))) for term in right], left
    if kind == 3:
        return left, [*right, Term(rng.randrange(1, 5), ())]
    if kind == 4 and len(right) > 1:
        term = right.pop(place)
        return [*left, term.times(rng.choice((-1, -1, 1)))], right
    if kind == 5 and len(letters) > 1:
        one, other = rng.sample(letters, 2)
        names = {one: other, other: one}
    elif kind == 6:
        names = {rng.choice(letters): rng.choice(CONSTANTS)}
    else:
        right[place] = right[place].times(rng.choice((-1, -1, 2, 3)))
        return left, right
    return [term.renamed(names) for term in left], [term.renamed(names) for term in right]


def has_arbitrary_constant(equation: Equation) -> bool:
    """Whether a gold has by its form an arbitrary constant: y = ... + C, or F(x, y) = C."""
    left = equation[0]
    free = {"C", "C_1", "c_1", "A", "B"}
    letters = {letter for side in equation for term in side for letter in term.letters}
    solved = left == [Term(1, ("y",))] or left == [Term(1, ("x",))]
    alone = any(len(term.letters) == 1 and {*term.letters} <= free for side in equation for term in side)
    return bool(free & letters) and (solved or (alone and "y" in letters))


def pair(rng: random.Random) -> tuple[Equation, Equation]:
    """A formula, a level set or another equation, and what one or two changes make of it."""
    kind = rng.randrange(4)
    right = polynomial(rng) if kind != 2 else [Term(1, (rng.choice(CONSTANTS),))]
    names = [name for name in NAMES if not any(name in term.letters for term in right)]
    left = [Term(1, (rng.choice(names),))] if kind < 2 else polynomial(rng)
    other = edited((left, right), rng)
    return (left, right), (edited(other, rng) if rng.random() < 0.3 else other)


def test_equations_with_constants():
    """No equation is taken for another one, and forms of one equation are equal."""
    print("seed", SEED)
    rng = random.Random(SEED)
    wrong, equal, judged = [], 0, 0
    while judged < PAIRS:
        gold, answer = pair(rng)
        if shown(gold) == shown(answer) or has_arbitrary_constant(gold):
            continue
        judged += 1
        same = are_one(gold, answer, rng)
        equal += same
        if verify_math(shown(gold), f"\\boxed{{{shown(answer)}}}").correct is not same:
            wrong.append((shown(gold), shown(answer), same))
    assert wrong == []
    assert equal > PAIRS / 8
