"""Whether two expressions are the same value or the same function.

Tried in this order: the same tree; exact rational numbers; residues modulo a prime (they tell 2^{1000000} from
2^{1000000}+1); values at points. At points, plain floats look for a difference, an error bound or 60 digits confirm
it, and "equal" needs agreement at 200 digits at two points. Both sides seed the points, so that the same pair always
gets the same points and no answer can be written to fit them.

A kink is a place where the formula of a function may change: an argument of |x|, max, min or sgn changes its sign, a
floor jumps, a root, a logarithm or an inverse function begins or ends. Between kinks functions are analytic, so that
one point in each cell and the two values at 200 digits decide.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from .exact import (
    PRECISE,
    PRIMES,
    Inexact,
    Undefined,
    exact,
    is_counted,
    is_rational_function,
    precise_weight,
    rational,
    residue,
    spend,
    weight,
)
from .numeric import (
    FAILURES,
    Closure,
    Digits,
    Floats,
    OutsideReals,
    compile_tree,
    evaluate,
    extent,
)
from .tree import (
    IMAGINARY,
    PI,
    E,
    Node,
    Num,
    Op,
    TooLarge,
    children,
    heads,
    is_op,
    nodes,
    number,
    substitute,
    subtract,
    symbols,
    walk,
)

# --- points -----------------------------------------------------------------------------------------------------------

REACH = 160.0
LOWEST = 1_000_000
MAX_KINKS = 12
MAX_LINES = 5
MAX_CHANGES = 10


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
        elif part.head == "pow" and is_op(part.args[0], "neg"):
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
            elif is_op(node, "pow") and isinstance(node.args[0], Num):
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
        return [subtract(left, right) for left, right in itertools.islice(pairs, MAX_KINKS)]
    if node.head in _UNIT_DOMAIN:
        return [subtract(args[0], number(1)), Op("add", (args[0], number(1)))]
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
    return [node.args[0]] if is_op(node, "pow") else []


_SMOOTH = frozenset(("add", "mul", "div", "neg", "percent", "deg", "sin", "cos", "exp", "sinh", "cosh", "tanh", "sech"))


def is_smooth(node: Node) -> bool:
    """Whether a tree is analytic except at poles, so that it has no kinks."""
    stack = [node]
    while stack:
        part = stack.pop()
        if is_op(part, "pow"):
            exponent = part.args[1]
            if not isinstance(exponent, Num) or exponent.value.denominator != 1:
                if symbols(part.args[0]):
                    return False
                base = part.args[0]
                if is_op(base, "neg"):
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
            functions.append(_total(compile_tree(node, places, Floats(True, log_base))))
        except (Inexact, Undefined):
            continue
    return functions


_BRANCHING = frozenset(("abs", "sgn", "max", "min", "floor", "ceil"))


def has_branches(tree: Node) -> bool:
    """Whether |x|, max, floor or the like is applied to a variable."""
    return any(is_op(node, *_BRANCHING) and symbols(node) for node in nodes(tree))


def branch_cells(tree: Node, places: Mapping[str, int], log_base: int | None) -> list[Callable[[Values], object]]:
    """Return the functions that tell in which cell of |x|, max, floor and the like a point is."""
    functions: list[Callable[[Values], object]] = []
    for node in walk(tree):
        if not is_op(node, *_BRANCHING) or not symbols(node):
            continue
        for part in _signs(node) or [node]:
            functions.append(_cell_of(_total(compile_tree(part, places, Floats(True, log_base)))))
    return functions


def _cell_of(function: Kink) -> Callable[[Values], object]:
    return lambda point: _cell(function(point))


def _total(function: Closure) -> Kink:
    """The function with None where it is undefined."""

    def value(point: Values) -> Any:
        try:
            return function(point)
        except FAILURES:
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


# --- the comparison ---------------------------------------------------------------------------------------------------

POINTS = 12
SMOOTH_POINTS = 16
MAX_DOUBTS = 12  # points that are evaluated exactly or at 60 digits because floats do not tell
WANTED = 3
SEEN = 1e-10  # error, relative to a term that it does not hide
MAX_MORE_DIGITS = 2_500
_ZERO = number(0)


class Undecided(ValueError):
    """Neither equality nor difference could be shown."""


def same_value(gold: Node, answer: Node) -> bool:
    """Whether two trees are equal as numbers or as functions of their variables.

    Raises Inexact where one is not an expression, Undefined where one has no value (0/0), TooLarge beyond the bounds,
    Undecided where 500 digits do not decide.
    """
    if gold == answer:
        return not is_undefined(answer)
    try:
        return exact(gold) == exact(answer)
    except (Inexact, TooLarge):
        pass
    names = sorted(symbols(gold) | symbols(answer))
    rational = is_rational_function(gold) and is_rational_function(answer)
    if not rational and not names:
        return _same_constant(gold, answer)
    rng = random.Random(f"{gold}|{answer}")
    if rational:
        try:
            return _same_residue(gold, answer, names, rng) and not _apart_somewhere(gold, answer, names, rng)
        except Inexact:
            pass
    if not names:
        return _same_constant(gold, answer)
    return _same_function(gold, answer, names, rng)


def proportional(gold: Node, answer: Node) -> bool:
    """Whether the numerators of two rational functions differ by a constant factor that is not zero: 2, or \\pi."""
    names = sorted(symbols(gold) | symbols(answer))
    rng = random.Random(f"{gold}~{answer}")
    prime, root = PRIMES[rng.randrange(len(PRIMES))]
    fixed = {constant.name: rng.randrange(1, prime) for constant in (PI, E)}
    points = [{**fixed, **{name: rng.randrange(1, prime) for name in names}} for _ in range(3)]
    (g0, _), (a0, _) = residue(gold, points[0], prime, root), residue(answer, points[0], prime, root)
    if not g0 or not a0:
        return False
    for point in points[1:]:
        (g, _), (a, _) = residue(gold, point, prime, root), residue(answer, point, prime, root)
        if (g * a0 - g0 * a) % prime:
            return False
    return True


def is_undefined(node: Node) -> bool:
    """Whether a tree has no value, as 0/0."""
    try:
        exact(node)
    except Undefined:
        return True
    except (Inexact, TooLarge):
        return False
    return False


def _same_residue(gold: Node, answer: Node, names: list[str], rng: random.Random) -> bool:
    for prime, root in rng.sample(PRIMES, 2):
        point = {name: rng.randrange(1, prime) for name in names}
        (a, b), (c, d) = residue(gold, point, prime, root), residue(answer, point, prime, root)
        if not b or not d:
            raise Undefined("a division by zero")
        if (a * d - b * c) % prime:
            return False
    return True


def _apart_somewhere(gold: Node, answer: Node, names: list[str], rng: random.Random) -> bool:
    """Whether floats at a random point differ where residues do not: the difference may be a multiple of the primes."""
    try:
        return _differ(gold, answer, {name: 0.3 + 3 * rng.random() for name in names}, False, None)
    except FAILURES:
        return False


def _log_bases(gold: Node, answer: Node) -> tuple[int | None, ...]:
    """Return the bases that \\log may mean: None for the natural logarithm, and 10."""
    plain = "log" in heads(gold) or "log" in heads(answer)
    return (None, 10) if plain else (None,)


def _same_constant(gold: Node, answer: Node) -> bool:
    return any(_close(gold, answer, {}, False, base) for base in _log_bases(gold, answer))


def _same_function(gold: Node, answer: Node, names: list[str], rng: random.Random) -> bool:
    if IMAGINARY in nodes(gold) or IMAGINARY in nodes(answer):
        return _same_complex_function(gold, answer, names, rng)
    if any(type(part) is Op and part.head == "pow" and part.args[0] == _ZERO for part in nodes(answer)):
        raise Undefined("zero to a power that varies")
    integers = integer_names(gold, answer)
    for base in _log_bases(gold, answer):
        found = Comparison(gold, answer, names, integers, base).decide(rng)
        if found is None:
            found = _agree(gold, answer, _complex_points(names, integers, rng), base)
        if found:
            return True
    return False


def _same_complex_function(gold: Node, answer: Node, names: list[str], rng: random.Random) -> bool:
    """Compare expressions with the imaginary unit, in real variables."""
    points = _complex_points(names, integer_names(gold, answer), rng)
    return any(_agree(gold, answer, points, base) for base in _log_bases(gold, answer))


def _complex_points(names: list[str], integers: Mapping[str, int], rng: random.Random) -> list[dict[str, float]]:
    points = base_points(names, integers, [], rng, 2 * POINTS)
    return [dict(zip(names, map(float, point), strict=True)) for point in points]


class Comparison:
    """Two real functions of the same variables, compared point by point.

    They are equal where they agree wherever both are defined, as x^2/x and x, \\ln x^2 and 2 \\ln x do. But no cell of
    |x|, max, floor and the like, in which the gold has values, may lie outside of the answer's domain: \\sqrt{x}^2 is
    not |x|, since it says nothing about negative x.
    """

    def __init__(
        self, gold: Node, answer: Node, names: list[str], integers: Mapping[str, int], log_base: int | None
    ) -> None:
        self.gold, self.answer = gold, answer
        self.names, self.integers, self.log_base = names, integers, log_base
        places = {name: place for place, name in enumerate(names)}
        self._gold, self._answer = (compile_tree(tree, places, Floats(True, log_base)) for tree in (gold, answer))
        self._branches = branch_cells(gold, places, log_base)
        self._agreed: list[Values] = []
        self._shown: set[tuple[object, ...]] = set()
        self._hidden: set[tuple[object, ...]] = set()
        self._doubts = self._missing = 0
        counted = is_counted()
        self._work = weight(gold, answer) + 3 * len(self._branches) if counted else 0
        self._precise = precise_weight(gold, answer) if counted else 0

    def decide(self, rng: random.Random) -> bool | None:
        """Whether both functions agree; None where too few points have real values of both."""
        names, integers = self.names, self.integers
        sizes = constants(self.gold, self.answer)
        smooth = is_smooth(self.gold) and is_smooth(self.answer)
        base = base_points(names, integers, sizes, rng, SMOOTH_POINTS if smooth else min(30 + 15 * len(names), 90))
        if self._differ_at(base) or self._is_nowhere(base):
            return False
        if self._differ_at(more_points(names, integers, sizes, base)):
            return False
        if not smooth and self._differ_at(kink_points((self.gold, self.answer), names, integers, base, self.log_base)):
            return False
        if len({*self._agreed}) < WANTED:
            return None
        if self._has_idle_step():
            return False
        if self._hidden - self._shown:
            return False
        points = sorted(self._agreed[:12], key=lambda point: max(abs(float(value)) for value in point))
        points = points[len(points) // 4 :] + points[: len(points) // 4]
        spend(4 * self._precise)
        return _close_at_two(
            self.gold, self.answer, [dict(zip(names, p, strict=True)) for p in points], True, self.log_base
        )

    def _is_nowhere(self, base: list[Values]) -> bool:
        """Whether the answer has values at single points at most, and the gold elsewhere: x + \\sqrt{-x^2} for x."""
        if not self._are_few() or self._missing < WANTED:
            return False
        positive: list[Values] = [tuple(value if value > 0 else -value for value in point) for point in base]
        return self._differ_at(positive) or self._are_few()

    def _are_few(self) -> bool:
        """Whether a variable has few values among the points where both agree."""
        return len(self._agreed) < WANTED or any(len({*values}) < WANTED for values in zip(*self._agreed, strict=True))

    def _differ_at(self, points: list[Values]) -> bool:
        gold, answer = self._gold, self._answer
        spend(len(points) * self._work)
        for point in points:
            try:
                g = gold(point)
            except FAILURES as error:
                if not isinstance(error, OverflowError):
                    continue
                g = None
            try:
                a = answer(point)
            except FAILURES as error:
                if isinstance(error, OverflowError):
                    a = None
                else:
                    self._missing += g is not None
                    if self._branches and g is not None:
                        self._hidden.add(self._cell(point))
                    continue
            if g is None or a is None:
                if self._doubts < MAX_DOUBTS and self._confirm(point):
                    return True
                continue
            if g == a or _is_near(g, a):
                self._agreed.append(point)
                if self._branches:
                    self._shown.add(self._cell(point))
            elif self._confirm(point):
                return True
        return False

    def _has_idle_step(self) -> bool:
        """Whether a floor or ceil that only the answer has is the same everywhere but at points that are not tried."""
        known = set(nodes(self.gold))
        places = {name: place for place, name in enumerate(self.names)}
        for node in set(nodes(self.answer)) - known:
            if type(node) is Op and node.head in ("floor", "ceil") and symbols(node):
                step = compile_tree(node, places, Floats(True, self.log_base))
                if len({step(point) for point in self._agreed}) == 1:
                    return True
        return False

    def _cell(self, point: Values) -> tuple[object, ...]:
        return tuple(cell(point) for cell in self._branches)

    def _confirm(self, point: Values) -> bool:
        """Whether the values differ, exactly or at 60 digits."""
        self._doubts += 1
        spend(self._precise)
        if self._doubts > 8 * MAX_DOUBTS:
            return False
        filled = {name: Num(Fraction(value)) for name, value in zip(self.names, point, strict=True)}
        try:
            return exact(substitute(self.gold, filled)) != exact(substitute(self.answer, filled))
        except (Inexact, Undefined, TooLarge):
            pass
        place: dict[str, Any] = dict(zip(self.names, point, strict=True))
        try:
            return _differ(self.gold, self.answer, place, True, self.log_base)
        except FAILURES:
            return False


def _is_near(left: Any, right: Any) -> bool:
    """Whether two values are equal as far as floats usually tell."""
    try:
        return bool(abs(left - right) * 10**11 <= abs(left) + abs(right))
    except OverflowError:
        return False


def _agree(gold: Node, answer: Node, points: list[dict[str, float]], base: int | None) -> bool | None:
    """Whether complex values agree at WANTED points, two of them at 200 digits; None where too few have values."""
    good: list[dict[str, float]] = []
    too_large: TooLarge | None = None
    work = weight(gold, answer) if is_counted() else 0
    for point in points:
        spend(10 * work)
        try:
            if _differ(gold, answer, point, False, base):
                return False
        except TooLarge as error:
            too_large = error
            continue
        except FAILURES:
            continue
        good.append(point)
        if len(good) == 3 * WANTED:
            break
    if too_large is not None and not good:
        raise too_large
    spend(4 * PRECISE * work)
    found = _close_at_two(gold, answer, good or points, False, base)
    return found if good or found is False else None


def _close_at_two(
    gold: Node, answer: Node, points: Sequence[dict[str, Any]], real: bool, base: int | None
) -> bool | None:
    """Whether the values agree at 200 digits at two of the points; None where none of them has values."""
    problem: ValueError | None = None
    checked = 0
    for point in points:
        try:
            if not _close(gold, answer, point, real, base, floats=False):
                return False
        except (OutsideReals, Undefined):
            continue
        except (TooLarge, Undecided) as error:
            problem = error
            continue
        checked += 1
        if checked == 2:
            return True
    if not checked and problem is not None:
        raise problem
    return True if checked else None


def _differ(gold: Node, answer: Node, point: dict[str, float], real: bool, base: int | None) -> bool:
    """Whether the values differ at 60 digits, by more than their errors, and are not near in floats."""
    try:
        if _is_near(*(evaluate(tree, point, Floats(real, base)) for tree in (gold, answer))):
            return False
    except FAILURES:
        pass
    numbers = Digits(real, base)
    g, a = (evaluate(tree, point, numbers) for tree in (gold, answer))
    return bool(abs(g - a) > numbers.error(max(abs(g), abs(a))))


def _close(
    gold: Node, answer: Node, point: dict[str, float], real: bool, base: int | None, floats: bool = True
) -> bool:
    """Whether the values agree within errors that are small relative to them."""
    if floats:
        try:
            if _differ(gold, answer, point, real, base):
                return False
        except (TooLarge, Undefined, OutsideReals, Inexact):
            raise
        except FAILURES:
            pass
    longest = max((node.digits for tree in (gold, answer) for node in nodes(tree) if type(node) is Num), default=0)
    longest += 4 * max(extent(gold), extent(answer))  # cos(10^{-400}) is 1 to 800 digits
    if longest > MAX_MORE_DIGITS:
        raise Undecided(f"equal or not: {longest} digits would tell")
    for digits in (200 + longest, 500 + longest):
        more = _missing_digits(gold, answer, point, Digits(real, base, digits))
        if more is None:
            return False
        if more >= 0:
            break
    else:
        raise Undecided("equal or not: 500 digits do not tell")
    if not more:
        return True
    if more > MAX_MORE_DIGITS:
        raise Undecided(f"equal or not: {more} more digits would tell")
    return _missing_digits(gold, answer, point, Digits(real, base, digits + more)) is not None


def _missing_digits(gold: Node, answer: Node, point: dict[str, float], numbers: Digits) -> int | None:
    r"""Return how many more digits are needed to see the smallest term of two values, as in \sqrt{1000!} + 1.

    None where the values differ, -1 where they have too few digits.
    """
    g, a = (evaluate(tree, point, numbers) for tree in (gold, answer))
    size = max(abs(g), abs(a))
    error = numbers.error(size)
    if abs(g - a) > error:
        return None
    if error > numbers.epsilon**0.5 * max(size, 1e-30):
        return -1
    if not error or error < numbers.smallest * SEEN:
        return 0
    return 20 + int(numbers.context.log10(error / numbers.smallest))
