"""The trusted half of a test: a small interpreter for expressions over plain values.

No `eval`: nodes, functions and methods are looked up in tables, and operations that could grow are bounded beforehand.
Values are exact builtin types, so no method of the tested program is ever called.
"""

from __future__ import annotations

import ast
import cmath
import collections
import math
import operator
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rlvr.sandbox.inside.bounds import refuse_collisions

_MAX_ITEMS = 1_000_000
_MAX_BITS = 1 << 20
_MAX_JOINED = 1 << 24

# Exceptions that a wrong value of the program can cause. Any other is a bug of the interpreter, and propagates.
VALUE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)


class ResultTooLarge(ValueError):
    """An operation whose result would be too large."""


_REPEATED = (str, bytes, bytearray, list, tuple, collections.deque)


def _range(*args: Any) -> range:
    """A bounded range: searching one for anything but an integer walks through it, and cannot be interrupted."""
    found = range(*args)
    if len(found) > _MAX_ITEMS:
        raise ResultTooLarge("a range")
    return found


def _sum(items: Any, start: Any = 0) -> Any:
    if not isinstance(start, (int, float, complex)):
        raise ResultTooLarge("a sum of sequences, which copies each of them many times")
    return sum(items, start)


def _round(number: Any, digits: Any = None) -> Any:
    if digits is not None and abs(digits) > 1000:
        raise ResultTooLarge("a power of ten")
    return round(number, digits)


def _times(a: Any, b: Any) -> Any:
    for items, count in ((a, b), (b, a)):
        if isinstance(items, _REPEATED) and isinstance(count, int) and len(items) * count > _MAX_ITEMS:
            raise ResultTooLarge("a repeated sequence")
    return a * b


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and a.bit_length() * abs(b) > _MAX_BITS:
        raise ResultTooLarge("a power")
    if not isinstance(a, (int, float, complex)) or not isinstance(b, (int, float, complex)):
        raise ResultTooLarge("a power of fractions")
    return a**b


def _shift(a: Any, b: Any) -> Any:
    if b > _MAX_BITS:
        raise ResultTooLarge("a shift")
    return a << b


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, (str, bytes)):
        raise ResultTooLarge("a format with a width")
    return a % b


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: _times,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _remainder,
    ast.Pow: _power,
    ast.LShift: _shift,
    ast.RShift: operator.rshift,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Invert: operator.invert,
}
_COMPARE: dict[type, Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: operator.contains(b, a),
    ast.NotIn: lambda a, b: not operator.contains(b, a),
}
_TYPES = (bool, int, float, complex, str, list, tuple, dict, set, frozenset)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    kind.__name__: kind
    for kind in (*_TYPES, abs, all, any, bin, chr, divmod, enumerate, hex, isinstance, len, max, min, oct, ord, range)
}
FUNCTIONS |= {kind.__name__: kind for kind in (repr, reversed, round, sorted, sum, type, zip)}
FUNCTIONS |= {"range": _range, "round": _round, "sum": _sum}
# These build hash tables: of their arguments, and of the object of the method.
_HASHING = (set, frozenset, dict, collections.Counter, collections.OrderedDict)
_HASHING_METHODS = frozenset("issubset issuperset union intersection difference".split())
_MATH = (
    "isclose isnan isinf isfinite sqrt floor ceil fabs log log2 log10 exp sin cos tan atan atan2 hypot gcd trunc dist"
)
MODULES: dict[str, dict[str, Any]] = {
    "math": {name: getattr(math, name) for name in (*_MATH.split(), "pi", "e", "inf", "nan", "tau")},
    "cmath": {"isclose": cmath.isclose},
    "sys": {"getsizeof": sys.getsizeof, "maxsize": sys.maxsize},
    "collections": {"Counter": collections.Counter, "OrderedDict": collections.OrderedDict, "deque": collections.deque},
}
METHODS = frozenset(
    "lower upper strip lstrip rstrip split splitlines startswith endswith isdigit isalpha count index keys values "
    "items get copy join issubset issuperset union intersection difference".split()
)


def supported(node: ast.expr, known: frozenset[str], modules: Mapping[str, str]) -> bool:
    """Whether `evaluate` can work out `node`, given values for the names in `known`.

    `modules`: what the test imported, as {name in the test: dotted name}.
    """
    if isinstance(node, ast.Constant):
        return node.value is not Ellipsis
    if isinstance(node, ast.Name):
        return node.id in known or node.id in FUNCTIONS or _module_value(node, modules) is not None
    if isinstance(node, ast.Attribute):
        return _module_value(node, modules) is not None
    if isinstance(node, ast.Call):
        function = node.func
        method = isinstance(function, ast.Attribute) and function.attr in METHODS
        if not (_is_function(function, modules) or (method and supported(function.value, known, modules))):  # type: ignore[attr-defined]
            return False
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            return False
        return all(supported(a, known, modules) for a in (*node.args, *(k.value for k in node.keywords)))
    if type(node) in _EVALUATORS:
        parts = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return all(supported(part, known, modules) for part in parts)
    return False


