"""Families of numbers with an integer parameter: \\pi/4 + k\\pi and -3\\pi/4 + m\\pi are the same set.

A family is a list of arithmetic progressions whose step is a rational multiple of \\pi, or rational in a set by a
condition, {2k + 1: k \\in Z}; only there is a k or n known to be a parameter and not given data. Families are equal
as sets: shifted, renamed, split and joined. (-1)^k is split by parity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.conditions import PARAMETERS
from rlvr.verifiers.math.numeric import evaluate, substituted
from rlvr.verifiers.math.sets import signs
from rlvr.verifiers.math.systems import Digits
from rlvr.verifiers.math.tree import PI, Node, Op, Quantity, Rel, Sym, Words, nodes, number, symbols, walk

MAX_ELEMENTS = 24
MAX_CLASSES = 360
_DIGITS = 60
_LISTS = frozenset(("list", "either", "set", "union", "both"))
_INTEGERS = Op("domain", (Words("integers"),))
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
        period = _common_period([step for _, step in left + right])
        return _classes(left, period, numbers) == _classes(right, period, numbers)
    except (ValueError, OverflowError, ZeroDivisionError):
        return False


def _is_formula(progression: _Progression, names: frozenset[str], numbers: Digits) -> bool:
    """Whether values may be those of a formula: of a name of no angle, or of no name and multiples of the step."""
    start, step = progression
    if names:
        return names.isdisjoint(_ANGLES)
    share = start / step
    return _zero(share - numbers.context.nint(share), numbers)


def same_class(gold: Node, answer: Node) -> bool:
    r"""Whether a residue class is a progression: 1 \pmod 3 and 3k + 1, \pi/4 \pmod \pi and \pi/4 + k\pi."""
    left, right = (_unfolded(node) for node in (gold, answer))
    try:
        numbers = Digits(True, None, _DIGITS)
        unit = numbers.pi if any(part == PI for node in (left, right) for part in walk(node)) else numbers.of(1)
        (_, first), (_, second) = (_progressions(side, numbers, unit) for side in (left, right))
        period = _common_period([step for _, step in first + second])
        return _classes(first, period, numbers) == _classes(second, period, numbers)
    except (ValueError, OverflowError, ZeroDivisionError):
        return False


def _unfolded(node: Node) -> Node:
    """Return a + mk for a \\pmod m, and a + mt with its only letter."""
    if not isinstance(node, Op) or node.head != "mod":
        names = symbols(node)
        return substituted(node, {name: Sym("k") for name in names}) if len(names) == 1 else node
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
    if isinstance(node, Op) and node.head == "such":
        yield from _elements(node.args[0], names)
        for condition in node.args[1:]:
            yield from _elements(condition, names)
    elif isinstance(node, Op) and node.head in _LISTS:
        for arg in node.args:
            yield from _elements(arg, names)
    elif isinstance(node, Rel):
        if node.ops == ("in",) and node.sides[1] == _INTEGERS:
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
        value = evaluate(substituted(node, {name: number(k)}), {}, numbers)[0]
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
    a, b = (left * common).numerator, (right * common).numerator
    x, y = a, b
    while y:
        x, y = y, x % y
    return Fraction(a // x * b, common)


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
