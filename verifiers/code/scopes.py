"""Variables and functions of test code, and which names of a program it uses as classes."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from rlvr.sandbox.inside.live import called_name
from rlvr.verifiers.code import known

Key = tuple[int, str]
Loops = tuple[ast.AST, ...]


@dataclass
class Variable:
    """What happens to one variable: places are numbers in the order of execution, with the loops around them."""

    binds: list[tuple[int, Loops, ast.expr | None, ast.AST]] = field(default_factory=list)
    reads: list[tuple[int, Loops, ast.AST | None]] = field(default_factory=list)
    escapes: list[tuple[int, Loops]] = field(default_factory=list)
    changes: list[tuple[int, Loops, int, ast.expr | None]] = field(default_factory=list)
    passes: list[tuple[int, Loops, bool, bool]] = field(default_factory=list)
    others: set[Key] = field(default_factory=set)


class Classes:
    """Names of the program that tests use as classes, and the variables that hold their objects.

    A class has a capital letter, and tests read attributes of what it returns, or do nothing with it but hand it over.
    `bound`: the classes of a variable; None among them where it holds something else too.
    """

    def __init__(self, tree: ast.Module, names: frozenset[str]) -> None:
        capital = {name for name in names if name[:1].isupper()}
        self.bound: dict[str, set[str | None]] = {}
        for bound, value in known.assigned(tree):
            made = known.root(value) if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
            for name in bound:
                self.bound.setdefault(name, set()).add(made if made in capital else None)
        self.names: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, (ast.Attribute, ast.Subscript)):
                self.names |= self._made(node.value, capital)
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
                self.names |= self._made(node.comparators[0], capital)
            elif isinstance(node, ast.Call) and called_name(node) in known.OBJECT_READING | known.READING:
                self.names |= set().union(*(self._made(part, capital) for part in node.args))
        self.bound = {name: found for name, found in self.bound.items() if found <= self.names}

    def _made(self, node: ast.expr, capital: set[str]) -> set[str]:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return {node.func.id} & capital
        found = self.bound.get(node.id, set()) if isinstance(node, ast.Name) else set()
        return {name for name in found if name} if None not in found else set()


class Scope:
    """A function of the tests, or the module: its variables, and whether it calls the program."""

    def __init__(self, number: int, node: ast.Module | ast.FunctionDef, above: Scope | None) -> None:
        self.number, self.node, self.above = number, node, above
        self.parameters = [] if isinstance(node, ast.Module) else [argument.arg for argument in node.args.args]
        self.bound = set(self.parameters).union(*map(known.bound, node.body))
        self.functions = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
        self.calls: list[tuple[int, Loops]] = []
        self.called: list[ast.Call] = []

    def owner(self, name: str) -> Scope | None:
        """Return the scope in which a name is bound."""
        scope: Scope | None = self
        while scope is not None and name not in scope.bound:
            scope = scope.above
        return scope
