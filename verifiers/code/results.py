"""Names of a program whose results test code must take for objects, by what it does with what their methods return."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rlvr.sandbox.inside.analysis import called_name

if TYPE_CHECKING:
    from rlvr.verifiers.code.classes import Uses

_COMPARING = frozenset("assertEqual assertNotEqual assertIn assertNotIn assertIs assertIsNot".split())


# What most objects have for their text, and no builtin value: a name before a parenthesis.
_CONSTRUCTED = re.compile(r"[A-Za-z_]\w*\(.*\)")
_READING = {
    **dict.fromkeys("str repr format ascii print".split(), "text"),
    **dict.fromkeys("len int float abs round bool hash complex".split(), "number"),
    **dict.fromkeys("list tuple sum min max iter next enumerate reversed any all".split(), "items"),
    # Brings the values of a function into an order, mostly.
    **dict.fromkeys(("sorted", "set", "frozenset"), "kept"),
}
# Uses that do not tell an object from a value.
_OF_ANY = frozenset(("equal", "truth", "kept"))


def _is_constructed(node: ast.expr) -> bool:
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and _CONSTRUCTED.search(text) is not None


def _use(node: ast.AST, part: ast.AST) -> str:
    """Return how an expression is used by the node around it, "" for other uses than reading."""
    if _is_format(node, part):
        return "text"
    if called_name(node) == "zip":
        return "items"
    if isinstance(node, ast.Call):
        return _READING.get(node.func.id, "") if isinstance(node.func, ast.Name) and node.args[:1] == [part] else ""
    if isinstance(node, ast.Subscript):
        return "item" if part is node.value and isinstance(node.ctx, ast.Load) and _is_fixed(node.slice) else ""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        if isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            return "equal"
        return {ast.In: "in", ast.NotIn: "not in"}.get(type(node.ops[0]), "") if part is not node.left else ""
    if isinstance(node, (ast.For, ast.comprehension)):
        return "items" if part is node.iter else ""
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(node.value, ast.Name) and all(isinstance(target, ast.Tuple) for target in targets):
            return "items"
        return "kept" if all(isinstance(target, ast.Name) for target in targets) else ""
    tested = isinstance(node, (ast.Assert, ast.If)) or (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not))
    return "truth" if tested else ""


def _is_format(node: ast.AST, part: ast.AST) -> bool:
    """Whether a node puts an expression into a text: `f"{p}"`, `"%s" % p`, `"{}".format(p)`."""
    if isinstance(node, ast.BinOp):
        return (
            isinstance(node.op, ast.Mod) and part is node.right and isinstance(node.left, (ast.Constant, ast.JoinedStr))
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "format" and isinstance(node.func.value, ast.Constant)
    return isinstance(node, ast.FormattedValue)


def _is_fixed(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(map(_is_fixed, node.elts))
    if isinstance(node, ast.Slice):
        return all(part is None or _is_fixed(part) for part in (node.lower, node.upper, node.step))
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant)


class Results:
    """Follows the results of methods: `p = f(1)`, `q = p.add(f(2))`, `q.dist()` shows that `f` returns objects."""

    def __init__(self, uses: Uses, of_values: frozenset[str]) -> None:
        self.uses = uses
        self.of_values = of_values
        self.bound: dict[str, set[str]] = {}
        size = -1
        while sum(map(len, self.bound.values())) > size:
            size = sum(map(len, self.bound.values()))
            for node in uses.nodes:
                self._bind(node)

    def _bind(self, node: ast.AST) -> None:
        targets: list[Any] = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            targets = [node.target]
        for target in targets:
            found = self.behind(node.value)  # type: ignore[attr-defined]
            if found and isinstance(target, ast.Name):
                self.bound.setdefault(target.id, set()).update(found)

    def behind(self, node: ast.AST | None) -> set[str]:
        """Return the names on whose results methods were called, with a result that the node is or is part of."""
        if isinstance(node, ast.Name):
            return self.bound.get(node.id, set())
        if isinstance(node, (ast.Subscript, ast.Attribute, ast.Await)):
            return self.behind(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return self.uses.kinds(node.func.value) | self.behind(node.func.value)
        return set()

    def all(self) -> Iterator[tuple[str, bool]]:
        """Yield names, and whether only a capital letter makes a class of them (classes.py)."""
        yield from self._read()
        for node in self.uses.nodes:
            if isinstance(node, ast.Call):
                yield from self._shown_by_call(node)
            elif isinstance(node, ast.Compare):
                yield from ((name, True) for name in self._compared([node.left, *node.comparators]))
            elif isinstance(node, ast.Attribute) and node.attr not in self.of_values:
                yield from ((name, True) for name in self.behind(node.value) | self._summed(node.value))

    def _shown_by_call(self, node: ast.Call) -> Iterator[tuple[str, bool]]:
        func = node.func
        if isinstance(func, ast.Attribute) and func.attr not in self.of_values:
            # No method of a value returns something with such a method.
            yield from ((name, False) for name in self.behind(func.value))
        if called_name(node) in _COMPARING:
            yield from ((name, True) for name in self._compared(node.args[:2]))

    def _summed(self, node: ast.AST) -> set[str]:
        """Return the names of `sum([Money(1), Money(2)], Money(0))`."""
        if isinstance(node, ast.Call) and called_name(node) == "sum" and len(node.args) == 2:
            items = node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else []
            return set.intersection(*(self.uses.kinds(item) for item in (*items, node.args[1])))
        return set()

    def _read(self) -> Iterator[tuple[str, bool]]:
        """Yield names of whose results the tests read nothing but text, sizes, items, what is in them and what is not.

        An object that answers is told nothing of what is expected there, and values are values all the same.
        """
        ways: dict[str, set[str]] = {}
        constructed = set()
        for node in self.uses.nodes:
            for part in ast.iter_child_nodes(node):
                stored = isinstance(part, (ast.Name, ast.Attribute)) and not isinstance(part.ctx, ast.Load)
                for name in set() if stored else self.uses.kinds(part):
                    ways.setdefault(name, set()).add(_use(node, part))
            if isinstance(node, ast.Compare) and _is_constructed(node.comparators[0]):
                constructed |= {name for part in ast.walk(node.left) for name in self.uses.kinds(part)}
        for name, found in ways.items():
            if "" not in found and found - _OF_ANY and len(found & {"in", "not in"}) != 1:
                yield name, not ("text" in found and name in constructed)

    def _compared(self, sides: list[ast.expr]) -> set[str]:
        """`Point(1).add(Point(2)) == Point(3)`."""
        made = [self.uses.kinds(side) for side in sides]
        behind = [self.behind(side) for side in sides]
        if not (any(made) and any(behind)) or not all(one or other for one, other in zip(made, behind)):
            return set()
        return set().union(*made) & set().union(*behind)
