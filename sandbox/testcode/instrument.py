"""Note the checks of test code that are executed, leave out its calls of test runners, refuse unknown fixtures."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

# Statements that end a block.
ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def called_name(node: ast.AST) -> str:
    """Return the last name of what a call calls, "" for anything else."""
    func = node.func if isinstance(node, ast.Call) else node
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def find_names(tree: ast.AST) -> tuple[set[str], set[str], set[str]]:
    """Return the names that code reads, those that it binds, but by imports, and those that it imports."""
    read, bound, imported = set[str](), set[str](), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.alias):
            imported.add(node.asname or node.name.split(".")[0])
    return read, bound, imported


# Names that tests may not have.
PREFIX = "_judge_"
CHECKED, FAILED, ERROR, LOOP = f"{PREFIX}checked", f"{PREFIX}failed", f"{PREFIX}Exception", f"{PREFIX}loop"
# A call that `mark_arguments` adds: `after(xs) == [1, 2]` looks at what the program has made of its argument.
AFTER = f"{PREFIX}after"
_LONGEST_TEXT = 160  # characters of calls
_RUNNERS = ("unittest", "pytest")
_GUARD = re.compile("__name__ == ['\"]__main__['\"]")
_EXPECTS = frozenset("raises warns assertRaises assertRaisesRegex assertWarns assertLogs".split())
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MARKS = frozenset("parametrize skip skipif usefixtures xfail".split())
# The fixtures that pytest has of its own.
_FIXTURES = frozenset(
    "cache capfd capfdbinary caplog capsys capsysbinary doctest_namespace monkeypatch pytestconfig record_property"
    " record_testsuite_property record_xml_attribute recwarn request subtests tmp_path tmp_path_factory tmpdir"
    " tmpdir_factory".split()
)


def instrument(tree: ast.Module, names: Collection[str] | None = None) -> ast.Module:
    """Return the tree with a call of CHECKED after each assert, expected exception, and `if` that raises.

    It is given the number of the check in the code, from 0. With the names of a program, loops that are in no other
    loop are put into the context LOOP. And an assert that fails does not end the tests: it becomes a call of FAILED,
    with its number and the calls of the program in it, as text. Where the code has a `try` or a `with`, which may
    handle the failure, it is raised.
    """
    rename_called_tests(tree)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module in _RUNNERS]
    mains = {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "main"}
    # Where a failure may be handled, it must be raised.
    handled = any(isinstance(node, (ast.Try, ast.With)) for node in ast.walk(tree))
    return ast.fix_missing_locations(_Instrument(mains, names, handled=handled).visit(tree))


def rename_called_tests(tree: ast.Module) -> None:
    """Rename test functions that the test code calls itself, so that they do not run a second time.

    Only calls without arguments count, at the top or under `if __name__ == "__main__"`, of plain functions.
    """
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    names = [node.name for node in functions]
    plain = {node.name for node in functions if not (node.args.args or node.decorator_list)}
    guards = [node for node in tree.body if isinstance(node, ast.If) and _GUARD.fullmatch(ast.unparse(node.test))]
    calls = [
        node.value for node in itertools.chain(tree.body, *(guard.body for guard in guards)) if type(node) is ast.Expr
    ]
    called = {call.func.id for call in calls if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)}
    renamed = {name for name in called & plain if names.count(name) == 1}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in renamed:
            node.id = f"called_{node.id}"
        elif isinstance(node, ast.FunctionDef) and node.name in renamed:
            node.name = f"called_{node.name}"


def is_check(node: ast.stmt) -> bool:
    """Whether a statement, once executed, may show something: an assert, or what can only be passed by an exception."""
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return any(called_name(item.context_expr) in _EXPECTS for item in node.items)
    if isinstance(node, ast.If):
        return isinstance(node.body[-1], ast.Raise)
    if isinstance(node, ast.Expr):
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        return isinstance(call, ast.Call) and (called_name(call).startswith("assert") or called_name(call) == "raises")
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Try) and bool(node.handlers))


def number_checks(tree: ast.AST) -> list[int]:
    """Return the numbers of the checks of test code, but for asserts that always fail."""
    checks = [node for node in _walk_statements(tree) if is_check(node)]
    return [number for number, node in enumerate(checks) if not always_fails(node)]


def _walk_statements(node: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements of a block and those in them, in the order of the code."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield from _walk_statements(child)


def always_fails(node: ast.AST) -> bool:
    """Whether a statement fails whenever it is executed: `raise`, `assert False`."""
    never = isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and not node.test.value
    return never or isinstance(node, ast.Raise)


def can_fail(tree: ast.Module) -> bool:
    """Whether test code has a check other than `assert True`. One that can never fail makes the tests weak."""
    checks = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and is_check(node)]
    return not all(isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) for node in checks)


def refuse_fixtures(tree: ast.Module) -> None:
    """Raise ValueError for fixtures of a plugin of pytest, or of a conftest."""
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    known = {*_FIXTURES}
    for function in functions:
        for mark in function.decorator_list:
            if called_name(mark) == "fixture":
                named = [k.value for k in getattr(mark, "keywords", ()) if k.arg == "name"]
                known |= {
                    function.name,
                    *(ast.literal_eval(value) for value in named if isinstance(value, ast.Constant)),
                }
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    owned = [(owner, node) for owner in classes for node in owner.body]
    for owner, node in [*((None, node) for node in tree.body), *owned]:
        if isinstance(node, _FUNCTIONS) and node.name.startswith("test") and not _calls(tree, node.name):
            needed = [argument.arg for argument in node.args.args][: len(node.args.args) - len(node.args.defaults)]
            marks = [*node.decorator_list, *(owner.decorator_list if owner is not None else ())]
            others = any(called_name(mark) not in _MARKS for mark in marks)
            unknown = sorted({*needed[owner is not None :]} - known - _find_parameters(marks))
            if unknown and not others:
                raise ValueError(f"the test {node.name} takes fixtures that are not provided: {', '.join(unknown)}")


def _find_parameters(marks: Sequence[ast.expr]) -> set[str]:
    """Return the names that `pytest.mark.parametrize` gives values."""
    found: set[str] = set()
    for mark in marks:
        if isinstance(mark, ast.Call) and called_name(mark) == "parametrize":
            names = [mark.args[0]] if mark.args else [k.value for k in mark.keywords if k.arg == "argnames"]
            texts = [part.value for name in names for part in ast.walk(name) if isinstance(part, ast.Constant)]
            found |= {name.strip() for text in texts if isinstance(text, str) for name in text.split(",")}
    return found


def _calls(tree: ast.Module, name: str) -> bool:
    return any(isinstance(node, ast.Call) and called_name(node) == name for node in ast.walk(tree))


class _Instrument(ast.NodeTransformer):
    def __init__(self, mains: set[str], names: Collection[str] | None, *, handled: bool) -> None:
        self.mains, self.names = mains, names or ()
        self.going_on = names is not None and not handled
        self.checks = 0
        # Whether loops that are found are in another one, or need no context.
        self.within = names is None

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr):  # there are no statements in it
            return node
        if isinstance(node, ast.Expr) and self._is_main_call(node.value):
            return ast.copy_location(ast.Pass(), node)
        checks = isinstance(node, ast.stmt) and is_check(node)
        number = ast.Constant(self.checks)
        self.checks += checks
        outermost = isinstance(node, ast.For) and not self.within
        self.within = self.within or outermost
        changed: Any = self.generic_visit(node)
        if outermost:
            self.within = False
            return ast.copy_location(ast.With([ast.withitem(ast.Name(LOOP, ast.Load()))], [changed]), node)
        if not checks:
            return changed
        found: list[ast.stmt] = [changed, ast.copy_location(_call(CHECKED, number), node)]
        if not (self.going_on and isinstance(node, ast.Assert)):
            return found
        calls = [part for part in ast.walk(node.test) if isinstance(part, ast.Call) and self._is_of_program(part.func)]
        text = ", ".join(map(ast.unparse, calls))
        short = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
        handler = ast.ExceptHandler(ast.Name(ERROR, ast.Load()), None, [_call(FAILED, number, ast.Constant(short))])
        return ast.copy_location(ast.Try(found, [handler], [], []), node)

    def _is_of_program(self, func: ast.expr) -> bool:
        return isinstance(func, ast.Name) and func.id in self.names

    def _is_main_call(self, node: ast.expr) -> bool:
        """`unittest.main()`, `sys.exit(pytest.main())`: the tests are run after the code in any case."""
        if not isinstance(node, ast.Call):
            return False
        if called_name(node) in ("exit", "SystemExit") and len(node.args) == 1:
            return self._is_main_call(node.args[0])
        if isinstance(node.func, ast.Name):
            return node.func.id in self.mains
        module = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "main" else None
        return isinstance(module, ast.Name) and module.id in _RUNNERS


def _call(name: str, *args: ast.expr) -> ast.Expr:
    return ast.Expr(ast.Call(ast.Name(name, ast.Load()), list(args), []))
