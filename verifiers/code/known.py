"""What the proof of strength knows: names and methods that compute and change nothing; forms of expressions."""

from __future__ import annotations

import ast
import builtins
import copy
import itertools
import re
from collections import Counter, deque
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlvr.sandbox.inside.live import called_name


class NotProved(Exception):
    """Why test code is not proved to be strong."""


_MODULES = frozenset(
    "bisect cmath collections copy datetime decimal fractions functools heapq itertools json math numbers numpy "
    "operator pytest random re statistics string textwrap typing unicodedata".split()
)
_NUMPY = frozenset(
    "abs allclose all any arange argmax argmin array array_equal bool_ ceil concatenate cos cumsum dot e exp eye "
    "float32 float64 floor full inf int32 int64 isclose isnan linspace log max mean median min nan ndarray newaxis "
    "ones outer pi prod round sign sin sort sqrt stack std sum tan transpose unique var vstack where "
    "zeros hstack".split()
)
_NOT_RANDOM = frozenset(("getstate", "setstate", "SystemRandom"))
CHANGING_FUNCTIONS = frozenset(
    "shuffle heapify heappush heappop heapreplace heappushpop insort insort_left insort_right".split()
)
CHANGING = frozenset(
    "add append appendleft clear difference_update discard extend extendleft insert intersection_update move_to_end "
    "pop popitem popleft remove reverse rotate setdefault sort subtract symmetric_difference_update update".split()
)
_KINDS: tuple[Any, ...] = (str, bytes, int, float, complex, list, tuple, dict, set, frozenset, deque, Counter, range)
_KINDS += (Fraction, Decimal, date, datetime, timedelta)
RANDOM = frozenset("random randint randrange choice choices sample uniform gauss getrandbits seed".split())
METHODS = frozenset(name for kind in _KINDS for name in dir(kind) if name[0] != "_") - CHANGING | RANDOM
METHODS |= frozenset("tolist sum mean all any max min reshape flatten group groups".split())
ATTRIBUTES = frozenset("real imag numerator denominator shape size ndim dtype T year month day hour minute".split())
ATTRIBUTES |= frozenset(("second", "days", "seconds", "value", "args"))
TYPES = frozenset("bool int float complex str bytes list tuple dict set frozenset object range type".split())
FUNCTIONS = TYPES | frozenset(
    "abs all any ascii bin bytearray chr divmod enumerate filter format hash hex isinstance len map max min oct ord "
    "pow print repr reversed round sorted sum zip".split()
)
EXCEPTIONS = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
) - {"StopIteration", "StopAsyncIteration"}
NAMES = FUNCTIONS | {"__name__"}
LAZY = frozenset("map filter zip enumerate reversed iter open object type print".split())
# What reads its arguments and returns nothing of them, or one number or text.
READING = frozenset("len sum all any str repr print isinstance hash abs round int float bool math.isclose".split())
_SCALAR = READING | frozenset("ord chr bin hex oct complex format ascii".split())
OBJECT_READING = frozenset("len str repr list tuple sorted set sum max min enumerate any all dict".split())
EXPRESSIONS = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare),
    *(ast.IfExp, ast.Slice, ast.JoinedStr, ast.FormattedValue, ast.Starred, ast.Index),
)
_COPIES = frozenset(("copy.deepcopy", "deepcopy"))


