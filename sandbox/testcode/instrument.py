"""Count the checks of test code that are executed, leave out its calls of test runners, refuse unknown fixtures."""

from __future__ import annotations

import ast
from collections.abc import Collection, Sequence
from typing import Any

from .pytest_stub import FIXTURES

# Which statements of test code can be executed, and which expressions have the same truth whatever a program does.

ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


def called_name(node: ast.AST) -> str:
    """Return the last name of what a call calls, "" for anything else."""
    func = node.func if isinstance(node, ast.Call) else node
    return func.id if isinstance(func, ast.Name) else func.attr if isinstance(func, ast.Attribute) else ""


def truth(node: ast.expr | None) -> bool | None:
    """Return the truth of an expression that has the same one whatever the program does; else None."""
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
        return True
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return None if any(isinstance(item, ast.Starred) for item in node.elts) else bool(node.elts)
    if isinstance(node, ast.Dict):
        return None if None in node.keys else bool(node.keys)
    if isinstance(node, ast.JoinedStr):
        texts = [part.value for part in node.values if isinstance(part, ast.Constant)]
        return True if any(texts) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(node.operand)
        return None if inner is None else not inner
    if isinstance(node, ast.NamedExpr):
        return truth(node.value)
    if isinstance(node, ast.BoolOp):
        parts = [truth(value) for value in node.values]
        decisive = isinstance(node.op, ast.Or)
        return decisive if decisive in parts else None if None in parts else not decisive
    if isinstance(node, ast.IfExp):
        branches = {truth(node.body), truth(node.orelse)}
        return branches.pop() if len(branches) == 1 else None
    return None


def _is_empty(node: ast.expr) -> bool:
    """Whether a loop over the expression has no turn: an empty display, or range(0)."""
    if isinstance(node, ast.Call) and called_name(node) == "range" and len(node.args) == 1:
        return isinstance(node.args[0], ast.Constant) and node.args[0].value in (0, False)
    return isinstance(node, (ast.Tuple, ast.List, ast.Dict, ast.Constant)) and truth(node) is False


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a statement that can be executed."""
    if isinstance(statement, (ast.If, ast.While)):
        known = truth(statement.test)
        return [block for block, dead in ((statement.body, False), (statement.orelse, True)) if known is not dead]
    if isinstance(statement, (ast.For, ast.AsyncFor)):
        return [statement.orelse] if _is_empty(statement.iter) else [statement.body, statement.orelse]
    blocks = [getattr(statement, name) for name in ("body", "orelse", "finalbody") if hasattr(statement, name)]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    return blocks + [case.body for case in getattr(statement, "cases", [])]


# Names that tests may not have.
PREFIX = "_judge_"
CHECKED, FAILED, ERROR = f"{PREFIX}checked", f"{PREFIX}failed", f"{PREFIX}Exception"
# Calls that the proof of strength adds: `f(after(xs))` asks for the value of xs after the call, and in
# `unchanging(a) == 1` an answer of an earlier call must be of a type whose values do not change.
AFTER, UNCHANGING = f"{PREFIX}after", f"{PREFIX}unchanging"
_LONGEST_TEXT = 160  # characters of calls
_RUN_BY_THEMSELVES = frozenset("setUp tearDown setUpClass tearDownClass asyncSetUp asyncTearDown main check".split())
_RUNNERS = ("unittest", "pytest")
_EXPECTS = frozenset("raises warns assertRaises assertRaisesRegex assertWarns assertLogs".split())
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_MARKS = frozenset("parametrize skip skipif usefixtures xfail".split())
_PYTEST = tuple("MonkeyPatch approx fail fixture importorskip main mark param raises skip warns xfail".split())


def instrument(tree: ast.Module, names: Collection[str] | None = None) -> ast.Module:
    """Return the tree with a call of CHECKED after each assert, expected exception, and `if` that raises.

    With the names of a program an assert that fails, outside `try` and `with`, does not end the tests, but becomes a
    call of FAILED with the calls of the program in it, as text.
    """
    leave_out_calls(tree)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module in _RUNNERS]
    mains = {alias.asname or alias.name for node in imports for alias in node.names if alias.name == "main"}
    return ast.fix_missing_locations(_Instrument(mains, names).visit(tree))


def leave_out_calls(tree: ast.Module) -> None:
    """Leave out calls such as `test_a()` at the end of test code: its test functions are run after it in any case."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test")]
    names = [node.name for node in functions]
    own = {
        node.name for node in functions if not (node.args.args or node.decorator_list) and names.count(node.name) == 1
    }
    for number in reversed(range(len(tree.body))):
        node = tree.body[number]
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in own:
            tree.body[number] = ast.copy_location(ast.Pass(), node)
        elif isinstance(node, ast.If):
            leave_out_calls(inner := ast.Module([*functions, *node.body], []))
            node.body = inner.body[len(functions) :]
        elif not isinstance(node, (ast.Expr, ast.FunctionDef)):
            break


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