def _is_function(node: ast.expr, modules: Mapping[str, str]) -> bool:
    if isinstance(node, ast.Name) and node.id in FUNCTIONS:
        return True
    return callable(_module_value(node, modules))


def _module_value(node: ast.expr, modules: Mapping[str, str]) -> Any:
    """`math.pi`, or `pi` after `from math import pi`; None where it is neither."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return MODULES.get(modules.get(node.value.id, ""), {}).get(node.attr)
    if isinstance(node, ast.Name) and "." in modules.get(node.id, ""):
        module, _, name = modules[node.id].partition(".")
        return MODULES.get(module, {}).get(name)
    return None


def evaluate(node: ast.expr, values: Mapping[str, Any], modules: Mapping[str, str]) -> Any:
    """Return the value of a supported expression. Raise one of VALUE_ERRORS where the values do not fit."""
    return _EVALUATORS[type(node)](node, lambda part: evaluate(part, values, modules), (values, modules))


_Of = Callable[[ast.expr], Any]


def _name(node: Any, of: _Of, given: Any) -> Any:
    values, modules = given
    if node.id in values:
        return values[node.id]
    found = _module_value(node, modules)
    return FUNCTIONS[node.id] if found is None else found


def _call(node: Any, of: _Of, given: Any) -> Any:
    function = node.func
    if _is_function(function, given[1]):
        called = _name(function, of, ({}, given[1])) if isinstance(function, ast.Name) else of(function)
    else:
        called = getattr(of(function.value), function.attr)
    arguments = [of(argument) for argument in node.args]
    if isinstance(function, ast.Attribute) and function.attr == "join":
        arguments = [_to_join(getattr(called, "__self__", ""), items) for items in arguments]
    named = {keyword.arg: of(keyword.value) for keyword in node.keywords}
    if called in _HASHING or (isinstance(function, ast.Attribute) and function.attr in _HASHING_METHODS):
        arguments = [_safe_to_hash(argument, pairs=called in _PAIRS) for argument in arguments]
    if any(value in _HASHING for value in named.values() if isinstance(value, type)):
        raise ResultTooLarge("a table for each item")
    return called(*arguments, **named)


def _to_join(between: Any, items: Any) -> list[Any]:
    listed = list(items)
    if len(between) * len(listed) + sum(len(item) for item in listed if isinstance(item, str)) > _MAX_JOINED:
        raise ResultTooLarge("a joined text")
    return listed


_PAIRS = (dict, collections.OrderedDict)


def _safe_to_hash(items: Any, *, pairs: bool = False) -> Any:
    """Return the items, listed once. Raise PlainError (a ValueError) where their hashes collide on purpose."""
    if isinstance(items, (set, frozenset, dict, str, bytes)):
        return items
    listed = list(items)
    refuse_collisions([pair[0] for pair in listed] if pairs else listed)
    return listed


def _of_views(operate: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """A set operation whose operands may be the items of a dict: pairs with values that a program chose."""

    def checked(a: Any, b: Any) -> Any:
        for side in (a, b):
            if isinstance(side, type({}.items())):
                _safe_to_hash(side)
        return operate(a, b)

    return checked


_BINARY |= {kind: _of_views(_BINARY[kind]) for kind in (ast.Sub, ast.BitOr, ast.BitAnd, ast.BitXor)}


def _compare(node: Any, of: _Of, given: Any) -> Any:
    left, result = of(node.left), True
    for kind, comparator in zip(node.ops, node.comparators):
        right = of(comparator)
        result = _COMPARE[type(kind)](left, right)
        if not result:
            return result
        left = right
    return result


def _boolean(node: Any, of: _Of, given: Any) -> Any:
    stop_at = isinstance(node.op, ast.Or)
    for part in node.values:
        result = of(part)
        if bool(result) is stop_at:
            return result
    return result


def _dict(node: Any, of: _Of, given: Any) -> Any:
    if None in node.keys:
        raise TypeError("a dictionary display with **")
    return {of(key): of(value) for key, value in zip(node.keys, node.values)}


def _slice(node: Any, of: _Of, given: Any) -> slice:
    return slice(*(None if part is None else of(part) for part in (node.lower, node.upper, node.step)))


_EVALUATORS: dict[type, Callable[[Any, _Of, Any], Any]] = {
    ast.Constant: lambda node, of, given: node.value,
    ast.Name: _name,
    ast.Attribute: lambda node, of, given: _module_value(node, given[1]),
    ast.Call: _call,
    ast.Tuple: lambda node, of, given: tuple(of(item) for item in node.elts),
    ast.List: lambda node, of, given: [of(item) for item in node.elts],
    ast.Set: lambda node, of, given: {of(item) for item in node.elts},
    ast.Dict: _dict,
    ast.UnaryOp: lambda node, of, given: _UNARY[type(node.op)](of(node.operand)),
    ast.BinOp: lambda node, of, given: _BINARY[type(node.op)](of(node.left), of(node.right)),
    ast.BoolOp: _boolean,
    ast.Compare: _compare,
    ast.IfExp: lambda node, of, given: of(node.body) if of(node.test) else of(node.orelse),
    ast.Subscript: lambda node, of, given: of(node.value)[of(node.slice)],
    ast.Slice: _slice,
}
