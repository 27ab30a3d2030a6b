"""Which values of test code come from the program, and which asserts can be executed and can fail.

Found from the code alone, without its order: names get values through assignments, loops, helper functions and the
statements that depend on them. Used to instrument tests in their sandbox, and to refuse some before any run.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from typing import Any

from rlvr.sandbox.inside.live import called_name, live, truth

__all__ = ["FILLING", "FUNCTIONS", "Analysis", "called_name", "is_test_name", "keys", "live", "stored", "truth"]

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_RUN_BY_THEMSELVES = frozenset("setUp tearDown setUpClass tearDownClass asyncSetUp asyncTearDown main check".split())
_BUILTINS = frozenset(dir(builtins))
# Methods that put their arguments into a container.
FILLING = frozenset("append appendleft add extend extendleft insert update".split())
# What a program may have changed beside its arguments: files, the environment, what is logged.
_OUTSIDE = frozenset("open .read_text .read_bytes .exists .isfile .listdir .environ .getenv .getvalue".split())
_RAISES = frozenset("raises assertRaises assertRaisesRegex".split())


def is_test_name(name: str) -> bool:
    """Whether a function or method of this name is run by test runners."""
    return name.startswith("test")


# Methods of plain values that leave them as they are: `w.startswith(f(w))` makes no result of `w`.
_CHANGING_NOTHING = frozenset(name for kind in (str, tuple, frozenset) for name in dir(kind))


class Analysis:
    """Which names of test code hold values of the program (`results`), and which asserts count (`sites`).

    `names` are the program's. An attribute is known by ".attr", whatever it is an attribute of.
    """

    def __init__(self, tree: ast.Module, names: Iterable[str]) -> None:
        self.tree = tree
        self.nodes = list(ast.walk(tree))
        self.program = frozenset(names)
        self.functions: dict[str, list[Any]] = {}
        for node in self.nodes:
            # The name of a fixture stands for its value; a method of the tests may have the name of a function.
            if not isinstance(node, FUNCTIONS) or node.name in self.program:
                continue
            if "fixture" not in map(called_name, node.decorator_list):
                self.functions.setdefault(node.name, []).append(node)
        imports = [node for node in self.nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
        self.imported = {(a.asname or a.name).split(".")[0] for node in imports for a in node.names} - self.program
        self.results = set(self.program)
        while self._spread():
            pass
        self.given = self._given()
        # `k = f(xs)`, then `for i in range(k): assert xs[i] == want[i]` looks at what the program left in xs.
        loops = [node for node in self.nodes if isinstance(node, ast.For) and called_name(node.iter) == "range"]
        self.counters = {key for loop in loops for key in stored(loop.target)}
        dead = self._dead()
        self.sites = [s for s in _live_in(tree, dead) if self._is_site(s)]
        self.readers = self._readers()
        self.ours = _BUILTINS | self.imported | self.functions.keys() | {"self", "cls"} | self.counters
        self.ours -= self.readers
        self.returned = self._returned()

    def from_program(self, node: ast.AST) -> bool:
        """Whether an expression or statement reads anything that came from the program."""
        return not self.results.isdisjoint(keys(node))

    def depends(self, node: ast.AST) -> bool:
        """Whether an expression reads what came from the program, or an argument that the program may have changed."""
        return not (self.results.isdisjoint(keys(node)) and self.given.isdisjoint(keys(node)))

    def _given(self) -> set[str]:
        """Return the names of arguments of the program, and of what is taken out of them."""
        given: set[str] = set()
        fixed = {key for n in self.nodes if isinstance(n, ast.Assign) and _is_fixed(n.value) for key in stored(n)}
        for node in self.nodes:
            if not isinstance(node, ast.Call):
                continue
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            # `map(f, rows)` calls it too.
            if self.from_program(node.func) or any(isinstance(a, ast.Name) and a.id in self.program for a in arguments):
                given = given.union(*map(keys, arguments)) - _BUILTINS - self.program
        given |= _OUTSIDE
        size = -1
        while len(given) > size:
            size = len(given)
            for node in self.nodes:
                if isinstance(node, (ast.Assign, ast.AnnAssign)):
                    bound, value = stored(node), node.value
                elif isinstance(node, (ast.For, ast.comprehension)):
                    bound, value = stored(node.target), node.iter
                elif isinstance(node, ast.If):
                    bound, value = stored(node), node.test
                else:
                    continue
                if value is not None and not given.isdisjoint(keys(value)):
                    given |= bound
                elif value is not None and not given.isdisjoint(bound) and _is_container(value):
                    given |= keys(value) - fixed - _BUILTINS - self.imported - self.functions.keys() - self.results
        return given

    def _readers(self) -> set[str]:
        """Return the functions that read an argument of the program without being given it."""
        readers: set[str] = set()
        size = -1
        while len(readers) > size:
            size = len(readers)
            for name, found in self.functions.items():
                for function in found if name not in self.results else ():
                    own = {argument.arg for argument in function.args.args}.union(*map(stored, function.body))
                    if not (self.given | readers).isdisjoint(frozenset().union(*map(keys, function.body)) - own):
                        readers |= {name, f".{name}"}
        return readers

    def _spread(self) -> bool:
        """Add names that get their values from known ones. Return whether there were any."""
        size = len(self.results)
        for node in self.nodes:
            if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
                if node.value is not None and (self.from_program(node.value) or _replaces_output(node)):
                    self.results |= stored(node)
                    # `sys.stdout = text`, and what the program prints fills the text.
                    self.results |= {
                        key for key in keys(node.value) if _replaces_output(node) and self._is_variable(key)
                    }
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension, ast.If, ast.While)):
                if self.from_program(node.test if isinstance(node, (ast.If, ast.While)) else node.iter):
                    self.results |= stored(node)
            elif isinstance(node, ast.Match) and self.from_program(node.subject):
                self.results |= stored(node)
            elif isinstance(node, (ast.With, ast.AsyncWith, ast.Try)) and self.from_program(node):
                self.results |= stored(node)
                # `with redirect_stdout(text): f(2)` fills the text.
                contexts = [item.context_expr for item in getattr(node, "items", [])]
                self.results |= {key for part in contexts for key in keys(part) if self._is_variable(key)}
            elif isinstance(node, FUNCTIONS) and any(map(self.from_program, (*node.body, *node.decorator_list))):
                # What it prints is the program's.
                printed = {argument.arg for argument in node.args.args} & {"capsys"}
                self.results |= {node.name, f".{node.name}", *printed}
            elif isinstance(node, ast.ClassDef) and any(map(self.from_program, node.bases)):
                self.results.add(node.name)
            elif isinstance(node, ast.Call):
                self._spread_call(node)
        return len(self.results) > size

    def _is_variable(self, key: str) -> bool:
        return not (key.startswith(".") or key in _BUILTINS or key in self.imported or key in ("self", "cls"))

    def _spread_call(self, node: ast.Call) -> None:
        """Parameters of our functions get what is passed; so do the objects of mutators (`xs.append(f(1))`)."""
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if self.from_program(node.func):
            # `f(xs, got.append)`: the program fills it.
            filled = [p.value for p in given if isinstance(p, ast.Attribute) and p.attr in FILLING]
            self.results |= {part.id for part in filled if isinstance(part, ast.Name)}
            named = [f for part in given for key in keys(part) for f in self.functions.get(key, ())]
            self.results |= {key for f in named for part in f.body for key in _filled(part)}
        if not any(self.from_program(part) for part in given):
            return
        for function in self.functions.get(called_name(node), []):
            arguments = function.args
            every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
            self.results |= {a.arg for a in every if a is not None and a.arg not in ("self", "cls")}
        changes = isinstance(node.func, ast.Attribute) and node.func.attr not in _CHANGING_NOTHING
        if changes and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, (ast.Name, ast.Attribute)):
            target = node.func.value
            if not (isinstance(target, ast.Name) and target.id in ("self", "cls")):
                self.results.add(target.id if isinstance(target, ast.Name) else f".{target.attr}")

    def _dead(self) -> set[int]:
        """Return the ids of functions that nothing can call."""
        dead: set[int] = set()
        while True:
            used = _used(self.tree.body, dead)
            more = {
                id(f)
                for name, found in self.functions.items()
                for f in found
                if name not in used and not is_test_name(name) and name not in _RUN_BY_THEMSELVES
                if not name.startswith("__") and not f.decorator_list
            } | {id(f) for f in self.nodes if isinstance(f, FUNCTIONS) and _left_out(f)}
            if more <= dead:
                return dead
            dead |= more

    def _is_site(self, node: ast.stmt) -> bool:
        """Whether a statement, once executed, shows that the program did what the test expects."""
        if isinstance(node, ast.Assert):
            return truth(node.test) is None and self.depends(node.test)
        if isinstance(node, ast.If):
            stops = isinstance(node.body[-1], ast.Raise) and not node.orelse
            return stops and truth(node.test) is None and self.depends(node.test)
        if isinstance(node, ast.Expr):
            return self._is_assert_call(node.value)
        if isinstance(node, (ast.With, ast.AsyncWith)):
            expects = any(called_name(item.context_expr) in _RAISES for item in node.items)
            return expects and self.from_program(ast.Module(node.body, []))
        return isinstance(node, ast.Try) and self._expects_exception(node)

    def _is_assert_call(self, node: ast.expr) -> bool:
        """`self.assertEqual(f(2), 4)` and the like."""
        if isinstance(node, ast.Await):
            node = node.value
        if not isinstance(node, ast.Call) or not called_name(node).startswith("assert"):
            return False
        if called_name(node) in ("assertTrue", "assertFalse", "assert_") and node.args:
            return truth(node.args[0]) is None and self.depends(node.args[0])
        # `callback.assert_called_with(4)`
        mocked = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return any(self.depends(part) for part in (*mocked, *node.args, *(k.value for k in node.keywords)))

    def _expects_exception(self, node: ast.Try) -> bool:
        """`try: f(0); assert False` with a handler."""
        if not node.handlers or not self.from_program(ast.Module(node.body, [])):
            return False
        return any(_always_fails(statement) for statement in (*node.body, *node.orelse))

    def _returned(self) -> frozenset[str]:
        """Return the names of what the program returned, and of what is taken out of it: parameters too."""
        found: set[str] = set()
        size = -1
        while len(found) > size:
            size = len(found)
            for node in self.nodes:
                if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr, ast.For, ast.comprehension)):
                    value = node.iter if isinstance(node, (ast.For, ast.comprehension)) else node.value
                    if value is not None and (self._calls_directly(value) or not found.isdisjoint(keys(value))):
                        found |= stored(node.target if hasattr(node, "target") else node)
                elif isinstance(node, ast.Call):
                    for function in self.functions.get(called_name(node), []):
                        for parameter, given in zip(function.args.args, node.args):
                            if self._calls_directly(given) or not found.isdisjoint(keys(given)):
                                found.add(parameter.arg)
        return frozenset(found)

    def _calls_directly(self, node: ast.AST) -> bool:
        """Whether an expression is a call of the program, or an item or attribute of what one returned."""
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Await)):
            node = node.value
        return isinstance(node, ast.Call) and self.is_program(node.func)

    def atoms(self) -> Iterator[ast.expr]:
        """Yield the parts of asserts that are decided by themselves, without `and`, `or` and `not`."""
        for node in self.nodes:
            if isinstance(node, ast.Assert):
                yield from _atoms(node.test)
            elif isinstance(node, ast.Call) and called_name(node).startswith("assert"):
                yield ast.Tuple([*node.args, *(keyword.value for keyword in node.keywords)], ast.Load())

    def calls_program(self, node: ast.AST) -> bool:
        """Whether there is a call of the program, or of a function of the tests that calls it."""
        return any(isinstance(part, ast.Call) and self.is_program(part.func) for part in ast.walk(node))

    def is_program(self, func: ast.expr) -> bool:
        """Whether a function is the program's, by its name or by that of its class, or calls it."""
        if isinstance(func, ast.Name):
            return func.id in self.results
        while isinstance(func, (ast.Attribute, ast.Call)):
            func = func.func if isinstance(func, ast.Call) else func.value
        return isinstance(func, ast.Name) and func.id in self.program

    def is_comparison(self, node: ast.AST) -> bool:
        """Whether an expression sets a value of the program beside others, which are then expected values."""
        if self.calls_program(node):
            return True
        roots = {
            key
            for key in _compared(node)
            if (key in self.results | self.readers if key.startswith(".") else key not in self.ours)
        }
        return len(roots) > 1 and bool(roots & self.results)


