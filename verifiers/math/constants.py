"""Arbitrary constants: + C in antiderivatives, c_1 e^x + c_2 e^{-x} in general solutions.

The constants of the answer may have other names and other scales: the families of functions must be the same. Where the
gold is linear in its constants, that is linear algebra: the functions beside the constants span the same space, and the
rest differs by an element of it. Where it is not, the constants are renamed, negated or doubled.

Which letters are arbitrary constants, and not given data, in a function of one variable: C as the last term; c_1, c_2
and so on; in an equation solved for x, y or f also C or c_1 alone, and A with B where they enter linearly. A small c or
a K as the last term may be given data: it may have another name, but no other sign or value.
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
from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, number, symbols

MAX_CONSTANTS = 4
MAX_RENAMED = 3
POINTS = 40
TOLERANCE = 1e-8

_NUMBERED = re.compile(r"[cC]_?\{?(\d)\}?'*\Z")
_INDEXED = re.compile(r"[cCkKABDabd]_?\{?\d")
_LETTERS = frozenset("CcKkABDabd")
_LAST_TERMS = frozenset("CcK")
_VARIABLES = frozenset("xtyzuvw")
_OTHER_VARIABLES = frozenset("sr") | {"theta", "phi"}
_COORDINATES = frozenset("xyzt")
_UNKNOWNS = frozenset("yxf")  # of differential equations

Same = Callable[[Node, Node], bool]


def same_solution(gold: Rel, answer: Rel, same: Same) -> bool:
    """y = c_1 e^x + c_2 against y = A + B e^x: general solutions for the same unknown."""
    if len(gold.sides) != 2 or len(answer.sides) != 2:
        return False
    unknown = _unknown(gold.sides[0])
    if not unknown or unknown != _unknown(answer.sides[0]):
        return _same_levels(gold, answer)
    return same_general_solution(gold.sides[1], answer.sides[1], same, unknown)


def _unknown(side: Node) -> str:
    """The y of y = ... and of y(x) = ..., the F(x) of F(x) = ..."""
    if isinstance(side, Op) and side.head == "mul" and len(side.args) == 2 and side.args[1] in (Sym("x"), Sym("t")):
        name = _unknown(side.args[0])
        return name if name in ("", *_UNKNOWNS) else f"{name}(x)"
    return side.name if isinstance(side, Sym) and symbols(side) else ""


def same_general_solution(gold: Node, answer: Node, same: Same, unknown: str = "") -> bool:
    """Whether both are the same family of functions with arbitrary constants.

    `unknown`: the name before the equals sign of both, "" where there is none. `same` compares two expressions.
    """
    names = _arbitrary(gold, unknown)
    if not names or len(names) > MAX_CONSTANTS:
        return False
    variables = symbols(gold) - set(names)
    others = sorted(symbols(answer) - variables)
    if len(others) != len(names) or not all(map(is_constant_name, others)):
        return False
    if names[0] in ("c", "K"):
        return others[0] in _LAST_TERMS and same(gold, substituted(answer, {others[0]: Sym(names[0])}))
    if names == others == ["A", "B"] and same(gold, substituted(answer, {"A": Sym("B"), "B": Sym("A")})):
        return False  # y = Bx + A is another line than y = Ax + B
    linear = _same_span(gold, answer, names, others, sorted(variables))
    if linear is not None or names[0] == "A":
        return bool(linear)
    return len(names) <= MAX_RENAMED and _renamed(gold, answer, names, others, same)


def is_constant_name(name: str) -> bool:
    """Whether an arbitrary constant may have this name."""
    return name.rstrip("'") in _LETTERS or bool(_NUMBERED.match(name))


def _arbitrary(gold: Node, unknown: str) -> list[str]:
    """Return the names of the arbitrary constants of a gold, in order; none where they are given data."""
    names = symbols(gold)
    given = unknown in names or (len(unknown) == 1 and unknown not in _UNKNOWNS)
    if given or len(names & _VARIABLES or names & _OTHER_VARIABLES) != 1:
        return []
    solved = unknown and not names.isdisjoint(("x", "t"))
    numbered = sorted(name for name in names if _INDEXED.match(name))
    if numbered:
        in_a_row = [_NUMBERED.sub(r"\1", name) for name in numbered] == [str(n + 1) for n in range(len(numbered))]
        return numbered if in_a_row and names.isdisjoint(_LAST_TERMS) and (solved or len(numbered) > 1) else []
    single = sorted(names & _LAST_TERMS)
    if "c" in single and names & {"a", "b"}:
        return []
    if len(single) == 1 and _is_last_term(gold, single[0]):
        return single
    if not solved:
        return []
    return (["A", "B"] if {"A", "B"} <= names else []) or single[: single[:1] == ["C"]]


def _is_last_term(node: Node, name: str) -> bool:
    """Whether a constant is a term of a sum and nowhere else in it."""
    if not isinstance(node, Op) or node.head != "add":
        return False
    rest = [arg for arg in node.args if arg != Sym(name)]
    return len(rest) == len(node.args) - 1 and not any(name in symbols(arg) for arg in rest)


# --- level sets -------------------------------------------------------------------------------------------------------


def _same_levels(gold: Rel, answer: Rel) -> bool:
    """x^2 + y^2 = C against 2x^2 + 2y^2 = K: the same curves, one for each value of the constant; not C = 2xy."""
    left, right = _level(gold, _is_level), _level(answer, is_constant_name)
    if left is None or right is None or gold.sides[0] == Sym("C"):
        return False
    variables = symbols(left)
    if variables != symbols(right) or not {"y"} < variables <= _COORDINATES:
        return False
    return bool(_same_span(_affine(left), _affine(right), ["c_1", "c_2"], ["c_1", "c_2"], sorted(variables)))


def _is_level(name: str) -> bool:
    return _NUMBERED.sub(r"\1", name) in ("C", "1")


def _level(chain: Rel, is_constant: Callable[[str], bool]) -> Node | None:
    """The F of F(x, y) = C, where C is a term of either side and nowhere else."""
    terms = [*_terms(chain.sides[0]), *(Op("neg", (term,)) for term in _terms(chain.sides[1]))]
    for place, term in enumerate(terms):
        while isinstance(term, Op) and term.head == "neg":
            term = term.args[0]
        rest = Op("add", (*terms[:place], *terms[place + 1 :], number(0)))
        if isinstance(term, Sym) and is_constant(term.name) and term.name not in symbols(rest):
            return rest
    return None


def _terms(side: Node) -> tuple[Node, ...]:
    return side.args if isinstance(side, Op) and side.head == "add" else (side,)


def _affine(node: Node) -> Op:
    return Op("add", (Op("mul", (Sym("c_1"), node)), Sym("c_2")))


# --- constants that enter linearly ------------------------------------------------------------------------------------


def _same_span(gold: Node, answer: Node, names: list[str], others: list[str], variables: list[str]) -> bool | None:
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
    return [tuple(rng.choice((-1, 1)) * rng.uniform(*sizes[index % 4]) for _ in variables) for index in range(POINTS)]


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
