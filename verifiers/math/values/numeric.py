"""Trees as numbers.

`evaluate` gives a value with a bound on its absolute error (first-order, Wilkinson's running analysis), in floats or
with mpmath at any number of digits. So "different" is said only where a difference exceeds the errors, and "equal"
only where it stays below them at 200 digits. `compile_tree` gives closures without error bounds, which look for a
point of difference fast; integers stay exact there. `literal`, `rounds_to`, `approximates`: written decimals.
"""

from __future__ import annotations

import cmath
import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from .exact import Inexact, Undefined, exact, multifactorial, rational, subfactorial
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
    substitute,
    symbols,
)
from .units import UNITS

MAX_LOG = 1e6  # |log| of the largest intermediate value

Value = tuple[Any, Any]  # a number and the bound of its absolute error


class OutsideReals(ValueError):
    """A root or logarithm of a negative number, met in real evaluation."""


class Numbers:
    """Floats and complex floats. `real`: raise OutsideReals in place of complex results."""

    epsilon: Any = 2.0**-51
    lib: Any = math
    complex_lib: Any = cmath
    pi: Any = math.pi
    e: Any = math.e
    i: Any = 1j
    precise = False

    def __init__(self, real: bool, log_base: int | None = None) -> None:
        self.real = real
        self.log_base = log_base  # base of \\log; None: natural

    def of(self, value: Any) -> Any:
        return float(value)

    def note_term(self, value: Any, error: Any) -> None:
        """Take note of a term of a sum."""

    def call(self, name: str, x: Any) -> Any:
        """Apply a function of the library; outside its real domain, the complex one."""
        if not isinstance(x, complex):
            try:
                return getattr(self.lib, name)(x)
            except ValueError:
                self.leave_reals()
        return getattr(self.complex_lib, name)(x)

    def leave_reals(self) -> None:
        if self.real:
            raise OutsideReals

    def power(self, x: Any, y: Any) -> Any:
        if not isinstance(x, complex) and x < 0 and not isinstance(y, complex) and y != int(y):
            self.leave_reals()
        return x**y

    def argument(self, x: Any) -> Any:
        return cmath.phase(x)

    def is_complex(self, x: Any) -> bool:
        return isinstance(x, complex)


@functools.lru_cache(maxsize=64)
def _context(digits: int, thread: int) -> Any:
    """Return an mpmath context of `digits` decimal digits, one per thread: functions change it while they run."""
    import mpmath

    context = mpmath.MPContext()
    context.dps = digits
    return context


class Digits(Numbers):
    """mpmath's numbers at a fixed number of decimal digits. `smallest`: the least size of the terms met in sums."""

    precise = True

    def __init__(self, real: bool, log_base: int | None = None, digits: int = 60) -> None:
        super().__init__(real, log_base)
        self.context = _context(digits, threading.get_ident())
        self.smallest = self.context.inf
        self.epsilon = self.context.mpf(10) ** (2 - digits)
        self.pi, self.e, self.i = +self.context.pi, +self.context.e, self.context.mpc(0, 1)

    def note_term(self, value: Any, error: Any) -> None:
        size = abs(value)
        if size > error and size < self.smallest:
            self.smallest = size

    def of(self, value: Any) -> Any:
        if isinstance(value, (float, self.context.mpf)):
            return self.context.mpf(value)
        return self.context.mpf(value.numerator) / value.denominator

    def call(self, name: str, x: Any) -> Any:
        result = getattr(self.context, name)(x)
        if self.is_complex(result) and not self.is_complex(x):
            self.leave_reals()
        return result

    def power(self, x: Any, y: Any) -> Any:
        result = self.context.power(x, y)
        if self.is_complex(result) and not self.is_complex(x) and not self.is_complex(y):
            self.leave_reals()
        return result

    def argument(self, x: Any) -> Any:
        return self.context.arg(x)

    def is_complex(self, x: Any) -> bool:
        return isinstance(x, self.context.mpc)


# --- functions of one variable ----------------------------------------------------------------------------------------

MAX_ANGLE = 1e24  # largest argument of a periodic function

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
    "sgn": ("sgn", "f(x)", lambda x, f: 0),
}
_EXPONENTIAL = frozenset(("exp", "sinh", "cosh", "tanh", "coth", "sech", "csch"))
_PERIODIC = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))


