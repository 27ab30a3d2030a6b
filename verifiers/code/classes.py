"""Which names of a program test code uses as classes."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlvr.verifiers.code.split import parse, program_names

_PLAIN_TYPES = (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, deque, Fraction, Decimal)
PLAIN_METHODS = frozenset(name for kind in _PLAIN_TYPES for name in dir(kind))
# Methods and attributes of other values that functions return, and questions that an object could answer as it likes.
_OF_VALUES = PLAIN_METHODS | frozenset(
    "all any columns contains date day dtype equals flatten group groups hour index is_integer iloc item loc mean "
    "minute month ndim second shape size strftime sum tolist values year".split()
)
_ORDERING = frozenset(("sorted", "min", "max", "set", "frozenset", "heapify"))


def program_classes(code: str, entry: str = "", prelude: str = "") -> tuple[str, ...]:
    """Return those of the program's names that the tests use as classes.

    A capital letter is not enough, and the program is not asked: a function could return an object that answers in
    place of a string. What makes a class is that the tests subclass it, catch it or read its attributes; or that they
    call methods on what it returns that no plain value has, set its attributes or items, call it, or use it with
    another one of its kind. A name in lower case is a class only where such methods are called.
    """
    names = set(program_names(code, entry, prelude)) - {entry}
    tree = parse(code)
    made = _variables(tree, names)
    found: set[str] = set()
    for node in ast.walk(tree):
        for name, capital in _shown_by(node, made, names):
            if name[:1].isupper() or not capital:
                found.add(name)
    return tuple(sorted(found))


def _variables(tree: ast.Module, names: set[str]) -> dict[str, str]:
    """Return the variables and attributes that are assigned what a call of a name returns."""
    made: dict[str, str] = {}
    for node in ast.walk(tree):
        pairs: list[tuple[Any, Any]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs += list(zip(target.elts, node.value.elts)) if both else [(target, node.value)]  # type: ignore[attr-defined]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.withitem):
            pairs = [(node.optional_vars, node.context_expr)]
        for target, value in pairs:
            if _called(value) in names and isinstance(target, (ast.Name, ast.Attribute)):
                made[ast.unparse(target)] = _called(value)
    return made


def _called(node: ast.AST | None) -> str:
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _shown_by(node: ast.AST, made: dict[str, str], names: set[str]) -> Iterator[tuple[str, bool]]:
    """Yield the names that a node uses as classes, and whether that holds for capitalised names only."""

    def kind(part: ast.AST) -> str:
        if isinstance(part, (ast.Name, ast.Attribute)):
            return made.get(ast.unparse(part), "")
        return _called(part) if _called(part) in names else ""

    found: list[str] = []
    if isinstance(node, ast.ClassDef):
        found = [base.id for base in node.bases if isinstance(base, ast.Name)]
    elif isinstance(node, ast.ExceptHandler) and node.type is not None:
        found = [part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)]
    elif isinstance(node, ast.withitem):
        found = [kind(node.context_expr)]
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        found = [kind(node.value)]
    elif isinstance(node, ast.Attribute):
        found = [node.value.id] if isinstance(node.value, ast.Name) and node.value.id in names else []
        if node.attr not in _OF_VALUES or not isinstance(node.ctx, ast.Load):
            found.append(kind(node.value))
    elif isinstance(node, ast.Call):
        found = _shown_by_call(node, made)
        found += [kind(node.func)] if kind(node.func) else []
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            called = kind(node.func.value) if node.func.attr not in _OF_VALUES else ""
            yield from ((name, False) for name in [called] if name)
        if _called(node) in _ORDERING:
            items = [item for part in node.args if isinstance(part, (ast.List, ast.Tuple)) for item in part.elts]
            found += [kind(item) for item in items]
    elif isinstance(node, ast.Set):
        found = [kind(item) for item in node.elts]
    elif isinstance(node, (ast.Compare, ast.BinOp)):
        sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.left, *node.comparators]
        kinds = [kind(side) for side in sides]
        found = kinds if len(set(kinds)) == 1 else []
    yield from ((name, True) for name in found if name in names)


def _shown_by_call(node: ast.Call, made: dict[str, str]) -> list[str]:
    if _called(node) in ("isinstance", "issubclass"):
        return [part.id for part in ast.walk(node.args[-1]) if isinstance(part, ast.Name)] if node.args else []
    # `q = Queue()`, then `q.append(1)`: a function without arguments has nothing to work out.
    func = node.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in made:
        return [f"{made[func.value.id]}"] if func.attr not in PLAIN_METHODS else []
    return []
