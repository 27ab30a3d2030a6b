"""EvalPlus's form of test code (arXiv:2305.01210), read as data: inputs, results, and its comparison.

Its shape is two literals, each on a line of its own, and one loop over both that calls `assertion`. The literals may
have megabytes. They are read once, in linear time.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_LINE = re.compile(r"^([ \t]*(inputs|results) = )([\[(].*)$", re.MULTILINE)
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|,\s*\)|,\s*(?=[\]}])|[()]|[A-Za-z_]\w*""")
# A pair of brackets becomes an object with this key; a comma before the closing one makes a tuple of one item.
_TUPLE, _ONE = "\0tuple", "\0one"
_WORDS = {"(": '{"\\u0000tuple":[', ")": "]}", "True": "true", "False": "false", "None": "null"}
# The code after the literals are taken out, as ast.unparse prints it.
_FORM = re.compile(
    r"""(?:(?:import|from)\ .*\n+ | METADATA\ =\ .*\n+ | ['"].*\n+ | def\ (?!check\b).*\n(?:\ .*\n|\n)*)*
    (?:def\ check\((?P<parameter>\w+)\):\n)?
    \ *inputs\ =\ None\n
    \ *results\ =\ None\n
    \ *for\ \w+,\ \((?P<row>\w+),\ (?P<result>\w+)\)\ in\ enumerate\(zip\(inputs,\ results\)\):\n
    \ *assertion\((?P<entry>\w+)\(\*(?P=row)\),\ (?P=result),\ (?P<tolerance>[\d.e-]+)\)""",
    re.VERBOSE,
)
# The functions of the comparison, as EvalPlus publishes them: equal, or close with a tolerance or for floats.
_COMPARISON = """
def is_floats(x) -> bool:
    if isinstance(x, float):
        return True
    if isinstance(x, (list, tuple)):
        return all(isinstance(i, float) for i in x)
    if isinstance(x, np.ndarray):
        return x.dtype == np.float64 or x.dtype == np.float32
    return False
def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        CLOSE
    else:
        assert exact_match
"""
_CLOSE = (
    "assert np.allclose(out, exp, rtol=1e-07, atol=atol)",
    "np.testing.assert_allclose(out, exp, atol=atol)",
)
_RELATIVE = 1e-7  # numpy.testing.assert_allclose's default
# What the comparison of a program's value with another one may raise.
_VALUE_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError, MemoryError)
_LARGE = 1 << 64  # from here on numpy has no integers
_SEQUENCES = (list, tuple, range, deque)
_FLOATS = 1e-6  # EvalPlus's tolerance for floats where it gives none


@dataclass(frozen=True)
class Cases:
    """Arguments of the function `entry` ("": the argument of `check`), the results, and the absolute tolerance."""

    entry: str
    inputs: Sequence[Any]
    results: Sequence[Any]
    tolerance: float


@lru_cache(maxsize=64)
def read_cases(code: str) -> Cases | None:
    """Return the cases of test code in EvalPlus's form; None for other code."""
    lines = {match[2]: match[3] for match in _LINE.finditer(code)}
    if lines.keys() != {"inputs", "results"}:
        return None
    try:
        tree = ast.parse(_LINE.sub(r"\1None", code))
        form = _FORM.fullmatch(ast.unparse(tree))
        known = [_find_functions(ast.parse(_COMPARISON.replace("CLOSE", close))) for close in _CLOSE]
        if form is None or not any(functions.items() <= _find_functions(tree).items() for functions in known):
            return None
        inputs, results = _read_literal(lines["inputs"]), _read_literal(lines["results"])
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
    rows = all(isinstance(row, (list, tuple)) for row in inputs)
    if not rows or len(inputs) != len(results) or not inputs:
        return None
    entry = "" if form["entry"] == form["parameter"] else form["entry"]
    return Cases(entry, inputs, results, float(form["tolerance"]))


def _find_functions(tree: ast.Module) -> dict[str, str]:
    """Return the functions of a module; of several with one name the last one."""
    return {node.name: ast.dump(node) for node in tree.body if isinstance(node, ast.FunctionDef)}


def _read_literal(text: str) -> Any:
    """Return the value of a literal. If it fits into JSON, that is fifty times as fast as a syntax tree."""
    try:
        return json.loads(_TOKEN.sub(_translate_token, text), object_hook=_make_tuple)
    except ValueError:
        return ast.literal_eval(text)


def _translate_token(match: re.Match[str]) -> str:
    token = match[0]
    if token[0] in "'\"":
        return json.dumps(ast.literal_eval(token))
    # A comma before a closing bracket is left out. Other words become text that JSON refuses.
    if token[0] == ",":
        return '],"\\u0000one":0}' if token[-1] == ")" else ""
    return _WORDS.get(token, f"{token}?")


def _make_tuple(found: dict[str, Any]) -> Any:
    items = found.get(_TUPLE)
    if items is None:
        return found
    return items[0] if len(items) == 1 and _ONE not in found else tuple(items)


def is_same_result(value: Any, expected: Any, tolerance: float) -> bool:
    """Whether a returned value equals the expected one, as EvalPlus compares them.

    They are equal in Python; or they have the same shape, and each number is within tolerance + 1e-7 * abs(expected).
    Without a tolerance, floats have 1e-6.
    """
    try:
        if bool(value == expected):
            return True
        floats = isinstance(expected, (list, tuple)) and all(isinstance(item, float) for item in expected)
        near = tolerance or (_FLOATS if isinstance(expected, float) or floats else 0.0)
        return bool(near) and _find_shape(value) == _find_shape(expected) and _are_close(value, expected, near)
    except _VALUE_ERRORS:
        return False


def _find_shape(value: Any) -> tuple[int, ...]:
    """Return the shape of nested sequences. Raises ValueError where numpy makes no array of numbers of them."""
    if not isinstance(value, _SEQUENCES):
        if isinstance(value, (int, float, complex)) and not (type(value) is int and abs(value) >= _LARGE):
            return ()
        raise ValueError(f"a {type(value).__name__} is no number")
    shapes = set(map(_find_shape, value))
    if len(shapes) > 1:
        raise ValueError("rows of different lengths")
    return (len(value), *shapes.pop()) if shapes else (0,)


def _are_close(value: Any, expected: Any, near: float) -> bool:
    if isinstance(expected, _SEQUENCES):
        return all(_are_close(item, other, near) for item, other in zip(value, expected))
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(value, float) and math.isnan(value)
    if math.inf in (abs(value), abs(expected)):
        return bool(value == expected)
    return value == expected or abs(value - expected) <= near + _RELATIVE * abs(expected)