def apply(head: str, argument: Value, numbers: Numbers) -> Value:
    """Return the value of the function `head` (of FUNCTIONS) and the bound of its error. Raise as `evaluate` does."""
    name, form, slope = FUNCTIONS[head]
    x, error = argument
    if head in _PERIODIC and abs(x) > MAX_ANGLE:
        raise TooLarge("the sine of a number beyond what is evaluated")
    if head in ("ln", "sgn") and abs(x) <= 2 * error:
        raise Undefined("a logarithm of zero")
    if head in _EXPONENTIAL and abs(x) > MAX_LOG:
        raise TooLarge("an exponential beyond what is evaluated")
    if head == "sgn":
        value = numbers.of(0.0) if x == 0 else x / abs(x)
    elif form == "pi/2-f(x)" and not numbers.is_complex(x):  # the branch with values in (0, pi)
        value = numbers.pi / 2 - numbers.call(name, x)
    else:
        value = numbers.call(name, x if form in ("f(x)", "1/f(x)") else 1 / x)
        if head == "exp" and not value:
            raise OverflowError  # a float too small to be one
        value = 1 / value if form == "1/f(x)" else value
    if numbers.precise and head in _EXPONENTIAL and head != "exp" and abs(x) > 1:
        numbers.note_term(numbers.call("exp", -2 * abs(x)), 0)
    try:
        grown = 2 * slope(x, value) * error
    except ZeroDivisionError:  # at the ends of arcsin's domain the error grows like a square root
        grown = 4 * abs(error) ** 0.5
    return value, grown + 4 * numbers.epsilon * abs(value) + 0 * error


# --- values with their errors -----------------------------------------------------------------------------------------

_TINY = 1e-300  # floats below have fewer digits
FEW, LOG_10_E = 100, 0.435  # an exponent of e that hides nothing; digits of e
FAILURES = (ValueError, OverflowError, ZeroDivisionError)  # what `evaluate` raises


def evaluate(node: Node, point: Mapping[str, float], numbers: Numbers) -> Value:
    """Return the value of a tree at a point, and the bound of its error.

    Raise Inexact (not a number: a structure, an unknown name), Undefined, OutsideReals, TooLarge, and OverflowError or
    ZeroDivisionError from floats.
    """
    if isinstance(node, Num):
        value = numbers.of(node.value)
        return value, abs(value) * numbers.epsilon
    if isinstance(node, Sym):
        return _value_of_symbol(node, point, numbers)
    if not isinstance(node, Op):
        raise Inexact
    if node.head in _OF_INTEGERS:
        whole = {name: Num(Fraction(value)) for name, value in point.items()}
        value = numbers.of(exact(Op(node.head, tuple(substitute(arg, whole) for arg in node.args))))
        return value, abs(value) * numbers.epsilon
    if node.head in ("pow", "root"):
        return (_pow if node.head == "pow" else _root)(node.args, point, numbers)
    handler = _OPERATIONS.get(node.head)
    if handler is None and (node.head not in FUNCTIONS or len(node.args) != 1):
        raise Inexact
    values = [evaluate(arg, point, numbers) for arg in node.args]
    return apply(node.head, values[0], numbers) if handler is None else handler(numbers, *values)


def try_evaluate(node: Node, point: Mapping[str, float], numbers: Numbers) -> Value | None:
    """Return what `evaluate` does; None where it raises."""
    try:
        return evaluate(node, point, numbers)
    except FAILURES:
        return None


def _value_of_symbol(node: Sym, point: Mapping[str, float], numbers: Numbers) -> Value:
    if node.name in point:
        return numbers.of(point[node.name]), 0 * numbers.epsilon
    constant = {PI: numbers.pi, E: numbers.e, IMAGINARY: numbers.i}.get(node)
    if node == IMAGINARY:
        return numbers.i, 0 * numbers.epsilon
    if constant is None:
        raise Undefined("infinity is no number") if node == OO else Inexact
    return constant, constant * numbers.epsilon