def can_fail(tree: ast.Module) -> bool:
    """Whether a check of test code can be executed and fail."""
    used = [part for part in ast.walk(tree) if isinstance(part, (ast.Name, ast.Attribute))]
    names = {part.id if isinstance(part, ast.Name) else part.attr for part in used} | _RUN_BY_THEMSELVES

    def runs(statement: ast.stmt) -> bool:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name, left_out = statement.name, {"skip", "xfail", "expectedFailure"}
            if not left_out.isdisjoint(map(called_name, statement.decorator_list)):
                return False
            return name.startswith(("test", "__")) or name in names or bool(statement.decorator_list)
        return True

    def checks(body: list[ast.stmt]) -> bool:
        for statement in body:
            constant = isinstance(statement, ast.Assert) and truth(statement.test) is not None
            if runs(statement) and ((is_check(statement) and not constant) or any(map(checks, blocks(statement)))):
                return True
            if isinstance(statement, ENDS):
                return False
        return False

    return checks(tree.body)


def refuse_fixtures(tree: ast.Module) -> None:
    """Raise ValueError for what a test runner would provide, and the stand-in for pytest does not."""
    for node in ast.walk(tree):
        path = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else [""]
        if path[0] == "pytest" and len(path) == 2 and path[1] not in _PYTEST:
            raise ValueError(f"the tests use pytest.{path[1]}; only {', '.join(_PYTEST)} are provided")
    functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTIONS)]
    known = {"request", *FIXTURES}
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
            unknown = (
                set(needed) - known - _find_parameters(marks) - ({needed[0]} if owner is not None and needed else set())
            )
            if unknown and not others:
                raise ValueError(
                    f"the test {node.name} takes fixtures that are not provided: {', '.join(sorted(unknown))}"
                )


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
    def __init__(self, mains: set[str], names: Collection[str] | None) -> None:
        self.mains, self.names, self.going_on = mains, names or (), names is not None

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Expr) and self._is_main_call(node.value):
            return ast.copy_location(ast.Pass(), node)
        checks = isinstance(node, ast.stmt) and is_check(node)
        before, self.going_on = self.going_on, self.going_on and not isinstance(node, (ast.Try, ast.With))
        changed = self.generic_visit(node)
        self.going_on = before
        if not checks:
            return changed
        found: list[ast.stmt] = [changed, ast.copy_location(_call(CHECKED), node)]  # type: ignore[list-item]
        if not (self.going_on and isinstance(node, ast.Assert)):
            return found
        calls = [part for part in ast.walk(node.test) if isinstance(part, ast.Call) and self._is_of_program(part.func)]
        text = ", ".join(map(ast.unparse, calls))
        short = text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + "..."
        handler = ast.ExceptHandler(ast.Name(ERROR, ast.Load()), None, [_call(FAILED, ast.Constant(short))])
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
