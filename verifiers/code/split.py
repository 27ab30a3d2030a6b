"""Tests split into calls, which a program answers in its sandbox, and checks of the answers, which it never sees.

`assert f(2) == 4` becomes the call `f(2)` and the check `answer == 4`. Tests that are more than asserts over such calls
run whole, in a second sandbox (rlvr.sandbox.TestJob).
"""

from __future__ import annotations

import ast
import builtins
import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rlvr.sandbox.inside import live, plain
from rlvr.sandbox.inside.standins import CutShort
from rlvr.verifiers.code import eval as code_eval
from rlvr.verifiers.code.arguments import Arguments, NotSplit, plain_classes
from rlvr.verifiers.code.known import atoms, immutable_side, nested, shows_object
from rlvr.verifiers.code.scopes import Classes

_BUILTINS = frozenset(dir(builtins))
# Names by which tests import the program.
_MODULES = ("solution", "candidate", "main", "your_module", "your_solution")
_ANSWER = "answer "  # prefix of the names that stand for returned values; with its space, no name of a test has it

# Values of these arrive here as dicts; classes of these modules are not known by what arrives here.
_MAPPINGS = frozenset(("Counter", "OrderedDict", "defaultdict"))
_CLASSES_OF = frozenset(("argparse", "collections", "types"))


@dataclass(frozen=True)
class Check:
    """One assert: its expression over `answer 0`, `answer 1`, ..., and the numbers of the calls it needs."""

    test: ast.expr
    calls: tuple[int, ...]


@dataclass(frozen=True)
class Split:
    """Tests as calls and checks. `setup` is run after the program; `modules` is what the checks may use."""

    calls: tuple[str, ...]
    checks: tuple[Check, ...]
    setup: str
    modules: dict[str, str]

    def passes(self, check: Check, answers: list[Any]) -> bool:
        """Whether an assert holds for the answers of its calls."""
        return self.decide(check, answers) is True

    def decide(self, check: Check, answers: list[Any]) -> bool | None:
        """As `passes`; None where that cannot be told within the bounds of time and memory."""
        values = {f"{_ANSWER}{number}": answers[number] for number in check.calls}
        # An assert may be decided more than once.
        values = {name: value.again() if isinstance(value, plain.Yielded) else value for name, value in values.items()}
        try:
            return bool(code_eval.evaluate(check.test, values, self.modules))
        except (code_eval.ResultTooLarge, plain.TooLarge, CutShort):
            return None
        except code_eval.VALUE_ERRORS:
            return False


@lru_cache(maxsize=4096)
def parse(code: str) -> ast.Module:
    """Return the tree of test code. Raise ValueError where it does not parse."""
    try:
        return ast.parse(code)
    except (SyntaxError, RecursionError, MemoryError) as error:
        raise ValueError(f"the test code does not parse: {error}") from error


@lru_cache(maxsize=4096)
def split(code: str, entry: str = "", prelude: str = "") -> Split | None:
    """Split test code; return None where it has to run whole.

    With `entry` the code defines `check(candidate)`, and `candidate` is the program's function `entry`. The
    names that `prelude` defines are the tests' own, not the program's: asserts that call them run whole.
    """
    if "set_int_max_str_digits" in code + prelude:
        # A setting of the whole process.
        return None
    tree = parse(code)
    body = [statement for statement in tree.body if not _inert(statement)]
    if entry:
        checks = [s for s in body if isinstance(s, ast.FunctionDef) and s.name == "check"]
        if len(checks) != 1 or len(checks[0].args.args) != 1:
            return None
        renamed = with_entry(tree, entry)
        check = next(s for s in renamed.body if isinstance(s, ast.FunctionDef) and s.name == "check")
        body = [s for s in renamed.body[:-1] if s is not check and not _inert(s)]
        body += [s for s in check.body if not _inert(s)]
    try:
        return _Splitter(body, parse(prelude), entry).split()
    except NotSplit:
        return None


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
    return "".join(f"import {name}\n" for name in sorted((used & code_eval.MODULES.keys()) - defined_in(tree)))


