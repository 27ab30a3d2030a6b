r"""Sums, products, integrals and limits that are not evaluated, compared by rules that take milliseconds.

| equal | example |
|---|---|
| under another bound variable | sum over k of k^2, sum over j of j^2 |
| with the index shifted | k from 1 to n, k + 1 from 0 to n - 1 |
| with the limits exchanged | the integral from a to b, and minus that from b to a |
| with a constant factor moved | 2 times the integral of f, the integral of 2f |
| written out | finite sums and products, at several values of the variables in their limits |

An estimate only refuses: 5 = \int_0^1 6 dx gives no value.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from fractions import Fraction

from ..values.exact import Inexact, Undefined, rational
from ..values.identity import same_value
from ..values.numeric import FAILURES, approximates, literal
from ..values.quadrature import estimate
from ..values.tree import (
    BOUND,
    OO,
    Node,
    Num,
    Op,
    Sym,
    TooLarge,
    children,
    is_binder,
    is_op,
    is_unevaluated,
    map_children,
    number,
    open_body,
    outermost,
    rename,
    replace_parts,
    substitute,
    symbols,
    walk,
    with_children,
)
from .rules import Rules

# --- estimates --------------------------------------------------------------------------------------------------------

APART = 1e-3  # relative difference of a contradiction
_POINTS = 2  # values of the free variables


def contradicts_estimate(side: Node, value: Node, rounding: float) -> bool:
    """Whether a side that is not evaluated differs from a value, by more than its rounding, at two random points."""
    if is_unevaluated(value):
        return False
    if is_op(side, "int") and len(side.args) == 2 and not is_unevaluated(side.args[0]):
        return contradicts_estimate(Op("diff", (value, side.args[1])), side.args[0], rounding)
    names = sorted(symbols(side) | symbols(value))
    sums = [part for part in outermost(side) if part.head in ("sum", "prod")]
    counts = {name for part in sums for limit in part.args[2:] for name in symbols(limit)}
    rng = random.Random(f"{side}={value}")
    try:
        for _ in range(_POINTS):
            point = {name: rng.randrange(2, 12) if name in counts else 0.3 + 1.4 * rng.random() for name in names}
            left, right = (estimate(tree, point, APART / 10) for tree in (side, value))
            if not abs(left - right) > rounding + APART * max(abs(left), abs(right), 1e-3):
                return False
    except FAILURES:
        return False
    return True


# --- equal forms ------------------------------------------------------------------------------------------------------

MAX_PARTS = 8  # sums, integrals, ... of a tree that are compared with each other
MAX_TERMS = 1_000  # of all sums of an expression together
QUICK_TERMS = 150  # the same where more of them are left to the worker pool
LARGEST_LIMIT = 40  # of a sum with a variable as its upper limit
WANTED = 3  # values of such a variable at which both sides must have a value


def same_forms(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether an answer equals a gold that is not evaluated. An answer that is not evaluated needs such a gold."""
    if gold == answer:
        return True
    return is_unevaluated(gold) and (_are_same_forms(gold, answer) or _same_when_added_up(gold, answer, rules))


def _are_same_forms(gold: Node, answer: Node) -> bool:
    """Whether two expressions are equal as functions of their variables and of the parts that are not evaluated."""
    if gold == answer:
        return True
    parts = {part: None for tree in (gold, answer) for part in outermost(tree)}
    if len(parts) > MAX_PARTS:
        raise TooLarge(f"more than {MAX_PARTS} sums and integrals")
    kept: list[tuple[Op, Sym]] = []
    values: dict[Node, Node] = {}
    for part in parts:
        for known, name in kept:
            factor = _factor(known, part)
            if factor is not None:
                values[part] = Op("mul", (factor, name))
                break
        else:
            kept.append((part, Sym(f"part {len(kept)}")))
            values[part] = kept[-1][1]
    try:
        return same_value(replace_parts(gold, values), replace_parts(answer, values))
    except (Inexact, Undefined):
        return False


def _factor(known: Op, part: Op) -> Node | None:
    """Return c where `part` is c times `known`; None where that is not shown."""
    if known.head != part.head or len(known.args) != len(part.args):
        return None
    if not is_binder(known):
        return _constant_ratio(known.args[0], part.args[0], known.args[1]) if known.args[1:] == part.args[1:] else None
    name = f"bound {known.args[1]}"
    known_body, body = open_body(known, name), open_body(part, name)
    (low, high), (other_low, other_high) = known.args[2:], part.args[2:]
    sign = 1
    if known.head in ("sum", "prod"):
        shift = rational(Op("add", (other_low, Op("neg", (low,)))))
        if shift is None or shift.denominator != 1:
            return None
        if shift:
            if any(isinstance(node, Sym) and name in node.name and name != node.name for node in walk(body)):
                return None  # the terms of a sequence
            body = substitute(body, {name: Op("add", (Sym(name), Num(shift)))})
            other_high = other_high if other_high == OO else Op("add", (other_high, Num(-shift)))
        other_low = low
    elif known.head == "int" and not _are_same_forms(low, other_low):
        sign, other_low, other_high = -1, other_high, other_low
    if not _are_same_forms(low, other_low) or not _are_same_forms(high, other_high):
        return None
    if known.head == "prod":
        return number(1) if _are_same_forms(known_body, body) else None
    factor = _constant_ratio(known_body, body, Sym(name))
    return Op("neg", (factor,)) if factor is not None and sign < 0 else factor