def _left_out(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a test is never run, or expected to fail."""
    return not {"skip", "xfail", "expectedFailure"}.isdisjoint(map(called_name, node.decorator_list))


def _is_fixed(node: ast.expr) -> bool:
    """Whether a value cannot be changed in place."""
    return isinstance(node, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.JoinedStr, ast.Compare))


def _is_container(node: ast.expr) -> bool:
    """Whether what is taken out of a value, or put into it, is an object of other variables."""
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.List, ast.Tuple, ast.Dict))


def _replaces_output(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(ast.unparse(target) in ("sys.stdout", "sys.stderr") for target in targets)


def _live_in(tree: ast.Module, dead: set[int]) -> Iterator[ast.stmt]:
    left = [tree.body]
    while left:
        for statement in live([s for s in left.pop() if id(s) not in dead]):
            if isinstance(statement, FUNCTIONS) and id(statement) in dead:
                continue
            yield statement


def _atoms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _atoms(value)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield from _atoms(node.operand)
    else:
        yield node


def _always_fails(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assert):
        return truth(statement.test) is False
    if isinstance(statement, ast.Raise):
        return statement.exc is not None
    return isinstance(statement, ast.Expr) and called_name(statement.value) == "fail"


def keys(node: ast.AST) -> frozenset[str]:
    """Return the names that are read, and ".attr" for each attribute; kept with the node, as it was at first."""
    found: frozenset[str] | None = getattr(node, "read_keys", None)
    if found is None:
        parts = [keys(child) for child in ast.iter_child_nodes(node)]
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
            parts.append(frozenset((node.id if isinstance(node, ast.Name) else f".{node.attr}",)))
        found = parts[0] if len(parts) == 1 else frozenset().union(*parts)
        node.read_keys = found  # type: ignore[attr-defined]
    return found


def _compared(node: ast.AST) -> Iterator[str]:
    """Yield keys as `keys` does, without those of slices: `xs[:k] == [1, 3]` looks at xs only."""
    if isinstance(node, ast.Slice):
        return
    if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load):
        yield node.id if isinstance(node, ast.Name) else f".{node.attr}"
    for child in ast.iter_child_nodes(node):
        yield from _compared(child)


def stored(node: ast.AST) -> frozenset[str]:
    """Return the names that are bound or changed, and ".attr" for each attribute. Not those in a nested function."""
    known: frozenset[str] | None = getattr(node, "stored_keys", None)
    if known is not None:
        return known
    named = isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar))
    found = {node.name} if named and node.name else set()  # type: ignore[attr-defined]
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        found.add(node.id)
    elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        found.add(f".{node.attr}")
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        found |= {key for key in keys(node.value) if key not in ("self", "cls")}
    if not isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
        for child in ast.iter_child_nodes(node):
            found |= stored(child)
    node.stored_keys = frozenset(found)  # type: ignore[attr-defined]
    return frozenset(found)


def _used(body: list[ast.stmt], dead: set[int]) -> set[str]:
    """Return the names and attributes that are read outside of dead functions; one's own body does not count."""
    found: set[str] = set()

    def visit(node: ast.AST, inside: frozenset[str]) -> None:
        if id(node) in dead:
            return
        if isinstance(node, FUNCTIONS):
            inside |= {node.name}
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        if name and name not in inside:
            found.add(name)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    for statement in body:
        visit(statement, frozenset())
    return found


def _filled(node: ast.AST) -> Iterator[str]:
    """Yield the names of containers that a function fills, which the program calls."""
    calls = [part.func for part in ast.walk(node) if isinstance(part, ast.Call)]
    for func in calls:
        if isinstance(func, ast.Attribute) and func.attr in FILLING and isinstance(func.value, ast.Name):
            yield func.value.id
