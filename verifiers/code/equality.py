"""Equality of a program's output with the expected one, both plain data."""

from __future__ import annotations

import math
from typing import Any


def same_output(output: str, expected: str) -> bool:
    """Whether outputs have the same lines, without white space at their ends and blank lines at the end."""
    return _lines(output) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


# math.isclose's default; nothing is added for expected values near 0, so that 6.6e-34 is not 0.
_RELATIVE = 1e-9
# For an expected 0.0 alone: a sum that should vanish seldom does.
_AT_ZERO = 1e-9
# From here on a float is no longer next to every integer.
_EXACT_FLOATS = 1 << 53


def same_value(value: Any, expected: Any) -> bool:
    """Whether a returned value equals an expected one that may have been read from JSON.

    Tuples and lists are not told apart; True is not 1, also as a key; NaN is NaN. Integers are equal exactly: a float
    stands for one below 2**53 only. Expected floats have the relative tolerance 1e-9, and 0.0 the absolute one 1e-9.
    """
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if isinstance(expected, float):
        return _same_float(value, expected)
    if isinstance(value, float):
        return isinstance(expected, int) and abs(expected) < _EXACT_FLOATS and value == expected
    if isinstance(expected, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(expected):
            return False
        return all(same_value(v, e) for v, e in zip(value, expected))
    if isinstance(expected, dict):
        if not isinstance(value, dict) or _kinds(value) != _kinds(expected):
            return False
        return all(same_value(value[key], expected[key]) for key in expected)
    if isinstance(expected, (set, frozenset)):
        return type(value) is type(expected) and _kinds(value) == _kinds(expected)
    return type(value) is type(expected) and bool(value == expected)


def _same_float(value: Any, expected: float) -> bool:
    if not isinstance(value, (int, float)):
        return False
    if isinstance(value, int) and abs(value) >= _EXACT_FLOATS:
        return value == expected
    if math.isnan(expected):
        return math.isnan(value)
    return math.isclose(value, expected, rel_tol=_RELATIVE, abs_tol=_AT_ZERO if expected == 0 else 0.0)


def _kinds(items: Any) -> set[Any]:
    """Return keys or elements with their types: in Python 1, 1.0 and True are the same key."""
    return {(type(item).__name__, _kind(item)) for item in items}


def _kind(item: Any) -> Any:
    return tuple((type(part).__name__, _kind(part)) for part in item) if isinstance(item, tuple) else item
