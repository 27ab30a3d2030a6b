"""Whether two expressions are the same value or the same function.

In this order: the same tree; exact rational numbers; residues modulo a prime near 2**127 for rational functions (which
decides 2^{1000000} against 2^{1000000}+1 without writing either out); values at random points with an error bound, in
floats for "different" and at 200 digits for "equal". The points are drawn from a hash of both sides: the same pair
always gets the same points, and no answer can be written to fit them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from rlvr.verifiers.math.exact import PRIMES, Inexact, Undefined, exact, is_rational_function, residue
from rlvr.verifiers.math.numeric import evaluate
from rlvr.verifiers.math.systems import Digits, Numbers, OutsideReals, Value
from rlvr.verifiers.math.tree import IMAGINARY, Node, Num, Op, TooLarge, symbols, walk

POINTS = 12
WANTED = 3
_SKIP = (ValueError, OverflowError, ZeroDivisionError)


class Undecided(ValueError):
    """Neither equal nor different could be shown."""


def same_value(gold: Node, answer: Node) -> bool:
    """Whether two trees are equal as numbers or as functions of their variables.

    Raises Inexact where one is no expression, Undefined where one has no value (0/0), TooLarge beyond the bounds,
    Undecided where 500 digits do not tell.
    """
    if gold == answer:
        return not _is_undefined(answer)
    try:
        return exact(gold) == exact(answer)
    except (Inexact, TooLarge):
        pass
    names = sorted(symbols(gold) | symbols(answer))
    rng = random.Random(f"{gold}|{answer}")
    if is_rational_function(gold) and is_rational_function(answer):
        try:
            return _same_residue(gold, answer, names, rng) and not _apart_somewhere(gold, answer, names, rng)
        except Inexact:
            pass
    if not names:
        return _same_constant(gold, answer)
    return _same_function(gold, answer, names, rng)


def proportional(gold: Node, answer: Node) -> bool:
    """Whether the numerators of two rational functions differ by a constant factor that is not zero."""
    names = sorted(symbols(gold) | symbols(answer))
    rng = random.Random(f"{gold}~{answer}")
    prime, root = PRIMES[rng.randrange(len(PRIMES))]
    points = [{name: rng.randrange(1, prime) for name in names} for _ in range(3)]
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
    """Whether floats at a random point tell apart what the residues do not: multiples of the primes."""
    try:
        return _apart(gold, answer, {name: 0.3 + 3 * rng.random() for name in names}, Numbers(False))
    except _SKIP:
        return False


def _log_bases(gold: Node, answer: Node) -> tuple[int | None, ...]:
    """What \\log may mean: the natural logarithm, or that of base 10."""
    plain = any(isinstance(node, Op) and node.head == "log" for tree in (gold, answer) for node in walk(tree))
    return (None, 10) if plain else (None,)


def _same_constant(gold: Node, answer: Node) -> bool:
    return any(_close(gold, answer, {}, False, base) for base in _log_bases(gold, answer))


def _same_function(gold: Node, answer: Node, names: list[str], rng: random.Random) -> bool:
    integers = _integer_names(gold) | _integer_names(answer)
    explicit_i = any(node == IMAGINARY for tree in (gold, answer) for node in walk(tree))
    points = [dict(point) for point in _points(names, integers, rng)]
    for base in _log_bases(gold, answer):
        for real in (False,) if explicit_i else (True, False):
            found = _agree(gold, answer, points, real, base)
            if found is None:
                continue
            if found:
                return True
            break
    return False


def _agree(gold: Node, answer: Node, points: list[dict[str, float]], real: bool, base: int | None) -> bool | None:
    """Whether both agree at WANTED points, two of them at 200 digits; None where too few points have values."""
    good: list[dict[str, float]] = []
    too_large: TooLarge | None = None
    for point in points:
        try:
            if _apart(gold, answer, point, Numbers(real, base)):
                return False
        except TooLarge as error:
            too_large = error
            continue
        except _SKIP:
            continue
        good.append(point)
        if len(good) == WANTED + 1:
            break
    if too_large is not None and not good:
        raise too_large
    checked = 0
    for point in good or points:
        try:
            if not _close(gold, answer, point, real, base, floats=False):
                return False
        except (OutsideReals, Undefined):
            continue
        checked += 1
        if checked == 2:
            return True
    return True if checked and good else None


def _points(names: list[str], integers: frozenset[str], rng: random.Random) -> Iterator[dict[str, float]]:
    for index in range(POINTS):
        point: dict[str, float] = {}
        for name in names:
            if name in integers:
                point[name] = float(rng.randrange(2, 14))
                continue
            size = (0.15 + 0.8 * rng.random()) if index % 3 == 0 else (0.3 + 3 * rng.random()) * (1 + index // 4)
            sign = 1 if index in (0, 2, 4, 6, 8) or (index > 5 and rng.random() < 0.5) else -1
            point[name] = sign * size
        yield point


def _integer_names(node: Node) -> frozenset[str]:
    """Variables that only make sense as integers: in a factorial, or in the exponent of a negative number."""
    found: set[str] = set()
    for part in walk(node):
        if not isinstance(part, Op):
            continue
        if part.head in ("fact", "binom", "gcd", "lcm"):
            found |= symbols(part)
        elif part.head == "pow" and isinstance(part.args[0], Op) and part.args[0].head == "neg":
            found |= symbols(part.args[1])
    return frozenset(found)


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
    """Whether the values agree within errors that are small beside them."""
    if floats:
        try:
            if _apart(gold, answer, point, Numbers(real, base)):
                return False
        except (TooLarge, Undefined, OutsideReals, Inexact):
            raise
        except _SKIP:
            pass
    longest = max((node.digits for tree in (gold, answer) for node in walk(tree) if isinstance(node, Num)), default=0)
    for digits in (200 + longest, 500 + longest):
        numbers = Digits(real, base, digits)
        g, a = evaluate(gold, point, numbers), evaluate(answer, point, numbers)
        error = 8 * (g[1] + a[1])
        if _distance(g, a) > error:
            return False
        if error <= numbers.epsilon**0.5 * max(abs(g[0]), abs(a[0]), 1e-30):
            return True
    raise Undecided("equal or not: 500 digits do not tell")
