"""The value that a chain of equalities gives: A = bh/2 = 6."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlvr.verifiers.math.binders import unevaluated
from rlvr.verifiers.math.definitions import is_identity
from rlvr.verifiers.math.exact import Inexact, Undefined
from rlvr.verifiers.math.forms import contradicts
from rlvr.verifiers.math.identity import Undecided, same_value
from rlvr.verifiers.math.labels import is_label, is_name, is_to_be_solved
from rlvr.verifiers.math.rounding import approximates, literal
from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, TooLarge, symbols

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules


def chain_value(chain: Rel, rules: Rules, decimal: bool = False) -> Node | None:
    """Return the value that a chain of equalities gives: 5 for `x = 5` and `2 + 3 = 5`, 6 for `A = \\frac12 b h = 6`.

    `decimal`: take the decimal after an approximation sign. None where the chain contradicts itself (5 = 6), is a
    tautology (x = x), or an equation to be solved (2x = 10).
    """
    if is_identity(chain):
        return chain.sides[-1]
    sides, ops = list(chain.sides), list(chain.ops)
    if not _may_hold(chain) or any(contradicts(side, sides[-1], rules) for side in sides[:-1] if unevaluated(side)):
        return None
    named: frozenset[str] = frozenset()
    if len(sides) > 1 and is_label(sides[0]) and not is_name(sides[-1]):
        named = symbols(sides[0])
        del sides[0], ops[0]
    elif len(sides) > 1 and is_name(sides[-1]) and not is_name(sides[0]):
        del sides[-1], ops[-1]
    kept = sides[:1]
    for op, side in zip(ops, sides[1:], strict=True):
        if op == "~":
            if not literal(side) and approximates(side, kept[-1]):  # 1.414 \approx \sqrt{2}
                kept[-1] = kept[-1] if decimal else side
                continue
            if not approximates(kept[-1], side):
                return None
            if not decimal:
                break
        kept.append(side)
    while len(kept) > 1 and unevaluated(kept[-1]) and _gives(kept[-2], kept[-1]):
        if contradicts(kept[-1], kept[-2], rules):
            return None
        del kept[-1]  # what restates the value: \frac{1}{1-x} = \sum x^n
    value = kept[-1]
    for side in kept[:-1]:
        if unevaluated(side):
            continue
        if symbols(value) and symbols(value).isdisjoint(symbols(side)) and symbols(side) and is_to_be_solved(side):
            return None
        if symbols(side) and not symbols(value):
            if not is_label(side) and not (named and named.isdisjoint(symbols(side))):
                return None
        elif isinstance(value, Op) and value.head == "mod":
            continue  # 3^{100} = 4 (mod 7), which need not be computed
        elif (
            not symbols(side) and not symbols(value) and not (rules.same(side, value) or _rounded_decimal(side, value))
        ):
            return None
    return None if len(kept) > 1 and kept[0] == value and symbols(value) else value


def _may_hold(chain: Rel) -> bool:
    """Whether no side contradicts the last one: a formula in the same variables, as in x - 1 = x + 1, must be equal."""
    value = chain.sides[-1]
    names = symbols(value)
    if not names or is_name(value):
        return True
    for side in chain.sides[:-1]:
        if symbols(side) and symbols(side) <= names and isinstance(side, (Sym, Op)) and side != value:
            try:
                if not same_value(side, value):
                    return False
            except (Inexact, Undefined, Undecided, TooLarge):
                continue
    return True


def _gives(value: Node, restated: Node) -> bool:
    return not unevaluated(value) and symbols(value) <= symbols(restated)


def _rounded_decimal(side: Node, value: Node) -> bool:
    written = literal(value)
    return written is not None and bool(written.places) and approximates(side, value)
