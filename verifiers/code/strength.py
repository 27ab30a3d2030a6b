"""Whether test code is strong: proved to behave beside a program, with plain values alone, as in one process with it.

Every statement and expression is of a known kind. Names of the program are only called. What tests hand over or get
back they do not change, and they read it only while no other call can have changed it; what they compute for
themselves is theirs. Anything else raises NotProved, and the tests are weak.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from rlvr.sandbox.inside.live import called_name
from rlvr.verifiers.code import known, sharing
from rlvr.verifiers.code.expressions import Expressions
from rlvr.verifiers.code.known import NotProved
from rlvr.verifiers.code.scopes import Key, Scope


class Proof(Expressions):
    """The proof for one test code; `names` are the program's. Raises NotProved, with the reason in words.

    `shared` are names of the tests that the program has, too. `settled`: the ids of arguments in the tree whose value
    after the call is an answer of its own.
    """

    def __init__(self, tree: ast.Module, names: Iterable[str], shared: Iterable[str] = ()) -> None:
        super().__init__(tree, frozenset(names))
        self.settled: set[int] = set()
        self.subjects: list[tuple[Key, ast.expr, int]] = []
        self._collect(tree, self.module)
        self._refuse_unused(frozenset(shared))
        self.impure = self._impure()
        pairs = known.assigned(tree)
        self.answers = self._spread(pairs)
        self.held = self._spread([(bound, known.without_slices(value)) for bound, value in pairs])
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

    def _refuse_unused(self, shared: frozenset[str]) -> None:
        """Refuse functions of the tests for the program to call: it finds those of prelude and setup alone."""
        used = {part.id for part in ast.walk(self.tree) if isinstance(part, ast.Name)}
        unused = self.scopes.keys() - used - shared
        if any(not name.startswith("test") for name in unused):
            raise NotProved(f"the tests do not call {', '.join(sorted(unused))}, which the program may")

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

    def _spread(self, pairs: Sequence[tuple[set[str], ast.AST]]) -> set[str]:
        found: set[str] = set()
        size = -1
        while len(found) > size:
            size = len(found)
            for bound, value in pairs:
                if self._is_answer(value, found):
                    found |= bound
        return found

    # The walk: kinds of statements and expressions, and what happens to variables.

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
        method = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
        if not (method and self._changes_in_place(node.value)):  # type: ignore[arg-type]
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

    def _stmt_Assert(self, node: ast.Assert) -> None:
        for atom in known.atoms(node.test):
            self._assert_atom(atom)
        if node.msg is not None:
            self._value(node.msg)

    def _assert_atom(self, atom: ast.expr) -> None:
        if known.shows_object(atom) and self.has_answer(atom):
            raise NotProved("the text of what may be an object")
        if not self.holds_answer(atom):
            named = {part.id for part in ast.walk(atom) if isinstance(part, ast.Name)} & self._bound_here()
            named -= self.scopes.keys()
            for name in named:
                owner = self.scope.owner(name)
                if owner is not None:
                    self.subjects.append(((owner.number, name), atom, self._place))
        calls = self._calls_in(atom)
        if len(calls) > 1 and not known.nested(calls) and known.immutable_side(atom) is None:
            raise NotProved("several answers in one comparison")
        constant = known.immutable_side(atom)
        if constant is None:
            self._value(atom)
            return
        for part in constant[1]:
            direct = isinstance(part, (ast.Name, ast.ListComp))
            self._value(part, reader=constant[0] if direct else None)

    def _bound_here(self) -> set[str]:
        found: set[str] = set()
        scope: Scope | None = self.scope
        while scope is not None:
            found |= scope.bound
            scope = scope.above
        return found

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
            if not known.is_scalar(node.value) and node.target.id not in self.immutable:
                # Of a list it is a change.
                self._change(node.target, node.value)
            else:
                self._store(node.target, node.value, node, None)
        else:
            self._store(node.target, node.value, node, None)

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
        raised: list[ast.expr] = node.exc.args if isinstance(node.exc, ast.Call) else []
        for part in raised:
            self._value(part)

    def _stmt_Try(self, node: ast.Try) -> None:
        """`try: f(0); assert False` with handlers that only look at the exception."""
        if node.finalbody or known.leaves(node) or known.bound(node) - {h.name for h in node.handlers}:
            raise NotProved("a try that binds names, or goes on elsewhere")
        for handler in node.handlers:
            kinds: list[Any] = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
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
        given = call.args if raises and isinstance(call, ast.Call) else []
        kinds = given and all(isinstance(arg, ast.Name) and arg.id in known.EXCEPTIONS for arg in given)
        if not kinds or len(node.items) > 1 or node.items[0].optional_vars or len(node.body) > 1:
            raise NotProved("a context other than pytest.raises around one call")
        if not isinstance(node.body[0], ast.Expr):
            raise NotProved("pytest.raises around a statement that is no call")
        self._block(node.body)
