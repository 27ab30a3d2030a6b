"""The comparison of a parsed answer with a parsed gold: `Comparator`, cheapest check first.

Units: one on one side only is dropped; on both sides they are converted. Precision: an exact gold needs an exact
answer, and a decimal gold is matched to its digits. The options `digits` and `rel_tol` widen this; two integers are
never rounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ..values.exact import Inexact, Undefined, rational, written_exactly
from ..values.identity import same_value
from ..values.matrices import commuting, has_order, resolve, same_ordered
from ..values.numeric import FAILURES, Floats, evaluate, literal, rounds_to
from ..values.tree import (
    OO,
    PI,
    Node,
    Num,
    Op,
    Quantity,
    Rel,
    Sym,
    Unit,
    Words,
    is_op,
    is_unevaluated,
    number,
    symbols,
)
from ..values.units import RATES, find_unit, temperature
from .forms import same_forms
from .parameters import same_families, same_general_solution
from .relations import relations
from .rules import Rules
from .structures import (
    EITHER_SIDE,
    LISTS,
    STRUCTURES,
    confuses_unknowns,
    digits_of,
    is_reduced,
    same_piecewise,
)

# --- units ------------------------------------------------------------------------------------------------------------

_DEGREE, _POUND, _PERCENT = (("degree", 1),), (("pound", 1),), (("percent", 1),)
_DOLLAR = (("dollar", 1),)
# The size of a degree in kelvins, and the degrees from the absolute zero to that of the scale.
_TEMPERATURES: dict[tuple[tuple[str, int], ...], tuple[Fraction, Fraction]] = {
    (("degree C", 1),): (Fraction(1), Fraction("273.15")),
    (("degree F", 1),): (Fraction(5, 9), Fraction("459.67")),
    (("kelvin", 1),): (Fraction(1), Fraction(0)),
}


def quantities(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether values agree: a unit on one side only is dropped, units on both sides must agree after conversion."""
    gold_value, gold_unit = (gold.value, gold.unit) if isinstance(gold, Quantity) else (gold, None)
    value, unit = (answer.value, answer.unit) if isinstance(answer, Quantity) else (answer, None)
    if (
        gold_unit is not None
        and gold_unit.dims
        and unit is None
        and (found := _letter_unit(value, gold_unit.dims in _TEMPERATURES))
    ):
        value, unit = found
    if (
        unit is not None
        and unit.dims
        and gold_unit is None
        and (found := _letter_unit(gold_value, unit.dims in _TEMPERATURES))
    ):
        gold_value, gold_unit = found
    if rules.units == "ignore":
        gold_unit, unit = (u if u is not None and u.dims in (_PERCENT, _DEGREE) else None for u in (gold_unit, unit))
    if gold_unit is not None and unit is not None:
        return _both_units(gold_value, gold_unit, value, unit, rules)
    if gold_unit is None and unit is not None and unit.dims == _DOLLAR and unit.factor != 1:
        return rules.matches(gold_value, _times(value, unit))  # 18 is not 18 cents
    signs = {u.dims for u in (gold_unit, unit) if u is not None} & {_PERCENT, _DEGREE}
    written = not (gold_unit is None and _PERCENT in signs and not _may_be_percentage(gold_value))
    written &= not (_PERCENT in signs and rules.units == "value")
    written &= not (_DEGREE in signs and _is_of_pi(gold_value) and not (gold_unit and unit))
    if written and rules.matches(gold_value, value):
        return True
    if _PERCENT in signs:
        return rules.matches(_times(gold_value, gold_unit), _times(value, unit))
    if _DEGREE in signs and rational(gold_value if unit else value) is None:
        turned = (Op("deg", (v,)) if u else v for v, u in ((gold_value, gold_unit), (value, unit)))
        return rules.matches(*turned)
    return False


def _may_be_percentage(gold: Node) -> bool:
    """Whether a number without a sign may count percent: 50 and 12.5, but a share is below 1."""
    value = rational(gold)
    return value is not None and (value.denominator == 1 or abs(value) > 1)


def _is_of_pi(node: Node) -> bool:
    """Whether a value is a multiple of pi, so an angle in radians."""
    top = node.args[0] if is_op(node, "div", "neg") else node
    return top == PI or (is_op(top, "mul", "div") and PI in top.args)


def is_measured(node: Node) -> bool:
    """Whether a value has a known unit."""
    return isinstance(node, Quantity) and bool(node.unit.dims) and not node.unit.words


def _letter_unit(answer: Node, of_temperature: bool) -> tuple[Node, Unit] | None:
    """Read 100m, 2h and 5 kT, which parse as products, as quantities where the gold has a unit."""
    if not is_op(answer, "mul"):
        return None
    value, letters = answer.args[0], answer.args[1:]
    if len(letters) == 1 and is_op(letters[0], "mul"):
        letters = letters[0].args  # 5mg
    if not isinstance(value, Num) or not all(isinstance(letter, Sym) for letter in letters):
        return None
    name = "".join(letter.name for letter in letters if isinstance(letter, Sym))
    unit = (temperature(name) if of_temperature and name in ("C", "F", "K") else None) or find_unit(name, True)
    return None if unit is None else (value, unit)