def _inert(statement: ast.stmt) -> bool:
    """Docstrings, bare names, `pass`, and HumanEval's METADATA."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, (ast.Constant, ast.Name))
    named = isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name)
    metadata = named and statement.targets[0].id == "METADATA"  # type: ignore[attr-defined]
    return metadata or isinstance(statement, ast.Pass)


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


class _Splitter:
    def __init__(self, body: list[ast.stmt], prelude: ast.Module, entry: str) -> None:
        self.body = body
        trusted = defined_in(prelude) - {entry}
        self.calls: list[str] = []
        self.modules: dict[str, str] = {}
        whole = ast.Module(body, [])
        imports = [s for s in body if isinstance(s, (ast.Import, ast.ImportFrom))]
        self.setup = "\n".join(ast.unparse(s) for s in imports)
        for statement in imports:
            self._import(statement)
        loaded = {n.id for n in ast.walk(whole) if isinstance(n, ast.Name)}
        self.theirs = {
            name
            for name in loaded - trusted - set(self.modules)
            if name not in _BUILTINS or _program_defines_builtin(whole, name)
        }
        self.functions = {
            n.func.id for n in ast.walk(whole) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        self.classes = Classes(whole, frozenset(self.theirs)).names
        self.arguments = Arguments(self.theirs, trusted - plain_classes(prelude), self.modules)

    def _import(self, statement: ast.Import | ast.ImportFrom) -> None:
        if isinstance(statement, ast.Import):
            self.modules.update({alias.asname or alias.name: alias.name for alias in statement.names})
        else:
            self.modules.update({a.asname or a.name: f"{statement.module}.{a.name}" for a in statement.names})

    def split(self) -> Split:
        """Split each assert by itself. Raise NotSplit for other statements: asserts may depend on them."""
        if not all(isinstance(statement, (ast.Assert, ast.Import, ast.ImportFrom)) for statement in self.body):
            raise NotSplit
        asserts = [s.test for s in self.body if isinstance(s, ast.Assert) and self._counts(s.test)]
        checks = tuple(self._check(test) for test in asserts)
        return Split(tuple(self.calls), checks, self.setup, self.modules)

    def _counts(self, test: ast.expr) -> bool:
        """Whether an assert can fail, and calls the program or reads a value of it. `assert f` does neither."""
        if live.truth(test) is not None:
            return False
        read = {n.id for n in ast.walk(test) if isinstance(n, ast.Name) and n.id in self.theirs}
        looked_at = any(isinstance(n, ast.Attribute) and self._is_theirs(n.value) for n in ast.walk(test))
        return (
            bool(read - self.functions)
            or looked_at
            or any(self._is_theirs(n) for n in ast.walk(test) if isinstance(n, ast.Call))
        )

    def _check(self, test: ast.expr) -> Check:
        first = len(self.calls)
        if self._depends_on_classes(test) or shows_object(test):
            raise NotSplit
        for atom in atoms(test):
            own = [part for part in ast.walk(atom) if isinstance(part, ast.Call) and self._is_theirs(part)]
            if len(own) > 1 and not nested(own) and immutable_side(atom) is None:
                # The second may change what the first has returned.
                raise NotSplit
        replaced = self._replace(test)
        numbers = tuple(range(first, len(self.calls)))
        if len(numbers) > 1 and any(self.calls[number][:1].isupper() for number in numbers):
            # Objects may be compared, which stay in the program.
            raise NotSplit
        known = frozenset(f"{_ANSWER}{number}" for number in numbers)
        if not code_eval.supported(replaced, known, self.modules):
            raise NotSplit
        return Check(replaced, numbers)

    def _replace(self, node: Any) -> Any:
        """The tree with each call into the program, and each of its values, replaced by a name for the answer."""
        if self._is_type_test(node):
            raise NotSplit
        if isinstance(node, ast.expr) and self._is_theirs(node):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.classes:
                # An instance stays in the program.
                raise NotSplit
            if isinstance(node, ast.Name) and node.id != node.id.upper() and node.id[0].isupper():
                # A class, such as an enumeration.
                raise NotSplit
            self.calls.append(ast.unparse(self.arguments.visit(copy.deepcopy(node))))
            return ast.Name(f"{_ANSWER}{len(self.calls) - 1}", ast.Load())
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr)):
            raise NotSplit
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self.functions:
            # An attribute of a function, which is no value.
            raise NotSplit
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(isinstance(part, ast.Name) and part.id in self.functions & self.theirs for part in given):
                # A function of the program is handed to another one.
                raise NotSplit
            if any(
                isinstance(k.value, ast.Name) and k.value.id in self.theirs and k.arg == "key" for k in node.keywords
            ):
                raise NotSplit
        changed = type(node)()
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                value = [self._replace(v) if isinstance(v, ast.AST) else v for v in value]
            elif isinstance(value, ast.AST):
                value = self._replace(value)
            setattr(changed, name, value)
        return changed

    def _depends_on_classes(self, test: ast.expr) -> bool:
        """Whether an assert compares mappings of `collections`, or asks for a class of such a module."""
        called = {id(node.func) for node in ast.walk(test) if isinstance(node, ast.Call)}
        for node in ast.walk(test):
            if isinstance(node, (ast.Name, ast.Attribute)):
                module, _, name = self._path(node).rpartition(".")
                if name in _MAPPINGS or (id(node) not in called and module in _CLASSES_OF):
                    return True
        return False

    def _path(self, node: ast.expr) -> str:
        """The dotted name of what an import has bound, else an empty text."""
        if isinstance(node, ast.Attribute):
            above = self._path(node.value)
            return f"{above}.{node.attr}" if above else ""
        return self.modules.get(node.id, "") if isinstance(node, ast.Name) else ""

    def _is_type_test(self, node: Any) -> bool:
        """`isinstance(x, T)` with a class of the program's: it does not cross the boundary."""
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id != "isinstance":
            return False
        return any(self._is_theirs(p) for a in node.args[1:] for p in ast.walk(a) if isinstance(p, ast.expr))

    def _is_theirs(self, node: ast.expr) -> bool:
        """A call `f(...)` of a name of the program, or that name itself.

        A method of what it returns is not: an object that the program defines must not answer for a string.
        """
        if isinstance(node, ast.Call):
            return isinstance(node.func, ast.Name) and node.func.id in self.theirs
        return isinstance(node, ast.Name) and node.id in self.theirs
