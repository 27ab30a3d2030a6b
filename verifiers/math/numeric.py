"""Numeric values with a running error bound: in floats, then at 200 and 500 digits where floats cannot tell.

Every value comes with a bound on its absolute error (first-order, Wilkinson's running analysis), so that "different" is
said only where the difference exceeds the errors, and "equal" only where it stays below them at 200 digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from rlvr.verifiers.math.exact import Inexact, Undefined, exact
from rlvr.verifiers.math.functions import FUNCTIONS, apply
from rlvr.verifiers.math.systems import MAX_LOG, Numbers, Value
from rlvr.verifiers.math.tree import IMAGINARY, OO, PI, E, Node, Num, Op, Rel, Sym, TooLarge, nodes, symbols

_TINY = 1e-300  # floats below have fewer digits
FEW, LOG_10_E = 100, 0.435  # an exponent of e that hides nothing; digits of e
_EXPONENTIALS = frozenset(("pow", "exp", "sinh", "cosh", "tanh", "coth", "sech", "csch"))


def evaluate(node: Node, point: Mapping[str, float], numbers: Numbers) -> Value:
    """Return the value of a tree at a point, and the bound of its error.

    Raise Inexact (not a number: a structure, an unknown name), Undefined, OutsideReals, TooLarge, and OverflowError or
    ZeroDivisionError from floats.
    """
    if isinstance(node, Num):
        value = numbers.of(node.value)
        return value, abs(value) * numbers.epsilon
    if isinstance(node, Sym):
        return _symbol(node, point, numbers)
    if not isinstance(node, Op):
        raise Inexact
    handler = _OPERATIONS.get(node.head)
    if handler is not None:
        return handler(node.args, point, numbers)
    if node.head not in FUNCTIONS or len(node.args) != 1:
        raise Inexact
    return apply(node.head, evaluate(node.args[0], point, numbers), numbers)


def _symbol(node: Sym, point: Mapping[str, float], numbers: Numbers) -> Value:
    if node.name in point:
        return numbers.of(point[node.name]), 0 * numbers.epsilon
    constant = {PI: numbers.pi, E: numbers.e, IMAGINARY: numbers.i}.get(node)
    if node == IMAGINARY:
        return numbers.i, 0 * numbers.epsilon
    if constant is None:
        raise Undefined("infinity is no number") if node == OO else Inexact
    return constant, constant * numbers.epsilon


Args = tuple[Node, ...]


def _add(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    total, error = evaluate(args[0], point, numbers)
    if numbers.precise:
        numbers.added(total, error)
    for arg in args[1:]:
        value, extra = evaluate(arg, point, numbers)
        if numbers.precise:
            numbers.added(value, extra)
        total = total + value
        error = error + extra + abs(total) * numbers.epsilon
    return total, error


def _times(left: Value, right: Value, numbers: Numbers) -> Value:
    value = left[0] * right[0]
    if not numbers.precise and abs(value) < _TINY and left[0] and right[0]:
        raise OverflowError
    error = abs(left[0]) * right[1] + abs(right[0]) * left[1] + left[1] * right[1] + abs(value) * numbers.epsilon
    return value, error


def _kept(value: Any, numbers: Numbers) -> Any:
    """Return a value that is not 0 mathematically. Raise OverflowError where floats have lost its digits."""
    if not numbers.precise and abs(value) < _TINY:
        raise OverflowError
    return value


def _mul(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    total = evaluate(args[0], point, numbers)
    for arg in args[1:]:
        total = _times(total, evaluate(arg, point, numbers), numbers)
    return total


def _inverse(value: Value, numbers: Numbers) -> Value:
    x, error = value
    size = abs(x)
    if size <= 4 * error:
        raise Undefined("a division by zero") if numbers.precise else ZeroDivisionError
    inverse = 1 / x
    return inverse, error / (size * (size - error)) + abs(inverse) * numbers.epsilon


def _div(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    return _times(evaluate(args[0], point, numbers), _inverse(evaluate(args[1], point, numbers), numbers), numbers)


def _neg(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    value, error = evaluate(args[0], point, numbers)
    return -value, error


def _percent(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    value, error = evaluate(args[0], point, numbers)
    return value / 100, error / 100 + abs(value) * numbers.epsilon


def _deg(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    return _times(evaluate(args[0], point, numbers), (numbers.pi / 180, numbers.epsilon), numbers)


def _pow(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
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
        return _inverse(_integer_power(base, -n, numbers), numbers)
    if n > 1 and size and n * abs(_log_size(size)) > MAX_LOG:
        raise TooLarge("a power beyond what is evaluated")
    value = _kept(x**n, numbers) if size else x**n
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
    value = _kept(numbers.power(x, y), numbers)
    relative = abs(y) * dx / size + (abs(log_size) + 4) * (dy + abs(y) * numbers.epsilon) + numbers.epsilon
    if relative > 0.1:
        raise Undefined("a power without a significant digit")
    return value, abs(value) * relative * 2


def _root(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
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


def _abs(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    value, error = evaluate(args[0], point, numbers)
    return abs(value), error + abs(value) * numbers.epsilon


def _of_complex(name: str) -> Callable[[Args, Mapping[str, float], Numbers], Value]:
    """Make the argument, the real or the imaginary part of a complex number."""

    def part(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
        value, error = evaluate(args[0], point, numbers)
        if name != "arg":
            found = getattr(value, "real" if name == "re" else "imag")
            return found, error + abs(found) * numbers.epsilon
        size = abs(value)
        if size <= 2 * error:
            raise Undefined("the argument of zero")
        angle = numbers.argument(value)
        return angle, 2 * error / size + abs(angle) * numbers.epsilon

    return part


def _log(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    natural = apply("ln", evaluate(args[0], point, numbers), numbers)
    if numbers.log_base is None:
        return natural
    return _divide_logs(natural, (numbers.call("log", numbers.of(float(numbers.log_base))), numbers.epsilon), numbers)


def _logb(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    base, x = (apply("ln", evaluate(arg, point, numbers), numbers) for arg in args)
    return _divide_logs(x, base, numbers)


def _divide_logs(x: Value, base: Value, numbers: Numbers) -> Value:
    return _times(x, _inverse(base, numbers), numbers)


def _apply(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
    """Evaluate a function without a formula by its model, arctan(x + f) + f x / (1 + x^2)."""
    function, x = (evaluate(arg, point, numbers) for arg in args)
    square = _times(x, x, numbers)
    above, below = _times(function, x, numbers), _inverse((1 + square[0], square[1] + numbers.epsilon), numbers)
    angle = apply("arctan", (x[0] + function[0], x[1] + function[1] + abs(x[0]) * numbers.epsilon), numbers)
    share = _times(above, below, numbers)
    return angle[0] + share[0], angle[1] + share[1] + abs(angle[0]) * numbers.epsilon


def _rounded(name: str) -> Callable[[Args, Mapping[str, float], Numbers], Value]:
    def rounded(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
        value, error = evaluate(args[0], point, numbers)
        if numbers.is_complex(value):
            raise Inexact
        if numbers.precise and abs(value) * numbers.epsilon**0.5 > 1:
            raise TooLarge("the integer part of a number beyond what is evaluated")
        nearest = int(value + (0.5 if value >= 0 else -0.5))
        if abs(value - nearest) <= 4 * error:
            if not numbers.precise:
                raise OverflowError
            return numbers.of(float(nearest)), 0 * numbers.epsilon
        result = math.floor(value) if name == "floor" else math.ceil(value)
        return numbers.of(float(result)), 0 * numbers.epsilon

    return rounded


def _extreme(name: str) -> Callable[[Args, Mapping[str, float], Numbers], Value]:
    def extreme(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
        values = [evaluate(arg, point, numbers) for arg in args]
        if any(numbers.is_complex(value) for value, _ in values):
            raise Inexact
        chosen = min(values) if name == "min" else max(values)
        return chosen[0], max(error for _, error in values)

    return extreme


def _exactly(head: str) -> Callable[[Args, Mapping[str, float], Numbers], Value]:
    """Make an operation on integers, which is evaluated exactly; variables have integer values there."""

    def at_point(args: Args, point: Mapping[str, float], numbers: Numbers) -> Value:
        values = {name: Num(Fraction(value)) for name, value in point.items()}
        filled = tuple(substituted(arg, values) for arg in args)
        value = numbers.of(exact(Op(head, filled)))
        return value, abs(value) * numbers.epsilon

    return at_point


def extent(tree: Node) -> int:
    """Return the digits before or after the point of the largest power or exponential of numbers; 0 if few."""
    largest = 0.0
    for node in nodes(tree):
        if type(node) is not Op or node.head not in _EXPONENTIALS or symbols(node):
            continue
        try:
            values = [abs(evaluate(arg, {}, Numbers(False))[0]) for arg in node.args]
            size = values[-1] if node.head != "pow" else values[1] * abs(math.log(values[0]))
        except (ValueError, OverflowError, ZeroDivisionError):
            continue
        largest = max(largest, float(size))
    return int(largest * LOG_10_E) if largest > FEW else 0


def substituted(node: Node, values: Mapping[str, Node]) -> Node:
    """Return the tree with variables replaced."""
    if isinstance(node, Sym):
        return values.get(node.name, node)
    if isinstance(node, Op):
        return Op(node.head, tuple(substituted(arg, values) for arg in node.args))
    if isinstance(node, Rel):
        return Rel(node.ops, tuple(substituted(side, values) for side in node.sides))
    return node


_OPERATIONS: dict[str, Callable[[Args, Mapping[str, float], Numbers], Value]] = {
    "add": _add,
    "mul": _mul,
    "div": _div,
    "neg": _neg,
    "pow": _pow,
    "root": _root,
    "percent": _percent,
    "deg": _deg,
    "abs": _abs,
    "log": _log,
    "logb": _logb,
    "apply": _apply,
    **{head: _of_complex(head) for head in ("arg", "re", "im")},
    **{head: _rounded(head) for head in ("floor", "ceil")},
    **{head: _extreme(head) for head in ("min", "max")},
    **{head: _exactly(head) for head in ("fact", "multifact", "subfact", "binom", "gcd", "lcm")},
}