def _times(value: Node, unit: Unit | None) -> Node:
    if unit is None:
        return value
    exact = rational(value) if isinstance(value, Num) else None
    return Op("mul", (value, Num(unit.factor))) if exact is None else Num(exact * unit.factor)


def _both_units(gold: Node, gold_unit: Unit, answer: Node, unit: Unit, rules: Rules) -> bool:
    if unit.words or (gold_unit.words and not gold_unit.dims):  # $24 per hour may be $24, not the other way round
        return rules.matches(gold, answer) and _same_words(gold_unit, unit)
    if gold_unit == unit:
        return rules.matches(gold, answer)
    if "currency" in (gold_unit.sense, unit.sense) and _POUND in (gold_unit.dims, unit.dims):
        return rules.matches(gold, answer)
    if counted := dict(gold_unit.dims).get("unit", 0) or dict(unit.dims).get("unit", 0):
        powers = {power for u in (gold_unit, unit) for name, power in u.dims if name in ("unit", "length")}
        return (counted == 1 or powers == {counted}) and rules.matches(gold, answer)
    if gold_unit.dims != unit.dims:
        if gold_unit.dims in _TEMPERATURES and unit.dims in _TEMPERATURES:
            return rules.matches(_kelvins(gold, gold_unit), _kelvins(answer, unit))
        if not _TEMPERATURES.keys().isdisjoint((gold_unit.dims, unit.dims)) and _DEGREE in (gold_unit.dims, unit.dims):
            return rules.matches(gold, answer)  # 25 degrees
        angles = {(("degree", 1),), (("radian", 1),)}
        if {gold_unit.dims, unit.dims} == angles:
            turned = [
                Op("deg", (v,)) if u.dims == (("degree", 1),) else v for v, u in ((gold, gold_unit), (answer, unit))
            ]
            return rules.matches(turned[0], turned[1])
        return False
    return rules.matches(_times(gold, gold_unit), _times(answer, unit))


def _kelvins(value: Node, unit: Unit) -> Node:
    """A temperature in kelvins."""
    scale, zero = _TEMPERATURES[unit.dims]
    kelvins = Op("mul", (Op("add", (value, Num(zero))), Num(scale * unit.factor)))
    exact = rational(kelvins)
    return kelvins if exact is None else Num(exact)


def _same_words(gold: Unit, answer: Unit) -> bool:
    if not gold.words or not answer.words:
        return False
    left, right = ([word.rstrip("s") for word in unit.words.split() if word not in RATES] for unit in (gold, answer))
    return left == right


# --- precision --------------------------------------------------------------------------------------------------------

SMALL_DENOMINATOR = 8  # of a decimal that is hardly rounded
LARGE, CLOSE = 1e6, 1e-9  # constants below it, so near to an integer, are integers
FLOAT_DIGITS = range(16, 18)  # of a printed double; only the first 15 are reliable


def terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def agrees_in_digits(gold: Node, answer: Node, rules: Rules) -> bool:
    """Whether unequal numbers agree to the digits that count: of an option, a decimal gold, a long answer."""
    written_gold, written = literal(gold), literal(answer)
    # An integer is exact, against 1000.4 as well as against 1001; 1000.0 is a measurement.
    optional = (rules.rel_tol, rules.digits) != (None, None)
    exact = optional and not (written_gold and written_gold.places) and _is_whole(gold)
    if rules.rel_tol is not None and not exact and _within(gold, answer, rules.rel_tol):
        return True
    if rules.digits is not None and not exact and _same_digits(gold, answer, rules.digits):
        return True
    if written_gold is not None and written_gold.places:
        return _decimal_gold(written_gold, answer, written)
    if written is not None and written.places and written.digits >= rules.exact_digits:
        return _exact_gold(gold, written)
    return False


def _is_whole(gold: Node) -> bool:
    r"""Whether a constant is an integer, however it is written: 2000/2, 10 \sin 90°."""
    value = rational(gold)
    if value is not None:
        return value.denominator == 1
    found = _floats(gold, gold)
    size = abs(found[0]) if found else math.inf
    return found is not None and size < LARGE and abs(found[0] - round(found[0].real)) <= CLOSE * max(1.0, size)


def _within(gold: Node, answer: Node, tolerance: float) -> bool:
    found = _floats(gold, answer)
    return found is not None and abs(found[0] - found[1]) <= tolerance * abs(found[0])


