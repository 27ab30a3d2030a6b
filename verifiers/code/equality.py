"""Comparing what a program gave with what was expected, both plain data."""

from __future__ import annotations

import math
from typing import Any


def same_output(output: str, expected: str) -> bool:
    """Whole outputs, line by line: the same number of lines, blanks at their ends and blank lines at the end aside."""
    return _lines(output) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def same_value(value: Any, expected: Any) -> bool:
    """A returned value against one that may have been read from JSON.

    Tuples and lists are the same there; True is not 1; floats within 1e-9 of each other are equal, and NaN is NaN.
    """
    if isinstance(expected, bool) or isinstance(value, bool):
        return value is expected
    if isinstance(expected, float) or isinstance(value, float):
        return _same_float(value, expected)
    if isinstance(expected, (list, tuple)):
        if not isinstance(value, (list, tuple)) or len(value) != len(expected):
            return False
        return all(same_value(v, e) for v, e in zip(value, expected))
    if isinstance(expected, dict):
        if not isinstance(value, dict) or value.keys() != expected.keys():
            return False
        return all(same_value(value[key], expected[key]) for key in expected)
    return type(value) is type(expected) and bool(value == expected)


def _same_float(value: Any, expected: Any) -> bool:
    if not (isinstance(value, (int, float)) and isinstance(expected, (int, float))):
        return False
    try:
        if math.isnan(expected):
            return math.isnan(value)
        return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-9)
    except OverflowError:
        # An integer past the largest float is near no float.
        return False
