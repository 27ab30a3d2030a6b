r"""Solutions with integer parameters, with arbitrary constants, and with bounds.

| subject | equal | not equal |
|---|---|---|
| families | \pi/4 + k\pi and -3\pi/4 + m\pi | \pi/4 + k\pi and \pi/4 + 2k\pi |
| constants | x^2 + C and x^2 + K; A\cosh x + B\sinh x and c_1e^x + c_2e^{-x} | E = mc^2 and E = mk^2 |
| bounds | 2k, k >= 1 and 2k, k >= 0 of a formula | x^2, x > 0 and x^2, x < 0 |

A family is a list of arithmetic progressions whose step is a rational multiple of pi, or rational in {2k + 1: k \in Z};
elsewhere k and n may be given data. Families are equal as sets. (-1)^k is split by parity.

Where a gold is linear in its constants, both sides must span the same affine space of functions. Elsewhere constants
are renamed, negated or doubled. These letters are arbitrary constants in a function of one variable, and no given data:
C as the last term; c_1, c_2 and so on; in an equation solved for x, y or f also C or c_1 alone, and A with B. A small c
or K as the last term may be given data: it may have another name, but no other sign or value.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple

from ..grammar.affixes import PARAMETERS
from ..grammar.parse import dropped_conditions
from ..values.exact import Inexact, Undefined, rational
from ..values.identity import has_branches
from ..values.numeric import FAILURES, Digits, Floats, compile_tree, evaluate, try_evaluate
from ..values.sets import TURNED, NotASet, Piece, real_set, signs
from ..values.tree import (
    PI,
    Node,
    Op,
    ParseError,
    Quantity,
    Rel,
    Sym,
    TooLarge,
    Words,
    is_op,
    nodes,
    number,
    substitute,
    symbols,
    walk,
)

# --- families of numbers ----------------------------------------------------------------------------------------------

MAX_ELEMENTS = 24
MAX_CLASSES = 360
_DIGITS = 60
_LISTS = frozenset(("list", "either", "set", "union", "both"))
_ALL_INTEGERS = Op("domain", (Words("integers"),))
_DEGREE = (("degree", 1),)

_BOUND = r"(?:[<>≤≥]|\\(?:le|ge|lt|gt)(?:q|qslant)?(?![A-Za-z]))"
_BOUNDED = re.compile(
    rf"{_BOUND}=?\s*[jklmnKMN](?![A-Za-z(])|(?<![A-Za-z\\])[jklmnKMN]\s*{_BOUND}"
    r"|(?:∈|\\in(?![A-Za-z]))\s*(?:ℕ|\\N(?![A-Za-z])|\\(?:mathbb|Bbb)\s*\{?\s*N|\\?\{)"
)

_DECLARED = re.compile(r"\\in(?![a-z])|∈|ℤ|\\mathbb|\\Z(?![a-z])|integer", re.IGNORECASE)
_ANGLES = frozenset("xyztu") | {"theta", "alpha", "beta", "gamma", "phi", "psi"}

_Progression = tuple[Any, Any]  # first value and step, in units of pi or of one


def begins_somewhere(text: str) -> bool:
    """Whether a parameter has a least value, k >= 0 or k in N, so that a shifted family is another one."""
    if "\\" not in text and "<" not in text and ">" not in text and text.isascii():
        return False
    return _BOUNDED.search(text) is not None


def declares_integers(text: str) -> bool:
    """Whether a text says that a parameter is an integer, so that its values are a set of solutions."""
    return _DECLARED.search(text) is not None


def same_families(gold: Node, answer: Node, declared: bool = False) -> bool:
    """Whether both are families of angles with an integer parameter, and equal as sets.

    `declared`: it is known to be one. Else n pi may be a formula, as A = n pi is, where n is given data.
    """
    parameter, angle, builder = _signs_of_family(gold)
    if not parameter:
        return False
    also, angles, builders = _signs_of_family(answer)
    if not also or angle != angles or not (angle or builder or builders):
        return False
    numbers = Digits(True, None, _DIGITS)
    unit = numbers.pi if angle else numbers.of(1)
    try:
        (names, left), (other_names, right) = (_progressions(side, numbers, unit) for side in (gold, answer))
        if names and other_names and names != other_names:
            return False
        said = declared or builder or builders
        if not said and len(left) == len(right) == 1 and _is_formula(left[0], names, numbers):
            return all(_zero(one - other, numbers) for one, other in zip(left[0], right[0], strict=True))
        return _are_one_set(left, right, numbers)
    except FAILURES:
        return False


def _is_formula(progression: _Progression, names: frozenset[str], numbers: Digits) -> bool:
    """Whether values may be those of a formula: of a name of no angle, or of no name and multiples of the step."""
    start, step = progression
    if names:
        return names.isdisjoint(_ANGLES)
    share = start / step
    return _zero(share - numbers.context.nint(share), numbers)


def same_class(gold: Node, answer: Node) -> bool:
    r"""Whether a residue class is a progression: 1 \pmod 3 and 3k + 1, \pi/4 \pmod \pi and \pi/4 + k\pi.

    C and x + 1 are no progressions; 0 \pmod 1, all integers, is what any of them would be.
    """
    modulus = next((node.args[1] for node in (answer, gold) if is_op(node, "mod")), number(0))
    if (is_op(answer, "mod") and not symbols(gold) <= PARAMETERS | {"t"}) or rational(modulus) in (0, 1, -1):
        return False
    left, right = (_unfold(node) for node in (gold, answer))
    try:
        numbers = Digits(True, None, _DIGITS)
        unit = numbers.pi if any(part == PI for node in (left, right) for part in walk(node)) else numbers.of(1)
        (_, first), (_, second) = (_progressions(side, numbers, unit) for side in (left, right))
        return _are_one_set(first, second, numbers)
    except FAILURES:
        return False


def _unfold(node: Node) -> Node:
    """Return a + mk for a \\pmod m, and a + mt with its only letter."""
    if not is_op(node, "mod"):
        names = symbols(node)
        return substitute(node, {name: Sym("k") for name in names}) if len(names) == 1 else node
    return Op("add", (node.args[0], Op("mul", (node.args[1], Sym("k")))))


def _signs_of_family(node: Node) -> tuple[bool, bool, bool]:
    """Whether a tree has a parameter, an angle, and a set by a condition."""
    angle = parameter = builder = False
    for part in nodes(node):
        if type(part) is Sym:
            angle |= part == PI
            parameter |= part.name[0] in PARAMETERS
        elif type(part) is Quantity:
            angle |= part.unit.dims == _DEGREE
        elif type(part) is Op:
            angle |= part.head == "deg"
            builder |= part.head == "such"
    return parameter, angle, builder


def _progressions(node: Node, numbers: Digits, unit: Any) -> tuple[frozenset[str], list[_Progression]]:
    """Return the names of the unknown, and the progressions. Raise ValueError where the node is no family."""
    names: set[str] = set()
    found: list[_Progression] = []
    for value in _elements(node, names):
        for one in signs(value):
            found += _of_value(one, numbers, unit)
        if len(found) > MAX_ELEMENTS:
            raise ValueError("too many families")
    if len(names) > 1 or not found:
        raise ValueError("several unknowns")
    return frozenset(names), found


def _elements(node: Node, names: set[str]) -> Iterator[Node]:
    """The values of a list of them, of x = value, and of x in {...}."""
    if is_op(node, "such"):
        yield from _elements(node.args[0], names)
        for condition in node.args[1:]:
            yield from _elements(condition, names)
    elif is_op(node, *_LISTS):
        for arg in node.args:
            yield from _elements(arg, names)
    elif isinstance(node, Rel):
        if node.ops == ("in",) and node.sides[1] == _ALL_INTEGERS:
            return  # n \in \mathbb{Z}
        if len(node.ops) != 1 or node.ops[0] not in ("=", "in") or not isinstance(node.sides[0], Sym):
            raise ValueError("not solved for an unknown")
        names.add(node.sides[0].name)
        yield from _elements(node.sides[1], names)
    elif isinstance(node, Quantity):
        if node.unit.dims != _DEGREE:
            raise ValueError("not an angle")
        yield Op("mul", (Op("deg", (node.value,)), number(1)))
    else:
        yield node


def _of_value(node: Node, numbers: Digits, unit: Any) -> list[_Progression]:
    """Return one progression, or two for a value that depends on the parity of the parameter."""
    names = symbols(node)
    if len(names) != 1 or not names <= PARAMETERS:
        raise ValueError("no parameter")
    (name,) = names

    def at(k: int) -> Any:
        value = evaluate(substitute(node, {name: number(k)}), {}, numbers)
        return value / unit

    for stride in (1, 2):
        result = [(at(first), at(first + stride) - at(first)) for first in range(stride)]
        if all(
            _zero(at(first + stride * k) - start - step * k, numbers)
            for first, (start, step) in enumerate(result)
            for k in (-7, 2, 5)
        ):
            return result
    raise ValueError("not linear in the parameter")


def _zero(value: Any, numbers: Digits) -> bool:
    return bool(abs(value) < numbers.context.mpf(10) ** (-_DIGITS // 2))


def _are_one_set(left: list[_Progression], right: list[_Progression], numbers: Digits) -> bool:
    period = _common_period([step for _, step in left + right])
    return _classes(left, period, numbers) == _classes(right, period, numbers)


def _common_period(steps: list[Any]) -> Fraction:
    """Return the least common multiple of the steps, which must be rational multiples of pi."""
    period = Fraction(0)
    for step in steps:
        exact = abs(Fraction(float(step)).limit_denominator(720))
        if not exact or abs(abs(step) * exact.denominator - exact.numerator) > 1e-25:
            raise ValueError("a step that is no rational multiple of pi")
        period = _lcm(period, exact) if period else exact
    return period


def _lcm(left: Fraction, right: Fraction) -> Fraction:
    common = left.denominator * right.denominator
    return Fraction(math.lcm((left * common).numerator, (right * common).numerator), common)


def _classes(progressions: list[_Progression], period: Fraction, numbers: Digits) -> frozenset[int]:
    """Return the first values of all progressions with the common period, to 20 digits."""
    length, tiny = numbers.of(period), numbers.context.mpf(10) ** -25
    found: set[int] = set()
    for start, step in progressions:
        count = int(length / abs(step) + 0.5)
        if count > MAX_CLASSES:
            raise ValueError("too many classes")
        for k in range(count):
            place = start + k * step
            place -= length * numbers.context.floor(place / length + tiny)
            found.add(int(numbers.context.floor(place * 10**20 + 0.5)))
    return frozenset(found)


# --- arbitrary constants ----------------------------------------------------------------------------------------------

MAX_CONSTANTS = 4
MAX_RENAMED = 3
POINTS = 40
TOLERANCE = 1e-8
LARGEST = 1e12  # value that is compared

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
    if is_op(side, "mul") and len(side.args) == 2 and side.args[1] in (Sym("x"), Sym("t")):
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
        return others[0] in _LAST_TERMS and same(gold, substitute(answer, {others[0]: Sym(names[0])}))
    if names == others == ["A", "B"] and same(gold, substitute(answer, {"A": Sym("B"), "B": Sym("A")})):
        return False  # y = Bx + A is another line than y = Ax + B
    linear = _same_span(gold, answer, names, others, sorted(variables))
    if linear is not None or names[0] == "A":
        return bool(linear)
    return len(names) <= MAX_RENAMED and _matches_renamed(gold, answer, names, others, same)


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
    if not is_op(node, "add"):
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
        while is_op(term, "neg"):
            term = term.args[0]
        rest = Op("add", (*terms[:place], *terms[place + 1 :], number(0)))
        if isinstance(term, Sym) and is_constant(term.name) and term.name not in symbols(rest):
            return rest
    return None


def _terms(side: Node) -> tuple[Node, ...]:
    return side.args if is_op(side, "add") else (side,)


def _affine(node: Node) -> Op:
    return Op("add", (Op("mul", (Sym("c_1"), node)), Sym("c_2")))


# --- constants that enter linearly ------------------------------------------------------------------------------------


def _same_span(gold: Node, answer: Node, names: list[str], others: list[str], variables: list[str]) -> bool | None:
    """Whether both families are the same affine space of functions; None where one is not linear in its constants."""
    import numpy as np

    count = len(names)
    points = _points(variables, f"{gold}|{answer}")
    mixed = np.array([[0.7 + 1.3 * k for k in range(count)], [-2.1 + 0.9 * k for k in range(count)]])
    constants = np.vstack([np.zeros(count), np.eye(count), mixed]).tolist()
    try:
        left = np.array(_table(gold, [*variables, *names], points, constants))
        right = np.array(_table(answer, [*variables, *others], points, constants))
    except (Inexact, Undefined):
        return None
    if has_branches(gold) and (np.isnan(right).any(axis=1) & ~np.isnan(left).any(axis=1)).any():
        return False  # \\ln x says nothing about the negative x of \\ln|x|
    sizes = np.abs(np.hstack([left, right])).max(axis=1)
    kept = sizes < LARGEST
    if kept.sum() < POINTS // 4:
        return None
    # No point outweighs the others, and no constant of the answer, as in 10^9 C, hides a difference.
    sizes = np.abs(np.hstack([left, right[:, :1]])).max(axis=1)
    left, right = (table[kept] / np.where(sizes[kept], sizes[kept], 1.0)[:, None] for table in (left, right))
    columns = []
    for table in (left, right):
        start, units, found = table[:, :1], table[:, 1 : count + 1] - table[:, :1], table[:, count + 1 :]
        allowed = np.abs(found) + np.abs(start) + np.abs(units) @ np.abs(mixed.T)
        if (np.abs(start + units @ mixed.T - found) > TOLERANCE * allowed).any():
            return None
        norms = np.linalg.norm(units, axis=0)
        columns.append(units / np.where(norms, norms, 1.0))
    spaces = (*columns, np.hstack(columns))
    if any(np.linalg.matrix_rank(space, tol=TOLERANCE) != count for space in spaces):
        return False
    rest = left[:, 0] - right[:, 0]
    share = np.linalg.lstsq(columns[0], rest, rcond=None)[0]
    return bool(np.linalg.norm(rest - columns[0] @ share) <= TOLERANCE * len(rest) ** 0.5)


def _points(variables: list[str], seed: str) -> list[tuple[float, ...]]:
    rng = random.Random(seed)
    sizes = [(0.2, 3.0), (0.2, 3.0), (0.1, 9.0), (3.0, 30.0)]
    return [tuple(rng.choice((-1, 1)) * rng.uniform(*sizes[index % 4]) for _ in variables) for index in range(POINTS)]


def _table(
    node: Node, names: list[str], points: list[tuple[float, ...]], constants: list[list[float]]
) -> list[list[float]]:
    """Return, for each point, the values with each choice of the constants, which are last; NaN where undefined."""
    function = compile_tree(node, {name: place for place, name in enumerate(names)})

    def value(point: list[float]) -> float:
        try:
            return float(function(point))
        except FAILURES:
            return math.nan

    return [[value([*point, *choice]) for choice in constants] for point in points]


# --- other constants --------------------------------------------------------------------------------------------------


def _matches_renamed(gold: Node, answer: Node, names: list[str], others: list[str], same: Same) -> bool:
    """Whether the answer is the gold with its constants renamed; a single one also negated, doubled or halved."""
    for order in itertools.permutations(others):
        if same(gold, substitute(answer, {old: Sym(new) for old, new in zip(order, names, strict=True)})):
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
    return any(same(gold, substitute(answer, {old: form})) for form in forms)


# --- bounds -----------------------------------------------------------------------------------------------------------

MAX_JOINT = 3  # variables of a condition that is tried at points
_FEW_REALS = (-2.3, -1.0, 0.4, 1.0, 3.3)
_SAMPLE = range(-64, 65)
_ORDERS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "!=": operator.ne}
_FIRST = frozenset((0, 1))
_FROM_TWO = frozenset(range(2, 65))
_REALS = (-1e6, -97.3, -9.4, -3.3, -1.6, -0.7, -0.2, 0.3, 0.8, 1.4, 2.6, 4.7, 11.3, 64.9, 1e6)
# The least and the greatest integer of a set.
_INTEGERS: dict[str, tuple[tuple[float, float], ...]] = {
    "integers": ((-64, 64),),
    "positive integers": ((1, 64),),
    "nonnegative integers": ((0, 64),),
    "negative integers": ((-64, -1),),
    "naturals": ((0, 64), (1, 64)),
}


class _Condition(NamedTuple):
    """The numbers that a condition on one variable allows.

    pieces: the reals, None where they are not known. integers: the sets of integers that it may mean. outside: some
    reals that it excludes.
    """

    pieces: list[Piece] | None
    integers: tuple[frozenset[int], ...]
    outside: tuple[float, ...]


def other_bounds(gold: str, answer: str, tree: Node) -> bool:
    """Whether an answer bounds a variable that the gold does not bound so. `tree`: of the gold.

    In a formula a parameter may begin at 0 or at 1; in a set of solutions, (n, n + 1), these differ. A bound that the
    gold lacks is allowed where it holds anyway: k >= 1, or x > 0 beside \\ln x.
    """
    if not _SIGN.search(answer):
        return False
    left, right = _bounds(gold) if _SIGN.search(gold) else {}, _bounds(answer)
    if len(left) == len(right) == 1 and {*left} <= PARAMETERS and not {*left} & {*right}:
        right = dict(
            zip(left, right.values(), strict=True)
        )  # (t, 2t), t \\in \\mathbb{Z} for (k, 2k), k \\in \\mathbb{Z}
    everywhere = _FOR_ALL.match(answer) is not None
    numbers = isinstance(tree, Rel) and symbols(tree.sides[0]) <= PARAMETERS
    strict = is_op(tree, *_SOLUTIONS) or PI in walk(tree) or numbers  # points, angles or numbers sought, no formula
    return any(
        _differ(name, left[name], found, strict)
        if name in left
        else not (everywhere or _holds_anyway(name, found, tree))
        for name, found in right.items()
    ) or any(not _relates_anyway(condition, tree) for condition in _joint(answer) - _joint(gold))


_SIGN = re.compile(r"[<>≤≥≠∈]|\\(?:[lg](?:e|eq|eqq|eqslant|t)|neq?|in|notin)(?![A-Za-z])|integer")
_FOR_ALL = re.compile(r"[\s$]*(?:\\forall|∀|for\s+(?:all|every|any)\b)")
_SOLUTIONS = frozenset(("()", "list", "either", "set", "such"))


def _holds_anyway(name: str, found: _Condition, tree: Node) -> bool:
    """Whether a bound excludes only the first integers, or points where the gold has no value."""
    if name in PARAMETERS:
        if found.integers:
            return any(_has_no_value(name, _FROM_TWO - integers, tree) for integers in found.integers)
        return found.pieces is None or any(piece.low.place <= 2 and piece.high.place > 64 for piece in found.pieces)
    return not found.outside or _has_no_value(name, found.outside, tree)


def _has_no_value(name: str, places: Iterable[float], tree: Node) -> bool:
    """Whether a formula in a variable has no value at some places of it."""
    value = tree.sides[-1] if isinstance(tree, Rel) else tree
    others = dict.fromkeys(symbols(value), 1.7)
    places = list(places)
    if (
        not places
        or name not in others
        or not any(try_evaluate(value, {**others, name: x}, Floats()) is not None for x in _REALS)
    ):
        return not places
    return not any(try_evaluate(value, {**others, name: x}, Floats()) is not None for x in places)


def _relates_anyway(condition: Rel, tree: Node) -> bool:
    r"""Whether a formula has no value where a condition on several variables does not hold: a >= b of \sqrt{a - b}."""
    value = tree.sides[-1] if isinstance(tree, Rel) else tree
    names = sorted(symbols(condition))
    if PARAMETERS.issuperset(names) or len(names) > MAX_JOINT or not set(names) <= symbols(value):
        return PARAMETERS.issuperset(names)
    others = dict.fromkeys(symbols(value), 1.7)
    places = product(_FEW_REALS, repeat=len(names))
    points = [
        point
        for place in places
        if try_evaluate(value, point := {**others, **dict(zip(names, place, strict=True))}, Floats()) is not None
    ]
    return bool(points) and not any(_is_outside(condition, point) for point in points)


def _is_outside(condition: Rel, point: dict[str, float]) -> bool:
    try:
        values = [evaluate(side, point, Floats()) for side in condition.sides]
    except FAILURES:
        return False
    return all(isinstance(value, float) for value in values) and not _holds(condition.ops, values)


def _differ(name: str, left: _Condition, right: _Condition, strict: bool) -> bool:
    if left.pieces is not None and right.pieces is not None:
        ends, others = ([(p.low[::2], p.high[::2]) for p in side.pieces or ()] for side in (left, right))
        if ends == others:
            return False
        if name not in PARAMETERS:
            return True
    elif name not in PARAMETERS:
        return False
    differences = [one ^ other for one in left.integers for other in right.integers]
    if not differences:
        return left.pieces is not None and right.pieces is not None
    return not any(not one or (not strict and one <= _FIRST) for one in differences)


def _bounds(text: str) -> dict[str, _Condition]:
    found: dict[str, _Condition] = {}
    for condition in _conditions(text):
        names = symbols(condition)
        if len(names) != 1:
            continue
        (name,) = names
        pieces = None
        if "in" not in condition.ops and "!=" not in condition.ops:
            try:
                pieces = real_set(condition)
            except NotASet:
                continue
        integers = _integers(condition)
        outside = _outside(condition, pieces)
        if before := found.get(name):  # n in Z, n > 2
            pieces = None
            integers = tuple(one & other for one in before.integers for other in integers)
            outside = before.outside + outside
        found[name] = _Condition(pieces, integers, outside)
    return found


def _joint(text: str) -> frozenset[Rel]:
    """The inequalities of a text in several variables, with < in them."""
    found = [each for each in _conditions(text) if len(symbols(each)) > 1 and {"in", "!="}.isdisjoint(each.ops)]
    return frozenset(
        Rel(tuple(TURNED.get(op, op) for op in reversed(each.ops)), each.sides[::-1]) if ">" in each.ops[0] else each
        for each in found
    )


@functools.lru_cache(maxsize=512)
def _conditions(text: str) -> tuple[Rel, ...]:
    try:
        return tuple(dropped_conditions(text))
    except (ParseError, TooLarge):
        return ()


def _outside(condition: Rel, pieces: list[Piece] | None) -> tuple[float, ...]:
    """Some reals that a condition on one variable leaves out, single points aside; none where they are not known."""
    if pieces is not None:
        return tuple(x for x in _REALS if not any(piece.low.place <= x <= piece.high.place for piece in pieces))
    domain = condition.sides[-1]
    numbers = domain.args[0] if is_op(domain, "domain") else None
    discrete = isinstance(numbers, Words) and (numbers.text in _INTEGERS or numbers.text == "rationals")
    return tuple(_REALS) if discrete else ()


def _integers(condition: Rel) -> tuple[frozenset[int], ...]:
    """The sets of integers, of a sample, that a condition on a parameter may mean; none where that is not known."""
    if condition.ops == ("in",):
        domain = condition.sides[1]
        name = domain.args[0] if is_op(domain, "domain") else None
        spans = _INTEGERS.get(name.text, ((1, 0),)) if isinstance(name, Words) else ()  # reals are no integers
        return tuple(frozenset(n for n in _SAMPLE if low <= n <= high) for low, high in spans)
    sides = [None if isinstance(side, Sym) else rational(side) for side in condition.sides]
    if any(op not in _ORDERS for op in condition.ops) or any(
        value is None and not isinstance(side, Sym) for value, side in zip(sides, condition.sides, strict=True)
    ):
        return ()
    if any(value is not None and abs(value) > _SAMPLE[-2] for value in sides):
        return ()
    return (frozenset(n for n in _SAMPLE if _holds(condition.ops, [n if v is None else v for v in sides])),)


def _holds(ops: tuple[str, ...], values: Sequence[float | Fraction]) -> bool:
    return all(_ORDERS[op](left, right) for op, left, right in zip(ops, values, values[1:], strict=False))
