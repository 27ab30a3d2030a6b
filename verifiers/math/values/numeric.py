"""Trees as numbers.

`compile_tree` makes a tree a function of a point, over one of two kinds of numbers. `Floats` look for a difference
fast; integers stay exact. `Digits`, of mpmath, also track how much rounding errors have grown, by the condition numbers
of the steps. So "different" is said only where a difference exceeds the errors at 60 digits, "equal" only where it
stays below them at 200.
`literal`, `rounds_to`, `approximates`: written decimals.
"""

from __future__ import annotations

import cmath
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from .exact import MAX_FACTORIAL, Inexact, Undefined, bits, multifactorial, rational, subfactorial
from .tree import (
    IMAGINARY,
    OO,
    PI,
    E,
    Node,
    Num,
    Op,
    Quantity,
    Sym,
    TooLarge,
    is_op,
    nodes,
    number,
    symbols,
)
from .units import UNITS

MAX_LOG = 1e6  # |log| of the largest intermediate value
MAX_POWER_BITS = 20_000  # of a power of integers that is computed exactly
MAX_INDEX = 10_000  # of a root
LARGE_CONDITION, ALLOWANCE = 1e3, 1e20  # a condition number that is track; the growth of errors by all smaller ones
FAILURES = (ValueError, OverflowError, ZeroDivisionError, TypeError)  # what is raised where there is no value

Point = Sequence[float | Fraction]
Closure = Callable[[Point], Any]

# --- functions of one variable ----------------------------------------------------------------------------------------

_Slope = Callable[[Any, Any], Any]
# Name in the library, how it is applied, and from x and f(x) a bound on |f'|, by which an error grows.
FUNCTIONS: dict[str, tuple[str, str, _Slope]] = {
    "sin": ("sin", "f(x)", lambda x, f: 1 + abs(f)),
    "cos": ("cos", "f(x)", lambda x, f: 1 + abs(f)),
    "tan": ("tan", "f(x)", lambda x, f: 1 + abs(f) ** 2),
    "cot": ("tan", "1/f(x)", lambda x, f: 1 + abs(f) ** 2),
    "sec": ("cos", "1/f(x)", lambda x, f: abs(f) * (1 + abs(f))),
    "csc": ("sin", "1/f(x)", lambda x, f: abs(f) * (1 + abs(f))),
    "sinh": ("sinh", "f(x)", lambda x, f: 1 + abs(f)),
    "cosh": ("cosh", "f(x)", lambda x, f: 1 + abs(f)),
    "tanh": ("tanh", "f(x)", lambda x, f: 1 + abs(f) ** 2),
    "coth": ("tanh", "1/f(x)", lambda x, f: 1 + abs(f) ** 2),
    "sech": ("cosh", "1/f(x)", lambda x, f: abs(f)),
    "csch": ("sinh", "1/f(x)", lambda x, f: abs(f) * (1 + abs(f))),
    "arcsin": ("asin", "f(x)", lambda x, f: 1 / abs(1 - x * x) ** 0.5),
    "arccos": ("acos", "f(x)", lambda x, f: 1 / abs(1 - x * x) ** 0.5),
    "arctan": ("atan", "f(x)", lambda x, f: 1 / abs(1 + x * x)),
    "arccot": ("atan", "pi/2-f(x)", lambda x, f: 1 / abs(1 + x * x)),
    "arcsec": ("acos", "f(1/x)", lambda x, f: 1 / (abs(x) * abs(x * x - 1) ** 0.5)),
    "arccsc": ("asin", "f(1/x)", lambda x, f: 1 / (abs(x) * abs(x * x - 1) ** 0.5)),
    "arcsinh": ("asinh", "f(x)", lambda x, f: 1 / abs(x * x + 1) ** 0.5),
    "arccosh": ("acosh", "f(x)", lambda x, f: 1 / abs(x * x - 1) ** 0.5),
    "arctanh": ("atanh", "f(x)", lambda x, f: 1 / abs(1 - x * x)),
    "ln": ("log", "f(x)", lambda x, f: 1 / abs(x)),
    "exp": ("exp", "f(x)", lambda x, f: abs(f)),
}
_EXPONENTIAL = frozenset(("exp", "sinh", "cosh", "tanh", "coth", "sech", "csch"))
_PERIODIC = frozenset(("sin", "cos", "tan"))


# --- kinds of numbers -------------------------------------------------------------------------------------------------


class OutsideReals(ValueError):
    """A root or logarithm of a negative number, met in real evaluation."""