def _constant_ratio(known: Node, body: Node, variable: Node) -> Node | None:
    """Return the constant c with body = c known as functions of the variable, None where there is none."""
    if _are_same_forms(known, body):
        return number(1)
    if is_unevaluated(known) or is_unevaluated(body) or not isinstance(variable, Sym):
        return None
    for value in (2, 3):
        at = {variable.name: number(value)}
        factor = Op("div", (substitute(body, at), substitute(known, at)))
        if variable.name not in symbols(factor) and _are_same_forms(body, Op("mul", (factor, known))):
            return factor
    return None


# --- adding up --------------------------------------------------------------------------------------------------------


def _same_when_added_up(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether finite sums and products have the same values as the answer."""
    names = sorted(_in_limits(gold) | _in_limits(answer))
    try:
        if not names:
            return rules.matches_value(_added_up(gold, rules), _added_up(answer, rules))
        if len(names) > 2:
            return False
        good = 0
        for values in _limits(names, gold, answer):
            sides = [_added_up(substitute(side, values), rules) for side in (gold, answer)]
            try:
                if not same_value(*sides):
                    return False
            except Undefined:
                continue
            good += 1
        return good >= WANTED
    except (_NotFinite, Inexact, Undefined):
        return False


def contradicts(part: Node, value: Node, rules: Rules) -> bool:
    """Whether a part that is not evaluated has another value than the one that is given for it."""
    if is_unevaluated(value):
        return False
    written = literal(value)
    places = written.places if written is not None else None
    rounding = 10.0**-places if places else 0.0
    if symbols(part) or symbols(value):
        # A variable that the value has not may be a given number.
        return symbols(part) <= symbols(value) and contradicts_estimate(part, value, rounding)
    try:
        total = _added_up(part, rules)
        return not (rules.matches_value(total, value) or (written is not None and approximates(total, value)))
    except (_NotFinite, Inexact, Undefined):
        return contradicts_estimate(part, value, rounding)


class _NotFinite(ValueError):
    """An infinite sum, an integral or a limit."""


def _in_limits(node: Node) -> frozenset[str]:
    """The free variables in the limits of sums and products."""
    found = (symbols(arg) for part in walk(node) if is_binder(part) for arg in children(part)[2:])
    return frozenset(name for names in found for name in names)


def _limits(names: list[str], gold: Node, answer: Node) -> Iterator[Mapping[str, Node]]:
    """Yield values for the variables in limits. They depend on both sides, so that no answer is written to fit them."""
    rng = random.Random(f"{gold}#{answer}")
    firsts = [1, 2, 3, *sorted(rng.sample(range(4, LARGEST_LIMIT + 1), 4))]
    for place, first in enumerate(firsts):
        others = rng.sample(range(1, LARGEST_LIMIT + 1), len(names) - 1)
        values = [first, *others] if place % 2 else [*others, first]
        yield {name: number(value) for name, value in zip(names, values, strict=True)}


def _added_up(node: Node, rules: Rules) -> Node:
    """Return the tree with finite sums and products written out. Raise _NotFinite or TooLarge."""
    left = [MAX_TERMS]
    tree = _written_out(node, left)
    if rules.quick and MAX_TERMS - left[0] > QUICK_TERMS:
        raise TooLarge(f"more than {QUICK_TERMS} terms")
    return tree


def _written_out(node: Node, left: list[int]) -> Node:
    if not isinstance(node, Op) or not is_unevaluated(node):
        return node
    if node.head not in ("sum", "prod"):
        if node.head in ("int", "lim", "diff"):
            raise _NotFinite
        return with_children(node, tuple(_written_out(child, left) for child in node.args))
    low, high = (rational(_written_out(limit, left)) for limit in node.args[2:])
    if low is None or high is None or low.denominator != 1 or high.denominator != 1 or high < low - 1:
        raise _NotFinite
    left[0] -= int(high - low) + 1
    if left[0] < 0:
        raise _NotFinite
    variable = node.args[1]
    assert isinstance(variable, Sym)
    terms = [_written_out(_at(node.args[0], variable, int(low) + k), left) for k in range(int(high - low) + 1)]
    if not terms:
        return number(0 if node.head == "sum" else 1)
    return terms[0] if len(terms) == 1 else Op("add" if node.head == "sum" else "mul", tuple(terms))


def _at(node: Node, variable: Sym, value: int) -> Node:
    """Return the body at a value of its variable; x_k becomes x_3."""
    if isinstance(node, Sym):
        if node == variable:
            return Num(Fraction(value)) if value >= 0 else Op("neg", (number(-value),))
        return rename(node, variable.name, Sym(str(value))) if BOUND in node.name else node
    return map_children(lambda child: _at(child, variable, value), node)
