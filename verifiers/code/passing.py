"""Constants and echoes of an argument that are right for all asserts, cases or outputs of a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from rlvr.sandbox.inside import plain
from rlvr.verifiers.code import equality

ARGUMENT = "the argument"
# What programs return that do nothing, by name.
CONSTANTS: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "0": 0,
    "1": 1,
    "-1": -1,
    "0.0": 0.0,
    "nan": math.nan,
    "inf": math.inf,
    "''": "",
    "[]": [],
    "[0]": [0],
    "[nan]": [math.nan],
    "()": (),
    "{}": {},
    "set()": set(),
    "an object": plain.Opaque("object", None, True),
}
PRINTED = ("", "0", "1", "-1", "YES", "NO", "Yes", "No", "True", "False", "None")


def passing_value(
    cases: Sequence[tuple[Sequence[Any], Any]],
    same: Callable[[Any, Any, float], bool] = equality.same_value,
) -> str:
    """Return the name of a constant that is right for all (arguments, expected value), "the argument", or ""."""
    for name, value in CONSTANTS.items():
        if all(same(value, expected, 0.0) for _, expected in cases):
            return name
    if len(cases) > 1 and all(same(cases[0][1], expected, 0.0) for _, expected in cases):
        return repr(cases[0][1])
    for number in range(min(len(args) for args, _ in cases)):
        if all(same(args[number], expected, 0.0) for args, expected in cases):
            return ARGUMENT
    return ""


def passing_output(cases: Sequence[tuple[str, str]], rule: equality.Output = equality.BY_LINES) -> str:
    """Return the text that is right for all (input, output) by the rule of comparison, "the input", or ""."""
    same = rule.same
    for text in PRINTED:
        if all(same(text, output) for _, output in cases):
            return repr(text)
    if len(cases) > 1 and all(same(cases[0][1], output) for _, output in cases):
        return repr(cases[0][1])
    return "the input" if all(same(given, output) for given, output in cases) else ""
