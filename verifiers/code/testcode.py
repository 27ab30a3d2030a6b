"""Test code as a tree: how it names the program, and what it defines by itself."""

from __future__ import annotations

import ast
import builtins
from functools import lru_cache

_BUILTINS = frozenset(dir(builtins))
# Names by which tests import the program.
_MODULES = ("solution", "candidate", "main", "your_module", "your_solution")
# Modules that tests use without importing them.
_IMPLIED = frozenset(("cmath", "collections", "math", "sys"))


@lru_cache(maxsize=4096)
def parse(code: str) -> ast.Module:
    """Return the tree of test code. Raise ValueError where it does not parse."""
    try:
        return ast.parse(code)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the test code does not parse: {error}") from error


def with_entry(tree: ast.Module, entry: str) -> ast.Module:
    """Return test code in which `check(candidate)` has no parameter, calls the program's `entry`, and is called."""
    changed = ast.parse(ast.unparse(tree))
    for number, node in enumerate(changed.body):
        if isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1:
            renamed = _Rename(node.args.args[0].arg, entry).visit(node)
            renamed.args.args = []
            changed.body[number] = renamed
    call = ast.Call(ast.Name("check", ast.Load()), [], [])
    changed.body.append(ast.Expr(call))
    return ast.fix_missing_locations(changed)


def loaded_in(tree: ast.AST) -> set[str]:
    """Return the names that are read."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def implied_imports(tree: ast.AST) -> str:
    """Return imports of the modules that the tests use without importing them (MBPP/596).

    Otherwise an object of that name in the program would compute what is expected.
    """
    used = {n.value.id for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    return "".join(f"import {name}\n" for name in sorted((used & _IMPLIED) - defined_in(tree)))


class _Rename(ast.NodeTransformer):
    def __init__(self, old: str, new: str) -> None:
        self.old, self.new = old, new

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.new, node.ctx) if node.id == self.old else node


def of_program(code: str) -> str:
    """Return test code in which what it imports from the program's module is named as the program names it."""
    if not any(name in code for name in _MODULES):
        return code
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return code
    imports = _Imports()
    changed = imports.visit(tree)
    return ast.unparse(ast.fix_missing_locations(changed)) + "\n" if imports.found else code


class _Imports(ast.NodeTransformer):
    """Remove imports of the program's module, and name its attributes directly."""

    def __init__(self) -> None:
        self.found = False
        self.modules: set[str] = set()
        self.renamed: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> ast.AST:
        kept = [alias for alias in node.names if alias.name not in _MODULES]
        self.modules |= {alias.asname or alias.name for alias in node.names if alias not in kept}
        self.found = self.found or len(kept) < len(node.names)
        return ast.Import(kept) if kept else ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        if node.module not in _MODULES:
            return node
        self.found = True
        self.renamed |= {alias.asname: alias.name for alias in node.names if alias.asname}
        return ast.Pass()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id in self.modules:
            return ast.Name(node.attr, node.ctx)
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)


def defined_in(tree: ast.AST) -> set[str]:
    """Return the names bound by assignments, definitions and imports, at any depth."""
    return {name for node in ast.walk(tree) for name in _bound_by(node)}


def _bound_by(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.alias):
        return [(node.asname or node.name).split(".")[0]]
    if isinstance(node, ast.arg):
        return [node.arg]
    return [node.name] if isinstance(node, ast.ExceptHandler) and node.name else []


def program_names(code: str, entry: str = "", prelude: str = "") -> tuple[str, ...]:
    """Return the names that the tests expect the program to define."""
    tree = parse(code)
    loaded = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    ours = defined_in(tree) - _only_methods(tree) | defined_in(parse(prelude))
    found = {name for name in loaded - ours if name not in _BUILTINS or _program_defines_builtin(tree, name)}
    return tuple(sorted(found | ({entry} if entry else set())))


def _only_methods(tree: ast.Module) -> set[str]:
    """Return the names of methods that nothing else has: a function of the program may be called like one."""
    inside = [part for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for part in node.body]
    methods = [part for part in inside if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef))]
    known = {id(method) for method in methods}
    others = [node for node in ast.walk(tree) if id(node) not in known]
    bound = {name for node in others for name in _bound_by(node)}
    # In the body of its class a method has its own name: `@size.setter`.
    outside = [part for part in inside if id(part) not in known] + [d for m in methods for d in m.decorator_list]
    there = {node.id for part in outside for node in ast.walk(part) if isinstance(node, ast.Name)}
    return {method.name for method in methods} - bound - there


def _program_defines_builtin(tree: ast.Module, name: str) -> bool:
    """`assert sum(10, 15) == 6`: where asserts name only builtins, the one they all call is the program's own."""
    asserts = [s for s in tree.body if isinstance(s, ast.Assert)]
    loaded = {node.id for s in asserts for node in ast.walk(s) if isinstance(node, ast.Name)}
    return loaded <= _BUILTINS and {_outermost_call(s.test) for s in asserts} == {name}


def _outermost_call(test: ast.expr) -> str:
    side = test.left if isinstance(test, ast.Compare) else test
    return side.func.id if isinstance(side, ast.Call) and isinstance(side.func, ast.Name) else ""
