"""Instrument test code: count the asserts that look at the program, and restore arguments that it overwrote."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Any

from rlvr.sandbox.inside.analysis import FUNCTIONS, Analysis, called_name, is_test_name, keys
from rlvr.sandbox.inside.shown import Roles

CHECKED, CAUGHT, ENTERED, STARTED = "_checked", "_caught", "_entered", "_started"
BEFORE, SETTLED, STAYS, ALL_STAY, TAKEN = "_before", "_settled", "_stays", "_all_stay", "_taken"

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def instrument(tree: ast.Module, names: Iterable[str]) -> ast.Module:
    """Return the tree with calls of CHECKED and the others, whose line numbers are those of the statements."""
    analysis = Analysis(tree, names)
    changed = _Instrument(analysis, Roles(analysis)).visit(tree)
    return ast.fix_missing_locations(changed)


class _Instrument(ast.NodeTransformer):
    def __init__(self, analysis: Analysis, roles: Roles) -> None:
        self.analysis = analysis
        self.roles = roles
        self.sites = {id(site): number for number, site in enumerate(analysis.sites)}

    def _call(self, name: str, *args: Any) -> ast.stmt:
        return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Constant(arg) for arg in args], []))

    def _call_on(self, name: str, variables: Iterable[str]) -> ast.stmt:
        return ast.Expr(ast.Call(ast.Name(name, ast.Load()), [ast.Name(each, ast.Load()) for each in variables], []))

    def visit(self, node: ast.AST) -> Any:
        site = self.sites.get(id(node))
        if isinstance(node, ast.pattern):
            return node
        if isinstance(node, ast.Expr) and self._is_main_call(node.value):
            return ast.copy_location(ast.Pass(), node)
        if isinstance(node, FUNCTIONS):
            return self._function(node)
        if isinstance(node, _LOOPS):
            return self._loop(node)
        if isinstance(node, ast.Try) and site is not None:
            for handler in node.handlers:
                handler.body.insert(0, ast.copy_location(self._call(CAUGHT, site), handler))
            return self.generic_visit(node)
        if isinstance(node, ast.expr):
            return self._expression(node)
        settled = self._changed_on_purpose(node) if isinstance(node, ast.Expr) else []
        taken = self._changed_by_tests(node)
        changed = self.generic_visit(node)
        before = [self._call_on(TAKEN, taken)] if taken else []
        after = [self._call_on(SETTLED, settled)] if settled else []
        after += [self._call(CHECKED, site)] if site is not None and not settled else []
        if not before and not after:
            return changed
        return [*(ast.copy_location(s, node) for s in before), changed, *(ast.copy_location(s, node) for s in after)]

    def _changed_on_purpose(self, node: ast.Expr) -> list[str]:
        """`push(xs, 1)` is called for what it does to xs, where an assert looks at xs."""
        if not isinstance(node.value, ast.Call) or called_name(node.value).startswith("assert"):
            return []
        given = [part.id for part in node.value.args if isinstance(part, ast.Name)]
        calls = self.analysis.from_program(node.value.func)
        return [name for name in given if calls and name in self.roles.subjects - self.analysis.program]

    def _changed_by_tests(self, node: ast.AST) -> list[str]:
        """Return arguments of the program that a statement changes in place: `heap.append(1)`, `xs[0] = 2`."""
        found: list[ast.expr] = []
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
        ):
            found = [node.value.func.value]
        elif isinstance(node, (ast.Assign, ast.Delete)):
            found = [target.value for target in node.targets if isinstance(target, ast.Subscript)]
        elif isinstance(node, ast.AugAssign):
            found = [node.target.value if isinstance(node.target, ast.Subscript) else node.target]
        names = {part.id for part in found if isinstance(part, ast.Name)}
        return sorted(names & self.analysis.given - self.analysis.ours - self.analysis.program - self.roles.shown)

    def _function(self, node: Any) -> ast.AST:
        changed: Any = self.generic_visit(node)
        if is_test_name(node.name) and node in self.analysis.tree.body:
            # A method or an inner function of the same name is another one.
            changed.body.insert(0, ast.copy_location(self._call(STARTED, node.name), node))
        return changed

    def _loop(self, node: Any) -> Any:
        """A loop over what the program returned, with asserts in it, has to execute one of them."""
        source = node.test if isinstance(node, ast.While) else node.iter
        inside = [self.sites[id(part)] for part in ast.walk(node) if id(part) in self.sites]
        changed = self.generic_visit(node)
        if not inside or not self.analysis.from_program(source):
            return changed
        return [ast.copy_location(self._call(ENTERED, node.lineno, *inside), node), changed]

    def _expression(self, node: ast.expr) -> ast.expr:
        return _Restore(self.analysis, self.roles).top(node)

    def _is_main_call(self, node: ast.expr) -> bool:
        """`unittest.main()`, `sys.exit(pytest.main())`: the tests are run after the code in any case."""
        if not isinstance(node, ast.Call):
            return False
        if called_name(node) in ("exit", "SystemExit") and len(node.args) == 1:
            return self._is_main_call(node.args[0])
        func = node.func
        if isinstance(func, ast.Name):
            return func.id == "main" and "main" in self.analysis.imported
        module = func.value if isinstance(func, ast.Attribute) and func.attr == "main" else None
        return isinstance(module, ast.Name) and module.id in ("unittest", "pytest")


class _Restore(ast.NodeTransformer):
    """Put BEFORE around the arguments of the program where an expected value is worked out from them."""

    def __init__(self, analysis: Analysis, roles: Roles) -> None:
        self.analysis = analysis
        self.roles = roles
        self.inside = False

    def top(self, node: ast.expr) -> ast.expr:
        """Return a whole expression of a statement, changed."""
        found: ast.expr = self.visit(node)
        return found

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, (ast.BoolOp, ast.Lambda)) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)
        ):
            return self.generic_visit(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            return self._read(node)
        if isinstance(node, ast.expr) and not self.inside and self.analysis.is_comparison(node):
            self.inside = True
            try:
                return self.generic_visit(node)
            finally:
                self.inside = False
        return self.generic_visit(node)

    def _call(self, node: ast.Call) -> ast.AST:
        outer, func = self.inside, node.func
        read = [keys(part) - self.analysis.ours for part in (*node.args, *node.keywords)]
        helper = isinstance(func, ast.Name) and func.id in self.analysis.functions
        given = ast.Tuple([*node.args, *(keyword.value for keyword in node.keywords)], ast.Load())
        self.inside = outer or self.analysis.is_comparison(given if helper else node)
        if isinstance(func, ast.Attribute):
            func.value = self.visit(func.value)
        elif not isinstance(func, ast.Name):
            node.func = self.visit(func)
        # The program gets an argument as it left it, where the test is about that.
        self.inside = self.inside and (helper or not self.analysis.from_program(func))
        node.args = [self.visit(argument) for argument in node.args]
        node.keywords = [self.visit(keyword) for keyword in node.keywords]
        self.inside = outer
        if self.analysis.from_program(func) and called_name(node) not in self.analysis.functions:
            node.args = [self._staying(*pair) for pair in zip(node.args, read)]
            for keyword, names in zip(node.keywords, read[len(node.args) :]):
                keyword.value = self._staying(keyword.value, names, all_of=keyword.arg is None)
        return node

    def _staying(self, node: ast.expr, names: frozenset[str], *, all_of: bool = False) -> ast.expr:
        """Mark an argument of the program that no assert looks at by itself: changes are not written back to it."""
        if isinstance(node, ast.Starred):
            return ast.copy_location(ast.Starred(self._staying(node.value, names, all_of=True), ast.Load()), node)
        if not names or not self.roles.shown.isdisjoint(names):
            return node
        called = ast.Name(ALL_STAY if all_of else STAYS, ast.Load())
        return ast.copy_location(ast.Call(called, [node], []), node)

    def _is_returned(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether a name or attribute is of what the program returned: it may be an argument, as it is now."""
        base: ast.expr = node
        while isinstance(base, (ast.Attribute, ast.Subscript)):
            base = base.value
        return isinstance(base, ast.Name) and base.id in self.analysis.returned

    def _read(self, node: Any) -> ast.expr:
        key = node.id if isinstance(node, ast.Name) else f".{node.attr}"
        if isinstance(node, ast.Attribute):
            node.value = self.visit(node.value)
        if key in self.analysis.program or key in self.analysis.functions or self._is_returned(node):
            return node
        untouched = key in self.roles.wanted and key not in self.roles.subjects
        if not self.inside and not untouched:
            return node
        return ast.copy_location(ast.Call(ast.Name(BEFORE, ast.Load()), [node], []), node)
