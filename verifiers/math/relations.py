"""Equations, chains of equalities, assignments and inequalities."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from rlvr.verifiers.math.binders import unevaluated
from rlvr.verifiers.math.chains import chain_value
from rlvr.verifiers.math.constants import same_solution
from rlvr.verifiers.math.definitions import renumbered, same_definition
from rlvr.verifiers.math.exact import Inexact, Undefined
from rlvr.verifiers.math.families import same_class
from rlvr.verifiers.math.identity import Undecided, proportional, same_value
from rlvr.verifiers.math.inequalities import same_up_to_factor, solution_set
from rlvr.verifiers.math.labels import (
    distance,
    is_function_value,
    is_label,
    is_other_argument,
    names_coordinates,
    names_other_function,
    names_value,
)
from rlvr.verifiers.math.labels import is_name as _is_name
from rlvr.verifiers.math.named import with_primes
from rlvr.verifiers.math.ordered import has_order
from rlvr.verifiers.math.rounding import literal
from rlvr.verifiers.math.sets import TURNED, NotASet, Piece, real_set, same_real_set
from rlvr.verifiers.math.solutions import by_names, is_labelled, of_point
from rlvr.verifiers.math.structures import ordered, real_sets
from rlvr.verifiers.math.tree import Node, Op, Rel, Sym, number, symbols, walk

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules

MAX_SIDES = 6  # of a chain whose sides are compared with each other
_EQUAL = frozenset("=~")
_INTERVALS = frozenset(("()", "[]", "[)", "(]", "union", "inter", "minus", "domain", "set", "list", "either", "both"))


def relations(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether gold and answer agree, at least one of which is a relation."""
    if (verdict := _points(gold, answer, rules)) is not None:
        return verdict
    if isinstance(gold, Rel) and isinstance(answer, Rel):
        gold, answer = with_primes(gold, answer)
        return _both_relations(gold, answer, rules)
    if isinstance(answer, Rel):
        if set(answer.ops) <= _EQUAL and _has_modulus(answer) and _is_name(answer.sides[0]) and symbols(gold):
            return rules.shifted and same_class(gold, answer.sides[-1])
        if set(answer.ops) <= _EQUAL:
            written = literal(gold)
            value = chain_value(answer, rules, decimal=written is not None and bool(written.places))
            if value is not None and names_other_function(answer.sides[0], value):
                return False
            return value is not None and rules.same(gold, value)
        if answer.ops == ("in",) and (isinstance(answer.sides[0], Sym) or _is_point(answer.sides[0])):
            return rules.same(gold, answer.sides[1])
        return isinstance(gold, Op) and gold.head in _INTERVALS and real_sets(gold, answer, rules)
    assert isinstance(gold, Rel)
    if set(gold.ops) <= _EQUAL:
        if _has_modulus(gold) and _is_name(gold.sides[0]) and not _is_residue(answer):
            return rules.shifted and same_class(gold.sides[-1], answer)  # n = 1 (mod 7) is more than 1
        ends = gold.sides[0], gold.sides[-1]
        named = names_value(gold) or _has_modulus(gold) or any(_is_point(end) or unevaluated(end) for end in ends)
        if not (named or _holds(gold, rules)):
            return False
        value = chain_value(gold, rules)
        return value is not None and rules.same(value, answer)
    if gold.ops == ("in",):
        return rules.same(gold.sides[1], answer)
    return isinstance(answer, Op) and (real_sets(gold, answer, rules) or _same_solutions(gold, answer, rules))


def _points(gold: Node, answer: Node, rules: Rules) -> bool | None:
    """Whether (x, y) = (2, 2), or x = y = 2, is the point or the list of equations that the other side gives."""
    wanted, found = of_point(gold), of_point(answer)
    if wanted and found:
        alike = {item.sides[0] for item in wanted} == {item.sides[0] for item in found}
        return rules.same(Op("list", wanted), Op("list", found)) if alike else None
    if wanted and is_labelled(answer):
        return rules.same(Op("list", wanted), answer)
    if wanted and _is_tuple(answer):
        return rules.same(Op("()", tuple(item.sides[1] for item in by_names(wanted))), answer)
    return rules.same(gold, Op("list", found)) if found and (_is_tuple(gold) or is_labelled(gold)) else None


def _is_tuple(node: Node) -> bool:
    return isinstance(node, Op) and node.head == "()"


def _is_point(node: Node) -> bool:
    """(x, y), a point without coordinates."""
    return isinstance(node, Op) and node.head == "()" and all(map(_is_name, node.args))


