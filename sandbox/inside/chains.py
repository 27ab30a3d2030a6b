"""Which results of a program's methods, attributes and functions test code uses as the program's objects.

An object that a method returns may be the one it belongs to. Where the test expects a number there, its operators must
not compute with what is expected: `abs(account.balance() - 150) < 1e-9`.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator
from typing import Any

from rlvr.sandbox.inside.analysis import FUNCTIONS, called_name

# Stand for the items of a program's object, and for its methods where they are looked up by a name that is computed.
ITEM, ITERATED, ANY = "[]", "iter", "*"
# Functions of asyncio that return what is awaited.
_AWAITING = frozenset("run run_until_complete wait_for shield gather create_task ensure_future".split())


def chained(tree: ast.Module, classes: Container[str], plain: Container[str]) -> frozenset[str]:
    """Return the names of methods, attributes and functions whose results are used as objects: chained or by identity.

    `plain` are the methods of values: only where the tests call one on an instance of `classes` does it tell anything.
    """
    return _Chains(tree, classes, plain).found()


class _Chains:
    def __init__(self, tree: ast.Module, classes: Container[str], plain: Container[str]) -> None:
        self.nodes = list(ast.walk(tree))
        self.classes = classes
        self.sources: dict[str, set[str]] = {}
        size = -1
        while sum(map(len, self.sources.values())) > size:
            size = sum(map(len, self.sources.values()))
            for node in self.nodes:
                self._bind(node)
        own = {n.attr for n in self.nodes if isinstance(n, ast.Attribute) and self._is_instance(n.value)}
        self.tells = lambda name: name in own or name not in plain

    def _bind(self, node: ast.AST) -> None:
        pairs: list[tuple[Any, Any]] = []
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            pairs = [(node.target, node.value)]
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            pairs = [(node.target, node.iter)]
        elif isinstance(node, ast.withitem):
            pairs = [(node.optional_vars, node.context_expr)]
        elif isinstance(node, FUNCTIONS):
            made = [part.value for part in ast.walk(node) if isinstance(part, (ast.Return, ast.Yield))]
            fixture = any(called_name(mark) == "fixture" for mark in node.decorator_list)
            names = (f"{node.name}()", node.name)[: 1 + fixture]
            pairs = [(ast.Name(name, ast.Store()), value) for value in made for name in names]
        for target, value in pairs:
            if target is None or value is None:
                continue
            if isinstance(value, ast.Call) and called_name(value) in self.classes:
                # What an instance was made with is not it.
                found = {called_name(value)}
            else:
                found = {name for part in ast.walk(value) for name in self._origin(part)}
            loops = isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension))
            if found and (loops or isinstance(target, (ast.Tuple, ast.List))):
                found.add(ITERATED)
            for part in ast.walk(target):
                if isinstance(part, (ast.Name, ast.Attribute)) and not isinstance(part.ctx, ast.Load):
                    self.sources.setdefault(ast.unparse(part), set()).update(found)

    def _origin(self, node: ast.AST) -> set[str]:
        """Return the names of what a node is the result of."""
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Call):
                return {ANY}
            name = called_name(node)
            if name in _AWAITING:
                return {name}.union(*(self._origin(part) for given in node.args for part in ast.walk(given)))
            return {name, *self.sources.get(f"{name}()", ()), *([ITERATED] if name == "next" else [])}
        if isinstance(node, ast.Attribute):
            return {node.attr, *self.sources.get(ast.unparse(node), ())}
        if isinstance(node, ast.Subscript):
            return {ITEM, *self._origin(node.value)}
        if isinstance(node, (ast.Await, ast.NamedExpr)):
            return self._origin(node.value)
        return self.sources.get(node.id, set()) if isinstance(node, ast.Name) else set()

    def _is_instance(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Call):
            return called_name(node) in self.classes
        return any(name in self.classes for name in self.sources.get(ast.unparse(node), ()))

    def found(self) -> frozenset[str]:
        """Return all names."""
        return frozenset(name for node in self._used() for name in self._origin(node))

    def _used(self) -> Iterator[ast.expr]:
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and self.tells(node.attr):
                yield node.value
            elif isinstance(node, ast.Compare) and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
                sides = [node.left, *node.comparators]
                yield from sides if not any(isinstance(side, ast.Constant) for side in sides) else ()
            elif isinstance(node, ast.Call) and called_name(node) in ("assertIs", "assertIsNot", "id", "getattr"):
                yield from node.args
