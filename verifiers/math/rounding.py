"""The precision policy: when unequal numbers count as equal.

An exact gold needs an exact answer, a decimal gold is matched to its digits. The options `digits` and
`rel_tol` widen this; two integers are never rounded.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from rlvr.verifiers.math.exact import rational
from rlvr.verifiers.math.numeric import evaluate
from rlvr.verifiers.math.systems import Digits, Numbers
from rlvr.verifiers.math.tree import Node, Num, Op, Quantity, number, symbols
from rlvr.verifiers.math.units import UNITS

if TYPE_CHECKING:
    from rlvr.verifiers.math.compare import Rules


SMALL_DENOMINATOR = 8  # of a decimal that is hardly rounded
LARGE, CLOSE = 1e6, 1e-9  # constants below it, so near to an integer, are integers
FEW_DIGITS = 13  # of a decimal for which floats usually tell
FLOAT_DIGITS = range(16, 18)  # of a printed double; only the first 15 are reliable


def literal(node: Node) -> Num | None:
    """Return an integer or decimal literal with its sign, or a decimal times a power of ten; None for anything else."""
    if isinstance(node, Num):
        return node
    if not isinstance(node, Op):
        return None
    if node.head == "neg":
        inner = literal(node.args[0])
        return inner and inner._replace(value=-inner.value)
    if node.head != "mul" or len(node.args) != 2:
        return None
    mantissa, power = node.args
    if not isinstance(mantissa, Num) or not mantissa.places or not isinstance(power, Op) or power.head != "pow":
        return None
    exponent = rational(power.args[1])
    if power.args[0] != number(10) or exponent is None or exponent.denominator != 1 or abs(exponent) > 400:
        return None
    places = max(0, mantissa.places - exponent.numerator)
    return Num(mantissa.value * Fraction(10) ** exponent.numerator, places, mantissa.digits)


def is_integer(node: Num | None) -> bool:
    return node is not None and node.value.denominator == 1


def terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1


def rounded(gold: Node, answer: Node, rules: Rules) -> bool:
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
        return evaluate(gold, {}, Numbers(False))[0], evaluate(answer, {}, Numbers(False))[0]
    except (ValueError, OverflowError, ZeroDivisionError):
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
        written.digits in FLOAT_DIGITS and rounds_to(gold, _shortened(written, 15), cut=True)
    )


def _shortened(written: Num, digits: int) -> Num:
    """A decimal rounded to `digits` significant digits."""
    places = (written.places or 0) - (written.digits - digits)
    return Num(round(written.value, places), places, digits)


def rounds_to(node: Node, target: Num, cut: bool = False) -> bool:
    """Whether a constant equals `target` when rounded (or cut) at the last place of `target`."""
    found = _rounds_in_floats(node, target, cut) if target.digits <= FEW_DIGITS else None
    if found is not None:
        return found
    numbers = Digits(False, None, 60 + target.digits)
    value, error = evaluate(node, {}, numbers)
    if numbers.is_complex(value):
        return False
    wanted, unit = numbers.of(target.value), numbers.of(Fraction(10) ** -(target.places or 0))
    distance = abs(value - wanted)
    if cut and abs(value) > abs(wanted):
        return bool(distance + error < unit)
    return bool(distance - error <= unit / 2)


def _rounds_in_floats(node: Node, target: Num, cut: bool) -> bool | None:
    """What `rounds_to` returns; None where floats do not tell."""
    numbers = Numbers(False)
    try:
        value, error = evaluate(node, {}, numbers)
        wanted, unit = float(target.value), 10.0 ** -(target.places or 0)
    except (ValueError, OverflowError, ZeroDivisionError):
        return None
    if numbers.is_complex(value):
        return None
    error = 8 * error + 4 * numbers.epsilon * (abs(wanted) + unit)
    distance = abs(value - wanted)
    allowed = unit if cut and abs(value) > abs(wanted) else unit / 2
    if cut and abs(abs(value) - abs(wanted)) <= error:
        return None
    if distance + error < allowed:
        return True
    return False if distance - error > allowed else None


def approximates(left: Node, right: Node) -> bool:
    """Whether `right` is a literal, or one in percent, that `left` equals when rounded or cut at its last place."""
    if isinstance(right, Quantity) and right.unit == UNITS["%"]:
        left, right = Op("mul", (left, number(100))), right.value
    written = literal(right)
    if written is None or symbols(left):
        return written is not None
    try:
        return rounds_to(left, written, cut=True)
    except (ValueError, OverflowError, ZeroDivisionError):
        return False
