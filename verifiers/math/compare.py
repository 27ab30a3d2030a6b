"""Comparison of a parsed answer with a parsed gold, in layers, cheapest first.

The layers, each a module of this package: `quantities`, `relations`, `structures`, and values (`identity`), which may
be rounded (`rounding`). The docstring of MathVerifier has the rules.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Literal

from rlvr.verifiers.math.binders import unevaluated
from rlvr.verifiers.math.constants import same_general_solution
from rlvr.verifiers.math.exact import Inexact, Undefined, written_exactly
from rlvr.verifiers.math.families import same_families
from rlvr.verifiers.math.forms import same_forms
from rlvr.verifiers.math.identity import same_value
from rlvr.verifiers.math.matrices import resolved
from rlvr.verifiers.math.ordered import commuting, has_order, same_ordered
from rlvr.verifiers.math.piecewise import is_piecewise, same_piecewise
from rlvr.verifiers.math.quantities import quantities
from rlvr.verifiers.math.relations import relations
from rlvr.verifiers.math.rounding import rounded
from rlvr.verifiers.math.solutions import LISTS, confuses_unknowns
from rlvr.verifiers.math.structures import EITHER_SIDE, STRUCTURES, digits_of
from rlvr.verifiers.math.tree import OO, Node, Op, Quantity, Rel, Sym, Words, number, symbols


@dataclass(frozen=True)
class Rules:
    """The options of MathVerifier that affect comparison, and the comparison under them."""

    digits: int | None = None
    rel_tol: float | None = None
    exact_digits: int = 10
    units: Literal["convert", "ignore", "value"] = "convert"  # "value": 50% is 0.5 only
    unevaluated: Literal["auto", "accept", "reject"] = "accept"
    quick: bool = False  # whether long sums are left to the worker pool
    declared: bool = False  # whether a parameter is said to be an integer
    shifted: bool = True  # whether families of numbers with a parameter may be shifted
    whole: bool = True  # whether the whole answer is compared, whose letters may be arbitrary constants

    @functools.cached_property
    def within(self) -> Rules:
        """The rules for a part of an answer, in which a letter is given data."""
        return replace(self, whole=False)

    def same(self, gold: Node, answer: Node) -> bool:
        """Whether the answer equals the gold. Raises TooLarge or Undecided."""
        if self.digits is None is self.rel_tol and (wanted := written_exactly(gold)) is not None:
            found = written_exactly(answer)
            if found is not None:
                return found == wanted
        return self._same(gold, answer) or (self.shifted and same_families(gold, answer, self.declared))

    def _same(self, gold: Node, answer: Node) -> bool:
        try:
            gold, answer = resolved(gold), resolved(answer)
        except Undefined:
            return False
        if isinstance(gold, Quantity) or isinstance(answer, Quantity):
            return quantities(gold, answer, self)
        if isinstance(gold, Rel) or isinstance(answer, Rel):
            return relations(gold, answer, self)
        if isinstance(gold, Op) and gold.head in LISTS and confuses_unknowns(gold, answer):
            return False
        if isinstance(answer, Op) and answer.head == "either":
            answer = self._only_one(answer)
        if isinstance(gold, Op) and gold.head in STRUCTURES:
            return STRUCTURES[gold.head](gold, answer, self if _are_equations(gold) else self.within)
        if is_piecewise(gold) or is_piecewise(answer):
            return same_piecewise(gold, answer, self)
        if isinstance(answer, Op) and answer.head == "mod":
            return not symbols(answer.args[0]) and self.same(gold, answer.args[0])
        if isinstance(answer, Op) and answer.head == "based":
            return answer.args[1] == number(10) and Words(digits_of(gold)) == answer.args[0]
        if isinstance(answer, Op) and answer.head in STRUCTURES:
            return answer.head in EITHER_SIDE and STRUCTURES[answer.head](answer, gold, self)
        return self.values(gold, answer)

    def values(self, gold: Node, answer: Node) -> bool:
        """Whether two expressions are equal, exactly or to the digits that the options require."""
        if isinstance(gold, Words) or isinstance(answer, Words):
            return gold == answer
        if unevaluated(gold) or unevaluated(answer):
            return same_forms(gold, answer, self)
        infinite = _infinity(gold), _infinity(answer)
        if infinite != (0, 0):
            return infinite[0] == infinite[1]
        try:
            if has_order(gold):
                return same_ordered(gold, answer)
            if same_value(gold, answer):
                return True
            if symbols(gold) or symbols(answer):
                return self.whole and same_general_solution(gold, answer, same_value)
            return rounded(gold, answer, self)
        except Undefined:
            return False
        except Inexact:
            left, right = commuting(gold), commuting(answer)
            return (left, right) != (gold, answer) and self.values(left, right)

    def _only_one(self, answer: Op) -> Node:
        """Return alternatives as one answer where they are all equal, else as a list."""
        first = answer.args[0]
        relations = [arg for arg in answer.args if isinstance(arg, Rel)]
        if any(set(arg.ops) != {"="} for arg in relations) or len({arg.sides[0] for arg in relations}) > 1:
            return answer
        if all(self.same(first, other) for other in answer.args[1:]):
            return first
        return Op("list", answer.args)


def _are_equations(node: Op) -> bool:
    """Whether a list is of relations, each of which may have arbitrary constants."""
    return node.head in ("list", "either") and all(isinstance(arg, Rel) for arg in node.args)


def _infinity(node: Node) -> int:
    """Return 1 or -1 for an infinity, 0 for anything else."""
    if isinstance(node, Op) and node.head == "neg":
        return -_infinity(node.args[0])
    return 1 if type(node) is Sym and node == OO else 0