def _holds(chain: Rel, rules: Rules) -> bool:
    """Whether all sides are equal: (-2a)^3 = -8a^3 is solved, whatever it is that it solves."""
    return all(rules.same(left, right) for left, right in itertools.pairwise(chain.sides))


def _both_relations(gold: Rel, answer: Rel, rules: Rules) -> bool:
    if set(gold.ops) <= _EQUAL and set(answer.ops) <= _EQUAL:
        return _equations(gold, answer, rules)
    if gold.ops == ("in",) or answer.ops == ("in",):
        left = gold.sides[1] if gold.ops == ("in",) else gold
        right = answer.sides[1] if answer.ops == ("in",) else answer
        return rules.same(left, right)
    if (
        gold.ops == answer.ops
        and any(symbols(side) for side in gold.sides)
        and ordered(gold.sides, answer.sides, rules)
    ):
        return True
    turned = Rel(tuple(TURNED.get(op, op) for op in reversed(answer.ops)), answer.sides[::-1])
    if gold.ops == turned.ops and ordered(gold.sides, turned.sides, rules):
        return True
    try:
        real_set(gold)
    except NotASet:
        if len(gold.ops) == 1 == len(answer.ops) and same_up_to_factor(gold, answer):
            return True
        return _same_solutions(gold, answer, rules)
    # A solved gold needs a solved answer, not the inequality to be solved.
    return real_sets(gold, answer, rules)


def _same_solutions(gold: Rel, answer: Node, rules: Rules) -> bool:
    """Whether an unsolved gold, |x - 2| < 3 or x^2 < 4, has the solutions that the answer gives."""
    try:
        wanted = solution_set(gold)
        found = _solutions(answer)
    except NotASet:
        return False
    names = symbols(gold), symbols(answer)
    if isinstance(answer, Rel) and answer.ops != ("in",) and names[0] != names[1]:
        return False
    return same_real_set(wanted, found, rules.values)


def _solutions(answer: Node) -> list[Piece]:
    try:
        return real_set(answer)
    except NotASet:
        if isinstance(answer, Rel):
            return solution_set(answer)
        raise


def _equations(gold: Rel, answer: Rel, rules: Rules) -> bool:
    """Whether equations agree: x = 5 and x = 5, y = f(x) and its rearrangements."""
    if gold == answer:
        return True
    if _has_modulus(gold) != _has_modulus(answer):
        (name, *_, value), (label, *_, residue) = gold.sides, answer.sides
        if name != label or not rules.shifted or symbols(name) & (symbols(value) | symbols(residue)):
            return False
        return same_class(value, residue)
    # Arbitrary constants and parameters depend on the unknown: `same_solution` and `Rules.same` look for them.
    given = replace(rules.within, shifted=rules.declared and rules.shifted)
    two = len(gold.sides) == len(answer.sides) == 2
    named = two and is_label(gold.sides[0]) and distance(gold.sides[0]) == distance(answer.sides[0])
    if named and given.same(gold.sides[1], answer.sides[1]):
        return not has_order(_difference(gold)) or _same_equation(_difference(gold), _difference(answer), rules)
    if _is_other_call(gold.sides[0], answer.sides[0]):
        return False
    if is_other_argument(gold.sides[0], answer.sides[0]) and not symbols(gold.sides[-1]):
        return False
    if two and _marked(gold.sides[0]) == _marked(answer.sides[0]) != "" and given.same(gold.sides[1], answer.sides[1]):
        return True
    if two and is_function_value(gold.sides[0]) and gold.sides[0] == answer.sides[0]:
        return False
    if is_function_value(gold.sides[0]) and gold.sides[0] not in (answer.sides[0], answer.sides[-1]):
        return False
    if (other := renumbered(gold, answer)) is not None:
        return given.same(gold, other)
    if same_definition(gold, answer, given):
        return True
    if rules.whole and same_solution(gold, answer, rules.same):
        return True
    if max(len(gold.sides), len(answer.sides)) > 2 and {*gold.ops, *answer.ops} == {"="}:
        return _same_chain(gold, answer, rules)
    if _is_value(gold) and not _is_value(answer):
        return False
    if not _is_solved(gold) or not _is_solved(answer):
        if len(gold.sides) == len(answer.sides) == 2:
            return _same_equation(_difference(gold), _difference(answer), rules)
    elif gold.sides[0] != answer.sides[0]:
        return False
    left, right = chain_value(gold, rules), chain_value(answer, rules)
    return left is not None and right is not None and rules.same(left, right)


