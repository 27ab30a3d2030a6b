"""Comparing a program's outputs and values with the expected ones; all are plain data."""

from __future__ import annotations

import math
import re
from array import array
from collections import UserList, deque
from collections.abc import ItemsView, KeysView, ValuesView
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, Literal

from rlvr.sandbox.wire import values

# The lengths are bounded, so that no comparison of two numbers takes long.
_NUMBER = re.compile(r"[+-]?(?:\d{1,1000}(?:\.\d{0,1000})?|\.\d{1,1000})(?:[eE][+-]?\d{1,3})?", re.ASCII)


@dataclass(frozen=True)
class Output:
    """How a program's output is compared with the expected one.

    compare: "lines": the lines must be the same, except white space at their ends and blank lines at the end; "tokens":
    the texts between white space must be the same, or numbers with the same value (1, 1.0 and 1e0). tolerance, for
    tokens: the absolute or relative error that a number may have. If the expected number is whole, the error is
    absolute, and only a number that is written with a point may have it. ignore_case, for tokens: YES equals yes.
    """

    compare: Literal["lines", "tokens"] = "lines"
    tolerance: float = 0.0
    ignore_case: bool = False

    def matches(self, output: str, expected: str) -> bool:
        """Whether the output equals the expected one."""
        if self.compare == "lines":
            return _split_lines(output) == _split_lines(expected)
        ours, theirs = _TOKEN.findall(output), _TOKEN.findall(expected)
        return len(ours) == len(theirs) and all(self._is_same(a, b) for a, b in zip(ours, theirs))

    def _is_same(self, token: str, expected: str) -> bool:
        # Both, since the lower case of the Kelvin sign is k, and the upper case of a long s is S.
        if self.ignore_case and token.lower() == expected.lower() and token.upper() == expected.upper():
            return True
        return token == expected or self._is_close(token, expected)

    def _is_close(self, token: str, expected: str) -> bool:
        if _NUMBER.fullmatch(token) is None or _NUMBER.fullmatch(expected) is None:
            return False
        value, wanted = Decimal(token), Decimal(expected)
        if value == wanted:
            return True
        fraction = "." in expected or "e" in expected.lower()
        if not self.tolerance or not (fraction or "." in token) or math.inf in (abs(float(value)), abs(float(wanted))):
            return False
        allowed = self.tolerance * (max(1.0, abs(float(wanted))) if fraction else 1.0)
        return abs(float(value - wanted)) <= allowed


_BLANKS = " \t\r\n\f\v"
_TOKEN = re.compile(f"[^{_BLANKS}]+")


def _split_lines(text: str) -> list[str]:
    return [line.rstrip(_BLANKS) for line in text.rstrip(_BLANKS).split("\n")]


# math.isclose's default. There is no absolute tolerance for expected values near 0, so that 6.6e-34 is not 0.
_RELATIVE = 1e-9
# Only for an expected 0.0: a sum that should vanish seldom does.
_AT_ZERO = 1e-9
# From here on, not every integer is a float.
_EXACT_FLOATS = 1 << 53


def is_same_value(value: Any, expected: Any, tolerance: float = 0.0) -> bool:
    """Whether a returned value equals an expected one, which may come from JSON.

    A tuple or deque equals a list with the same items; a fraction or decimal number is read as an int or float. True is
    not 1, also as a key. NaN equals NaN. Integers must be equal; a
    float may stand for an integer below 2**53. An expected float has the relative tolerance 1e-9, and 0.0 the absolute
    tolerance 1e-9. tolerance: a further absolute or relative error, if the value or the expected one is a float.
    """
    if isinstance(value, values.Array):
        value = value.items
    elif isinstance(value, (values.Yielded, KeysView, ItemsView, ValuesView, deque, UserList, array)):
        value = list(value)
    if isinstance(value, (Fraction, Decimal)) and type(expected) in (int, float):
        value = _as_number(value)
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if tolerance and _is_within(value, expected, tolerance):
        return True
    if isinstance(expected, float):
        return _is_same_float(value, expected)
    if isinstance(value, float):
        return isinstance(expected, int) and abs(expected) < _EXACT_FLOATS and value == expected
    if isinstance(expected, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(expected):
            return False
        return all(is_same_value(v, e, tolerance) for v, e in zip(value, expected))
    if isinstance(expected, dict):
        if not isinstance(value, dict) or _find_kinds(value) != _find_kinds(expected):
            return False
        return all(is_same_value(value[key], expected[key], tolerance) for key in expected)
    if isinstance(expected, (set, frozenset)):
        return type(value) is type(expected) and _find_kinds(value) == _find_kinds(expected)
    return type(value) is type(expected) and bool(value == expected)


def _as_number(value: Fraction | Decimal) -> Any:
    """Return the int or float that a number equals or is near; the number itself if it is beyond all floats."""
    try:
        return int(value) if value == int(value) else float(value)
    except (ArithmeticError, ValueError):
        return value


def _is_within(value: Any, expected: Any, tolerance: float) -> bool:
    numbers = isinstance(value, (int, float)) and isinstance(expected, (int, float))
    if not numbers or not (isinstance(value, float) or isinstance(expected, float)):
        return False
    if max(abs(value), abs(expected)) >= _EXACT_FLOATS:
        return False
    return abs(value - expected) <= tolerance * max(1.0, abs(expected))


def _is_same_float(value: Any, expected: float) -> bool:
    if not isinstance(value, (int, float)):
        return False
    if isinstance(value, int) and abs(value) >= _EXACT_FLOATS:
        return value == expected
    if math.isnan(expected):
        return math.isnan(value)
    return math.isclose(value, expected, rel_tol=_RELATIVE, abs_tol=_AT_ZERO if expected == 0 else 0.0)


def _find_kinds(items: Any) -> set[Any]:
    """Return keys or elements with their types, since 1, 1.0 and True are the same key in Python."""
    return {(type(item).__name__, _find_kind(item)) for item in items}


def _find_kind(item: Any) -> Any:
    return tuple((type(part).__name__, _find_kind(part)) for part in item) if isinstance(item, tuple) else item
