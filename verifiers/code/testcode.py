"""Test code as a tree: how it names the program, and what it defines by itself."""

from __future__ import annotations

import ast
import builtins
import symtable
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


def name_entry(tree: ast.Module, entry: str) -> ast.Module:
    """Change `check(candidate)` so that it calls the program's `entry` by its name, and call it."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == "check" and len(node.args.args) == 1:
            _Rename({node.args.args[0].arg: entry}).visit(node)
            node.args.args = []
    tree.body.append(ast.Expr(ast.Call(ast.Name("check", ast.Load()), [], [])))
    return ast.fix_missing_locations(tree)


def implied_imports(code: str) -> str:
    """Return imports of the modules that the tests use without importing them (MBPP/596).

    Otherwise an object of that name in the program would compute what is expected.
    """
    used = {n.value.id for n in ast.walk(parse(code)) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)}
    return "".join(f"import {name}\n" for name in sorted((used & _IMPLIED) - defined_in(code)))


class _Rename(ast.NodeTransformer):
    def __init__(self, renamed: dict[str, str]) -> None:
        self.renamed = renamed

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.renamed.get(node.id, node.id), node.ctx)


def of_program(code: str) -> str:
    """Return test code in which what it imports from the program's module is named as the program names it."""
    if not any(name in code for name in _MODULES):
        return code
    parse(code)
    imports = _Imports()
    changed = imports.visit(ast.parse(code))
    return ast.unparse(ast.fix_missing_locations(changed)) + "\n" if imports.found else code


class _Imports(_Rename):
    """Remove imports of the program's module, and name its attributes directly."""

    def __init__(self) -> None:
        super().__init__({})
        self.found = False
        self.modules: set[str] = set()

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
        return self.generic_visit(node)


def defined_in(code: str) -> set[str]:
    """Return the names that code binds for all of its functions to read."""
    table = symtable.symtable(code, "", "exec")
    inner = {symbol.get_name() for part in _tables(table) for symbol in part.get_symbols() if _is_bound_outside(symbol)}
    return inner | {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}


def _is_bound_outside(symbol: symtable.Symbol) -> bool:
    return symbol.is_declared_global() and symbol.is_assigned()


def used_in(code: str) -> set[str]:
    """Return the names that code reads, and that no function of it binds for itself."""
    tables = _tables(symtable.symtable(code, "", "exec"))
    symbols = [symbol for table in tables for symbol in table.get_symbols()]
    return {symbol.get_name() for symbol in symbols if symbol.is_global() and symbol.is_referenced()}


def _tables(table: symtable.SymbolTable) -> list[symtable.SymbolTable]:
    return [table, *(inner for child in table.get_children() for inner in _tables(child))]


def program_names(code: str, entry: str = "", prelude: str = "") -> tuple[str, ...]:
    """Return the names that the tests expect the program to define: a builtin one only if it is the only one."""
    used = used_in(code) - defined_in(code) - defined_in(prelude)
    found = used - _BUILTINS | ({entry} if entry else set())
    return tuple(sorted(found or (used if len(used) == 1 else ())))
