"""Values with units."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.tree import PI, Node, Num, Op, Quantity, Sym, Unit
from rlvr.verifiers.math.units import RATES, find_unit, temperature

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules


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
        return rules.same(gold_value, _times(value, unit))  # 18 is not 18 cents
    signs = {u.dims for u in (gold_unit, unit) if u is not None} & {_PERCENT, _DEGREE}
    written = not (gold_unit is None and _PERCENT in signs and not _may_be_percentage(gold_value))
    written &= not (_PERCENT in signs and rules.units == "value")
    written &= not (_DEGREE in signs and _is_of_pi(gold_value) and not (gold_unit and unit))
    if written and rules.same(gold_value, value):
        return True
    if _PERCENT in signs:
        return rules.same(_times(gold_value, gold_unit), _times(value, unit))
    if _DEGREE in signs and rational(gold_value if unit else value) is None:
        turned = (Op("deg", (v,)) if u else v for v, u in ((gold_value, gold_unit), (value, unit)))
        return rules.same(*turned)
    return False


def _may_be_percentage(gold: Node) -> bool:
    """Whether a number without a sign may count percent: 50 and 12.5, but a share is below 1."""
    value = rational(gold)
    return value is not None and (value.denominator == 1 or abs(value) > 1)


def _is_of_pi(node: Node) -> bool:
    """Whether a value is a multiple of pi, so an angle in radians."""
    top = node.args[0] if isinstance(node, Op) and node.head in ("div", "neg") else node
    return top == PI or (isinstance(top, Op) and top.head in ("mul", "div") and PI in top.args)


def is_measured(node: Node) -> bool:
    """Whether a value has a known unit."""
    return isinstance(node, Quantity) and bool(node.unit.dims) and not node.unit.words


def _letter_unit(answer: Node, of_temperature: bool) -> tuple[Node, Unit] | None:
    """Read 100m, 2h and 5 kT, which parse as products, as quantities where the gold has a unit."""
    if not isinstance(answer, Op) or answer.head != "mul":
        return None
    value, letters = answer.args[0], answer.args[1:]
    if len(letters) == 1 and isinstance(letters[0], Op) and letters[0].head == "mul":
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
        return rules.same(gold, answer) and _same_words(gold_unit, unit)
    if gold_unit == unit:
        return rules.same(gold, answer)
    if "currency" in (gold_unit.sense, unit.sense) and _POUND in (gold_unit.dims, unit.dims):
        return rules.same(gold, answer)
    if counted := dict(gold_unit.dims).get("unit", 0) or dict(unit.dims).get("unit", 0):
        powers = {power for u in (gold_unit, unit) for name, power in u.dims if name in ("unit", "length")}
        return (counted == 1 or powers == {counted}) and rules.same(gold, answer)
    if gold_unit.dims != unit.dims:
        if gold_unit.dims in _TEMPERATURES and unit.dims in _TEMPERATURES:
            return rules.same(_kelvins(gold, gold_unit), _kelvins(answer, unit))
        if not _TEMPERATURES.keys().isdisjoint((gold_unit.dims, unit.dims)) and _DEGREE in (gold_unit.dims, unit.dims):
            return rules.same(gold, answer)  # 25 degrees
        angles = {(("degree", 1),), (("radian", 1),)}
        if {gold_unit.dims, unit.dims} == angles:
            turned = [
                Op("deg", (v,)) if u.dims == (("degree", 1),) else v for v, u in ((gold, gold_unit), (answer, unit))
            ]
            return rules.same(turned[0], turned[1])
        return False
    return rules.same(_times(gold, gold_unit), _times(answer, unit))


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
