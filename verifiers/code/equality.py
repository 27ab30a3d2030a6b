"""Equality of a program's output with the expected one, both plain data."""

from __future__ import annotations

import math
from typing import Any

from rlvr.sandbox.inside import plain


def same_output(output: str, expected: str) -> bool:
    """Whether outputs have the same lines, without white space at their ends and blank lines at the end."""
    return _lines(output) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def same_value(value: Any, expected: Any) -> bool:
    """Whether a returned value equals an expected one that may have been read from JSON.

    Tuples and lists are not told apart; True is not 1; floats within 1e-9 of each other are equal, and NaN is NaN.
    """
    if isinstance(value, (plain.Array, plain.Yielded)):
        value = value.tolist() if isinstance(value, plain.Array) else list(value)
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
        # An integer beyond the largest float is close to no float.
        return False