def _sum(numbers: Numbers, *terms: Value) -> Value:
    total, error = terms[0]
    for value, extra in terms[1:]:
        total = total + value
        error = error + extra + abs(total) * numbers.epsilon
    if numbers.precise:
        for term in terms:
            numbers.note_term(*term)
    return total, error


def _times(numbers: Numbers, left: Value, right: Value) -> Value:
    value = left[0] * right[0]
    if left[0] and right[0]:
        _check_underflow(value, numbers)
    error = abs(left[0]) * right[1] + abs(right[0]) * left[1] + left[1] * right[1] + abs(value) * numbers.epsilon
    return value, error


def _check_underflow(value: Any, numbers: Numbers) -> Any:
    """Return a value that is not 0 mathematically. Raise OverflowError where floats have lost its digits."""
    if not numbers.precise and abs(value) < _TINY:
        raise OverflowError
    return value


def _inverse(numbers: Numbers, value: Value) -> Value:
    x, error = value
    size = abs(x)
    if size <= 4 * error:
        raise Undefined("a division by zero") if numbers.precise else ZeroDivisionError
    inverse = 1 / x
    return inverse, error / (size * (size - error)) + abs(inverse) * numbers.epsilon


def _over(numbers: Numbers, top: Value, bottom: Value) -> Value:
    return _times(numbers, top, _inverse(numbers, bottom))


def _pow(args: tuple[Node, ...], point: Mapping[str, float], numbers: Numbers) -> Value:
    base = evaluate(args[0], point, numbers)
    try:
        exponent = exact(args[1])
    except Inexact:
        return _general_power(base, evaluate(args[1], point, numbers), numbers)
    if exponent.denominator == 1:
        return _integer_power(base, exponent.numerator, numbers)
    if exponent.denominator % 2 and not numbers.is_complex(base[0]) and base[0] < 0 and exponent.denominator < 100:
        # The real odd root of a negative number, as at school: (-8)^{1/3} = -2.
        value, error = _general_power((-base[0], base[1]), (numbers.of(exponent), 0 * numbers.epsilon), numbers)
        return (-value if exponent.numerator % 2 else value), error
    return _general_power(base, (numbers.of(exponent), 0 * numbers.epsilon), numbers)


def _integer_power(base: Value, n: int, numbers: Numbers) -> Value:
    x, error = base
    size = abs(x)
    if n == 0:
        return numbers.of(1.0), 0 * numbers.epsilon
    if n < 0:
        return _inverse(numbers, _integer_power(base, -n, numbers))
    if n > 1 and size and n * abs(_log_size(size)) > MAX_LOG:
        raise TooLarge("a power beyond what is evaluated")
    value = _check_underflow(x**n, numbers) if size else x**n
    relative = n * (error / size + numbers.epsilon) if size else 0
    if relative > 0.1:
        raise Undefined("a power without a significant digit")
    return value, abs(value) * relative * 2 if size else error**n


def _log_size(size: Any) -> float:
    return math.log(size) if isinstance(size, float) else float(size.context.log(size))


def _general_power(base: Value, exponent: Value, numbers: Numbers) -> Value:
    (x, dx), (y, dy) = base, exponent
    size = abs(x)
    if size <= 2 * dx:
        if x == 0 and not numbers.is_complex(y) and y > 0:
            return x, dx
        raise Undefined("zero to a power that is not an integer")
    log_size = _log_size(size)
    if abs(y) * (abs(log_size) + 4) > MAX_LOG:
        raise TooLarge("a power beyond what is evaluated")
    value = _check_underflow(numbers.power(x, y), numbers)
    relative = abs(y) * dx / size + (abs(log_size) + 4) * (dy + abs(y) * numbers.epsilon) + numbers.epsilon
    if relative > 0.1:
        raise Undefined("a power without a significant digit")
    return value, abs(value) * relative * 2


def _root(args: tuple[Node, ...], point: Mapping[str, float], numbers: Numbers) -> Value:
    index = exact(args[0])
    x, error = evaluate(args[1], point, numbers)
    if index.denominator != 1 or not 2 <= index <= 10_000:
        raise Inexact
    if abs(x) <= error:
        # The radicand may be 0: the root is at most the root of its error.
        return 0 * x, error ** numbers.of(1 / index if numbers.precise else float(1 / index))
    if not numbers.is_complex(x) and x < 0 and index.numerator % 2:
        value, error = _root_of(-x, error, index.numerator, numbers)
        return -value, error
    return _root_of(x, error, index.numerator, numbers)