def _is_other_call(gold: Node, answer: Node) -> bool:
    """Whether two sides are a function of a variable and of another expression in it: f(x) and f(-x)."""
    if not isinstance(gold, Op) or not isinstance(answer, Op) or not (gold.head == answer.head == "mul"):
        return False
    if len(gold.args) != 2 or len(answer.args) != 2 or gold.args[0] != answer.args[0] or not _is_name(gold.args[0]):
        return False
    return (
        _is_name(gold.args[1]) and isinstance(answer.args[1], Op) and symbols(gold.args[1]) <= symbols(answer.args[1])
    )


def _has_modulus(chain: Rel) -> bool:
    return any(isinstance(side, Op) and side.head == "mod" for side in chain.sides)


def _is_residue(node: Node) -> bool:
    return isinstance(node, Op) and (node.head == "mod" or any(map(_is_residue, node.args)))


def _marked(side: Node) -> str:
    """The y of \\hat{y} = ... and of y = ..."""
    return side.name.removeprefix("hat ") if isinstance(side, Sym) and symbols(side) else ""


def _same_chain(gold: Rel, answer: Rel, rules: Rules) -> bool:
    """Whether chains of equalities say the same: the same names with one value, or the same expressions.

    A side may be left out that leads from a name to its value, A in A = bh/2 = 6k; not one of x/2 = y/3 = z/4.
    """
    if _same_line(gold, answer):
        return True
    if _names(gold) != _names(answer):
        return False
    value, other = gold.sides[-1], answer.sides[-1]
    if not symbols(value) or not symbols(other):
        left, right = chain_value(gold, rules), chain_value(answer, rules)
        if left is not None and right is not None:
            return rules.same(left, right)
    if max(len(gold.sides), len(answer.sides)) > MAX_SIDES:
        return ordered(gold.sides, answer.sides, rules)
    shown, wanted = _distinct(answer, rules), _distinct(gold, rules)
    steps = _steps(gold)
    return all(any(rules.same(side, one) for one in wanted) for side in shown) and all(
        any(rules.same(side, one) for one in shown) for side in wanted if side not in steps
    )


def _steps(chain: Rel) -> tuple[Node, ...]:
    """The sides between a name, which is no coordinate, and its value."""
    first, *between, _ = chain.sides
    if not is_label(first) or names_coordinates(first):
        return ()
    return tuple(side for side in between if not is_label(side))


def _same_line(gold: Rel, answer: Rel) -> bool:
    """Whether the sides of chains, with symbols each, differ by one constant factor: (x - 1)/2 = y and 1 - x = -2y."""
    if not 2 < len(gold.sides) == len(answer.sides) or not all(map(symbols, (*gold.sides, *answer.sides))):
        return False
    (first, *rest), (other, *others) = gold.sides, answer.sides
    try:
        return proportional(first, other) and all(
            same_value(Op("mul", (left, other)), Op("mul", (first, right)))
            for left, right in zip(rest, others, strict=True)
        )
    except (Inexact, Undefined, Undecided):
        return False


def _names(chain: Rel) -> frozenset[str]:
    return frozenset(side.name for side in chain.sides if isinstance(side, Sym) and symbols(side))


def _distinct(chain: Rel, rules: Rules) -> list[Node]:
    """The sides of a chain without those that equal an earlier one."""
    kept: list[Node] = []
    for side in chain.sides:
        if not any(rules.same(side, one) for one in kept):
            kept.append(side)
    return kept


def _is_value(chain: Rel) -> bool:
    """x = 5 or 5 = x, not 2x = 10: a variable at one end and nowhere else."""
    at_ends = _is_name(chain.sides[0]) or _is_name(chain.sides[-1])
    return at_ends and sum(isinstance(node, Sym) and bool(symbols(node)) for node in walk(chain)) == 1


def _is_solved(chain: Rel) -> bool:
    """x = 5: a variable and its value."""
    return _is_name(chain.sides[0]) and len(symbols(chain)) == 1


def _same_equation(gold: Op, answer: Op, rules: Rules) -> bool:
    """Whether left minus right differ by a constant factor, or by the denominators that were cleared."""
    try:
        if not has_order(gold):
            return proportional(gold, answer)
    except (Inexact, Undefined):
        pass
    values = rules.within.values  # whose letters are no arbitrary constants
    return not values(answer, number(0)) and (values(gold, answer) or values(gold, Op("neg", (answer,))))


def _difference(chain: Rel) -> Op:
    return Op("add", (chain.sides[0], Op("neg", (chain.sides[-1],))))
