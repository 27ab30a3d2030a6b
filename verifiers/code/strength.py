"""Whether test code is strong: proved to behave beside a program, with plain values alone, as in one process with it.

Every statement and expression is of a known kind. Names of the program are only called. What tests hand over or get
back they do not change, and they read it only while no other call can have changed it; what they compute for
themselves is theirs. Anything else raises NotProved, and the tests are weak.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rlvr.sandbox.inside.live import called_name
from rlvr.verifiers.code import known, sharing
from rlvr.verifiers.code.known import NotProved

Key = tuple[int, str]
Loops = tuple[ast.AST, ...]
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


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


class Proof:
    """The proof for one test code; `names` are the program's. Raises NotProved, with the reason in words.

    `settled`: the ids of arguments in the tree whose value after the call is an answer of its own.
    """

    def __init__(self, tree: ast.Module, names: Iterable[str]) -> None:
        self.tree = tree
        self.names = frozenset(names)
        self.modules = known.imports(tree)
        self.classes = Classes(tree, self.names)
        self.variables: dict[Key, Variable] = {}
        self.scopes: dict[str, Scope] = {}
        self.settled: set[int] = set()
        self.arguments: dict[Key, list[ast.Name]] = {}
        self.subjects: list[tuple[Key, ast.expr, int]] = []
        self._place = 0
        self._loops: Loops = ()
        self.module = self.scope = Scope(0, tree, None)
        self._collect(tree, self.module)
        self.impure = self._impure()
        self.answers = self._spread(known.assigned(tree), self._is_answer)
        self.immutable = known.immutables(tree, self.answers)
        for scope in (self.module, *self.scopes.values()):
            self.scope, self._loops = scope, ()
            for parameter in scope.parameters:
                self._variable(parameter).binds.append((self._next(), (), None, scope.node))
            self._block(scope.node.body)
        sharing.check(self)

    # Scopes, and which names hold answers.

    def _collect(self, node: ast.Module | ast.FunctionDef, scope: Scope) -> None:
        for function in scope.functions.values():
            arguments = function.args
            plain = not (arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs)
            if function.decorator_list or not plain or arguments.defaults or function.name in self.scopes:
                raise NotProved(f"the function {function.name} has decorators, defaults or unusual parameters")
            self.scopes[function.name] = Scope(len(self.scopes) + 1, function, scope)
            self._collect(function, self.scopes[function.name])

    def _impure(self) -> frozenset[str]:
        """Return the functions of the tests that call the program."""
        found: set[str] = set()
        size = -1
        while len(found) > size:
            size = len(found)
            for name, scope in self.scopes.items():
                used = {part.id for part in ast.walk(scope.node) if isinstance(part, ast.Name)}
                if used & (self.names | found):
                    found.add(name)
        return frozenset(found)

    def _spread(self, pairs: list[tuple[set[str], ast.expr]], holds: Any) -> set[str]:
        found: set[str] = set()
        size = -1
        while len(found) > size:
            size = len(found)
            for bound, value in pairs:
                if holds(value, found):
                    found |= bound
        return found

    def _is_answer(self, node: ast.AST, answers: set[str]) -> bool:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
        return bool(names & (answers | self.names | self.impure))

    def has_answer(self, node: ast.AST) -> bool:
        """Whether an expression calls the program or reads an answer."""
        return self._is_answer(node, self.answers)

    # The walk: kinds of statements and expressions, and what happens to variables.

    def _next(self) -> int:
        self._place += 1
        return self._place

    def _variable(self, name: str) -> Variable:
        owner = self.scope.owner(name)
        assert owner is not None
        return self.variables.setdefault((owner.number, name), Variable())

    def _block(self, body: list[ast.stmt]) -> None:
        for statement in body:
            visit = getattr(self, f"_stmt_{type(statement).__name__}", None)
            if visit is None:
                raise NotProved(f"a statement of the kind {type(statement).__name__}")
            visit(statement)

    def _stmt_Pass(self, node: ast.Pass) -> None:
        """Nothing."""

    _stmt_Break = _stmt_Continue = _stmt_Import = _stmt_ImportFrom = _stmt_Pass

    def _stmt_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Its body is visited as a scope of its own."""
        if known.is_generator(node):
            raise NotProved(f"the generator {node.name}")

    def _stmt_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
            if self._changes_in_place(node.value):
                return
        self._value(node.value, statement=True)

    def _changes_in_place(self, call: ast.Call) -> bool:
        """`xs.append(1)`, `grid[0].append(1)`, `random.shuffle(xs)`, `heapq.heappush(heap, 1)`."""
        assert isinstance(call.func, ast.Attribute)
        if called_name(call) in known.CHANGING_FUNCTIONS and call.args:
            target, values = call.args[0], call.args[1:]
        elif called_name(call) in known.CHANGING and self._kind_of_object(call.func.value) is None:
            target, values = call.func.value, call.args
        else:
            return False
        for value in (*values, *(keyword.value for keyword in call.keywords)):
            self._value(value)
        self._change(target, values[-1] if values else None)
        return True

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

    def _stmt_Assert(self, node: ast.Assert) -> None:
        for atom in known.atoms(node.test):
            self._assert_atom(atom)
        if node.msg is not None:
            self._value(node.msg)

    def _assert_atom(self, atom: ast.expr) -> None:
        if not self.has_answer(atom):
            named = {part.id for part in ast.walk(atom) if isinstance(part, ast.Name)} & self._bound_here()
            for name in named:
                owner = self.scope.owner(name)
                if owner is not None:
                    self.subjects.append(((owner.number, name), atom, self._place))
        calls = self._calls_in(atom)
        if len(calls) > 1 and not known.nested(calls) and known.immutable_side(atom) is None:
            raise NotProved("several answers in one comparison")
        literal = known.immutable_side(atom)
        if literal is not None and isinstance(atom, ast.Compare):
            for side in (atom.left, *atom.comparators):
                self._value(side, reader=literal)
        else:
            self._value(atom)

    def _bound_here(self) -> set[str]:
        found: set[str] = set()
        scope: Scope | None = self.scope
        while scope is not None:
            found |= scope.bound
            scope = scope.above
        return found

    def _calls_in(self, node: ast.AST) -> list[ast.Call]:
        return [part for part in ast.walk(node) if isinstance(part, ast.Call) and self._calls_program(part)]

    def _calls_program(self, call: ast.Call) -> bool:
        if isinstance(call.func, ast.Call) and self.has_answer(call.func):
            raise NotProved("what the program has returned is called")
        return known.root(call.func) in self.names | self.impure or self._kind_of_object(_receiver(call)) is not None

    def _stmt_Assign(self, node: ast.Assign) -> None:
        kind = self._value(node.value, objects=True)
        for target in node.targets:
            self._store(target, node.value, node, kind)

    def _stmt_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._store(node.target, node.value, node, self._value(node.value, objects=True))

    def _stmt_AugAssign(self, node: ast.AugAssign) -> None:
        self._value(node.value)
        if isinstance(node.target, ast.Name):
            self._read(node.target, escapes=False)
            if not known.is_scalar(node.value) and not node.target.id in self.immutable:
                # Of a list it is a change.
                self._change(node.target, node.value)
            else:
                self._store(node.target, node.value, node, None)
        else:
            self._store(node.target, node.value, node, None)

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

    def _stmt_For(self, node: ast.For) -> None:
        self._loops = (*self._loops, node)
        # In the loop: what it goes through is read again before each turn.
        self._value(node.iter, escapes=False, objects=True)
        self._store(node.target, node.iter, node, None)
        self._block(node.body)
        self._loops = self._loops[:-1]
        self._block(node.orelse)

    def _stmt_While(self, node: ast.While) -> None:
        if self.has_answer(node.test):
            raise NotProved("a loop whose end an answer decides")
        self._loops = (*self._loops, node)
        self._value(node.test)
        self._block(node.body)
        self._loops = self._loops[:-1]
        self._block(node.orelse)

    def _stmt_If(self, node: ast.If) -> None:
        self._value(node.test)
        if self.has_answer(node.test) and known.leaves(node):
            raise NotProved("an answer decides whether the tests go on")
        self._block(node.body)
        self._block(node.orelse)

    def _stmt_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._value(node.value)

    def _stmt_Raise(self, node: ast.Raise) -> None:
        if node.exc is None or known.root(node.exc) not in known.EXCEPTIONS:
            raise NotProved("raise of something else than a builtin exception")
        for part in node.exc.args if isinstance(node.exc, ast.Call) else ():
            self._value(part)

    def _stmt_Try(self, node: ast.Try) -> None:
        """`try: f(0); assert False` with handlers that only look at the exception."""
        if node.finalbody or known.leaves(node) or known.bound(node) - {h.name for h in node.handlers}:
            raise NotProved("a try that binds names, or goes on elsewhere")
        for handler in node.handlers:
            kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            if not all(isinstance(kind, ast.Name) and kind.id in known.EXCEPTIONS for kind in kinds):
                raise NotProved("a handler of something else than builtin exceptions")
            if handler.name:
                self._variable(handler.name).binds.append((self._next(), self._loops, None, handler))
        self._block(node.body)
        for handler in node.handlers:
            self._block(handler.body)
        self._block(node.orelse)

    def _stmt_With(self, node: ast.With) -> None:
        """`with pytest.raises(ValueError): f(0)`."""
        call = node.items[0].context_expr
        raises = isinstance(call, ast.Call) and known.path(call.func, self.modules) == "pytest.raises"
        kinds = raises and all(isinstance(arg, ast.Name) and arg.id in known.EXCEPTIONS for arg in call.args)
        if not kinds or len(node.items) > 1 or node.items[0].optional_vars or len(node.body) > 1:
            raise NotProved("a context other than pytest.raises around one call")
        if not isinstance(node.body[0], ast.Expr):
            raise NotProved("pytest.raises around a statement that is no call")
        self._block(node.body)

    # Expressions. Each returns "object" for what stays with the program, else None.

    def _value(
        self,
        node: ast.expr,
        *,
        objects: bool = False,
        escapes: bool = True,
        statement: bool = False,
        reader: ast.AST | None = None,
    ) -> str | None:
        if self._kind_of_object(node) is not None:
            if isinstance(node, ast.Name):
                self._read(node, escapes=False)
            else:
                self._program_call(node, statement=statement)
            if not objects and not statement:
                raise NotProved(f"the object {ast.unparse(node)} is compared, or used as a value")
            return "object"
        if isinstance(node, ast.Name):
            return self._read(node, escapes=escapes, reader=reader)
        if isinstance(node, ast.Call):
            return self._call(node, statement=statement)
        if isinstance(node, _COMPREHENSIONS):
            return self._comprehension(node, reader)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            self._value(node.value, objects=True, escapes=escapes, reader=reader)
            if self._kind_of_object(node.value):
                self._argument(node.slice)
                self.scope.calls.append((self._next(), self._loops))
            else:
                self._value(node.slice)
            return None
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
        return None

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
            return self._program_call(node, statement=statement)
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
        return None

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
            function = isinstance(part, ast.Name) and id(part) not in called and part.id in known.FUNCTIONS - known.TYPES
            if isinstance(part, ast.Name) and self.scope.owner(part.id) is None and (function or part.id in known.LAZY):
                raise NotProved("an iterator or a function is handed to the program")
        self._value(node, objects=True, escapes=not known.is_deep_copy(node))
        if not known.is_deep_copy(node) and not known.is_scalar(node):
            for name in known.names_in(node):
                if self.scope.owner(name) is not None and self._kind_of_object(ast.Name(name, ast.Load())) is None:
                    direct = isinstance(node, ast.Name)
                    self._variable(name).passes.append((self._place, self._loops, in_place, direct))
                    if direct:
                        self.arguments.setdefault(self._key(name), []).append(node)


def _receiver(call: ast.Call) -> ast.expr | None:
    return call.func.value if isinstance(call.func, ast.Attribute) else None