def _root_of(x: Any, error: Any, index: int, numbers: Numbers) -> Value:
    value = numbers.call("sqrt", x) if index == 2 else numbers.power(x, numbers.of(1.0) / index)
    size = abs(x)
    return value, abs(value) * (error / (size if size > 2 * error else error) + (index + 2) * numbers.epsilon)


def _part_of_complex(name: str) -> Callable[[Numbers, Value], Value]:
    """Make the argument, the real or the imaginary part of a complex number."""

    def part(numbers: Numbers, argument: Value) -> Value:
        value, error = argument
        if name != "arg":
            found = getattr(value, "real" if name == "re" else "imag")
            return found, error + abs(found) * numbers.epsilon
        size = abs(value)
        if size <= 2 * error:
            raise Undefined("the argument of zero")
        angle = numbers.argument(value)
        return angle, 2 * error / size + abs(angle) * numbers.epsilon

    return part


def _log(numbers: Numbers, argument: Value) -> Value:
    natural = apply("ln", argument, numbers)
    if numbers.log_base is None:
        return natural
    return _over(numbers, natural, (numbers.call("log", numbers.of(float(numbers.log_base))), numbers.epsilon))


def _call(numbers: Numbers, function: Value, x: Value) -> Value:
    """Evaluate a function without a formula by its model, arctan(x + f) + f x / (1 + x^2)."""
    square = _times(numbers, x, x)
    share = _over(numbers, _times(numbers, function, x), (1 + square[0], square[1] + numbers.epsilon))
    angle = apply("arctan", (x[0] + function[0], x[1] + function[1] + abs(x[0]) * numbers.epsilon), numbers)
    return angle[0] + share[0], angle[1] + share[1] + abs(angle[0]) * numbers.epsilon


def _round_by(rule: Callable[[Any], int]) -> Callable[[Numbers, Value], Value]:
    """Make floor or ceil. A value that may be an integer is one at many digits; floats do not tell."""

    def round_value(numbers: Numbers, argument: Value) -> Value:
        value, error = argument
        if numbers.is_complex(value):
            raise Inexact
        if numbers.precise and abs(value) * numbers.epsilon**0.5 > 1:
            raise TooLarge("the integer part of a number beyond what is evaluated")
        nearest = int(value + (0.5 if value >= 0 else -0.5))
        if abs(value - nearest) > 4 * error:
            nearest = rule(value)
        elif not numbers.precise:
            raise OverflowError
        return numbers.of(float(nearest)), 0 * numbers.epsilon

    return round_value


def _extreme(choose: Callable[[Sequence[Value]], Value]) -> Callable[..., Value]:
    def extreme(numbers: Numbers, *values: Value) -> Value:
        if any(numbers.is_complex(value) for value, _ in values):
            raise Inexact
        return choose(values)[0], max(error for _, error in values)

    return extreme


_OF_INTEGERS = frozenset(("fact", "multifact", "subfact", "binom", "gcd", "lcm"))  # evaluated exactly
_OPERATIONS: dict[str, Callable[..., Value]] = {
    "add": _sum,
    "mul": lambda numbers, *factors: functools.reduce(functools.partial(_times, numbers), factors),
    "div": _over,
    "neg": lambda numbers, x: (-x[0], x[1]),
    "percent": lambda numbers, x: (x[0] / 100, x[1] / 100 + abs(x[0]) * numbers.epsilon),
    "deg": lambda numbers, x: _times(numbers, x, (numbers.pi / 180, numbers.epsilon)),
    "abs": lambda numbers, x: (abs(x[0]), x[1] + abs(x[0]) * numbers.epsilon),
    "log": _log,
    "logb": lambda numbers, base, x: _over(numbers, apply("ln", x, numbers), apply("ln", base, numbers)),
    "apply": _call,
    **{head: _part_of_complex(head) for head in ("arg", "re", "im")},
    "floor": _round_by(math.floor),
    "ceil": _round_by(math.ceil),
    "min": _extreme(min),
    "max": _extreme(max),
}


