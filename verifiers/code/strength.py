"""Whether test code is strong: proved to mean beside a program, with plain values alone, what it means in one process.

The code is executed with what is known of its values (containers.py): statement by statement, both branches of each
`if`, loops until nothing new can happen, functions where they are called. The rules, of which the first that does not
hold raises NotProved:

- Every statement, expression and name is of a known kind; names of the program are only called.
- Tests do not change what they have handed over, nor an answer.
- An answer is read before the next call, or is equal to a constant.
- An argument is looked at after its call only as an answer of its own: `sort(xs)`, `assert xs == [1, 2]` (`settled`).
- An object of the program is only called, read, and handed back.
- Asserts that are executed in any case demand more than a constant or an argument (demands.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from rlvr.sandbox.inside import live
from rlvr.sandbox.inside.live import called_name
from rlvr.verifiers.code import known
from rlvr.verifiers.code.containers import NotProved, Value
from rlvr.verifiers.code.expressions import Expressions, Scope, rows_of

_CLOSE = frozenset("isclose allclose array_equal".split())


class Proof(Expressions):
    """The proof for one test code; `names` are the program's. Raises NotProved, with the reason in words.

    `shared` are names of the tests that the program has, too. `settled` and `late` are ids of nodes in the tree:
    arguments whose value after the call is an answer of its own, and answers that are compared after other calls.
    """

    def __init__(self, tree: ast.Module, names: Iterable[str], shared: Iterable[str] = ()) -> None:
        super().__init__(tree, names)
        self.settled: set[int] = set()
        self.conditional = 0
        self._weakly = 0
        self._active: list[str] = []
        self._refuse_unused(frozenset(shared))
        self.block(tree.body)
        for name, function in list(self.scope.functions.items()):
            if name.startswith("test"):
                # As a runner of tests does.
                self.run(function, self.scope, ast.Call(ast.Name(name, ast.Load()), [], []))
        if any(self.handed.get(node, set()) & self.seen for node in self.settled):
            raise NotProved("an argument is read both as it was and as it is after the call")
        if not self.demands.firm():
            raise NotProved("a program that solves nothing may pass")

    def _refuse_unused(self, shared: frozenset[str]) -> None:
        """Refuse functions of the tests for the program to call: it finds those of prelude and setup alone."""
        used = {part.id for part in ast.walk(self.tree) if isinstance(part, ast.Name)}
        functions = {part.name for part in ast.walk(self.tree) if isinstance(part, ast.FunctionDef)}
        unused = sorted(name for name in functions - used - shared if not name.startswith("test"))
        if unused:
            raise NotProved(f"the tests do not call {', '.join(unused)}, which the program may")

    def block(self, body: list[ast.stmt]) -> None:
        """Execute statements. After one that may leave, asserts are not executed in any case."""
        before = self.conditional
        for statement in body:
            visit = getattr(self, f"_stmt_{type(statement).__name__}", None)
            if visit is None:
                raise NotProved(f"a statement of the kind {type(statement).__name__}")
            visit(statement)
            if isinstance(statement, live.ENDS):
                break
            self.conditional += known.leaves(statement) and not isinstance(statement, ast.FunctionDef)
        self.conditional = before

    def _stmt_Pass(self, node: ast.stmt) -> None:
        """Nothing: what the loop does after a `break` is executed here all the same."""

    _stmt_Break = _stmt_Continue = _stmt_Import = _stmt_ImportFrom = _stmt_Pass

    def _stmt_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        unusual = arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs
        if node.decorator_list or unusual or arguments.defaults or node.name in self.scope.functions:
            raise NotProved(f"the function {node.name} has decorators, defaults or unusual parameters")
        if known.leaves(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            raise NotProved(f"the generator {node.name}")
        self.scope.functions[node.name] = node

    def run(self, function: ast.FunctionDef, above: Scope, node: ast.Call) -> Value:
        """Return what a function of the tests returns."""
        parameters = [argument.arg for argument in function.args.args]
        if node.keywords or len(node.args) != len(parameters):
            raise NotProved(f"{function.name} is called with unusual arguments")
        values = [self.value(part) for part in node.args]
        if function.name in self._active:
            raise NotProved(f"{function.name} calls itself")
        self._active.append(function.name)
        names = set(parameters).union(*map(known.bound, function.body))
        outside, self.scope = self.scope, self.enter(names, above)
        self.within += 1
        for parameter, value in zip(parameters, values):
            self.state.variables[self.key(parameter)] = value
        self.block(function.body)
        returned = self.scope.returned
        self.scope = outside
        self.within -= 1
        self._active.pop()
        if len(returned) == 1:
            return returned[0]
        places: frozenset[int] = frozenset().union(*(value.places for value in returned))
        return Value(places, any(value.answer for value in returned), self.unknown())

    def _stmt_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.scope.returned.append(self.value(node.value))

    def _stmt_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._expr_Call(node.value, statement=True)
        else:
            self.value(node.value)

    # Names.

    def _stmt_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            if pairs and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
                for part, item in zip(target.elts, node.value.elts):  # type: ignore[attr-defined]
                    self.assign(part, self.last[id(item)])
            else:
                self.assign(target, value)

    def _stmt_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.value(node.value))

    def _stmt_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Attribute):
            raise NotProved(f"{ast.unparse(node.target)} is set")
        held = self.value(ast.parse(ast.unparse(node.target), mode="eval").body)
        value = self.use(self.value(node.value))
        self.use(held)
        if held.places:
            # Of a list it is a change.
            self.change(held, value)
        made = self.combine(node.op, held, value)
        self.assign(node.target, replace(made, places=held.places or made.places))

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind names, or set an item or attribute."""
        if isinstance(target, ast.Name):
            if self.scope.owner(target.id) is not self.scope or target.id in self.names:
                raise NotProved(f"{target.id} is bound in another function, or is the program's")
            key = self.key(target.id)
            held = self.state.variables.get(key)
            if self._weakly and held is not None:
                value = replace(value, places=value.places | held.places)
            self.state.variables[key] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, self.fresh(value.places, answer=value.answer))
        elif isinstance(target, (ast.Subscript, ast.Attribute)):
            held = self.value(target.value)
            index = [self.use(self.value(target.slice))] if isinstance(target, ast.Subscript) else []
            if "object" in self.state.kinds(held.places):
                self.operation([*index, value])
            elif isinstance(target, ast.Subscript):
                self.change(held, *index, value)
            else:
                raise NotProved(f"{ast.unparse(target)} is set")
        else:
            raise NotProved(f"{ast.unparse(target)} is set")

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        self.use(value)
        texts = rows_of(self.text(value)) or []
        parts = self.state.parts(value)
        for number, target in enumerate(targets):
            text = texts[number] if len(texts) == len(targets) else self.unknown()
            origin = f"{value.origin}[{number}]" if value.origin else ""
            self.assign(target, Value(parts, value.answer, text, origin, value.given))

    # Loops and branches.

    def _stmt_For(self, node: ast.For) -> None:
        source = self.value(node.iter)
        self.conditional += source.answer
        self._turns(node, lambda: self.loop(source, node.target, lambda: self.block(node.body), _count(node)))
        self.conditional -= source.answer
        self.block(node.orelse)

    def _stmt_While(self, node: ast.While) -> None:
        def turn() -> None:
            if self.use(self.value(node.test)).answer:
                raise NotProved("a loop whose end an answer decides")
            self.block(node.body)

        self.conditional += 1
        nothing = ast.Tuple([], ast.Store())
        self._turns(node, lambda: self.loop(Value(text=self.unknown()), nothing, turn, _count(node)))
        self.conditional -= 1
        self.block(node.orelse)

    def _turns(self, node: ast.stmt, execute: Any) -> None:
        """Execute a loop; where it may be left or gone on with early, what names were bound to before may stay."""
        early = known.leaves(node, (ast.Break, ast.Continue))
        self._weakly += early
        execute()
        self._weakly -= early

    def _stmt_If(self, node: ast.If) -> None:
        test = self.use(self.value(node.test))
        if test.answer and known.leaves(node):
            raise NotProved("an answer decides whether the tests go on")
        self.conditional += 1
        before = self.state.copy()
        self.block(node.body)
        after, self.state = self.state, before
        self.block(node.orelse)
        self.state.join(after)
        self.conditional -= 1

    def _stmt_Raise(self, node: ast.Raise) -> None:
        if node.exc is None or called_name(node.exc) not in known.EXCEPTIONS:
            raise NotProved("raise of something else than a builtin exception")
        for part in node.exc.args if isinstance(node.exc, ast.Call) else []:
            self.use(self.value(part))

    def _stmt_Try(self, node: ast.Try) -> None:
        """`try: f(0); assert False` with handlers that only look at the exception."""
        if node.finalbody or known.leaves(node) or known.bound(node) - {h.name for h in node.handlers}:
            raise NotProved("a try that binds names, or goes on elsewhere")
        self.conditional += 1
        self.block(node.body)
        for handler in node.handlers:
            kinds: list[Any] = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            if not all(isinstance(kind, ast.Name) and kind.id in known.EXCEPTIONS for kind in kinds):
                raise NotProved("a handler of something else than builtin exceptions")
            if handler.name:
                self.assign(ast.Name(handler.name, ast.Store()), Value(answer=True, text=self.unknown()))
            self.block(handler.body)
        self.block(node.orelse)
        self.conditional -= 1

    def _stmt_With(self, node: ast.With) -> None:
        """`with pytest.raises(ValueError): f(0)`."""
        call = node.items[0].context_expr
        raises = isinstance(call, ast.Call) and known.path(call.func, self.modules) == "pytest.raises"
        given = call.args if raises and isinstance(call, ast.Call) else []
        kinds = given and all(isinstance(arg, ast.Name) and arg.id in known.EXCEPTIONS for arg in given)
        one = len(node.items) == 1 and node.items[0].optional_vars is None and len(node.body) == 1
        if not (kinds and one and isinstance(node.body[0], ast.Expr)):
            raise NotProved("a context other than pytest.raises around one call")
        self.block(node.body)

    # Asserts.

    def _stmt_Assert(self, node: ast.Assert) -> None:
        for atom in known.atoms(node.test):
            self._atom(atom)

    def _atom(self, atom: ast.expr) -> None:
        inner = atom.args[0] if isinstance(atom, ast.Call) and called_name(atom) == "all" and atom.args else None
        if isinstance(inner, (ast.GeneratorExp, ast.ListComp)) and not inner.generators[0].ifs:
            self.inside(inner, inner.generators, lambda: self._atom(inner.elt))
        elif not self._is_settled(atom):
            value = self.use(self.value(atom))
            if not value.answer and any(container.passed for container in self._read_by(atom)):
                raise NotProved(f"{ast.unparse(atom)} looks at an argument")
            if not self.conditional:
                self._demand(atom)

    def _read_by(self, node: ast.expr) -> list[Any]:
        names = {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and self.scope.owner(part.id)}
        values = [self.state.variables.get(self.key(name), Value()) for name in names]
        reached = self.state.reach(place for value in values for place in value.places)
        return [self.state.containers[place] for place in reached]

    def _demand(self, atom: ast.expr) -> None:
        """Note what an assert demands, if it compares an answer with a value, or asks for its truth."""
        wanted = "True"
        if isinstance(atom, ast.UnaryOp) and isinstance(atom.op, ast.Not):
            atom, wanted = atom.operand, "False"
        sides: list[ast.expr] = []
        if isinstance(atom, ast.Compare) and len(atom.ops) == 1:
            left, op = atom.left, atom.ops[0]
            inner = left.args[0] if called_name(left) in ("abs", "fabs") and isinstance(left, ast.Call) else None
            if isinstance(op, (ast.Eq, ast.Is)):
                sides = [left, atom.comparators[0]]
            elif isinstance(op, (ast.Lt, ast.LtE)) and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
                sides = [inner.left, inner.right]
            elif isinstance(op, (ast.Lt, ast.LtE)) and isinstance(inner, ast.Call) and self._uses_answer(inner):
                # `abs(poly(xs, f(xs))) < 1e-4`: a function of the tests computes with the answer.
                self.demands.add(Value(origin=ast.unparse(inner.func)), Value(text=self.unknown()))
                return
        elif isinstance(atom, ast.Call) and called_name(atom) in _CLOSE and len(atom.args) > 1:
            sides = atom.args[:2]
        if not sides:
            self.demands.add(self._find_value(atom), Value(text=wanted))
        elif wanted == "True":
            for one, other in self._pairs(*sides):
                self.demands.add(replace(one, text=self.text(one)), replace(other, text=self.text(other)))

    def _uses_answer(self, node: ast.Call) -> bool:
        """Whether a function of the tests is given an answer and something else."""
        owner = self.scope.owner(called_name(node))
        ours = isinstance(node.func, ast.Name) and owner is not None and node.func.id in owner.functions
        return ours and len(node.args) > 1 and any(self._find_value(part).answer for part in node.args)

    def _pairs(self, one: ast.expr, other: ast.expr) -> Iterator[tuple[Value, Value]]:
        """Yield the values that must be equal for both sides to be: for `(a, f(2)) == (1, 2)` each of two."""
        if isinstance(other, ast.Call) and called_name(other) == "approx" and other.args:
            other = other.args[0]
        if isinstance(other, (ast.Tuple, ast.List)) and isinstance(one, (ast.Tuple, ast.List, ast.ListComp)):
            ours = other.elts
            theirs = one.elts if isinstance(one, (ast.Tuple, ast.List)) else [one.elt] * len(ours)
            for part, wanted in zip(theirs, ours):
                yield from self._pairs(part, wanted)
        else:
            yield self._find_value(one), self._find_value(other)

    def _find_value(self, node: ast.expr) -> Value:
        """Return the value that an expression had; of a loop without a turn it had none."""
        return Value(text=repr(node.value)) if isinstance(node, ast.Constant) else self.last.get(id(node), Value())

    def _is_settled(self, atom: ast.expr) -> bool:
        """Whether an assert compares an argument after its call with a literal; the call is then asked for it."""
        if not isinstance(atom, ast.Compare) or len(atom.ops) != 1 or not isinstance(atom.ops[0], ast.Eq):
            return False
        side = atom.left
        if isinstance(side, ast.Call) and called_name(side) == "len" and len(side.args) == 1:
            side = side.args[0]
        if isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Constant):
            side = side.value
        if not isinstance(side, ast.Name) or self.scope.owner(side.id) is not self.scope:
            return False
        value = self.value(side)
        container = self.state.containers[min(value.places)] if len(value.places) == 1 else None
        if container is None or not container.passed:
            return False
        nodes = [node for node, handed in self.handed.items() if handed & value.places]
        if len(nodes) != 1:
            return False
        wanted = self.value(atom.comparators[0]) if _is_literal(atom.comparators[0]) else None
        alone = all(self.state.holders(place) == 1 for place in self.state.reach(value.places))
        now = container.literal and container.passed == self.state.calls
        if wanted is None or not (alone and now and nodes[0] in self.named):
            return False
        self.settled.add(nodes[0])
        self.state.mark(value.places, altered=True)
        if not self.conditional and atom.left is side:
            given = ((self.text(value),),)
            self.demands.add(Value(origin=f"{side.id} after the call", given=given), Value(text=wanted.text))
        return True


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _count(node: ast.AST) -> int:
    return len({name for part in ast.iter_child_nodes(node) for name in known.bound(part)})
