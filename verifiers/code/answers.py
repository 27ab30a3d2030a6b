"""Where the answers of a program go in test code: no assert may hold one answer against another.

An expected value must be the tests' own. `assert total() == sum(load())` shows only that two answers agree, and a
program can see to that: `total` empties what `load` has returned. A *source* is an expression whose value the program
decides: a call of it, a read of one of its objects, a variable bound to either, or a container that it was given once
the tests have taken its contents for an answer (`assert xs == [1, 2]`). Tests are mixed if

- two sources meet, in a comparison, an operation but `+`, or a call of a builtin function. A variable may meet itself:
  `assert r == sorted(r)` is about one answer;
- a source decides which calls or checks are executed: `for x in load(): assert double(x) == 2 * x`.

Variables are told apart by their names alone, wherever they are bound.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterator

from rlvr.sandbox.testcode.instrument import always_fails, called_name, is_check

Sources = frozenset[str]


class MixedAnswers(Exception):
    """Two answers meet, or an answer decides what is executed; the reason in words."""


class Flow:
    """The sources of each expression of test code.

    names: of the program. objects: variables that hold objects of its classes. compared: variables that an assert
    holds against constants. changing: methods that change a container.
    """

    def __init__(
        self,
        tree: ast.Module,
        names: Collection[str],
        objects: Collection[str],
        compared: Collection[ast.AST],
        changing: Collection[str],
    ) -> None:
        self._asked, self._objects, self._changing = {*names, *objects}, objects, changing
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._nodes = [tree, *self._above]
        self._functions = {node.name: node for node in self._nodes if isinstance(node, ast.FunctionDef)}
        # The sources of each binding of a variable. Mixed: those that hold several answers.
        self._bindings: dict[str, list[Sources]] = {}
        self._mixed = set[str]()
        # The tests' own functions that ask the program, or read what it has answered.
        self._asking = set[str]()
        # Containers that the program was given, by the line from which they count as its answers.
        self._taken = self._find_taken(compared)
        while self._bind():
            pass

    def check(self) -> None:
        """Raise MixedAnswers if two sources meet, or one decides what is executed."""
        for node in self._nodes:
            if isinstance(node, (ast.For, ast.comprehension)) and self._of(node.iter):
                if any(map(self._asks, self._find_repeated(node))):
                    raise MixedAnswers("an answer decides how often the program is called")
            elif isinstance(node, ast.If) and self._of(node.test):
                inside = {part for each in (*node.body, *node.orelse) for part in ast.walk(each)}
                if any(self._asks(part) or _decides(part) for part in inside):
                    raise MixedAnswers("an answer decides what is executed")
            elif isinstance(node, ast.Try):
                self._check_try(node)
            elif isinstance(node, ast.expr):
                self._check_meeting(node)

    def _find_repeated(self, loop: ast.For | ast.comprehension) -> set[ast.AST]:
        """Return the nodes that are executed for each item of a loop."""
        whole = self._above[loop]
        once = [loop.iter]
        if isinstance(whole, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)) and not isinstance(
            loop, ast.For
        ):
            once = [each.iter for each in whole.generators[: whole.generators.index(loop) + 1]]
        parts = ast.walk(loop if isinstance(loop, ast.For) else whole)
        return {*parts}.difference(*map(ast.walk, once))

    def _check_try(self, node: ast.Try) -> None:
        """Refuse checks that are left out where the program raises, or where it does not."""
        if not any(map(self._asks, ast.walk(node))):
            return
        checks = [part for each in node.body for part in ast.walk(each) if _decides(part) and not always_fails(part)]
        goes_on = not all(always_fails(handler.body[-1]) for handler in node.handlers)
        handled = [part for handler in node.handlers for each in handler.body for part in ast.walk(each)]
        ends = always_fails((node.orelse or node.body)[-1])
        if (checks and goes_on) or (
            not ends and any((_decides(p) and not always_fails(p)) or self._asks(p) for p in handled)
        ):
            raise MixedAnswers("an exception of the program decides what is executed")

    def _check_meeting(self, node: ast.expr) -> None:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add):
            operands = [node.left, node.right]
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            operands = node.values
        elif isinstance(node, (ast.IfExp, ast.Subscript, ast.JoinedStr)):
            operands = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        elif isinstance(node, ast.Call) and not self._asks(node) and called_name(node) not in self._functions:
            own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            operands = [*own, *node.args, *(keyword.value for keyword in node.keywords)]
        else:
            return
        above = self._above[node]
        if isinstance(above, ast.Expr) or self._asks(node):  # the value is not used
            return
        sides = [sources for operand in operands if (sources := self._of(operand))]
        met = frozenset[str]().union(*sides)
        if len(sides) > 1 and not self._are_one(met):
            raise MixedAnswers(
                f"answers of the program are compared with each other, or combined: {ast.unparse(node):.80}"
            )

    def _are_one(self, met: Sources) -> bool:
        """Whether sources are a single answer: a variable, or parts of one."""
        found = frozenset(map(self._resolve, met))
        return len(found) == 1 and not found & self._mixed

    def _resolve(self, source: str) -> str:
        bindings = self._bindings.get(source, ())
        if len(bindings) == 1 and len(bindings[0]) == 1 and source not in self._mixed:
            (origin,) = bindings[0]
            return origin if origin == source else self._resolve(origin)
        return source

    # What an expression and a variable hold.

    def _of(self, node: ast.AST) -> Sources:
        """Return the sources of an expression."""
        if isinstance(node, ast.Name):
            taken = node.lineno > self._taken.get(node.id, node.lineno)
            return frozenset({node.id} if taken or node.id in self._bindings or node.id in self._objects else ())
        if self._asks(node):
            return frozenset({ast.unparse(node)})
        if isinstance(node, ast.Lambda):
            return frozenset()
        return frozenset[str]().union(*map(self._of, ast.iter_child_nodes(node)))

    def _asks(self, node: ast.AST) -> bool:
        """Whether a node is a call of the program, or a read of one of its objects, or calls a function that asks."""
        if not isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
            return False
        if isinstance(node, ast.Call) and called_name(node) in self._asking and isinstance(node.func, ast.Name):
            return True
        root: ast.expr = node
        while isinstance(root, (ast.Call, ast.Attribute, ast.Subscript)):
            root = root.func if isinstance(root, ast.Call) else root.value
        return isinstance(root, ast.Name) and root.id in self._asked

    def _bind(self) -> bool:
        """Find the sources of all bindings; return whether there are more than before."""
        found = defaultdict[str, list[Sources]](list)
        for node in self._nodes:
            deciding = self._find_deciding(node)
            for target, value, adds in self._find_bindings(node):
                sources = self._of(value) | deciding
                for name in _stored(target) if sources else ():
                    found[name].append(sources)
                    if adds or len(sources) > 1:
                        self._mixed.add(name)
        before = len(self._bindings), len(self._asking)
        self._bindings = dict(found)
        for name, function in self._functions.items():
            own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            read = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)} - own
            if any(map(self._asks, ast.walk(function))) or read & (self._bindings.keys() | self._taken.keys()):
                self._asking.add(name)
        return before != (len(self._bindings), len(self._asking))

    def _find_bindings(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST, bool]]:
        """Yield each target that a node binds, its value, and whether that is added to what the target holds."""
        if isinstance(node, ast.Assign):
            yield from ((target, node.value, isinstance(target, ast.Subscript)) for target in node.targets)
        elif isinstance(node, (ast.AugAssign, ast.NamedExpr)):
            yield node.target, node.value, isinstance(node, ast.AugAssign)
        elif isinstance(node, (ast.For, ast.comprehension)):
            yield node.target, node.iter, False
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield ast.Name(node.name, ast.Store()), ast.Tuple(self._above[node].body), False  # type: ignore[attr-defined]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in self._changing:
            yield node.func.value, ast.Tuple([*node.args, *(keyword.value for keyword in node.keywords)]), True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._functions:
            arguments = self._functions[node.func.id].args
            parameters = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
            pairs = [*zip(parameters, node.args), *((k.arg or "", k.value) for k in node.keywords)]
            if any(isinstance(each, ast.Starred) for each in node.args) or any(name == "" for name, _ in pairs):
                given = ast.Tuple([*node.args, *(k.value for k in node.keywords)])
                pairs = [(each.arg, given) for each in ast.walk(arguments) if isinstance(each, ast.arg)]
            yield from ((ast.Name(name, ast.Store()), value, False) for name, value in pairs)

    def _find_deciding(self, node: ast.AST) -> Sources:
        """Return the sources that decide whether a node is executed."""
        found = frozenset[str]()
        while (below := node) in self._above and not isinstance(node, ast.FunctionDef):
            node = self._above[below]
            if isinstance(node, ast.For) and below is not node.iter:
                found |= self._of(node.iter)
            elif isinstance(node, ast.If) and below is not node.test:
                found |= self._of(node.test)
            elif isinstance(node, ast.Try) and isinstance(below, ast.ExceptHandler):
                found |= frozenset().union(*map(self._of, node.body))
        return found

    # Containers that the program was given.

    def _find_taken(self, compared: Collection[ast.AST]) -> dict[str, int]:
        """Return the line from which a container that the program was given counts as its answer, by variable."""
        aliases = defaultdict[str, set[str]](set)
        given = set[str]()
        for node in self._nodes:
            for target, value, _ in self._find_bindings(node):
                for one in _stored(target):
                    for other in _refer(value):
                        aliases[one].add(other)
                        aliases[other].add(one)
            if isinstance(node, ast.Call) and (self._asks(node) or called_name(node) in self._functions):
                given.update(*map(_refer, (*node.args, *(keyword.value for keyword in node.keywords))))
        found: dict[str, int] = {}
        for node in compared:
            names = {node.id} if isinstance(node, ast.Name) else set()
            while not names >= (more := names.union(*(aliases[name] for name in names))):
                names = more
            if given & names:
                found |= {name: min(self._first_line(node), found.get(name, 1 << 30)) for name in names}
        return found

    def _first_line(self, node: ast.AST) -> int:
        """Return the line of a node, or the one before the outermost loop around it."""
        line: int = node.lineno  # type: ignore[attr-defined]
        while node in self._above:
            node = self._above[node]
            line = node.lineno - 1 if isinstance(node, ast.For) else line
        return line


def _decides(node: ast.AST) -> bool:
    """Whether a statement is a check, or ends a block but by an exception."""
    return isinstance(node, ast.stmt) and (is_check(node) or isinstance(node, (ast.Return, ast.Break, ast.Continue)))


def _stored(target: ast.AST) -> set[str]:
    """Return the variables that an assignment binds, or whose container it changes."""
    if isinstance(target, (ast.Attribute, ast.Subscript)):
        return _stored(target.value)
    if isinstance(target, ast.Name):
        return {target.id}
    return set().union(*map(_stored, ast.iter_child_nodes(target)))


def _refer(value: ast.AST) -> set[str]:
    """Return the variables whose containers a value may be, or have in it. A call returns another one."""
    if isinstance(value, ast.Call):
        return set()
    if isinstance(value, ast.Name):
        return {value.id}
    return set[str]().union(*map(_refer, ast.iter_child_nodes(value)))
