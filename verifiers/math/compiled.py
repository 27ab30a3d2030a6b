"""Expressions as closures over plain numbers: fast values without error bounds, to look for a point of difference.

Integers stay exact, so that factorials and binomials of a hundred are compared digit by digit. What differs here is
confirmed by rlvr.verifiers.math.numeric before anything is called different.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.exact import Inexact, Undefined, multifactorial, rational, subfactorial
from rlvr.verifiers.math.tree import IMAGINARY, OO, PI, E, Node, Num, Op, Sym

Point = Sequence[float | Fraction]
Closure = Callable[[Point], Any]  # raises ValueError, ZeroDivisionError, OverflowError or TypeError where undefined

MAX_ARGUMENT = 1_000  # of a factorial
MAX_POWER_BITS = 20_000
_LARGEST = 1e12  # argument of a periodic function whose value still has digits


def compiled(node: Node, places: Mapping[str, int], log_base: int | None = None) -> Closure:
    """Return the value of a tree as a function of a point; `places` gives the place of each variable in it.

    Raise Inexact where the tree is not an expression in real numbers.
    """
    if isinstance(node, Num):
        return _constant(node.value.numerator if node.value.denominator == 1 else _float(node.value))
    if isinstance(node, Sym):
        return _symbol(node, places)
    if not isinstance(node, Op):
        raise Inexact
    if node.head == "pow":
        return _power(node, places, log_base)
    functions = [compiled(arg, places, log_base) for arg in node.args]
    if node.head == "root":
        return _root(node, functions[1])
    if node.head == "log":
        return _unary(_log10 if log_base == 10 else math.log, functions[0])
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


def _constant(value: Any) -> Closure:
    return lambda p: value


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
    return _constant(value)


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


def _div(top: Closure, bottom: Closure) -> Closure:
    return lambda p: _quotient(top(p), bottom(p))


def _quotient(above: Any, below: Any) -> Any:
    if isinstance(above, int) and isinstance(below, Fraction):
        return Fraction(above) / below
    if isinstance(above, int) and isinstance(below, int) and below and not above % below:
        return above // below
    return above / below


def _logb(base: Closure, argument: Closure) -> Closure:
    return lambda p: math.log(argument(p)) / math.log(base(p))


def _power(node: Op, places: Mapping[str, int], log_base: int | None) -> Closure:
    base, exponent = compiled(node.args[0], places, log_base), rational(node.args[1])
    if exponent is None:
        power = compiled(node.args[1], places, log_base)
        return lambda p: _raised(base(p), power(p))
    if exponent.denominator == 1:
        whole = exponent.numerator
        return lambda p: _raised(base(p), whole)
    part, odd = float(exponent), exponent.denominator % 2 == 1 and exponent.denominator < 100
    negative = exponent.numerator % 2 == 1

    def fractional(p: Point) -> Any:
        x = base(p)
        if odd and x < 0:
            return -_raised(-x, part) if negative else _raised(-x, part)
        return _raised(x, part)

    return fractional


def _raised(x: Any, y: Any) -> Any:
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


def _root(node: Op, argument: Closure) -> Closure:
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


def _log10(x: Any) -> float:
    return math.log(x) / math.log(10)


def _periodic(function: Callable[[float], float]) -> Callable[[Any], float]:
    def value(x: Any) -> float:
        if abs(x) > _LARGEST:
            raise OverflowError
        return function(x)

    return value


def _reciprocal(function: Callable[[float], float]) -> Callable[[Any], float]:
    return lambda x: 1 / function(x)


def _of_reciprocal(function: Callable[[float], float]) -> Callable[[Any], float]:
    return lambda x: function(1 / x)


def _sgn(x: Any) -> int:
    if x == 0:
        raise ValueError("the sign of zero")
    return 1 if x > 0 else -1


def _whole(x: Any) -> int:
    if x != int(x):
        raise ValueError("no integer")
    return int(x)


def _natural(x: Any) -> int:
    n = _whole(x)
    if n > MAX_ARGUMENT:
        raise OverflowError
    if n < 0:
        raise ValueError("a factorial of a negative number")
    return n


def _binomial(top: Any, bottom: Any) -> int:
    n, k = _whole(top), _whole(bottom)
    if n > 10 * MAX_ARGUMENT:
        raise OverflowError
    if n < 0 or k < 0:
        raise ValueError("a binomial of a negative number")
    return math.comb(n, k)


def _of_values(function: Callable[..., Any]) -> Callable[..., Closure]:
    return lambda *functions: lambda p: function(*(argument(p) for argument in functions))


_sin, _cos, _tan = _periodic(math.sin), _periodic(math.cos), _periodic(math.tan)
UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": lambda x: -x,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "percent": lambda x: x / 100,
    "deg": math.radians,
    "fact": lambda x: math.factorial(_natural(x)),
    "subfact": lambda x: subfactorial(_natural(x)),
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "cot": _reciprocal(_tan),
    "sec": _reciprocal(_cos),
    "csc": _reciprocal(_sin),
    "sinh": math.sinh,
    "cosh": math.cosh,
    "tanh": math.tanh,
    "coth": _reciprocal(math.tanh),
    "sech": _reciprocal(math.cosh),
    "csch": _reciprocal(math.sinh),
    "arcsin": math.asin,
    "arccos": math.acos,
    "arctan": math.atan,
    "arccot": lambda x: math.pi / 2 - math.atan(x),
    "arcsec": _of_reciprocal(math.acos),
    "arccsc": _of_reciprocal(math.asin),
    "arcsinh": math.asinh,
    "arccosh": math.acosh,
    "arctanh": math.atanh,
    "ln": math.log,
    "exp": math.exp,
    "sgn": _sgn,
}
_BUILDERS: dict[str, Callable[..., Closure]] = {
    "add": _add,
    "mul": _mul,
    "div": _div,
    "logb": _logb,
    "apply": _of_values(lambda f, x: math.atan(x + f) + f * x / (1 + x * x)),
    "multifact": _of_values(lambda x, step: multifactorial(_natural(x), step)),
    "binom": _of_values(_binomial),
    "gcd": _of_values(lambda *args: math.gcd(*map(_whole, args))),
    "lcm": _of_values(lambda *args: math.lcm(*map(_whole, args))),
    "min": _of_values(min),
    "max": _of_values(max),
}