class Floats:
    """Floats, complex floats, and exact integers and fractions.

    real: raise OutsideReals in place of complex results. log_base: of \\log; None: natural.
    """

    precise = False
    largest_angle = 1e12  # argument of a periodic function whose value still has digits
    pi: Any = math.pi
    e: Any = math.e
    i: Any = 1j

    def __init__(self, real: bool = True, log_base: int | None = None) -> None:
        self.real = real
        self.log_base = log_base

    def of(self, value: Any) -> Any:
        """Return a number of this kind; integers stay as they are."""
        return value.numerator if value.denominator == 1 else float(value)

    def is_complex(self, x: Any) -> bool:
        return isinstance(x, complex)

    def leave_reals(self) -> None:
        if self.real:
            raise OutsideReals

    def add(self, *terms: Any) -> Any:
        return sum(terms)

    def divide(self, above: Any, below: Any) -> Any:
        if isinstance(above, int) and isinstance(below, Fraction):
            return Fraction(above) / below
        if isinstance(above, int) and isinstance(below, int) and below and not above % below:
            return above // below
        return above / below

    def power(self, x: Any, y: Any) -> Any:
        exact = isinstance(x, (int, Fraction)) and isinstance(y, int) and (y > 0 or x)
        if not exact or abs(y) * bits(Fraction(x)) > MAX_POWER_BITS:
            return self.inexact_power(x, y)
        return x**y if y >= 0 else self.divide(1, x**-y)

    def inexact_power(self, x: Any, y: Any) -> Any:
        if isinstance(x, complex) or isinstance(y, complex):
            return x**y
        x = float(x)
        if x == 0 and y <= 0:
            raise ZeroDivisionError
        if x < 0 and y != int(y):
            self.leave_reals()
            return x**y
        return math.pow(x, y)

    def function(self, head: str) -> Callable[[Any], Any]:
        """Return a function of FUNCTIONS."""
        name, form, _ = FUNCTIONS[head]
        call = self.library(name)
        if form == "pi/2-f(x)":  # the branch with values in (0, pi)
            return lambda x: self.pi / 2 - call(x)
        if form == "f(1/x)":
            return lambda x: call(self.divide(1, x))
        return (lambda x: self.divide(1, call(x))) if form == "1/f(x)" else call

    def library(self, name: str) -> Callable[[Any], Any]:
        """Return a function of the library; outside its real domain it is the complex one."""
        function, of_complex = getattr(math, name), getattr(cmath, name)

        def call(x: Any) -> Any:
            if name in _PERIODIC and abs(x) > self.largest_angle:
                raise OverflowError
            if not isinstance(x, complex):
                try:
                    return function(x)
                except ValueError:
                    self.leave_reals()
            return of_complex(x)

        return function if self.real and name not in _PERIODIC else call

    def round(self, rule: Callable[[Any], int], x: Any) -> Any:
        """Return the floor or the ceiling of a number."""
        return rule(x)


@functools.lru_cache(maxsize=64)
def _context(digits: int, thread: int) -> Any:
    """Return an mpmath context of `digits` decimal digits, one per thread: functions change it while they run."""
    import mpmath

    context = mpmath.MPContext()
    context.dps = digits
    return context


