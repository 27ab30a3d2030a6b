"""EvalPlus's form of test code (arXiv:2305.01210), read as data: inputs, results, and its comparison.

It is recognised by its shape: two literals, each on a line of its own, and one loop over both that calls `assertion`.
The literals may have megabytes, and are read once, in a time that is linear in their length.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlvr.sandbox.inside import plain
from rlvr.sandbox.inside.live import called_name

_LINE = re.compile(r"^([ \t]*(inputs|results) = )([\[(].*)$", re.MULTILINE)
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|,\s*(?=[\])])|[()]|[A-Za-z_]\w*""")
_WORDS = {"(": '{"(":[', ")": "]}", "True": "true", "False": "false", "None": "null"}
_RELATIVE = 1e-7  # numpy.testing.assert_allclose's default
# What comparing a value of a program with another one may raise.
_VALUE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
_FLOATS = 1e-6  # EvalPlus's tolerance for floats where it gives none


@dataclass(frozen=True)
class Cases:
    """Arguments of the function `entry` (of `check` if empty), the results, and the absolute tolerance."""

    entry: str
    inputs: Sequence[Any]
    results: Sequence[Any]
    tolerance: float


@lru_cache(maxsize=64)
def read_cases(code: str) -> Cases | None:
    """Return the cases of test code in EvalPlus's form, None for any other."""
    lines = {match[2]: match[3] for match in _LINE.finditer(code)}
    if lines.keys() != {"inputs", "results"}:
        return None
    try:
        tree = ast.parse(_LINE.sub(r"\1None", code))
    except (SyntaxError, RecursionError, MemoryError):
        return None
    body = [node for node in tree.body if not isinstance(node, (ast.Import, ast.ImportFrom))]
    functions = {node.name: node for node in body if isinstance(node, ast.FunctionDef)}
    body = [node for node in body if not isinstance(node, ast.FunctionDef)]
    check = functions.get("check")
    if check is not None and len(check.args.args) == 1 and not body:
        body = check.body
    loop = [node for node in body if not _is_inert(node)]
    if len(loop) != 1 or "assertion" not in functions or not _compares(functions["assertion"]):
        return None
    found = _call_of(loop[0])
    if found is None:
        return None
    try:
        inputs, results = _literal(lines["inputs"]), _literal(lines["results"])
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    rows = all(isinstance(row, (list, tuple)) for row in inputs)
    if not rows or len(inputs) != len(results) or not inputs:
        return None
    entry = "" if check is not None and found[0] == check.args.args[0].arg else found[0]
    return Cases(entry, inputs, results, found[1])


def _is_inert(node: ast.stmt) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    return named and node.targets[0].id in ("inputs", "results", "METADATA")  # type: ignore[attr-defined]


def _call_of(loop: ast.stmt) -> tuple[str, float] | None:
    """Return function and tolerance of `for i, (inp, exp) in enumerate(zip(inputs, results)): assertion(...)`."""
    if not isinstance(loop, ast.For) or ast.unparse(loop.iter) != "enumerate(zip(inputs, results))":
        return None
    form = re.fullmatch(r"\(?\w+, \((\w+), (\w+)\)\)?", ast.unparse(loop.target))
    if form is None or len(loop.body) != 1 or loop.orelse:
        return None
    call = re.fullmatch(r"assertion\((\w+)\(\*(\w+)\), (\w+), ([\d.e-]+)\)", ast.unparse(loop.body[0]))
    if call is None or (call[2], call[3]) != (form[1], form[2]):
        return None
    return call[1], float(call[4])


def _compares(function: ast.FunctionDef) -> bool:
    """Whether `assertion(out, exp, atol)` is EvalPlus's: equal, or close with a tolerance or for floats."""
    text = ast.unparse(function)
    parts = ("def assertion(out, exp, atol):", "exact_match = out == exp", "if atol == 0 and is_floats(exp):")
    close = [node for node in ast.walk(function) if called_name(node) in ("assert_allclose", "allclose")]
    return all(part in text for part in (*parts, "if not exact_match and atol != 0:")) and bool(close)


def _literal(text: str) -> Any:
    """Return the value of a literal: by way of JSON, which is fifty times as fast as a syntax tree, where that fits."""
    try:
        return json.loads(_TOKEN.sub(_token, text), object_hook=_tuple)
    except ValueError:
        return ast.literal_eval(text)


def _token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] in "'\"":
        return json.dumps(ast.literal_eval(token))
    # A comma before a closing bracket is left out; other words are no JSON, and fail there.
    return "" if token[0] == "," else _WORDS.get(token, f"{token}?")


def _tuple(found: dict[str, Any]) -> Any:
    return tuple(found["("]) if list(found) == ["("] else found


def same_result(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether a returned value is the expected one as EvalPlus compares them.

    Equal as Python has it; or, with a tolerance (for floats 1e-6 where there is none), of the same shape and each
    number within tolerance + 1e-7 * abs(expected).
    """
    if isinstance(value, plain.Array):
        value = value.tolist()
    try:
        if bool(value == expected):
            return True
        floats = isinstance(expected, (list, tuple)) and all(isinstance(item, float) for item in expected)
        near = tolerance or (_FLOATS if isinstance(expected, float) or floats else 0.0)
        return bool(near) and _is_close(value, expected, near)
    except _VALUE_ERRORS:
        return False


def _is_close(value: Any, expected: Any, near: float) -> bool:
    if isinstance(expected, (list, tuple)):
        rows = isinstance(value, (list, tuple)) and len(value) == len(expected)
        return rows and all(_is_close(item, other, near) for item, other in zip(value, expected))
    if not isinstance(value, (int, float, complex)) or not isinstance(expected, (int, float, complex)):
        return bool(value == expected)
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(value, float) and math.isnan(value)
    return value == expected or abs(value - expected) <= near + _RELATIVE * abs(expected)
