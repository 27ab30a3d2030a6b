"""Functions of one variable for numeric evaluation, each with a bound on how it magnifies an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlvr.verifiers.math.exact import Undefined
from rlvr.verifiers.math.systems import MAX_LOG, Numbers, Value
from rlvr.verifiers.math.tree import TooLarge

MAX_ANGLE = 1e24  # largest argument of a periodic function

# (f, a bound on |f'|, by which an error grows); the arguments are the number system, x, and f(x).
_Pair = tuple[Callable[[Numbers, Any], Any], Callable[[Numbers, Any, Any], Any]]


def _library(name: str) -> Callable[[Numbers, Any], Any]:
    return lambda numbers, x: numbers.call(name, x)


def _reciprocal(name: str) -> Callable[[Numbers, Any], Any]:
    return lambda numbers, x: 1 / numbers.call(name, x)


def _of_reciprocal(name: str) -> Callable[[Numbers, Any], Any]:
    return lambda numbers, x: numbers.call(name, 1 / x)


def _arccot(numbers: Numbers, x: Any) -> Any:
    """The branch with values in (0, pi)."""
    if numbers.is_complex(x):
        return numbers.call("atan", 1 / x)
    return numbers.pi / 2 - numbers.call("atan", x)


def _exp(numbers: Numbers, x: Any) -> Any:
    if abs(x) > MAX_LOG:
        raise TooLarge("an exponential beyond what is evaluated")
    value = numbers.call("exp", x)
    if not value:
        raise OverflowError  # a float too small to be one
    return value


def _sgn(numbers: Numbers, x: Any) -> Any:
    return numbers.of(0.0) if x == 0 else x / abs(x)


def _root_slope(sign: int, shift: int) -> Callable[[Numbers, Any, Any], Any]:
    return lambda numbers, x, f: 1 / abs(sign * x * x + shift) ** 0.5


FUNCTIONS: dict[str, _Pair] = {
    "sin": (_library("sin"), lambda n, x, f: 1 + abs(f)),
    "cos": (_library("cos"), lambda n, x, f: 1 + abs(f)),
    "tan": (_library("tan"), lambda n, x, f: 1 + abs(f) ** 2),
    "cot": (_reciprocal("tan"), lambda n, x, f: 1 + abs(f) ** 2),
    "sec": (_reciprocal("cos"), lambda n, x, f: abs(f) * (1 + abs(f))),
    "csc": (_reciprocal("sin"), lambda n, x, f: abs(f) * (1 + abs(f))),
    "sinh": (_library("sinh"), lambda n, x, f: 1 + abs(f)),
    "cosh": (_library("cosh"), lambda n, x, f: 1 + abs(f)),
    "tanh": (_library("tanh"), lambda n, x, f: 1 + abs(f) ** 2),
    "coth": (_reciprocal("tanh"), lambda n, x, f: 1 + abs(f) ** 2),
    "sech": (_reciprocal("cosh"), lambda n, x, f: abs(f)),
    "csch": (_reciprocal("sinh"), lambda n, x, f: abs(f) * (1 + abs(f))),
    "arcsin": (_library("asin"), _root_slope(-1, 1)),
    "arccos": (_library("acos"), _root_slope(-1, 1)),
    "arctan": (_library("atan"), lambda n, x, f: 1 / abs(1 + x * x)),
    "arccot": (_arccot, lambda n, x, f: 1 / abs(1 + x * x)),
    "arcsec": (_of_reciprocal("acos"), lambda n, x, f: 1 / (abs(x) * abs(x * x - 1) ** 0.5)),
    "arccsc": (_of_reciprocal("asin"), lambda n, x, f: 1 / (abs(x) * abs(x * x - 1) ** 0.5)),
    "arcsinh": (_library("asinh"), _root_slope(1, 1)),
    "arccosh": (_library("acosh"), _root_slope(1, -1)),
    "arctanh": (_library("atanh"), lambda n, x, f: 1 / abs(1 - x * x)),
    "ln": (_library("log"), lambda n, x, f: 1 / abs(x)),
    "exp": (_exp, lambda n, x, f: abs(f)),
    "sgn": (_sgn, lambda n, x, f: 0),
}
_OF_TWO_EXPONENTIALS = frozenset(("sinh", "cosh", "tanh", "coth", "sech", "csch"))
_PERIODIC = frozenset(("sin", "cos", "tan", "cot", "sec", "csc"))


def apply(head: str, argument: Value, numbers: Numbers) -> Value:
    """Return the value of the function `head` (of FUNCTIONS) and the bound of its error. Raise as `evaluate` does."""
    function, slope = FUNCTIONS[head]
    x, error = argument
    if head in _PERIODIC and abs(x) > MAX_ANGLE:
        raise TooLarge("the sine of a number beyond what is evaluated")
    if head in ("ln", "sgn") and abs(x) <= 2 * error:
        raise Undefined("a logarithm of zero")
    if head in _OF_TWO_EXPONENTIALS and abs(x) > MAX_LOG:
        raise TooLarge("an exponential beyond what is evaluated")
    value = function(numbers, x)
    if numbers.precise and head in _OF_TWO_EXPONENTIALS and abs(x) > 1:
        numbers.added(numbers.call("exp", -2 * abs(x)), 0)
    try:
        grown = 2 * slope(numbers, x, value) * error
    except ZeroDivisionError:  # at the ends of arcsin's domain the error grows like a square root
        grown = 4 * abs(error) ** 0.5
    return value, grown + 4 * numbers.epsilon * abs(value) + 0 * error