def _same_digits(gold: Node, answer: Node, digits: int) -> bool:
    """Whether the answer is within half a unit of the gold's digit at that place."""
    found = _floats(gold, answer)
    if found is None or found[0] == 0:
        return False
    unit = 10.0 ** (math.floor(math.log10(abs(found[0]))) - digits + 1)
    return abs(found[0] - found[1]) <= 0.5 * unit * (1 + 1e-9)


def _floats(gold: Node, answer: Node) -> tuple[complex, complex] | None:
    try:
        return evaluate(gold, {}, Floats(False)), evaluate(answer, {}, Floats(False))
    except FAILURES:
        return None


def _decimal_gold(gold: Num, answer: Node, written: Num | None) -> bool:
    """Whether a more precise answer rounds to a gold of at least three digits: \\frac{\\sqrt3}{3} to 0.577."""
    if gold.digits < 3 or gold.value.denominator <= SMALL_DENOMINATOR:
        return False  # 12.5 and 5.00 are exact
    if written is None:
        value = rational(answer)
        return (value is None or not terminates(value)) and rounds_to(answer, gold)
    return gold.digits >= 4 and (written.places or 0) > (gold.places or 0) and rounds_to(answer, gold)


def _exact_gold(gold: Node, written: Num) -> bool:
    """Whether the answer has enough right digits, the last one rounded or cut off, of a gold that no decimal equals."""
    if rational(gold) is not None:
        return False
    return rounds_to(gold, written, cut=True) or (
        written.digits in FLOAT_DIGITS and rounds_to(gold, _shorten(written, 15), cut=True)
    )


def _shorten(written: Num, digits: int) -> Num:
    """A decimal rounded to `digits` significant digits."""
    places = (written.places or 0) - (written.digits - digits)
    return Num(round(written.value, places), places, digits)


@dataclass(frozen=True)
class Comparator(Rules):
    """The comparison under the rules."""

    def matches(self, gold: Node, answer: Node) -> bool:
        """Whether the answer equals the gold. Raises TooLarge or Undecided."""
        if self.digits is None and self.rel_tol is None and (wanted := written_exactly(gold)) is not None:
            found = written_exactly(answer)
            if found is not None:
                return found == wanted
        return self._match(gold, answer) or (self.shifted and same_families(gold, answer, self.declared))

    def _match(self, gold: Node, answer: Node) -> bool:
        try:
            gold, answer = resolve(gold), resolve(answer)
        except Undefined:
            return False
        if isinstance(gold, Quantity) or isinstance(answer, Quantity):
            return quantities(gold, answer, self)
        if isinstance(gold, Rel) or isinstance(answer, Rel):
            return relations(gold, answer, self)
        if is_op(gold, *LISTS) and confuses_unknowns(gold, answer):
            return False
        if is_op(answer, "either"):
            answer = self._only_one(answer)
        if isinstance(gold, Op) and gold.head in STRUCTURES:
            equations = gold.head in ("list", "either") and all(isinstance(arg, Rel) for arg in gold.args)
            # Each equation of a list may have arbitrary constants.
            return STRUCTURES[gold.head](gold, answer, self if equations else self.within)
        if is_op(gold, "piecewise") or is_op(answer, "piecewise"):
            return same_piecewise(gold, answer, self)
        if is_op(answer, "mod"):
            return is_reduced(answer) and self.matches(gold, answer.args[0])
        if is_op(answer, "based"):
            return answer.args[1] == number(10) and Words(digits_of(gold)) == answer.args[0]
        if isinstance(answer, Op) and answer.head in STRUCTURES:
            return answer.head in EITHER_SIDE and STRUCTURES[answer.head](answer, gold, self)
        return self.matches_value(gold, answer)

    def matches_value(self, gold: Node, answer: Node) -> bool:
        """Whether two expressions are equal, exactly or to the digits that the options require."""
        if isinstance(gold, Words) or isinstance(answer, Words):
            return gold == answer
        if is_unevaluated(gold) or is_unevaluated(answer):
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
            return agrees_in_digits(gold, answer, self)
        except Undefined:
            return False
        except Inexact:
            left, right = commuting(gold), commuting(answer)
            return (left, right) != (gold, answer) and self.matches_value(left, right)

    def _only_one(self, answer: Op) -> Node:
        """Return alternatives as one answer where they are all equal, else as a list."""
        first = answer.args[0]
        relations = [arg for arg in answer.args if isinstance(arg, Rel)]
        if any(set(arg.ops) != {"="} for arg in relations) or len({arg.sides[0] for arg in relations}) > 1:
            return answer
        if all(self.matches(first, other) for other in answer.args[1:]):
            return first
        return Op("list", answer.args)


def _infinity(node: Node) -> int:
    """Return 1 or -1 for an infinity, 0 for anything else."""
    if is_op(node, "neg"):
        return -_infinity(node.args[0])
    return 1 if type(node) is Sym and node == OO else 0