def extent(tree: Node) -> int:
    """Return the digits before or after the point of the largest power or exponential of numbers; 0 if few."""
    largest = 0.0
    for node in nodes(tree):
        if type(node) is not Op or node.head not in (*_EXPONENTIAL, "pow") or symbols(node):
            continue
        try:
            values = [abs(evaluate(arg, {}, Numbers(False))[0]) for arg in node.args]
            size = values[-1] if node.head != "pow" else values[1] * abs(math.log(values[0]))
        except FAILURES:
            continue
        largest = max(largest, float(size))
    return int(largest * LOG_10_E) if largest > FEW else 0


# --- closures without errors ------------------------------------------------------------------------------------------

Point = Sequence[float | Fraction]
Closure = Callable[[Point], Any]  # raises ValueError, ZeroDivisionError, OverflowError or TypeError where undefined

MAX_ARGUMENT = 1_000  # of a factorial
MAX_POWER_BITS = 20_000
_LARGEST = 1e12  # argument of a periodic function whose value still has digits


def compile_tree(node: Node, places: Mapping[str, int], log_base: int | None = None) -> Closure:
    """Return the value of a tree as a function of a point; `places` gives the place of each variable in it.

    Raise Inexact where the tree is not an expression in real numbers.
    """
    if isinstance(node, Num):
        value = node.value.numerator if node.value.denominator == 1 else _float(node.value)
        return lambda p: value
    if isinstance(node, Sym):
        return _symbol(node, places)
    if not isinstance(node, Op):
        raise Inexact
    if node.head == "pow":
        return _compile_power(node, places, log_base)
    functions = [compile_tree(arg, places, log_base) for arg in node.args]
    if node.head == "root":
        return _compile_root(node, functions[1])
    if node.head == "log":
        return _unary((lambda x: math.log(x) / math.log(10)) if log_base == 10 else math.log, functions[0])
    builder = _BUILDERS.get(node.head)
    if builder is not None:
        return builder(*functions)
    if node.head not in UNARY or len(functions) != 1:
        raise Inexact
    return _unary(UNARY[node.head], functions[0])


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Inexact from None


def _symbol(node: Sym, places: Mapping[str, int]) -> Closure:
    place = places.get(node.name)
    if place is not None:
        at = place
        return lambda p: p[at]
    if node == OO:
        raise Undefined("infinity is no number")
    value = {PI: math.pi, E: math.e}.get(node)
    if value is None or node == IMAGINARY:
        raise Inexact
    return lambda p: value


def _unary(function: Callable[[Any], Any], argument: Closure) -> Closure:
    return lambda p: function(argument(p))


def _add(*functions: Closure) -> Closure:
    if len(functions) == 2:
        left, right = functions
        return lambda p: left(p) + right(p)
    return lambda p: sum(function(p) for function in functions)


def _mul(*functions: Closure) -> Closure:
    if len(functions) == 2:
        left, right = functions
        return lambda p: left(p) * right(p)
    return lambda p: math.prod(function(p) for function in functions)


def _quotient(above: Any, below: Any) -> Any:
    if isinstance(above, int) and isinstance(below, Fraction):
        return Fraction(above) / below
    if isinstance(above, int) and isinstance(below, int) and below and not above % below:
        return above // below
    return above / below


def _compile_power(node: Op, places: Mapping[str, int], log_base: int | None) -> Closure:
    base, exponent = compile_tree(node.args[0], places, log_base), rational(node.args[1])
    if exponent is None:
        power = compile_tree(node.args[1], places, log_base)
        return lambda p: _raise_power(base(p), power(p))
    if exponent.denominator == 1:
        whole = exponent.numerator
        return lambda p: _raise_power(base(p), whole)
    part, odd = float(exponent), exponent.denominator % 2 == 1 and exponent.denominator < 100
    negative = exponent.numerator % 2 == 1

    def fractional(p: Point) -> Any:
        x = base(p)
        if odd and x < 0:
            return -_raise_power(-x, part) if negative else _raise_power(-x, part)
        return _raise_power(x, part)

    return fractional


