"""Whether two expressions are the same value or the same function.

Tried in this order: the same tree; exact rational numbers; residues modulo a prime near 2**127 for rational functions
(which tell 2^{1000000} from 2^{1000000}+1 without computing either); values at points: plain floats look for a
difference, an error bound or 60 digits confirm it, and 200 digits at two points are needed for "equal". The points
(rlvr.verifiers.math.points) are seeded by both sides: the same pair always gets the same points, and an answer cannot
be written to fit them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.budget import PRECISE, is_counted, precise_weight, spend, weight
from rlvr.verifiers.math.compiled import compiled
from rlvr.verifiers.math.exact import PRIMES, Inexact, Undefined, exact, is_rational_function, residue
from rlvr.verifiers.math.numeric import evaluate, extent, substituted
from rlvr.verifiers.math.points import (
    UNDEFINED,
    Values,
    base_points,
    branch_cells,
    constants,
    integer_names,
    is_smooth,
    kink_points,
    more_points,
)
from rlvr.verifiers.math.systems import Digits, Numbers, OutsideReals, Value
from rlvr.verifiers.math.tree import IMAGINARY, PI, E, Node, Num, Op, TooLarge, heads, nodes, number, symbols

POINTS = 12
SMOOTH_POINTS = 16
MAX_DOUBTS = 12  # points that are evaluated exactly or at 60 digits because floats do not tell
WANTED = 3
SEEN = 1e-10  # error, relative to a term that it does not hide
MAX_MORE_DIGITS = 2_500
_ZERO = number(0)
_SKIP = (ValueError, OverflowError, ZeroDivisionError)


class Undecided(ValueError):
    """Neither equality nor difference could be shown."""


def same_value(gold: Node, answer: Node) -> bool:
    """Whether two trees are equal as numbers or as functions of their variables.

    Raises Inexact where one is not an expression, Undefined where one has no value (0/0), TooLarge beyond the bounds,
    Undecided where 500 digits do not decide.
    """
    if gold == answer:
        return not _is_undefined(answer)
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


def _is_undefined(node: Node) -> bool:
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
        return _apart(gold, answer, {name: 0.3 + 3 * rng.random() for name in names}, Numbers(False))
    except _SKIP:
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
        self._gold, self._answer = (compiled(tree, places, log_base) for tree in (gold, answer))
        self._branches = branch_cells(gold, places, log_base)
        self._agreed: list[Values] = []
        self._shown: set[tuple[object, ...]] = set()
        self._hidden: set[tuple[object, ...]] = set()
        self._doubts = 0
        counted = is_counted()
        self._work = weight(gold, answer) + 3 * len(self._branches) if counted else 0
        self._precise = precise_weight(gold, answer) if counted else 0

    def decide(self, rng: random.Random) -> bool | None:
        """Whether both functions agree; None where too few points have real values of both."""
        names, integers = self.names, self.integers
        sizes = constants(self.gold, self.answer)
        smooth = is_smooth(self.gold) and is_smooth(self.answer)
        base = base_points(names, integers, sizes, rng, SMOOTH_POINTS if smooth else min(30 + 15 * len(names), 90))
        if self._differ_at(base):
            return False
        if self._differ_at(more_points(names, integers, sizes, base)):
            return False
        if not smooth and self._differ_at(kink_points((self.gold, self.answer), names, integers, base, self.log_base)):
            return False
        if len(self._agreed) < WANTED:
            return None
        if self._has_idle_step():
            return False
        return not self._hidden - self._shown and self._close_at_two()

    def _differ_at(self, points: list[Values]) -> bool:
        gold, answer = self._gold, self._answer
        spend(len(points) * self._work)
        for point in points:
            try:
                g = gold(point)
            except UNDEFINED as error:
                if not isinstance(error, OverflowError):
                    continue
                g = None
            try:
                a = answer(point)
            except UNDEFINED as error:
                if isinstance(error, OverflowError):
                    a = None
                else:
                    if self._branches and g is not None:
                        self._hidden.add(self._cell(point))
                    continue
            if g is None or a is None:
                if self._doubts < MAX_DOUBTS and self._confirmed(point):
                    return True
                continue
            if g == a or _near(g, a):
                self._agreed.append(point)
                if self._branches:
                    self._shown.add(self._cell(point))
            elif self._confirmed(point):
                return True
        return False

    def _has_idle_step(self) -> bool:
        """Whether a floor or ceil that only the answer has is the same everywhere but at points that are not tried."""
        known = set(nodes(self.gold))
        places = {name: place for place, name in enumerate(self.names)}
        for node in set(nodes(self.answer)) - known:
            if type(node) is Op and node.head in ("floor", "ceil") and symbols(node):
                step = compiled(node, places, self.log_base)
                if len({step(point) for point in self._agreed}) == 1:
                    return True
        return False

    def _cell(self, point: Values) -> tuple[object, ...]:
        return tuple(cell(point) for cell in self._branches)

    def _confirmed(self, point: Values) -> bool:
        """Whether the values differ by more than their errors: exactly, in floats, or at 60 digits."""
        self._doubts += 1
        spend(self._precise)
        if self._doubts > 8 * MAX_DOUBTS:
            return False
        filled = {name: Num(Fraction(value)) for name, value in zip(self.names, point, strict=True)}
        try:
            return exact(substituted(self.gold, filled)) != exact(substituted(self.answer, filled))
        except (Inexact, Undefined, TooLarge):
            pass
        place: dict[str, Any] = dict(zip(self.names, point, strict=True))
        for numbers in (Numbers(True, self.log_base), Digits(True, self.log_base, 60)):
            try:
                apart = _apart(self.gold, self.answer, place, numbers)
            except _SKIP:
                continue
            if apart or numbers.precise:
                return apart
        return False

    def _close_at_two(self) -> bool | None:
        """Whether the values agree at 200 digits at two of the points where floats agree."""
        points = sorted(self._agreed[:12], key=lambda point: max(abs(float(value)) for value in point))
        too_large: TooLarge | None = None
        checked = 0
        for point in points[len(points) // 4 :] + points[: len(points) // 4]:
            place: dict[str, Any] = dict(zip(self.names, point, strict=True))
            spend(2 * self._precise)
            try:
                if not _close(self.gold, self.answer, place, True, self.log_base, floats=False):
                    return False
            except (OutsideReals, Undefined):
                continue
            except TooLarge as error:
                too_large = error
                continue
            except Undecided:
                if len(points) > 4:
                    continue
                raise
            checked += 1
            if checked == 2:
                return True
        if not checked and too_large is not None:
            raise too_large
        return True if checked else None


def _near(left: Any, right: Any) -> bool:
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
            if _apart(gold, answer, point, Numbers(False, base)):
                return False
        except TooLarge as error:
            too_large = error
            continue
        except _SKIP:
            continue
        good.append(point)
        if len(good) == 3 * WANTED:
            break
    if too_large is not None and not good:
        raise too_large
    checked = 0
    for point in good or points:
        spend(2 * PRECISE * work)
        try:
            if not _close(gold, answer, point, False, base, floats=False):
                return False
        except (OutsideReals, Undefined):
            continue
        checked += 1
        if checked == 2:
            return True
    return True if checked and good else None


def _apart(gold: Node, answer: Node, point: dict[str, float], numbers: Numbers) -> bool:
    """Whether the values differ by more than their errors."""
    g, a = evaluate(gold, point, numbers), evaluate(answer, point, numbers)
    return _distance(g, a) > 8 * (g[1] + a[1])


def _distance(left: Value, right: Value) -> float:
    distance = abs(left[0] - right[0])
    if distance != distance:
        raise OverflowError
    return distance


def _close(
    gold: Node, answer: Node, point: dict[str, float], real: bool, base: int | None, floats: bool = True
) -> bool:
    """Whether the values agree within errors that are small relative to them."""
    if floats:
        try:
            if _apart(gold, answer, point, Numbers(real, base)):
                return False
        except (TooLarge, Undefined, OutsideReals, Inexact):
            raise
        except _SKIP:
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
    g, a = evaluate(gold, point, numbers), evaluate(answer, point, numbers)
    error = 8 * (g[1] + a[1])
    if _distance(g, a) > error:
        return None
    if error > numbers.epsilon**0.5 * max(abs(g[0]), abs(a[0]), 1e-30):
        return -1
    if not error or error < numbers.smallest * SEEN:
        return 0
    return 20 + int(numbers.context.log10(error / numbers.smallest))
