"""Lists with an ellipsis: 1, 2, ..., 10 written out; others (1, 2, ..., n) keep the ellipsis as an element."""

from __future__ import annotations

from fractions import Fraction

from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.tree import Node, Num, ParseError, Words

MAX_TERMS = 1_000
DOTS = Words("...")


def filled(items: list[Node]) -> list[Node]:
    """Return the items of a list with those that its ellipsis stands for, where they are an arithmetic or geometric
    progression of numbers. Raise ParseError where nothing but an ellipsis is there."""
    if all(item == DOTS for item in items):
        raise ParseError("an ellipsis without terms")
    if items.count(DOTS) != 1:
        return items
    place = items.index(DOTS)
    before = [rational(item) for item in items[:place]]
    after = [rational(item) for item in items[place + 1 :]]
    first, last = [value for value in before if value is not None], [value for value in after if value is not None]
    if not first or not last or len(first) < len(before) or len(last) < len(after):
        return items
    terms = _arithmetic(first, last[0]) or _geometric(first, last[0])
    if terms is None or not _continues(terms, last):
        return items
    return [*items[:place], *(Num(term) for term in terms[len(first) : -1]), *items[place + 1 :]]


def _arithmetic(first: list[Fraction], last: Fraction) -> list[Fraction] | None:
    """The terms from the first to `last`; one term alone, 0 or 1, goes up by 1."""
    if len(first) == 1 and first[0] not in (0, 1):
        return None
    step = first[1] - first[0] if len(first) > 1 else Fraction(1)
    if not step or any(b - a != step for a, b in zip(first, first[1:], strict=False)):
        return None
    count = (last - first[0]) / step
    if count.denominator != 1 or not len(first) <= count < MAX_TERMS:
        return None
    return [first[0] + step * index for index in range(int(count) + 1)]


def _geometric(first: list[Fraction], last: Fraction) -> list[Fraction] | None:
    """The terms of at least three that have one ratio."""
    if len(first) < 3 or not all(first):
        return None
    ratio = first[1] / first[0]
    if abs(ratio) == 1 or any(b / a != ratio for a, b in zip(first, first[1:], strict=False)):
        return None
    terms = list(first)
    growing = abs(ratio) > 1
    while len(terms) < 200 and (abs(terms[-1]) < abs(last)) == growing and terms[-1] != last:
        terms.append(terms[-1] * ratio)
    return terms if terms[-1] == last and len(terms) > len(first) else None


def _continues(terms: list[Fraction], last: list[Fraction]) -> bool:
    """Whether the terms after the ellipsis go on as those before it."""
    step, ratio = terms[1] - terms[0], terms[1] / terms[0] if terms[0] else None
    arithmetic = terms[2] - terms[1] == step if len(terms) > 2 else True
    follow = (b - a == step if arithmetic else b == a * (ratio or 0) for a, b in zip(last, last[1:], strict=False))
    return all(follow)
