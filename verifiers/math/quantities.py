"""Values with units."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.tree import Node, Num, Op, Quantity, Sym, Unit
from rlvr.verifiers.math.units import find_unit, temperature

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules


_DEGREE, _POUND = (("degree", 1),), (("pound", 1),)
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
    if gold_unit is not None and unit is not None and rules.units == "convert":
        return _both_units(gold_value, gold_unit, value, unit, rules)
    if rules.same(gold_value, value):
        return True
    one = gold_unit or unit
    if one is not None and one.dims == (("percent", 1),):
        return rules.same(_times(gold_value, gold_unit), _times(value, unit))
    if one is not None and one.dims == (("degree", 1),) and rational(gold_value if unit else value) is None:
        turned = (Op("deg", (v,)) if u else v for v, u in ((gold_value, gold_unit), (value, unit)))
        return rules.same(*turned)
    return False


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
    if gold_unit.words or unit.words:
        return rules.same(gold, answer) and _same_words(gold_unit, unit)
    if gold_unit == unit:
        return rules.same(gold, answer)
    if "currency" in (gold_unit.sense, unit.sense) and _POUND in (gold_unit.dims, unit.dims):
        return rules.same(gold, answer)
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
    left, right = ([word.rstrip("s") for word in unit.words.split()] for unit in (gold, answer))
    return left == right
