"""Which names of a program test code uses as classes."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

from rlvr.sandbox.inside.analysis import FUNCTIONS, called_name
from rlvr.verifiers.code.results import Results
from rlvr.verifiers.code.split import parse, program_names

_PLAIN_TYPES = (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, deque, Fraction, Decimal)
PLAIN_METHODS = frozenset(name for kind in _PLAIN_TYPES for name in dir(kind))
# Methods and attributes of other values that functions return, and questions that an object could answer as it likes.
_OF_VALUES = PLAIN_METHODS | frozenset(
    "all any columns contains date day dtype equals flatten group groups hour index is_integer iloc item loc mean "
    "minute month ndim second shape size strftime sum tolist values year".split()
)
_CONTAINERS = frozenset(("list", "tuple", "set", "frozenset", "sorted"))
_ORDERING = frozenset(("sorted", "min", "max", "set", "frozenset", "heapify"))
# Methods whose result nobody looks at, and that bring a value into an order for a comparison.
_NORMALIZING = frozenset(("sort", "reverse"))


def program_classes(code: str, entry: str = "", prelude: str = "") -> tuple[str, ...]:
    """Return those of the program's names that the tests use as classes.

    A capital letter is not enough, and the program is not asked: a function could return an object that answers in
    place of a string. What makes a class is that the tests subclass it, catch it or read its attributes; or that they
    call methods on what it returns that no plain value has, or any methods where it takes no arguments and where their
    results are not used; look methods up by name, set its attributes or items, call it, or use it with another one of
    its kind. A name in lower case is a class only where methods are called that no plain value has.
    """
    names = set(program_names(code, entry, prelude))
    uses = Uses(parse(code), names)
    shown = (*uses.all(), *Results(uses, _OF_VALUES).all())
    found = {name for name, capital in shown if name[:1].isupper() or not capital}
    return tuple(sorted(found))


class Uses:
    """What test code does with what the program's names return."""

    def __init__(self, tree: ast.Module, names: set[str]) -> None:
        self.names = names
        self.nodes = list(ast.walk(tree))
        self.functions = {node.name: node for node in self.nodes if isinstance(node, FUNCTIONS)}
        # Other names of the program's names; names of what they return, and of containers of that.
        self.alias: dict[str, str] = {}
        self.made: dict[str, set[str]] = {}
        self.held: dict[str, set[str]] = {}
        size = -1
        while self._size() > size:
            size = self._size()
            for node in self.nodes:
                self._bind(node)
        self.bare = {self.called(n) for n in self.nodes if isinstance(n, ast.Call) and not (n.args or n.keywords)}

    def _size(self) -> int:
        return len(self.alias) + sum(len(names) for bound in (self.made, self.held) for names in bound.values())

    def _bind(self, node: ast.AST) -> None:
        pairs: list[tuple[Any, Any]] = []
        if isinstance(node, ast.Assign):
            for target in node.targets:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs += list(zip(target.elts, node.value.elts)) if both else [(target, node.value)]  # type: ignore[attr-defined]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            pairs = [(node.target, node.value)]
        elif isinstance(node, ast.withitem):
            pairs = [(node.optional_vars, node.context_expr)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.functions:
            parameters = self.functions[node.func.id].args
            pairs = [(ast.Name(p.arg), v) for p, v in zip([*parameters.posonlyargs, *parameters.args], node.args)]
        elif isinstance(node, (ast.For, ast.comprehension)):
            targets = [part for part in ast.walk(node.target) if isinstance(part, (ast.Name, ast.Attribute))]
            for target in targets:
                self._add(self.made, target, self._names(self.held, node.iter))
        elif isinstance(node, FUNCTIONS):
            made = [n.value for n in ast.walk(node) if isinstance(n, (ast.Return, ast.Yield))]
            # The name of a fixture stands for its value.
            fixture = any(called_name(mark) == "fixture" for mark in node.decorator_list)
            pairs = [(ast.Name(name), value) for value in made for name in (f"{node.name}()", node.name)[: 1 + fixture]]
        for target, value in pairs:
            if not isinstance(target, (ast.Name, ast.Attribute)) or value is None:
                continue
            if isinstance(value, ast.Name) and value.id in self.names and ast.unparse(target) not in self.names:
                self.alias.setdefault(ast.unparse(target), value.id)
            self._add(self.made, target, self.kinds(value))
            self._add(self.held, target, self._names(self.held, value))

    @staticmethod
    def _add(bound: dict[str, set[str]], target: ast.AST, names: set[str]) -> None:
        if names:
            bound.setdefault(ast.unparse(target), set()).update(names)

    def called(self, node: ast.AST | None) -> str:
        """Return the program's name that a node calls, or ""."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, (ast.Name, ast.Attribute)):
            return ""
        name = ast.unparse(node.func)
        name = self.alias.get(name, name)
        return name if name in self.names else ""

    def kinds(self, node: ast.AST | None) -> set[str]:
        """Return the names of which a node may be what they returned."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return self.made.get(ast.unparse(node), set())
        if isinstance(node, ast.IfExp):
            return self.kinds(node.body) | self.kinds(node.orelse)
        if isinstance(node, ast.Subscript):
            return self._names(self.held, node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.functions:
            return self.made.get(f"{node.func.id}()", set())
        return {self.called(node)} - {""}

    def _names(self, bound: dict[str, set[str]], node: ast.AST) -> set[str]:
        """Return the names that a container, or what holds it, has values of."""
        if isinstance(node, (ast.Name, ast.Attribute)):
            return bound.get(ast.unparse(node), set())
        if isinstance(node, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
            parts = node.values if isinstance(node, ast.Dict) else node.elts
            return {name for part in parts for name in self.kinds(part) | self._names(bound, part)}
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
            return self.kinds(node.elt)
        return set()

    def all(self) -> Iterator[tuple[str, bool]]:
        """Yield the names that are used as classes, and whether that shows it for capitalised names only."""
        for node in self.nodes:
            yield from ((name, True) for name in self._shown_by(node) if name in self.names)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                sure = isinstance(node.func.value, ast.Name) and node.func.attr not in _OF_VALUES
                yield from ((name, False) for name in (self.kinds(node.func.value) if sure else ()))

    def _shown_by(self, node: ast.AST) -> set[str]:
        if isinstance(node, ast.ClassDef):
            return {base.id for base in node.bases if isinstance(base, ast.Name)}
        if isinstance(node, ast.ExceptHandler) and node.type is not None:
            return {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
        if isinstance(node, ast.withitem):
            return self.kinds(node.context_expr)
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            return self.kinds(node.value)
        if isinstance(node, ast.Await):
            # No method of a value returns something to await.
            func = node.value.func if isinstance(node.value, ast.Call) else None
            return self.kinds(func.value) if isinstance(func, ast.Attribute) else set()
        if isinstance(node, ast.Attribute):
            found = {node.value.id} if isinstance(node.value, ast.Name) else set()
            other = node.attr not in _OF_VALUES or not isinstance(node.ctx, ast.Load)
            return found | (self.kinds(node.value) if other else set())
        if isinstance(node, ast.Call):
            return self._shown_by_call(node)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            func = node.value.func
            changes = isinstance(func, ast.Attribute) and func.attr not in _NORMALIZING
            return self.kinds(func.value) if changes else set()  # type: ignore[attr-defined]
        if isinstance(node, ast.Set):
            return {name for item in node.elts for name in self.kinds(item)}
        if isinstance(node, ast.BinOp):
            return self.kinds(node.left) & self.kinds(node.right)
        if isinstance(node, ast.Compare):
            return self._compared([node.left, *node.comparators])
        return set()

    def _compared(self, sides: list[ast.expr]) -> set[str]:
        """`f(1) == Point(1)`, `f(2)[0] == Point(2)`, `assertEqual(f(3), [Point(1), Point(2)])`."""
        found = []
        for side in sides:
            while isinstance(side, ast.Subscript) or (called_name(side) in _CONTAINERS and _is_of_one(side)):
                side = side.value if isinstance(side, ast.Subscript) else side.args[0]  # type: ignore[attr-defined]
            found.append(self.kinds(side) | self._names(self.held, side))
        return set().union(*found) if found and all(found) else set()

    def _shown_by_call(self, node: ast.Call) -> set[str]:
        func = node.func
        if called_name(node) in ("assertEqual", "assertNotEqual", "assertListEqual", "assertCountEqual"):
            return self._compared(node.args[:2])
        if isinstance(func, ast.Attribute):
            # A function without arguments has nothing to work out.
            named = isinstance(func.value, ast.Name) and func.attr not in PLAIN_METHODS
            # `p.add(Point(2, 3))`, and `p.add(q).length()`.
            alike = set().union(*map(self.kinds, node.args)) if node.args else set()
            inner = func.value.func if isinstance(func.value, ast.Call) else None
            chained = isinstance(inner, ast.Attribute) and func.attr not in _OF_VALUES
            found = self.kinds(inner.value) if chained and isinstance(inner, ast.Attribute) else set()
            return found | self.kinds(func.value) & (self.names if named else self.bare | alike)
        name = func.id if isinstance(func, ast.Name) else ""
        found = self.kinds(func)
        if name in ("isinstance", "issubclass") and node.args:
            found |= {part.id for part in ast.walk(node.args[-1]) if isinstance(part, ast.Name)}
        if name in ("getattr", "setattr", "hasattr") and node.args:
            found |= self.kinds(node.args[0])
        if name in _ORDERING:
            items = [item for part in node.args if isinstance(part, (ast.List, ast.Tuple)) for item in part.elts]
            found |= {name for item in items for name in self.kinds(item)}
        return found


def _is_of_one(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1