class Digits(Floats):
    """mpmath's numbers at a fixed number of decimal digits. A sum that loses nearly all of them is zero.

    growth: the product of the large condition numbers of all steps; small ones are covered by ALLOWANCE. smallest: the
    least size of the terms met in sums. vanished: the largest size of terms that cancelled.
    """

    precise = True
    largest_angle = 1e24

    def __init__(self, real: bool = True, log_base: int | None = None, digits: int = 60) -> None:
        super().__init__(real, log_base)
        self.context = _context(digits, threading.get_ident())
        self.pi, self.e, self.i = +self.context.pi, +self.context.e, self.context.mpc(0, 1)
        self.epsilon = self.context.mpf(10) ** (2 - digits)
        self.most = self.context.mpf(10) ** max(digits - 30, 2 * digits // 3)  # a larger condition leaves no digit
        self.growth, self.smallest, self.vanished = self.context.mpf(1), self.context.inf, self.context.mpf(0)

    def error(self, value: Any) -> Any:
        """Return the bound on the error of a value, of which all steps since the last call are part."""
        error = abs(value) * self.growth * (ALLOWANCE * self.epsilon) + self.vanished / self.most
        self.growth, self.vanished = self.context.mpf(1), self.context.mpf(0)
        return error

    def lose(self, value: Any, condition: Any, size: Any) -> Any:
        """Return the value of a step with a condition number, computed from numbers of a size."""
        if condition > self.most:
            if abs(value) > 1 and abs(value) * self.most > size:
                raise Undefined("a pole")
            self.vanished = max(self.vanished, size)
            return 0
        if condition > LARGE_CONDITION:
            self.growth *= condition
        return value

    def of(self, value: Any) -> Any:
        if isinstance(value, (float, self.context.mpf)):
            return self.context.mpf(value)
        return value.numerator if value.denominator == 1 else self.context.mpf(value.numerator) / value.denominator

    def is_complex(self, x: Any) -> bool:
        return isinstance(x, self.context.mpc)

    def add(self, *terms: Any) -> Any:
        total = sum(terms)
        sizes = [abs(term) for term in terms if term]
        if isinstance(total, int) or not sizes:
            return total
        self.smallest = min(self.smallest, *sizes)
        largest = max(sizes)
        return self.lose(total, largest / abs(total) if total else self.context.inf, largest)

    def divide(self, above: Any, below: Any) -> Any:
        if not below:
            raise Undefined("a division by zero")
        if isinstance(above, int) and isinstance(below, int):
            return above // below if not above % below else self.context.mpf(above) / below
        return above / below

    def inexact_power(self, x: Any, y: Any) -> Any:
        if not x:
            if self.is_complex(y) or y <= 0:
                raise Undefined("zero to a power that is not positive")
            return x
        log_size = abs(float(self.context.log(abs(x))))
        if abs(y) * log_size > MAX_LOG:
            raise TooLarge("a power beyond what is evaluated")
        self.lose(1, abs(y) * max(1.0, log_size), 1)
        return self._in_reals(self.context.power(x, y), x, y)

    def function(self, head: str) -> Callable[[Any], Any]:
        plain, slope, exponential = super().function(head), FUNCTIONS[head][2], head in _EXPONENTIAL

        def track(x: Any) -> Any:
            x = self.context.mpf(x) if isinstance(x, int) else x
            size = abs(x)
            if exponential and size > MAX_LOG:
                raise TooLarge("an exponential beyond what is evaluated")
            value = plain(x)
            if exponential and head != "exp" and size > 1:
                self.smallest = min(self.smallest, self.context.exp(-2 * size))
            if not value or not x:
                return value
            try:
                condition = size * slope(x, value) / abs(value)
            except ZeroDivisionError:  # at the ends of arcsin's domain the error grows like a square root
                condition = self.most**0.5
            return self.lose(value, condition, size)

        return track

    def library(self, name: str) -> Callable[[Any], Any]:
        function = getattr(self.context, name)

        def call(x: Any) -> Any:
            if name in _PERIODIC and abs(x) > self.largest_angle:
                raise TooLarge("the sine of a number beyond what is evaluated")
            if name == "log" and not x:
                raise Undefined("a logarithm of zero")
            return self._in_reals(function(x), x)

        return call

    def _in_reals(self, result: Any, *arguments: Any) -> Any:
        if self.is_complex(result) and not any(map(self.is_complex, arguments)):
            self.leave_reals()
        return result

    def round(self, rule: Callable[[Any], int], x: Any) -> Any:
        if isinstance(x, int):
            return x
        if abs(x) > self.most:
            raise TooLarge("the integer part of a number beyond what is evaluated")
        nearest = int(x + (0.5 if x >= 0 else -0.5))
        return rule(x) if abs(x - nearest) * self.most > max(1, abs(x)) else nearest


# --- values -----------------------------------------------------------------------------------------------------------

FEW, LOG_10_E = 100, 0.435  # an exponent of e that hides nothing; digits of e


def evaluate(node: Node, point: Mapping[str, float], numbers: Floats) -> Any:
    """Return the value of a tree at a point.

    Raise Inexact (not a number: a structure, an unknown name), Undefined, OutsideReals, TooLarge, and OverflowError or
    ZeroDivisionError from floats.
    """
    closure = compile_tree(node, {name: place for place, name in enumerate(point)}, numbers)
    return closure(tuple(map(numbers.of, point.values())) if numbers.precise else tuple(point.values()))


def try_evaluate(node: Node, point: Mapping[str, float], numbers: Floats) -> Any:
    """Return what `evaluate` does; None where it raises."""
    try:
        return evaluate(node, point, numbers)
    except FAILURES:
        return None


def extent(tree: Node) -> int:
    """Return the digits before or after the point of the largest power or exponential of numbers; 0 if few."""
    largest = 0.0
    for node in nodes(tree):
        if type(node) is not Op or node.head not in (*_EXPONENTIAL, "pow") or symbols(node):
            continue
        try:
            values = [abs(evaluate(arg, {}, Floats(False))) for arg in node.args]
            size = values[-1] if node.head != "pow" else values[1] * abs(math.log(values[0]))
        except FAILURES:
            continue
        largest = max(largest, float(size))
    return int(largest * LOG_10_E) if largest > FEW else 0


def compile_tree(node: Node, places: Mapping[str, int], numbers: Floats | None = None) -> Closure:
    """Return the value of a tree as a function of a point; `places` gives the place of each variable in it.

    Raise Inexact where the tree is not an expression in numbers.
    """
    numbers = numbers or Floats()
    if isinstance(node, Num):
        value = numbers.of(node.value)
        return lambda p: value
    if isinstance(node, Sym):
        return _symbol(node, places, numbers)
    if not isinstance(node, Op):
        raise Inexact
    if node.head in ("pow", "root"):
        return _compile_power(node, places, numbers)
    arguments = [compile_tree(arg, places, numbers) for arg in node.args]
    if node.head in FUNCTIONS and len(arguments) == 1:
        function, argument = numbers.function(node.head), arguments[0]
        return lambda p: function(argument(p))
    if (builder := _BUILDERS.get(node.head)) is not None:
        return builder(numbers, *arguments)
    if (operation := _OPERATIONS.get(node.head)) is None:
        raise Inexact
    if len(arguments) > 2:
        return lambda p: operation(numbers, *[argument(p) for argument in arguments])
    first, last = arguments[0], arguments[-1]
    if len(arguments) == 1:
        return lambda p: operation(numbers, first(p))
    return lambda p: operation(numbers, first(p), last(p))


def _symbol(node: Sym, places: Mapping[str, int], numbers: Floats) -> Closure:
    if node.name in places:
        place = places[node.name]
        return lambda p: p[place]
    if node == OO:
        raise Undefined("infinity is no number")
    if node == IMAGINARY and numbers.real:
        return lambda p: numbers.leave_reals()
    value = {PI: numbers.pi, E: numbers.e, IMAGINARY: numbers.i}.get(node)
    if value is None:
        raise Inexact
    return lambda p: value


def _compile_power(node: Op, places: Mapping[str, int], numbers: Floats) -> Closure:
    """Roots too. The odd root of a negative number is real, as at school: (-8)^{1/3} = -2."""
    index, radicand = node.args if node.head == "root" else node.args[::-1]
    base, exponent = compile_tree(radicand, places, numbers), rational(index)
    if node.head == "root":
        if exponent is None or exponent.denominator != 1 or not 2 <= exponent <= MAX_INDEX:
            raise Inexact
        exponent = 1 / exponent
    if exponent is None:
        power = compile_tree(index, places, numbers)
        return lambda p: numbers.power(base(p), power(p))
    if exponent.denominator == 1:
        whole = exponent.numerator
        return lambda p: numbers.power(base(p), whole)
    part, odd = numbers.of(exponent), exponent.denominator % 2
    sign = -1 if exponent.numerator % 2 else 1
    half = exponent == Fraction(1, 2)

    def fractional(p: Point) -> Any:
        x = base(p)
        if half and isinstance(x, int) and x >= 0 and (root := math.isqrt(x)) ** 2 == x:
            return root
        if odd and not numbers.is_complex(x) and x < 0:
            return sign * numbers.power(-x, part)
        return numbers.power(x, part)

    return fractional


def _of_reals(operation: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of numbers in their order: complex ones have none."""

    def of_reals(numbers: Floats, *values: Any) -> Any:
        if any(numbers.is_complex(value) and value.imag for value in values):
            raise Undefined("an order of complex numbers")
        return operation(numbers, *(value.real if numbers.is_complex(value) else value for value in values))

    return of_reals


def _to_integer(x: Any) -> int:
    if x != int(x):
        raise Undefined("no integer")
    return int(x)


def _natural(x: Any) -> int:
    n = _to_integer(x)
    if n > MAX_FACTORIAL:
        raise OverflowError
    if n < 0:
        raise Undefined("a factorial of a negative number")
    return n


def _binomial(top: Any, bottom: Any) -> int:
    n, k = _to_integer(top), _to_integer(bottom)
    if n > 10 * MAX_FACTORIAL:
        raise OverflowError
    if n < 0 or k < 0:
        raise Undefined("a binomial of a negative number")
    return math.comb(n, k)


def _add(numbers: Floats, *terms: Closure) -> Closure:
    if len(terms) == 2 and type(numbers) is Floats:
        left, right = terms
        return lambda p: left(p) + right(p)
    return lambda p: numbers.add(*[term(p) for term in terms])


def _mul(numbers: Floats, *factors: Closure) -> Closure:
    if len(factors) == 2:
        left, right = factors
        return lambda p: left(p) * right(p)
    return lambda p: math.prod([factor(p) for factor in factors])


def _log(numbers: Floats, argument: Closure) -> Closure:
    log, base = numbers.function("ln"), numbers.log_base
    return lambda p: log(argument(p)) if base is None else numbers.divide(log(argument(p)), log(base))


def _log_to_base(numbers: Floats, base: Closure, argument: Closure) -> Closure:
    log = numbers.function("ln")
    return lambda p: numbers.divide(log(argument(p)), log(base(p)))


def _call(numbers: Floats, function: Closure, argument: Closure) -> Closure:
    """A function without a formula by its model, arctan(x + f) + f x / (1 + x^2)."""
    arctan = numbers.function("arctan")

    def model(p: Point) -> Any:
        f, x = function(p), argument(p)
        return numbers.add(arctan(numbers.add(x, f)), numbers.divide(f * x, 1 + x * x))

    return model


def _argument(numbers: Floats, x: Any) -> Any:
    if not x:
        raise Undefined("the argument of zero")
    return numbers.context.arg(x) if isinstance(numbers, Digits) else cmath.phase(x)


def _sign(numbers: Floats, x: Any) -> Any:
    if not x:
        raise Undefined("the sign of zero")
    return (x > 0) - (x < 0) if not numbers.is_complex(x) else numbers.divide(x, abs(x))


_BUILDERS: dict[str, Callable[..., Closure]] = {
    "add": _add,
    "mul": _mul,
    "log": _log,
    "logb": _log_to_base,
    "apply": _call,
}
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "neg": lambda numbers, x: -x,
    "div": lambda numbers, x, y: numbers.divide(x, y),
    "percent": lambda numbers, x: numbers.divide(x, 100),
    "deg": lambda numbers, x: x * numbers.pi / 180,
    "abs": lambda numbers, x: abs(x),
    "sgn": _sign,
    "arg": _argument,
    "re": lambda numbers, x: x.real,
    "im": lambda numbers, x: x.imag,
}
_OF_REALS: dict[str, Callable[..., Any]] = {
    "floor": lambda numbers, x: numbers.round(math.floor, x),
    "ceil": lambda numbers, x: numbers.round(math.ceil, x),
    "min": lambda numbers, *values: min(values),
    "max": lambda numbers, *values: max(values),
    "fact": lambda numbers, x: math.factorial(_natural(x)),
    "multifact": lambda numbers, x, step: multifactorial(_natural(x), step),
    "subfact": lambda numbers, x: subfactorial(_natural(x)),
    "binom": lambda numbers, top, bottom: _binomial(top, bottom),
    "gcd": lambda numbers, *values: math.gcd(*map(_to_integer, values)),
    "lcm": lambda numbers, *values: math.lcm(*map(_to_integer, values)),
}
_OPERATIONS |= {name: _of_reals(operation) for name, operation in _OF_REALS.items()}


# --- written decimals -------------------------------------------------------------------------------------------------


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
    if not isinstance(mantissa, Num) or not mantissa.places or not is_op(power, "pow"):
        return None
    exponent = rational(power.args[1])
    if power.args[0] != number(10) or exponent is None or exponent.denominator != 1 or abs(exponent) > 400:
        return None
    places = max(0, mantissa.places - exponent.numerator)
    return Num(mantissa.value * Fraction(10) ** exponent.numerator, places, mantissa.digits)


def is_integer(node: Num | None) -> bool:
    return node is not None and node.value.denominator == 1


def rounds_to(node: Node, target: Num, cut: bool = False) -> bool:
    """Whether a constant equals `target` when rounded (or cut) at the last place of `target`."""
    numbers = Digits(False, None, 60 + target.digits)
    value = evaluate(node, {}, numbers)
    if numbers.is_complex(value):
        return False
    error, wanted, unit = numbers.error(value), numbers.of(target.value), Fraction(10) ** -(target.places or 0)
    distance, unit = abs(value - wanted), numbers.of(unit)
    if cut and abs(value) > abs(wanted):
        return bool(distance + error < unit)
    return bool(distance - error <= unit / 2)


def approximates(left: Node, right: Node) -> bool:
    """Whether `right` is a literal, or one in percent, that `left` equals when rounded or cut at its last place."""
    if isinstance(right, Quantity) and right.unit == UNITS["%"]:
        left, right = Op("mul", (left, number(100))), right.value
    written = literal(right)
    if written is None or symbols(left):
        return written is not None
    try:
        return rounds_to(left, written, cut=True)
    except FAILURES:
        return False
