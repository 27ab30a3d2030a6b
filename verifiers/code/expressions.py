"""Expressions of test code: each is of a known kind, or the tests are not proved to be strong."""

from __future__ import annotations

import ast
from typing import Any

from rlvr.sandbox.inside.live import called_name
from rlvr.verifiers.code import known
from rlvr.verifiers.code.known import NotProved
from rlvr.verifiers.code.scopes import Classes, Key, Loops, Scope, Variable

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Expressions:
    """Visits expressions in the order in which they are evaluated, and notes what happens to variables.

    `answers` are variables that may hold answers, `impure` functions of the tests that call the program, `immutable`
    variables that hold nothing that can change.
    """

    def __init__(self, tree: ast.Module, names: frozenset[str]) -> None:
        self.tree = tree
        self.names = names
        self.modules = known.imports(tree)
        self.classes = Classes(tree, names)
        self.variables: dict[Key, Variable] = {}
        self.scopes: dict[str, Scope] = {}
        self.arguments: dict[Key, list[ast.Name]] = {}
        self.impure: frozenset[str] = frozenset()
        self.answers: set[str] = set()
        self.held: set[str] = set()
        self.immutable: set[str] = set()
        self._place = 0
        self._loops: Loops = ()
        self.module = self.scope = Scope(0, tree, None)

    def _is_answer(self, node: ast.AST, answers: set[str]) -> bool:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        return bool(names & (answers | self.names | self.impure))

    def holds_answer(self, node: ast.AST) -> bool:
        """As `has_answer`, but for answers that only choose an item."""
        return self._is_answer(known.without_slices(node), self.held)

    def has_answer(self, node: ast.AST) -> bool:
        """Whether an expression calls the program or reads an answer."""
        return self._is_answer(node, self.answers)

    def _next(self) -> int:
        self._place += 1
        return self._place

    def _variable(self, name: str) -> Variable:
        owner = self.scope.owner(name)
        assert owner is not None
        return self.variables.setdefault((owner.number, name), Variable())

    def _change(self, target: ast.expr, value: ast.expr | None) -> None:
        depth = 1
        while isinstance(target, ast.Subscript):
            self._value(target.slice)
            target, depth = target.value, depth + 1
        if not isinstance(target, ast.Name) or self.scope.owner(target.id) is not self.scope:
            raise NotProved(f"{ast.unparse(target)} is changed, which is no variable of this function")
        if value is not None and self.has_answer(value) and not known.is_scalar(value):
            raise NotProved(f"answers are put into {target.id}")
        variable = self._variable(target.id)
        variable.changes.append((self._next(), self._loops, depth, value))

    def _calls_in(self, node: ast.AST) -> list[ast.Call]:
        return [part for part in ast.walk(node) if isinstance(part, ast.Call) and self._calls_program(part)]

    def _calls_program(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Call) and self.has_answer(call.func):
            raise NotProved("what the program has returned is called")
        return known.root(call.func) in self.names | self.impure or self._kind_of_object(_receiver(call)) is not None

    def _store(self, target: ast.expr, value: ast.expr | None, node: ast.AST, kind: str | None) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._store(part.value if isinstance(part, ast.Starred) else part, value, node, None)
        elif isinstance(target, ast.Name):
            if self.scope.owner(target.id) is not self.scope or target.id in self.names:
                raise NotProved(f"{target.id} is bound in another function, or is the program's")
            variable = self._variable(target.id)
            variable.binds.append((self._next(), self._loops, value, node))
            if value is not None and not known.is_scalar(value) and not known.is_deep_copy(value):
                variable.others |= {self._key(name) for name in known.names_in(value) if self.scope.owner(name)}
        elif isinstance(target, ast.Subscript) and self._kind_of_object(target.value) is None:
            self._change(target, value)
        elif isinstance(target, (ast.Subscript, ast.Attribute)) and self._kind_of_object(target.value):
            if isinstance(target, ast.Subscript):
                self._argument(target.slice)
            if value is not None:
                self._argument(value, again=True)
            self.scope.calls.append((self._next(), self._loops))
        else:
            raise NotProved(f"{ast.unparse(target)} is set")

    def _key(self, name: str) -> Key:
        owner = self.scope.owner(name)
        assert owner is not None
        return owner.number, name

    def _value(
        self,
        node: ast.expr,
        *,
        objects: bool = False,
        escapes: bool = True,
        statement: bool = False,
        reader: ast.AST | None = None,
    ) -> str | None:
        """Visit an expression. Return "object" for what stays with the program, else None."""
        if self._kind_of_object(node) is not None:
            if isinstance(node, ast.Name):
                self._read(node, escapes=False)
            else:
                self._program_call(node, statement=statement)
            if not objects and not statement:
                raise NotProved(f"the object {ast.unparse(node)} is compared, or used as a value")
            return "object"
        if isinstance(node, ast.Name):
            self._read(node, escapes=escapes, reader=reader)
        elif isinstance(node, ast.Call):
            self._call(node, statement=statement)
        elif isinstance(node, _COMPREHENSIONS):
            self._comprehension(node, reader)
        elif isinstance(node, ast.Attribute):
            self._attribute(node)
        elif isinstance(node, ast.Subscript):
            self._value(node.value, objects=True, escapes=escapes, reader=reader)
            if self._kind_of_object(node.value):
                self._argument(node.slice)
                self.scope.calls.append((self._next(), self._loops))
            else:
                self._value(node.slice)
        else:
            self._parts(node, escapes, reader)
        return None

    def _parts(self, node: ast.expr, escapes: bool, reader: ast.AST | None) -> None:
        if not isinstance(node, known.EXPRESSIONS):
            raise NotProved(f"an expression of the kind {type(node).__name__}")
        if isinstance(node, ast.Compare):
            identity = any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops)
            if identity and not all(known.is_singleton(part) for part in node.comparators):
                raise NotProved("identities are compared")
        inside = not isinstance(node, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.JoinedStr, ast.FormattedValue))
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self._value(part, escapes=escapes and inside, reader=reader)

    def _attribute(self, node: ast.Attribute) -> None:
        if known.path(node, self.modules):
            if not known.is_allowed(known.path(node, self.modules)):
                raise NotProved(f"{ast.unparse(node)} is not known")
            return
        if self._kind_of_object(node.value):
            self._value(node.value, objects=True)
            self.scope.calls.append((self._next(), self._loops))
        elif node.attr in known.ATTRIBUTES:
            self._value(node.value)
        else:
            raise NotProved(f"the attribute {node.attr}")

    def _read(self, node: ast.Name, *, escapes: bool, reader: ast.AST | None = None) -> None:
        if self.scope.owner(node.id) is None:
            path = self.modules.get(node.id, "")
            if node.id in self.names:
                raise NotProved(f"the program's {node.id} is used, and not called")
            if not (node.id in known.NAMES or (path and known.is_allowed(path))):
                raise NotProved(f"the name {node.id} is not known")
            return
        if node.id in self.scopes:
            raise NotProved(f"the function {node.id} is used as a value")
        variable = self._variable(node.id)
        place = self._next()
        variable.reads.append((place, self._loops, reader))
        if escapes:
            variable.escapes.append((place, self._loops))

    def _call(self, node: ast.Call, *, statement: bool = False) -> None:
        if any(keyword.arg is None for keyword in node.keywords):
            raise NotProved("arguments by **")
        func = node.func
        if self._calls_program(node) or known.root(func) in self.names:
            self._program_call(node, statement=statement)
            return
        path = known.path(func, self.modules)
        name = func.id if isinstance(func, ast.Name) else ""
        if name in self.scopes:
            self.scopes[name].called.append(node)
            if node.keywords or len(node.args) != len(self.scopes[name].parameters):
                raise NotProved(f"{name} is called with unusual arguments")
        elif path:
            if not known.is_allowed(path) or called_name(node) in known.CHANGING_FUNCTIONS:
                raise NotProved(f"{ast.unparse(func)} is not known")
        elif isinstance(func, ast.Attribute) and func.attr in known.METHODS:
            self._value(func.value, escapes=False)
        elif isinstance(func, ast.Attribute) and func.attr in known.CHANGING:
            # `x = xs.pop()`
            self._value(func.value, escapes=False)
            self._change(func.value, None)
        elif not (isinstance(func, ast.Name) and self.scope.owner(name) is None and name in known.FUNCTIONS):
            raise NotProved(f"{ast.unparse(func)} is called, which is not known")
        if name == "isinstance" and not known.is_type(node.args[-1]):
            raise NotProved("isinstance of another type than a builtin one")
        if called_name(node) == "seed" and not self._seeds_own_draws():
            raise NotProved("seeds that the program may draw from, too")
        pure = name in known.READING or path in known.READING
        reading = name in known.OBJECT_READING
        for part in (*node.args, *(keyword.value for keyword in node.keywords)):
            if isinstance(part, ast.Lambda):
                self._lambda(part)
                continue
            inner = part.value if isinstance(part, ast.Starred) else part
            if isinstance(inner, ast.Name) and inner.id in known.TYPES and self.scope.owner(inner.id) is None:
                continue
            if self._value(inner, objects=reading, escapes=not pure) == "object":
                self.scope.calls.append((self._next(), self._loops))

    def _seeds_own_draws(self) -> bool:
        """Whether a seed is set once, for what the tests draw, and the program is given arguments to each call."""
        calls = [node for node in ast.walk(self.tree) if isinstance(node, ast.Call)]
        seeds = [node for node in calls if called_name(node) == "seed"]
        draws = [node for node in calls if called_name(node) in known.RANDOM - {"seed"}]
        return len(seeds) == 1 and bool(draws) and all(call.args for call in self._calls_in(self.tree))

    def _lambda(self, node: ast.Lambda) -> None:
        own = {argument.arg for argument in node.args.args}
        for part in ast.walk(node.body):
            if isinstance(part, ast.Name) and part.id not in own | known.FUNCTIONS:
                raise NotProved("a lambda that reads other names than its own")
            if isinstance(part, (ast.Lambda, ast.NamedExpr, *_COMPREHENSIONS)):
                raise NotProved("a lambda of an unknown kind")
            if isinstance(part, ast.Attribute) and part.attr not in known.METHODS | known.ATTRIBUTES:
                raise NotProved("a lambda that reads an attribute")

    def _comprehension(self, node: Any, reader: ast.AST | None) -> None:
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self._loops = (*self._loops, node)
        for part in node.generators:
            self._value(part.iter, escapes=False)
            self._store(part.target, part.iter, node, None)
            for test in part.ifs:
                if self.has_answer(test):
                    raise NotProved("an answer decides what is looked at")
                self._value(test)
        for element in elements:
            if self._calls_in(element) and not known.is_scalar(element) and reader is None:
                raise NotProved("answers of several calls are kept together")
            for atom in known.atoms(element):
                self._value(atom)
        self._loops = self._loops[:-1]

    def _kind_of_object(self, node: ast.AST | None) -> str | None:
        """Return the class of which an expression is an object that stays with the program."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.classes.names:
            return node.func.id
        owner = self.scope.owner(node.id) if isinstance(node, ast.Name) else None
        if owner is None or not isinstance(node, ast.Name):
            return None
        found = self.classes.bound.get(node.id, set())
        return next(iter(found)) if found else None

    def _program_call(self, node: ast.Call | ast.expr, *, statement: bool) -> None:
        assert isinstance(node, ast.Call)
        function = isinstance(node.func, ast.Name) and node.func.id not in self.classes.names
        if isinstance(node.func, ast.Attribute) and known.root(node.func) not in self.names:
            self._value(node.func.value, objects=True)
        helper = node.func.id if isinstance(node.func, ast.Name) and node.func.id in self.scopes else ""
        if helper:
            self.scopes[helper].called.append(node)
            if node.keywords or len(node.args) != len(self.scopes[helper].parameters):
                raise NotProved(f"{helper} is called with unusual arguments")
        for part in (*node.args, *(keyword.value for keyword in node.keywords)):
            self._argument(part, in_place=statement and function and not helper, again=True)
        self.scope.calls.append((self._next(), self._loops))

    def _argument(self, node: ast.expr, *, in_place: bool = False, again: bool = False) -> None:
        """What is handed to the program: a plain value that it has not made, or an object of its own."""
        if isinstance(node, ast.Starred):
            node = node.value
        if self.has_answer(node) and self._kind_of_object(node) is None and not known.is_scalar(node):
            raise NotProved("an answer is handed back to the program")
        if isinstance(node, (ast.Lambda, ast.GeneratorExp)):
            raise NotProved("a function or generator is handed to the program")
        called = {id(part.func) for part in ast.walk(node) if isinstance(part, ast.Call)}
        for part in ast.walk(node):
            function = (
                isinstance(part, ast.Name) and id(part) not in called and part.id in known.FUNCTIONS - known.TYPES
            )
            if isinstance(part, ast.Name) and self.scope.owner(part.id) is None and (function or part.id in known.LAZY):
                raise NotProved("an iterator or a function is handed to the program")
        self._value(node, objects=True, escapes=not known.is_deep_copy(node))
        if not known.is_deep_copy(node) and not known.is_scalar(node):
            for name in known.names_in(node):
                if self.scope.owner(name) is not None and self._kind_of_object(ast.Name(name, ast.Load())) is None:
                    direct = isinstance(node, ast.Name)
                    self._variable(name).passes.append((self._place, self._loops, in_place, direct))
                    if isinstance(node, ast.Name):
                        self.arguments.setdefault(self._key(name), []).append(node)


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None
