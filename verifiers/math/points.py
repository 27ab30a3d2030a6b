"""Where two functions are compared: points of independent signs and many sizes, and points beside constants and kinks.

A kink is a place where the formula of a function may change: an argument of |x|, max, min or sgn changes its sign,
floor or ceil jumps, a root, a logarithm or an inverse function begins or ends. Between kinks the functions are
analytic, so that one point in each cell and two values at 200 digits decide.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.budget import is_counted, spend, weight
from rlvr.verifiers.math.compiled import Closure, compiled
from rlvr.verifiers.math.exact import Inexact, Undefined, rational
from rlvr.verifiers.math.tree import Node, Num, Op, children, nodes, number, symbols, walk

REACH = 160.0
LOWEST = 1_000_000
MAX_KINKS = 12
MAX_LINES = 5
MAX_CHANGES = 10
UNDEFINED = (ValueError, ZeroDivisionError, OverflowError, TypeError)

_INTEGER_LETTERS = frozenset("jklmnKLMN")
_STEPS = frozenset(("floor", "ceil"))
_WHOLE = frozenset(("fact", "multifact", "subfact", "binom", "gcd", "lcm"))
_UNIT_DOMAIN = frozenset(("arcsin", "arccos", "arcsec", "arccsc", "arctanh", "arccosh"))
_SCAN = (0.003, 0.04, 0.13, 0.37, 0.62, 0.85, 1.13, 1.6, 2.3, 3.3, 5.2, 8.4, 13.0, 22.0, 37.0, 61.0, 96.0, 143.0, 260.0,
         480.0, 900.0, 1.7e3, 3.2e3, 6.1e3, 1.2e4, 5e4, 2e5, 1e6)  # fmt: skip

Values = tuple[float | Fraction, ...]


def integer_names(*trees: Node) -> dict[str, int]:
    """Return the variables that only make sense as integers, and their least values.

    Those in a factorial, binomial or gcd are natural; those in the exponent of a negative number and, with a usual name
    of an integer, those in a floor may be negative.
    """
    found: dict[str, int] = {}
    for part in (node for tree in trees for node in walk(tree)):
        if not isinstance(part, Op):
            continue
        if part.head in _WHOLE:
            found.update(dict.fromkeys(symbols(part), 0))
        elif part.head in _STEPS:
            for name in symbols(part):
                if name[0] in _INTEGER_LETTERS and name[1:2] in ("", "_"):
                    found.setdefault(name, -LOWEST)
        elif part.head == "pow" and isinstance(part.args[0], Op) and part.args[0].head == "neg":
            for name in symbols(part.args[1]):
                found.setdefault(name, -LOWEST)
    return found


def constants(*trees: Node) -> list[float]:
    """Return the sizes of the numbers in the trees, without 0 and 1."""
    found: dict[float, None] = {}
    for tree in trees:
        for node in walk(tree):
            if isinstance(node, Num) and node.value not in (0, 1, -1):
                size = abs(node.value)
                found[float(size) if size < 10**15 else 1e15] = None
            elif isinstance(node, Op) and node.head == "pow" and isinstance(node.args[0], Num):
                power = rational(node)  # \\min(x, 10^9)
                if power is not None and 1 < power < 10**15:
                    found[float(power)] = None
    return list(found)[:40]


def base_points(
    names: list[str], integers: Mapping[str, int], sizes: list[float], rng: random.Random, count: int
) -> list[Values]:
    """Return random points: independent signs, sizes from .1 to 160 and beyond the constants."""
    reach = max(REACH, 2 * max((size for size in sizes if size <= 1e6), default=0.0))
    lowest = [integers.get(name) for name in names]
    return [
        tuple(_real(rng, reach, index) if least is None else _integer(rng, reach, index, least) for least in lowest)
        for index in range(count)
    ]


def _real(rng: random.Random, reach: float, index: int) -> float:
    uniform = rng.random()
    if index % 4 == 3:
        return (2 * uniform - 1) * reach
    top = 4.0 if index % 4 == 0 else reach
    size = 0.1 * (top / 0.1) ** uniform
    return size if rng.random() < 0.5 else -size


def _integer(rng: random.Random, reach: float, index: int, least: int) -> int:
    if index % 4 == 0:
        return rng.randrange(1, 12)
    if index % 4 == 3:
        return rng.randrange(max(least, -9), 9)
    return int(2 * (reach / 2) ** rng.random())


def more_points(names: list[str], integers: Mapping[str, int], sizes: list[float], base: list[Values]) -> list[Values]:
    """Return points on small integers and beside each constant, one variable at a time."""
    result: list[Values] = []
    for place, name in enumerate(names[:MAX_LINES]):
        start = base[place % len(base)]
        values: list[float] = []
        if name in integers:
            values += range(-6, 41) if len(names) == 1 else range(-3, 9)
            for size in sizes:
                if size <= 1e6:
                    values += [int(size) + step for step in (-2, -1, 0, 1, 2)]
                    values += [int(size) ** 2 + step for step in (-1, 0, 1)] if size <= 30 else []
        else:
            values += [0.0, 1.0, -1.0, 2.0, -3.0, 0.001, -0.001, 1e-5]
            for size in sizes:
                values += [sign * size * near for sign in (1, -1) for near in (1, 0.98, 1.02)]
                values += [size**0.5, -(size**-0.5), 0.9 / size]
        least = integers.get(name, -math.inf)
        result += [(*start[:place], value, *start[place + 1 :]) for value in values if value >= least]
    return result


# --- kinks ------------------------------------------------------------------------------------------------------------


def kinks(*trees: Node) -> tuple[list[Node], list[Node]]:
    """Return the expressions whose sign decides the formula, and the steps (floors), each once."""
    signs: dict[Node, None] = {}
    steps: dict[Node, None] = {}
    for tree in trees:
        for node in walk(tree):
            if isinstance(node, Op):
                if node.head in _STEPS:
                    steps[Op("floor", node.args)] = None
                signs.update(dict.fromkeys(_signs(node)))
    return ([node for node in signs if symbols(node)][:MAX_KINKS], [n for n in steps if symbols(n)][:MAX_KINKS])


def _signs(node: Op) -> list[Node]:
    """The expressions at whose zeros this node may change its branch."""
    args = node.args
    if node.head in ("abs", "sgn", "ln", "log", "arctan", "arccot", "logb"):
        return list(args)
    if node.head in ("max", "min"):
        pairs = ((left, right) for place, left in enumerate(args) for right in args[:place])
        return [_minus(left, right) for left, right in itertools.islice(pairs, MAX_KINKS)]
    if node.head in _UNIT_DOMAIN:
        return [_minus(args[0], number(1)), Op("add", (args[0], number(1)))]
    if node.head == "root":
        return [args[1], *_inner(args[1])]
    if node.head == "pow":
        exponent = rational(args[1])
        if exponent is None or exponent.denominator != 1:
            return [args[0], *_inner(args[0])]
        return [args[0]] if exponent < 0 else []
    if node.head == "div":
        return [args[1]]
    return []


def _inner(node: Node) -> list[Node]:
    """The base of a power under a root."""
    return [node.args[0]] if isinstance(node, Op) and node.head == "pow" else []


def _minus(left: Node, right: Node) -> Op:
    return Op("add", (left, Op("neg", (right,))))


_SMOOTH = frozenset(("add", "mul", "div", "neg", "percent", "deg", "sin", "cos", "exp", "sinh", "cosh", "tanh", "sech"))


def is_smooth(node: Node) -> bool:
    """Whether a tree is analytic but for poles, so that it has no kinks."""
    stack = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, Op) and part.head == "pow":
            exponent = part.args[1]
            if not isinstance(exponent, Num) or exponent.value.denominator != 1:
                if symbols(part.args[0]):
                    return False
                base = part.args[0]
                if isinstance(base, Op) and base.head == "neg":
                    return False
        elif isinstance(part, Op) and part.head not in _SMOOTH:
            if symbols(part):
                return False
            continue
        stack.extend(children(part))
    return True


def kink_points(
    trees: tuple[Node, ...], names: list[str], integers: Mapping[str, int], base: list[Values], log_base: int | None
) -> list[Values]:
    """Return points on both sides of the kinks along lines parallel to the axes, and between neighbours."""
    signs_and_steps = [node for nodes in kinks(*trees) for node in nodes]
    functions = _compiled_kinks(signs_and_steps, names, log_base)
    if not functions:
        return []
    result: list[Values] = []
    places = [place for place, name in enumerate(names) if name not in integers]
    lines = [(place, start) for start in base[: 1 if len(places) == 1 else 2] for place in places]
    sizes = constants(*trees)
    near = [size * factor for size in sizes if size <= 1e6 for factor in (0.93, 1.07)]
    grid = sorted({sign * size for size in (*_SCAN, *near) for sign in (1, -1)})
    work = weight(*signs_and_steps) if is_counted() else 0
    for place, start in lines[: 2 * MAX_LINES]:
        spend(len(grid) * work)
        for value in (*grid, *_beside(_changes(functions, place, start, grid))):
            result.append((*start[:place], value, *start[place + 1 :]))
    return result


Kink = Callable[[Values], Any]


def _compiled_kinks(nodes: list[Node], names: list[str], log_base: int | None) -> list[Kink]:
    places: Mapping[str, int] = {name: place for place, name in enumerate(names)}
    functions: list[Kink] = []
    for node in nodes:
        try:
            functions.append(_total(compiled(node, places, log_base)))
        except (Inexact, Undefined):
            continue
    return functions


_BRANCHING = frozenset(("abs", "sgn", "max", "min", "floor", "ceil"))


def has_branches(tree: Node) -> bool:
    """Whether |x|, max, floor or the like is applied to a variable."""
    return any(isinstance(node, Op) and node.head in _BRANCHING and symbols(node) for node in nodes(tree))


def branch_cells(tree: Node, places: Mapping[str, int], log_base: int | None) -> list[Callable[[Values], object]]:
    """Return the functions that tell in which cell of |x|, max, floor and the like a point is."""
    functions: list[Callable[[Values], object]] = []
    for node in walk(tree):
        if not isinstance(node, Op) or node.head not in _BRANCHING or not symbols(node):
            continue
        for part in _signs(node) or [node]:
            functions.append(_cell_of(_total(compiled(part, places, log_base))))
    return functions


def _cell_of(function: Kink) -> Callable[[Values], object]:
    return lambda point: _cell(function(point))


def _total(function: Closure) -> Kink:
    """The function with None where it is undefined."""

    def value(point: Values) -> Any:
        try:
            return function(point)
        except UNDEFINED:
            return None

    return value


def _changes(functions: list[Kink], place: int, start: Values, grid: list[float]) -> list[float]:
    """Return where a sign or a step changes along a line."""
    changes: list[float] = []

    def at(x: float) -> Values:
        return (*start[:place], x, *start[place + 1 :])

    points = [at(x) for x in grid]
    for function in functions:
        values = [function(point) for point in points]
        found = [(grid[k], grid[k + 1]) for k in range(len(grid) - 1) if _cell(values[k]) != _cell(values[k + 1])]
        found.sort(key=lambda pair: abs(pair[0]))
        for low, high in found[:MAX_CHANGES]:
            changes.append(_change(function, at, low, high))
    return sorted(set(changes))


def _cell(value: Any) -> int | None:
    """The part of its range that a kink is in: its sign, the value of a step, None outside of its domain."""
    if value is None:
        return None
    if isinstance(value, int):
        return value
    return (value > 0) - (value < 0)


def _change(function: Kink, at: Callable[[float], Values], low: float, high: float) -> float:
    """Return a place between low and high where the cell changes."""
    first, last = function(at(low)), function(at(high))
    if isinstance(first, float) and isinstance(last, float):
        guess = low - first * (high - low) / (last - first)
        value = function(at(guess))
        if low <= guess <= high and isinstance(value, float) and abs(value) <= 1e-12 * max(abs(first), abs(last)):
            return guess
    cell = _cell(first)
    for _ in range(40):
        middle = (low + high) / 2
        value = function(at(middle))
        if _cell(value) == cell:
            low = middle
        else:
            high = middle
        if high - low <= 1e-11 * max(1.0, abs(low)):
            break
    return high


def _beside(changes: list[float]) -> list[float | Fraction]:
    """Return places at and beside each change, and between neighbours."""
    values: list[float | Fraction] = []
    for place in changes:
        nearest = Fraction(place).limit_denominator(1_000)
        if abs(place - nearest) < 1e-9 * max(1.0, abs(place)):
            values.append(nearest)  # exactly at the kink
        scale = max(1e-3, abs(place))
        values += [place + step * scale for step in (-1e-7, 1e-7, -4e-3, 4e-3)]
    values += [(low + high) / 2 for low, high in itertools.pairwise(changes)]
    if changes:
        values += [changes[0] - 1 - abs(changes[0]) * 0.3, changes[-1] + 1 + abs(changes[-1]) * 0.3]
    return [value for value in values if math.isfinite(value)]