def imports(tree: ast.Module) -> dict[str, str]:
    """Return what test code imports, as {name: dotted name}. Raise NotProved for modules that are not known."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for path in found.values():
        if path.split(".")[0] not in _MODULES or path.endswith("*"):
            raise NotProved(f"the tests import {path}")
    return found


def path(node: ast.AST, modules: dict[str, str]) -> str:
    """Return the dotted name of what is imported, "" for anything else."""
    if isinstance(node, ast.Attribute):
        above = path(node.value, modules)
        return f"{above}.{node.attr}" if above else ""
    return modules.get(node.id, "") if isinstance(node, ast.Name) else ""


def is_allowed(dotted: str) -> bool:
    """Whether something in a module computes, and changes nothing but what it is given."""
    module, *names = dotted.split(".")
    if module not in _MODULES or any(name[:1] == "_" for name in names):
        return False
    if module == "numpy":
        return not names or names[0] in _NUMPY or (names[0] == "random" and names[1:2] != ["shuffle"])
    if module == "pytest":
        return names in ([], ["raises"], ["approx"])
    if module == "random":
        return not set(names) & _NOT_RANDOM
    return module != "operator" or not any(name[:1] == "i" or name in ("setitem", "delitem") for name in names)


def root(node: ast.AST) -> str:
    """Return the name at the root of what is called: `f` of `f(1)`, `C` of `C.make(1)`; "" for others."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
            return ""
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    """Return the names that an expression reads whose objects its value may hold."""
    if isinstance(node, ast.expr) and (is_scalar(node) or is_deep_copy(node)):
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    return set().union(*map(names_in, ast.iter_child_nodes(node)))


