"""Constants and echoes of an argument that are right for all asserts, cases or outputs of a reference."""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rlvr.sandbox.inside import plain
from rlvr.verifiers.code import equality
from rlvr.verifiers.code.split import Check, Split

_MOST_ARGUMENTS = 3
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


def passing_constants(split: Split) -> str:
    """As `passing_constant`; where the checks call several functions, each may have a constant of its own."""
    groups: dict[frozenset[str], list[Check]] = {}
    for check in split.checks:
        called = (ast.parse(split.calls[number], mode="eval").body for number in check.calls)
        groups.setdefault(frozenset(ast.unparse(getattr(node, "func", node)) for node in called), []).append(check)
    each = [passing_constant(replace(split, checks=tuple(checks))) for checks in groups.values()]
    return passing_constant(split) or (", ".join(each) if len(each) > 1 and all(each) else "")


def passing_constant(split: Split) -> str:
    """Return the name of a constant that passes all checks, "the argument" where an echo does, "" for none."""
    for name, value in CONSTANTS.items():
        if _passes(split, [copy.deepcopy(value) if name != "an object" else value for _ in split.calls]):
            return name
    for value in _expected(split):
        if _passes(split, [copy.deepcopy(value) for _ in split.calls]):
            return repr(value)
    for number in range(_MOST_ARGUMENTS):
        echoes = [_echo(ast.parse(call, mode="eval").body, number) for call in split.calls]
        if all(known for known, _ in echoes) and _passes(split, [value for _, value in echoes]):
            return ARGUMENT
    return ""


def _passes(split: Split, answers: list[Any]) -> bool:
    return bool(split.checks) and all(split.passes(check, answers) for check in split.checks)


def _expected(split: Split) -> list[Any]:
    """Return the first value that several checks compare with; one check alone is met by one value in any case."""
    if len(split.checks) < 2:
        return []
    compared = [node for node in ast.walk(split.checks[0].test) if isinstance(node, ast.Compare)]
    sides = [side for node in compared for side in (node.left, *node.comparators)]
    return [value for known, value in map(_literal, sides) if known]


def _literal(node: ast.expr) -> tuple[bool, Any]:
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False, None


def _echo(node: ast.expr, number: int) -> tuple[bool, Any]:
    """Return an argument of a call by its number, if it is a literal: of nested calls that of the innermost."""
    if not isinstance(node, ast.Call):
        return False, None
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    if len(given) <= number:
        return False, None
    return _echo(given[number], number) if isinstance(given[number], ast.Call) else _literal(given[number])


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
