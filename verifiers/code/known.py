"""What the proof of strength knows of Python: what computes and changes nothing, what changes its first argument."""

from __future__ import annotations

import ast
import builtins
from collections import Counter, deque
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlvr.sandbox.inside.live import called_name
from rlvr.verifiers.code.containers import NotProved

_MODULES = frozenset(
    "bisect cmath collections copy datetime decimal fractions functools heapq itertools json math numbers numpy "
    "operator pytest random re statistics string sys textwrap typing unicodedata".split()
)
# Of these modules only some names: others change what the program shares with the tests, or lose their type on the way.
_ONLY = {
    "collections": "Counter deque namedtuple abc",
    "numpy": "abs allclose all any arange argmax argmin array array_equal bool_ ceil concatenate cos cumsum dot e exp "
    "eye float32 float64 floor full hstack inf int32 int64 isclose isnan linspace log max mean median min nan ndarray "
    "newaxis ones outer pi prod random round sign sin sort sqrt stack std sum tan transpose unique var vstack where "
    "zeros",
    "pytest": "raises approx",
    "sys": "getsizeof maxsize",
}
_NEVER = frozenset("getstate setstate SystemRandom setitem delitem set_state get_state RandomState default_rng".split())
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
ATTRIBUTES = frozenset(
    "real imag numerator denominator shape size ndim dtype T year month day hour minute second days seconds value "
    "args".split()
)
TYPES = frozenset("bool int float complex str bytes list tuple dict set frozenset range".split())
FUNCTIONS = TYPES | frozenset(
    "abs all any ascii bin bytearray chr divmod enumerate filter format hash hex isinstance len map max min oct ord "
    "pow print repr reversed round sorted sum type zip".split()
)
EXCEPTIONS = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
) - {"StopIteration", "StopAsyncIteration"}
LAZY = frozenset("map filter zip enumerate reversed".split())
# What returns a number, a text or a truth value, whatever it is given.
SCALAR = frozenset(
    "len all any str repr print isinstance hash round int float bool ord chr bin hex oct complex format ascii isclose "
    "allclose array_equal join randint randrange uniform gcd sqrt factorial isdigit isalpha count index startswith "
    "endswith lower upper strip random gauss getrandbits".split()
)
# What returns a container of its own, which holds parts of its arguments.
FRESH = frozenset(
    "list tuple dict set frozenset sorted bytearray deque Counter sample choices split splitlines tolist most_common "
    "array zeros ones arange full deepcopy range".split()
)
# What may read an object of the program: an operation of it.
READING = frozenset("len str repr list tuple sorted set sum max min enumerate any all dict".split())
_CONVERTING = frozenset("int float complex bool abs round hash isinstance".split())
# What keeps the value that it is given, but for its type.
KEEPING = frozenset("list tuple round str repr int float copy deepcopy array".split())
# What shows an object, by methods of its own; what tells only its size or kind.
SHOWING = frozenset("str repr format ascii format_map".split())
SIZES = frozenset("len bool set frozenset type isinstance any all hash callable".split())
# What adds to a container, and reads nothing of it.
ADDING = frozenset("append appendleft extend extendleft insert".split())
EXPRESSIONS = (ast.UnaryOp, ast.BoolOp, ast.IfExp, ast.Slice, ast.JoinedStr, ast.FormattedValue)


def imports(tree: ast.Module) -> dict[str, str]:
    """Return what test code imports, as {name: dotted name}. Raise NotProved for modules that are not known."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
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
    if module not in _MODULES or any(name[:1] == "_" or name in _NEVER for name in names):
        return False
    if module in _ONLY:
        return not names or names[0] in _ONLY[module].split()
    return module != "operator" or not any(name[:1] == "i" for name in names)


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


def leaves(node: ast.AST, kinds: tuple[type[ast.AST], ...] = (ast.Break, ast.Continue, ast.Return)) -> bool:
    """Whether a statement may end a loop or function before its end."""
    return any(isinstance(part, kinds) for part in ast.walk(node))


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


def classes(tree: ast.Module, names: frozenset[str]) -> frozenset[str]:
    """Return the program's names that tests use as classes: with a capital letter, and an object is looked into."""
    capital = {name for name in names if name[:1].isupper()}
    made: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and called_name(node.value) in capital and isinstance(node.value, ast.Call):
            for name in set().union(*map(bound, node.targets)):
                made.setdefault(name, set()).add(called_name(node.value))
    found: set[str] = set()
    for node in ast.walk(tree):
        looked: list[ast.expr] = []
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            looked = [node.value]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READING | _CONVERTING:
            looked = node.args
        for part in looked:
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                found |= {part.func.id} & capital
            elif isinstance(part, ast.Name):
                found |= made.get(part.id, set())
    return frozenset(found)
