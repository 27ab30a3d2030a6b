r"""Whether an answer is evaluated, as `unevaluated="reject"` asks: 120, and not 5!, 240/2 or 120 \cdot 10^0.

The README of this package has the rules as a table. They hold for every part of an answer: entries of sets, tuples and
matrices, ends of intervals, constants within formulas.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.tree import (
    Node,
    Num,
    Op,
    Quantity,
    Rel,
    Sym,
    Words,
    children,
    heads,
    number,
    symbols,
    with_children,
)
from rlvr.verifiers.math.words import ABBREVIATED, MAGNITUDES, MULTIPLIERS

_ONE, _TEN = number(1), number(10)
_PRIMES = 1_000  # above it, factors of radicands are not looked for
_WORDS = {word: value for word, value in (MULTIPLIERS | ABBREVIATED).items() if value >= 12}  # 24 tens are no number
_LARGE = _WORDS | MAGNITUDES
_MULTIPLE = re.compile(
    rf"\d\W*(?:\\(?:text|mathrm)\s*\{{\s*)?((?:{'|'.join(_WORDS)})\b|[{''.join(MAGNITUDES)}])", re.IGNORECASE
)
_STRUCTURES = frozenset("list set both either such () (] [) [] domain matrix row piecewise".split())
_HOLD = _STRUCTURES | frozenset(
    "union inter minus based mod deg pm mp neg ratio apply exp".split()
)  # they compute none
_ALIKE = {"ln": "log", "logb": "log", "lg": "log"}


def is_evaluated(answer: Node, gold: Node) -> bool:
    """Whether nothing is left to compute in an answer; true where the gold itself leaves something: 2^{1000}, 10!."""
    known = frozenset(_ALIKE.get(head, head) for head in heads(gold))
    return _is_done(answer, known) or not _is_done(gold, known)


def with_multiples(node: Node, text: str) -> Node:
    """Return the tree of a text with 5 million as one number; 5 * 1000000, which has the same tree, stays a product."""
    named = {_LARGE[word.lower()] for word in _MULTIPLE.findall(text)}
    return _multiplied(node, named) if named else node


def _multiplied(node: Node, named: set[int]) -> Node:
    if isinstance(node, Op) and node.head == "mul" and len(node.args) == 2:
        count, multiple = node.args
        if isinstance(count, Num) and isinstance(multiple, Num) and multiple.value in named:
            return count._replace(value=count.value * multiple.value)
    below = children(node)
    return with_children(node, tuple(_multiplied(part, named) for part in below)) if below else node


def is_number(node: Node) -> bool:
    r"""Whether a tree is a number in a usual form, with or without a unit.

    An integer, a decimal, a fraction or ratio in lowest terms, a mixed number, a percentage, 1.2 \cdot 10^5, 10^6.
    """
    if isinstance(node, Quantity):
        return is_number(node.value) or _is_of_two_units(node.value)
    if isinstance(node, Num):
        return True
    if not isinstance(node, Op):
        return False
    args = node.args
    if node.head == "neg":
        inner = args[0]
        return not (isinstance(inner, Op) and inner.head == "neg") and is_number(inner)
    if node.head in ("div", "ratio") and len(args) == 2:
        return _is_reduced(*args, least=2 if node.head == "div" else 1)
    if node.head in ("percent", "deg"):
        return is_number(args[0])
    if node.head == "pow":
        return _is_power_of_ten(node)
    return node.head == "mul" and len(args) == 2 and _is_scientific(*args)


def _is_done(node: Node, known: frozenset[str]) -> bool:
    """Whether nothing is left to compute in a tree whose gold has the heads `known`."""
    if isinstance(node, (Num, Sym, Words)) or is_number(node):
        return True
    if isinstance(node, Quantity):
        return _is_done(node.value, known)
    if isinstance(node, Rel):
        return _is_done_relation(node, known)
    if not isinstance(node, Op) or rational(node) is not None:
        return False
    if not all(_is_done(arg, known) for arg in node.args):
        return False
    head = _ALIKE.get(node.head, node.head)
    if head in ("add", "mul", "div", "pow") and any(
        isinstance(arg, Op) and arg.head in _STRUCTURES for arg in node.args
    ):
        return False
    if head in ("pm", "mp"):
        return not all(rational(arg) for arg in node.args)
    if head == "add":
        return not _has_like_terms(node)
    if head in ("mul", "div"):
        return _has_reduced_factors(node)
    if head in _HOLD or symbols(node):
        return True
    if head in ("pow", "root"):
        base, exponent = node.args if head == "pow" else (node.args[1], Op("div", (_ONE, node.args[0])))
        return _is_reduced_root(rational(base), rational(exponent))
    return head in known


def _is_done_relation(node: Rel, known: frozenset[str]) -> bool:
    """57 - 1 = 56 is done, x = 57 - 1 is not."""
    constant = [side for side in node.sides if not symbols(side)] if set(node.ops) <= {"=", "~"} else []
    if constant:
        return any(_is_done(side, known) for side in constant)
    return all(_is_done(side, known) for side in node.sides)


def _is_reduced(top: Node, bottom: Node, least: int) -> bool:
    above, below = _integer(top), _integer(bottom)
    return above is not None and below is not None and below >= least and math.gcd(above, below) == 1


def _integer(node: Node) -> int | None:
    """The integer that is written, with its sign; None for anything else."""
    if isinstance(node, Op) and node.head == "neg":
        inner = _integer(node.args[0]) if isinstance(node.args[0], Num) else None
        return None if inner is None else -inner
    whole = isinstance(node, Num) and node.places is None and node.value.denominator == 1
    return node.value.numerator if isinstance(node, Num) and whole else None


def _is_scientific(mantissa: Node, power: Node) -> bool:
    if isinstance(mantissa, Op) and mantissa.head == "neg":
        mantissa = mantissa.args[0]
    return isinstance(mantissa, Num) and 1 <= mantissa.value < 10 and _is_power_of_ten(power, least=1)


def _is_power_of_ten(node: Node, least: int = 2) -> bool:
    """Whether a tree is 10 to a whole power: at least `least`, or negative."""
    if not isinstance(node, Op) or node.head != "pow" or node.args[0] != _TEN:
        return False
    exponent = _integer(node.args[1])
    return exponent is not None and (exponent >= least or exponent < 0)


def _is_of_two_units(value: Node) -> bool:
    """2 hours 30 minutes, whose value in hours is 2 + 30 * (1/60)."""

    if not isinstance(value, Op) or value.head != "add" or not isinstance(value.args[0], Num):
        return False
    smaller = [term.args for term in value.args[1:] if isinstance(term, Op) and term.head == "mul"]
    return len(smaller) == len(value.args) - 1 and all(
        isinstance(count, Num) and isinstance(share, Num) and share.places is None and share.value < 1
        for count, share in smaller
    )


def _has_like_terms(node: Op) -> bool:
    r"""Whether terms of a sum differ in their numbers only: 57 - 1, 3x + 2x, \sqrt{2} + 2\sqrt{2}."""
    seen = set()
    for term in _terms(node):
        rest = frozenset(Counter(factor for factor in _factors(term) if not is_number(factor[0])).items())
        if rest in seen:
            return True
        seen.add(rest)
    return False


def _terms(node: Node) -> Iterator[Node]:
    if isinstance(node, Op) and node.head in ("add", "neg"):
        for arg in node.args:
            yield from _terms(arg)
    else:
        yield node


def _factors(node: Node, under: bool = False) -> Iterator[tuple[Node, bool]]:
    """The factors of a product, however they are grouped, and whether each is below."""
    if isinstance(node, Op) and node.head in ("mul", "neg"):
        for arg in node.args:
            yield from _factors(arg, under)
    elif isinstance(node, Op) and node.head == "div":
        yield from _factors(node.args[0], under)
        yield from _factors(node.args[1], not under)
    else:
        yield node, under


def _has_reduced_factors(node: Op) -> bool:
    r"""Whether a product has at most one number above and one below, in lowest terms: not 2 \cdot 3\pi, 2\pi/4."""
    numbers = [(part.value, under) for part, under in _factors(node) if isinstance(part, Num) and part != _ONE]
    above, below = ([value for value, under in numbers if under is side] for side in (False, True))
    if len(above) > 1 or len(below) > 1:
        return False
    return not (above and below) or math.gcd(above[0].numerator, below[0].numerator) == 1


def _is_reduced_root(base: Fraction | None, exponent: Fraction | None) -> bool:
    r"""Whether no factor can be drawn out of a root of a number: \sqrt{6}, not \sqrt{12}; true where it is no root."""
    if base is None or exponent is None:
        return True
    if exponent.denominator == 1:
        return False  # a power that is too large to be written out
    return not any(_has_power(abs(value), exponent.denominator) for value in (base.numerator, base.denominator))


def _has_power(value: int, degree: int) -> bool:
    """Whether the `degree`-th power of a prime below a bound, or a square above it, divides a number."""
    factor = 2
    while factor < _PRIMES and factor**2 <= value:
        times = 0
        while value % factor == 0:
            value, times = value // factor, times + 1
        if times >= degree:
            return True
        factor += 1
    return degree == 2 and value > 1 and math.isqrt(value) ** 2 == value
