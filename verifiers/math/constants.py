"""Arbitrary constants: + C in antiderivatives, c_1 e^x + c_2 e^{-x} in general solutions.

The constants of the answer may have other names and other scales: the families of functions must be the same. Where the
gold is linear in its constants, that is linear algebra: the functions beside the constants span the same space, and the
rest differs by an element of it. Where it is not, the constants are renamed, negated or doubled.

Which letters are arbitrary constants, and not given data: c_1, C_2, ... always; + C at the end of an expression in x;
C, K, and A with B in an equation solved for y as a function of x or t, unless a and b stand beside a c.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Sequence

from rlvr.verifiers.math.compiled import compiled
from rlvr.verifiers.math.exact import Inexact, Undefined
from rlvr.verifiers.math.numeric import substituted
from rlvr.verifiers.math.points import UNDEFINED, has_branches
from rlvr.verifiers.math.tree import Node, Op, Sym, number, symbols

MAX_CONSTANTS = 4
MAX_RENAMED = 3
POINTS = 40
TOLERANCE = 1e-8

_NUMBERED = re.compile(r"[cCkKAB]_?\{?\d\}?'*\Z")
_LETTERS = frozenset("CcKkABDabd")
_VARIABLES = frozenset("xtyzuvwsr") | {"theta", "phi"}
_UNKNOWNS = frozenset("yxuvwzrsqif")

Same = Callable[[Node, Node], bool]


def same_general_solution(gold: Node, answer: Node, same: Same, unknown: str = "") -> bool:
    """Whether both are the same family of functions with arbitrary constants.

    `unknown`: the name before the equals sign of both, "" where there is none. `same` compares two expressions.
    """
    names = _arbitrary(gold, unknown)
    if not names or len(names) > MAX_CONSTANTS:
        return False
    variables = symbols(gold) - set(names)
    others = sorted(symbols(answer) - variables)
    if len(others) != len(names) or not all(map(_is_constant_name, others)):
        return False
    linear = _same_span(gold, answer, names, others, sorted(variables))
    if linear is not None:
        return linear
    return len(names) <= MAX_RENAMED and _renamed(gold, answer, names, others, same)


def _is_constant_name(name: str) -> bool:
    return name.rstrip("'") in _LETTERS or bool(_NUMBERED.match(name))


def _arbitrary(gold: Node, unknown: str) -> list[str]:
    """Return the names of the arbitrary constants of a gold, in order; none where they are given data."""
    names = symbols(gold)
    numbered = sorted(name for name in names if _NUMBERED.match(name))
    if not names & _VARIABLES:
        return []
    if numbered:
        return numbered if all(name[0] in "cC" for name in numbered) or unknown else []
    single = sorted(name for name in names if name in ("C", "c", "K"))
    if "c" in single and names & {"a", "b"}:
        return []
    if len(single) == 1 and _is_last_term(gold, single[0]):
        return single
    if not unknown or unknown not in _UNKNOWNS or not names & {"x", "t"}:
        return []
    pair = ["A", "B"] if {"A", "B"} <= names else []
    return sorted({*single, *pair})


def _is_last_term(node: Node, name: str) -> bool:
    """Whether a constant is a term of a sum and nowhere else in it."""
    if not isinstance(node, Op) or node.head != "add":
        return False
    rest = [arg for arg in node.args if arg != Sym(name)]
    return len(rest) == len(node.args) - 1 and not any(name in symbols(arg) for arg in rest)


# --- constants that enter linearly ------------------------------------------------------------------------------------


def _same_span(
    gold: Node, answer: Node, names: list[str], others: list[str], variables: list[str]
) -> bool | None:
    """Whether both families are the same affine space of functions; None where one is not linear in its constants."""
    points = _points(variables, f"{gold}|{answer}")
    try:
        tables = [_table(gold, variables, names, points), _table(answer, variables, others, points)]
    except (Inexact, Undefined):
        return None
    kept = [
        place
        for place in range(len(points))
        if all(isinstance(value, float) and abs(value) < 1e12 for table in tables for value in table[place])
    ]
    if len(kept) < POINTS // 4:
        return None
    if has_branches(gold) and any(None in tables[1][place] and None not in tables[0][place] for place in range(POINTS)):
        return False  # \\ln x says nothing about the negative x of \\ln|x|
    count = len(names)
    left, right = ([[value or 0.0 for value in tables[side][place]] for place in kept] for side in (0, 1))
    if not _is_linear(left, count) or not _is_linear(right, count):
        return None
    left, right = _weighted(left, right)
    columns = [_column(left, 1 + k) for k in range(count)]
    wanted = [_column(right, 1 + k) for k in range(count)]
    rest = [a[0] - b[0] for a, b in zip(left, right, strict=True)]
    basis, other_basis = _orthogonal(columns), _orthogonal(wanted)
    if len(basis) != count or len(other_basis) != count:
        return False
    return all(_in_span(column, basis, _norm(column)) for column in wanted) and _in_span(rest, basis, len(kept) ** 0.5)


def _weighted(left: list[list[float]], right: list[list[float]]) -> tuple[list[list[float]], list[list[float]]]:
    """Return both tables with every row divided by its largest value, so that no point outweighs the others."""
    weights = [1 / (max(map(abs, row + other)) or 1.0) for row, other in zip(left, right, strict=True)]
    first, second = ([[w * v for v in row] for w, row in zip(weights, table, strict=True)] for table in (left, right))
    return first, second


def _points(variables: list[str], seed: str) -> list[tuple[float, ...]]:
    rng = random.Random(seed)
    sizes = [(0.2, 3.0), (0.2, 3.0), (0.1, 9.0), (3.0, 30.0)]
    return [
        tuple(rng.choice((-1, 1)) * rng.uniform(*sizes[index % 4]) for _ in variables) for index in range(POINTS)
    ]


def _table(
    node: Node, variables: list[str], names: list[str], points: Sequence[tuple[float, ...]]
) -> list[list[float | None]]:
    """Return, for each point, the values with all constants 0, with one of them 1, and with fixed others.

    The columns of single constants are differences to the first. A value is None where it is undefined.
    """
    places = {name: place for place, name in enumerate([*variables, *names])}
    function = compiled(node, places)
    count = len(names)
    units = [tuple(float(k == index) for k in range(count)) for index in range(count)]
    mixed = [tuple(0.7 + 1.3 * k for k in range(count)), tuple(-2.1 + 0.9 * k for k in range(count))]
    rows: list[list[float | None]] = []
    for point in points:
        values = [_value(function, (*point, *constants)) for constants in ((0.0,) * count, *units, *mixed)]
        first = values[0]
        if first is not None:
            values[1 : count + 1] = [None if v is None else v - first for v in values[1 : count + 1]]
        rows.append(values)
    return rows


def _value(function: Callable[[Sequence[float]], object], point: Sequence[float]) -> float | None:
    try:
        value = function(point)
        return float(value) if isinstance(value, (int, float)) else None
    except UNDEFINED:
        return None


def _is_linear(rows: list[list[float]], count: int) -> bool:
    mixed = [tuple(0.7 + 1.3 * k for k in range(count)), tuple(-2.1 + 0.9 * k for k in range(count))]
    for values in rows:
        for constants, found in zip(mixed, values[count + 1 :], strict=True):
            parts = [values[0], *(c * v for c, v in zip(constants, values[1 : count + 1], strict=True))]
            if abs(sum(parts) - found) > TOLERANCE * (abs(found) + sum(map(abs, parts))):
                return False
    return True


def _column(rows: list[list[float]], place: int) -> list[float]:
    return [row[place] for row in rows]


def _orthogonal(columns: list[list[float]]) -> list[list[float]]:
    """Return an orthonormal basis of the span; shorter than the columns where they are dependent."""
    basis: list[list[float]] = []
    for column in columns:
        size = _norm(column)
        rest = _remainder(column, basis)
        if size and _norm(rest) > TOLERANCE * size:
            length = _norm(rest)
            basis.append([value / length for value in rest])
    return basis


def _remainder(column: list[float], basis: list[list[float]]) -> list[float]:
    for _ in range(2):  # twice, against rounding
        for vector in basis:
            share = sum(a * b for a, b in zip(column, vector, strict=True))
            column = [a - share * b for a, b in zip(column, vector, strict=True)]
    return column


def _norm(column: list[float]) -> float:
    return float(sum(value * value for value in column) ** 0.5)


def _in_span(column: list[float], basis: list[list[float]], size: float) -> bool:
    return _norm(_remainder(column, basis)) <= TOLERANCE * size


# --- other constants --------------------------------------------------------------------------------------------------


def _renamed(gold: Node, answer: Node, names: list[str], others: list[str], same: Same) -> bool:
    """Whether the answer is the gold with its constants renamed; a single one also negated, doubled or halved."""
    for order in itertools.permutations(others):
        if same(gold, substituted(answer, {old: Sym(new) for old, new in zip(order, names, strict=True)})):
            return True
    if len(names) > 1:
        return False
    constant, (old,) = Sym(names[0]), others
    forms: tuple[Node, ...] = (
        Op("neg", (constant,)),
        Op("mul", (number(2), constant)),
        Op("div", (constant, number(2))),
        Op("div", (number(1), constant)),
    )
    return any(same(gold, substituted(answer, {old: form})) for form in forms)