def _raise_power(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int):
        if abs(y) * x.bit_length() > MAX_POWER_BITS:
            raise OverflowError
        if y < 0:
            return 1 / x**-y
        if x == 0 == y:
            raise ValueError("zero to the power zero")
        return x**y
    if isinstance(x, Fraction) and isinstance(y, int) and x and abs(y) <= 30:
        return x**y
    x = float(x)
    if x == 0 and y <= 0:
        raise ZeroDivisionError
    return math.pow(x, y)


def _compile_root(node: Op, argument: Closure) -> Closure:
    index = rational(node.args[0])
    if index is None or index.denominator != 1 or not 2 <= index <= 10_000:
        raise Inexact
    if index == 2:
        return _unary(_sqrt, argument)
    degree, odd = 1 / index.numerator, index.numerator % 2 == 1

    def root(p: Point) -> Any:
        x = argument(p)
        return -math.pow(-x, degree) if odd and x < 0 else math.pow(x, degree)

    return root


def _sqrt(x: Any) -> Any:
    if isinstance(x, int) and x >= 0:
        root = math.isqrt(x)
        if root * root == x:
            return root
    return math.sqrt(x)


def _periodic(function: Callable[[float], float]) -> Callable[[Any], float]:
    def value(x: Any) -> float:
        if abs(x) > _LARGEST:
            raise OverflowError
        return function(x)

    return value


def _plain_function(name: str, form: str) -> Callable[[Any], Any]:
    """A function of FUNCTIONS for floats."""
    function = getattr(math, name)
    if name in ("sin", "cos", "tan"):
        function = _periodic(function)
    if form == "pi/2-f(x)":
        return lambda x: math.pi / 2 - function(x)
    if form == "f(1/x)":
        return lambda x: function(1 / x)
    return (lambda x: 1 / function(x)) if form == "1/f(x)" else function


def _sgn(x: Any) -> int:
    if x == 0:
        raise ValueError("the sign of zero")
    return 1 if x > 0 else -1


def _to_integer(x: Any) -> int:
    if x != int(x):
        raise ValueError("no integer")
    return int(x)


def _natural(x: Any) -> int:
    n = _to_integer(x)
    if n > MAX_ARGUMENT:
        raise OverflowError
    if n < 0:
        raise ValueError("a factorial of a negative number")
    return n


def _binomial(top: Any, bottom: Any) -> int:
    n, k = _to_integer(top), _to_integer(bottom)
    if n > 10 * MAX_ARGUMENT:
        raise OverflowError
    if n < 0 or k < 0:
        raise ValueError("a binomial of a negative number")
    return math.comb(n, k)


def _of_values(function: Callable[..., Any]) -> Callable[..., Closure]:
    return lambda *functions: lambda p: function(*(argument(p) for argument in functions))


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "percent": lambda x: x / 100,
    "deg": math.radians,
    "fact": lambda x: math.factorial(_natural(x)),
    "subfact": lambda x: subfactorial(_natural(x)),
    "sgn": _sgn,
    **{head: _plain_function(name, form) for head, (name, form, _) in FUNCTIONS.items() if head != "sgn"},
}
_BUILDERS: dict[str, Callable[..., Closure]] = {
    "add": _add,
    "mul": _mul,
    "div": _of_values(_quotient),
    "logb": _of_values(lambda base, x: math.log(x) / math.log(base)),
    "apply": _of_values(lambda f, x: math.atan(x + f) + f * x / (1 + x * x)),
    "multifact": _of_values(lambda x, step: multifactorial(_natural(x), step)),
    "binom": _of_values(_binomial),
    "gcd": _of_values(lambda *args: math.gcd(*map(_to_integer, args))),
    "lcm": _of_values(lambda *args: math.lcm(*map(_to_integer, args))),
    "min": _of_values(min),
    "max": _of_values(max),
}


# --- written decimals -------------------------------------------------------------------------------------------------

FEW_DIGITS = 13  # of a decimal for which floats usually tell


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
    """Answer for `rounds_to` in floats; None where they cannot decide."""
    numbers = Numbers(False)
    try:
        value, error = evaluate(node, {}, numbers)
        wanted, unit = float(target.value), 10.0 ** -(target.places or 0)
    except FAILURES:
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
    except FAILURES:
        return False