def bound(node: ast.AST) -> set[str]:
    """Return the names that a statement binds, but for those in functions that it defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Lambda, ast.Import, ast.ImportFrom)):
        return set()
    found = {node.id} if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) else set()
    if isinstance(node, ast.ExceptHandler) and node.name:
        found.add(node.name)
    return found.union(*map(bound, ast.iter_child_nodes(node)))


def assigned(tree: ast.AST) -> list[tuple[set[str], ast.expr]]:
    """Return the names that are bound, with what they are bound to or taken out of."""
    found: list[tuple[set[str], ast.expr]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            found += [(bound(target), node.value) for target in node.targets]
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            found.append((bound(node.target), node.value))
        elif isinstance(node, (ast.For, ast.comprehension)):
            found.append((bound(node.target), node.iter))
    return found


def is_generator(node: ast.FunctionDef) -> bool:
    """Whether a function yields."""
    return any(isinstance(part, (ast.Yield, ast.YieldFrom, ast.Await)) for part in ast.walk(node))


def leaves(node: ast.AST) -> bool:
    """Whether a statement may end a loop or function before its end."""
    return any(isinstance(part, (ast.Break, ast.Continue, ast.Return)) for part in ast.walk(node))


def is_singleton(node: ast.expr) -> bool:
    """Whether an expression is None, True or False."""
    return isinstance(node, ast.Constant) and node.value in (None, True, False) and type(node.value) is not int


def is_type(node: ast.expr) -> bool:
    """Whether an expression names a builtin type, or is a tuple of such."""
    if isinstance(node, ast.Tuple):
        return all(map(is_type, node.elts))
    return isinstance(node, ast.Name) and node.id in TYPES


def atoms(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that are decided by themselves."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from atoms(value)
    else:
        yield node


def without_slices(node: ast.AST) -> ast.AST:
    """Return an expression without the indices in it: what they are taken out of is what is looked at."""
    return _WithoutSlices().visit(copy.deepcopy(node))


class _WithoutSlices(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        return ast.Tuple([self.visit(node.value)], ast.Load())


def shows_object(node: ast.expr) -> bool:
    """Whether a text of what a program returns is compared with that of an object: `repr(f(1)) == "P(1)"`."""
    texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    reads = any(isinstance(part, ast.Call) and called_name(part) in ("str", "repr") for part in ast.walk(node))
    return reads and any(re.search(r"[A-Za-z_]\w*\(.*\)|<", text) for text in texts)


def nested(calls: list[ast.Call]) -> bool:
    """Whether each call is an argument of the one before it."""
    return all(any(part is inner for part in ast.walk(outer)) for outer, inner in itertools.pairwise(calls))


def is_immutable_literal(node: ast.expr) -> bool:
    """Whether an expression is a literal of values that cannot change: containers may hold the answers themselves."""
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.operand, ast.Constant)
    return isinstance(node, ast.Constant)


def immutable_side(atom: ast.expr) -> tuple[ast.expr, list[ast.expr]] | None:
    """Return the constant side of `a == 1`, `(a, f(2)) == (1, 2)`, `[f(n) for n in ns] == [1, 2]`, and the other parts.

    What is equal to a constant cannot have been changed since it was answered.
    """
    if not isinstance(atom, ast.Compare) or len(atom.ops) != 1 or not isinstance(atom.ops[0], ast.Eq):
        return None
    for side, other in ((atom.comparators[0], atom.left), (atom.left, atom.comparators[0])):
        shown = isinstance(side, (ast.List, ast.Tuple))
        constants = side.elts if isinstance(side, (ast.List, ast.Tuple)) else [side]
        parts = other.elts if shown and isinstance(other, (ast.List, ast.Tuple)) else [other]
        direct = isinstance(other, (ast.List, ast.Tuple, ast.ListComp)) if shown else isinstance(other, ast.Name)
        if direct and all(map(is_immutable_literal, constants)):
            return side, parts
    return None


def is_scalar(node: ast.AST) -> bool:
    """Whether the value of an expression is a number, a text or a truth value, whatever its parts are."""
    if isinstance(node, (ast.Constant, ast.Compare, ast.JoinedStr)):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) or is_scalar(node.operand)
    if isinstance(node, ast.BinOp):
        return is_scalar(node.left) and is_scalar(node.right)
    if isinstance(node, (ast.BoolOp, ast.IfExp)):
        parts = node.values if isinstance(node, ast.BoolOp) else [node.body, node.orelse]
        return all(map(is_scalar, parts))
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name):
        return node.func.id in _SCALAR and (node.func.id not in ("sum", "abs", "round") or len(node.args) < 2)
    of_random = isinstance(node.func, ast.Attribute) and node.func.attr in ("randint", "randrange", "random", "uniform")
    return of_random or called_name(node) in ("join", "isclose", "randint", "gcd", "sqrt", "factorial")


def is_deep_copy(node: ast.AST) -> bool:
    """Whether an expression is a copy of all of its parts."""
    return isinstance(node, ast.Call) and called_name(node) == "deepcopy"


def immutables(tree: ast.AST, answers: set[str]) -> set[str]:
    """Return the variables that only ever hold numbers, texts and tuples of such, by the code alone."""
    pairs = assigned(tree)
    given = {argument.arg for node in ast.walk(tree) if isinstance(node, ast.arguments) for argument in node.args}
    found = set().union(*(names for names, _ in pairs)) - answers - given
    loops = {id(node.iter) for node in ast.walk(tree) if isinstance(node, (ast.For, ast.comprehension))}
    size = -1
    while len(found) != size:
        size = len(found)
        for names, value in pairs:
            holds = _holds_immutables(value, found) if id(value) in loops else _is_immutable(value, found)
            if not holds and not (len(names) > 1 and _holds_immutables(value, found)):
                found -= names
    return found


def _is_immutable(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, (ast.Tuple, ast.BinOp, ast.IfExp)):
        parts = (
            node.elts if isinstance(node, ast.Tuple) else (node.left, node.right) if isinstance(node, ast.BinOp) else ()
        )
        if isinstance(node, ast.IfExp):
            parts = (node.body, node.orelse)
        return all(_is_immutable(part, names) for part in parts)
    if isinstance(node, ast.Subscript):
        return _is_immutable(node.value, names)
    if isinstance(node, ast.Attribute):
        return isinstance(node.value, ast.Name) and node.value.id in ("math", "string")
    if isinstance(node, ast.Call) and called_name(node) in ("choice", "max", "min") and len(node.args) == 1:
        return _holds_immutables(node.args[0], names)
    return is_scalar(node)


def _holds_immutables(node: ast.AST, names: set[str]) -> bool:
    """Whether all that is taken out of a value cannot change."""
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        return all(_is_immutable(item, names) or _is_row(item, names) for item in node.elts)
    if isinstance(node, ast.Call) and called_name(node) in ("range", "enumerate", "zip", "sorted", "list"):
        return called_name(node) == "range" or all(_holds_immutables(part, names) for part in node.args)
    return _is_immutable(node, names)


def _is_row(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Tuple) and all(_is_immutable(part, names) for part in node.elts)
