"""Arguments of calls into a program: what the test computes for them is computed here, not in the program's process.

`f(sorted([2, 1]))` is sent as `f([1, 2])`: a program that redefines `sorted` changes nothing. What cannot be computed
here, such as a call of a helper of the tests, makes the assert run whole, in the tests' own sandbox.
"""

from __future__ import annotations

import ast
import builtins
import math
from collections.abc import Mapping
from typing import Any

from rlvr.sandbox.inside.live import called_name
from rlvr.verifiers.code import eval as code_eval

_MAX_LITERAL = 2000  # values in a literal
# Constructors of values that hold what they are given: redefining one shows a program nothing else.
_CONSTRUCTORS = {
    "array": "array",
    "collections": "Counter OrderedDict defaultdict deque namedtuple",
    "datetime": "date datetime time timedelta",
    "decimal": "Decimal",
    "fractions": "Fraction",
    "io": "BytesIO StringIO",
    "numpy": "arange array asarray eye float32 float64 full identity int32 int64 matrix ones zeros",
    "pandas": "DataFrame Series",
    "pathlib": "Path PurePath",
    "uuid": "UUID",
}
_HOLDERS = frozenset(f"{module}.{name}" for module, names in _CONSTRUCTORS.items() for name in names.split())
_KEPT_BUILTINS = frozenset(("range", "iter", "bytes", "bytearray", "frozenset", "object", "slice"))


_BUILTINS = frozenset(dir(builtins))


class NotSplit(Exception):
    """The tests need more than calls and checks."""


class Arguments(ast.NodeTransformer):
    """Rewrites a call of the program: builtins and functions of modules in its arguments become their values.

    `theirs` are the program's names, `trusted` those of the tests' helpers, `modules` what the tests import. Raises
    NotSplit where an argument cannot be computed here.
    """

    def __init__(self, theirs: set[str], trusted: set[str], modules: Mapping[str, str]) -> None:
        self.theirs, self.trusted, self.modules = theirs, trusted, modules

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Refuse a helper of the tests."""
        if node.id in self.trusted:
            raise NotSplit
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        """Keep a function: a program that redefines what it calls changes only its own argument."""
        if any(isinstance(part, ast.Name) and part.id in self.trusted for part in ast.walk(node)):
            raise NotSplit
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Keep calls of the program and of constructors, compute those of known functions, refuse others."""
        func = node.func
        if not (self._is_kept(func) or (isinstance(func, ast.Attribute) and not self._module_of(func))):
            return self._computed(node)
        if isinstance(func, ast.Attribute):
            func.value = self.visit(func.value)
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        return node

    def _is_kept(self, func: ast.expr) -> bool:
        if isinstance(func, ast.Name):
            if func.id in self.theirs or func.id in _KEPT_BUILTINS or self.modules.get(func.id) in _HOLDERS:
                return True
            # What is left is bound by a comprehension, or a class of the prelude that only holds its arguments.
            return func.id not in self.trusted | self.modules.keys() | _BUILTINS
        if isinstance(func, ast.Attribute):
            path = ast.unparse(func).split(".")
            return f"{self.modules.get(path[0], '')}.{path[-1]}" in _HOLDERS
        return True

    def _module_of(self, func: ast.Attribute) -> str:
        part: ast.expr = func
        while isinstance(part, ast.Attribute):
            part = part.value
        return self.modules.get(part.id, "") if isinstance(part, ast.Name) else ""

    def _computed(self, node: ast.Call) -> ast.expr:
        if not code_eval.supported(node, frozenset(), self.modules):
            raise NotSplit
        try:
            value = code_eval.evaluate(node, {}, self.modules)
        except code_eval.VALUE_ERRORS:
            raise NotSplit from None
        if _is_range_list(node):
            return node
        return literal(value, [_MAX_LITERAL])


def _is_range_list(node: ast.Call) -> bool:
    """`list(range(10 ** 5))` stays as it is: it would be long, and a range holds the same."""
    if not (isinstance(node.func, ast.Name) and node.func.id in ("list", "tuple", "set") and len(node.args) == 1):
        return False
    inner = node.args[0]
    return isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "range"


def literal(value: Any, left: list[int]) -> ast.expr:
    """Return the expression of a value that calls nothing. Raise NotSplit for other types or more values."""
    left[0] -= 1
    if left[0] < 0:
        raise NotSplit
    kind = type(value)
    if kind in (list, tuple):
        items = [literal(item, left) for item in value]
        return ast.List(items, ast.Load()) if kind is list else ast.Tuple(items, ast.Load())
    if kind is set:
        return ast.Set([literal(item, left) for item in value] or [ast.Starred(ast.Tuple([], ast.Load()), ast.Load())])
    if kind is dict:
        return ast.Dict([literal(key, left) for key in value], [literal(item, left) for item in value.values()])
    if kind is float and math.isnan(value):
        return ast.BinOp(ast.Constant(math.inf), ast.Sub(), ast.Constant(math.inf))
    if value is None or kind in (bool, int, float, complex, str, bytes):
        return ast.Constant(value)
    raise NotSplit


def plain_classes(prelude: ast.Module) -> set[str]:
    """Return the classes of a prelude whose instances only hold what they were made with."""
    found: set[str] = set()
    for node in prelude.body:
        if isinstance(node, ast.ClassDef):
            known = {"object", "NamedTuple", "Enum", "IntEnum", "Exception", *found}
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases <= known and not node.keywords and all(map(_holds, node.body)):
                found.add(node.name)
        elif isinstance(node, ast.Assign) and called_name(node.value) == "namedtuple":
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


_COMPUTING = (ast.Call, ast.BinOp, ast.Subscript, ast.For, ast.While, ast.JoinedStr, ast.comprehension)


def _holds(part: ast.stmt) -> bool:
    if not isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return True
    if part.name in ("__new__", "__post_init__", "__setattr__"):
        return False
    inside = (node for statement in part.body for node in ast.walk(statement))
    return part.name != "__init__" or not any(isinstance(node, _COMPUTING) for node in inside)
