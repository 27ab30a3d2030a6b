"""The proof that test code is strong: in a sandbox of its own, where only plain values reach it, it means the same as
in one process with the program.

The code is executed abstractly, with what is known of its values (`facts`): statement by statement, both branches of
each `if`, loops until nothing new can happen, functions where they are called. These are the rules. The first one that
does not hold raises NotProved:

- Every statement, expression and name is of a known kind. Names of the program are only called.
- Tests change neither an answer nor a container that they have passed to the program.
- An answer is read before the next call, or compared with a constant.
- An argument is read after its call only as one more answer: `sort(xs)`, `assert xs == [1, 2]` (`settled`).
- An object of the program is only called, read, and passed back. A loop over it does not call the program.
- Functions are called, and not used as values: `map(str, xs)` takes a type.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rlvr.sandbox.testcode import instrument as live
from rlvr.sandbox.testcode.instrument import called_name

from . import facts
from .facts import Key, NotProved, State, Value, is_scalar

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DISPLAYS = (ast.Tuple, ast.List, ast.Set, ast.Dict)
_LITERAL = (*_DISPLAYS, ast.Constant, ast.UnaryOp, ast.USub, ast.Load)
_MOST_STEPS = 200_000  # expressions; all tests of HumanEval and MBPP together need fewer


class Scope:
    """The module, or one call of a function of the tests: the names that it binds."""

    def __init__(self, number: int, above: Scope | None, names: set[str]) -> None:
        self.number, self.above, self.names = number, above, names
        self.functions: dict[str, ast.FunctionDef] = {}
        self.returned: list[Value] = []

    def owner(self, name: str) -> Scope | None:
        """Return the scope in which a name is bound."""
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.above
        return scope


class Proof:
    """The proof for one test code. Raises NotProved, with the reason in words.

    names: names of the program. shared: names of the tests that the program has, too. The results are `classes`, names
    of the program that are classes, and two sets of ids of nodes in the tree: `settled`, arguments whose value after
    the call is one more answer; `late`, answers that are compared after other calls.
    """

    def __init__(self, tree: ast.Module, names: Iterable[str], shared: Iterable[str] = ()) -> None:
        self.tree, self.names = tree, frozenset(names)
        self.modules = facts.read_imports(tree)
        self.classes = facts.find_classes(tree, self.names)
        self.state = State()
        self.scope = Scope(-1, None, set().union(*map(facts.find_bound_names, tree.body)))
        # The values that expressions had when they were last executed.
        self.last: dict[int, Value] = {}
        # For each argument node the containers passed there.
        self.passed_at: dict[int, set[int]] = {}
        # Arguments that are names; answers that are compared after other calls; arguments compared after their call.
        self.named, self.late, self.settled = set[int](), set[int](), set[int]()
        # The values that loops iterate over, and how many expressions around this place hold values of their own.
        self.sources: list[Value] = []
        self.within = 0
        self._steps = 0
        # Loops around this statement that may end early; functions being called.
        self._weakly = 0
        self._active: list[str] = []
        self.shared = frozenset(shared)
        self._refuse_unused()
        _, bound, imported = live.find_names(tree)
        if imported & (bound | facts.EXCEPTIONS):
            raise NotProved("a name that is imported means something else, too")
        self.block(tree.body)
        for name, function in list(self.scope.functions.items()):
            if name.startswith("test"):
                # A runner of tests calls these.
                self.run(function, self.scope, ast.Call(ast.Name(name, ast.Load()), [], []))

    def _refuse_unused(self) -> None:
        """Refuse functions that only the program could call: it finds only those of prelude and setup."""
        used = {part.id for part in ast.walk(self.tree) if isinstance(part, ast.Name)}
        if any(name.startswith(live.PREFIX) for name in used):
            raise NotProved("names that are the judge's own")
        functions = {part.name for part in self.tree.body if isinstance(part, ast.FunctionDef)}
        unused = sorted(name for name in functions - used - self.shared if not name.startswith("test"))
        if unused:
            raise NotProved(f"the tests do not call {', '.join(unused)}, which the program may")

    def block(self, body: list[ast.stmt]) -> None:
        """Execute statements."""
        for statement in body:
            visit = getattr(self, f"_stmt_{type(statement).__name__}", None)
            if visit is None:
                raise NotProved(f"a statement of the kind {type(statement).__name__}")
            visit(statement)
            if isinstance(statement, live.ENDS):
                break

    def _stmt_Pass(self, node: ast.stmt) -> None:
        """Do nothing. What stands after a `break` is executed all the same."""

    _stmt_Break = _stmt_Continue = _stmt_Import = _stmt_ImportFrom = _stmt_Pass

    def _stmt_FunctionDef(self, node: ast.FunctionDef) -> None:
        arguments = node.args
        unusual = arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs
        if node.decorator_list or unusual or arguments.defaults or node.name in self.scope.functions:
            raise NotProved(f"the function {node.name} has decorators, defaults or unusual parameters")
        annotations = [node.returns, *(argument.annotation for argument in arguments.args)]
        if any(isinstance(part, ast.Call) for each in annotations if each for part in ast.walk(each)):
            raise NotProved(f"the annotations of {node.name} call something")
        if facts.leaves(node, (ast.Yield, ast.YieldFrom, ast.Await)):
            raise NotProved(f"the generator {node.name}")
        self.scope.functions[node.name] = node

    def run(self, function: ast.FunctionDef, above: Scope, node: ast.Call) -> Value:
        """Execute a function of the tests and return its value."""
        parameters = [argument.arg for argument in function.args.args]
        if node.keywords or len(node.args) != len(parameters):
            raise NotProved(f"{function.name} is called with unusual arguments")
        values = [self.value(part) for part in node.args]
        if function.name in self._active:
            raise NotProved(f"{function.name} calls itself")
        self._active.append(function.name)
        names = set(parameters).union(*map(facts.find_bound_names, function.body))
        outside, self.scope = self.scope, Scope(next(self.state.numbers), above, names)
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
        return Value(places, any(value.answer for value in returned), facts.unknown(*returned))

    def _stmt_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self.scope.returned.append(self.value(node.value))

    def _stmt_Expr(self, node: ast.Expr) -> None:
        self.value(node.value)

    # Names.

    def _stmt_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            pairs = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            parts = [*target.elts, *node.value.elts] if pairs else []  # type: ignore[attr-defined]
            pairs = pairs and not any(isinstance(part, ast.Starred) for part in parts)
            if pairs and len(target.elts) == len(node.value.elts):  # type: ignore[attr-defined]
                for part, item in zip(target.elts, node.value.elts):  # type: ignore[attr-defined]
                    self.assign(part, self.last[id(item)])
            else:
                self.assign(target, value)

    def _stmt_AugAssign(self, node: ast.AugAssign) -> None:
        if isinstance(node.target, ast.Attribute):
            raise NotProved(f"{ast.unparse(node.target)} is set")
        held = self.value(ast.parse(ast.unparse(node.target), mode="eval").body)
        value = self.use(self.value(node.value))
        self.use(held)
        if held.places:
            # For a list, += is a change.
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
            self.assign(target.value, self.make_container(value.places, answer=value.answer))
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
        self.use(value, shallow=True)
        for number, target in enumerate(targets):
            parts = self.state.parts_at(value, number, len(targets))
            self.assign(target, Value(parts, value.answer, facts.unknown(value)))

    # Loops and branches.

    def _stmt_For(self, node: ast.For) -> None:
        source = self.value(node.iter)
        # If a turn of the loop may end early, names may keep their values from before.
        early = facts.leaves(node, (ast.Break, ast.Continue))
        self._weakly += early
        bound = {name for part in ast.iter_child_nodes(node) for name in facts.find_bound_names(part)}
        self.loop(source, node.target, lambda: self.block(node.body), len(bound))
        self.block(node.orelse)
        self._weakly -= early

    def _stmt_If(self, node: ast.If) -> None:
        test = self.use(self.value(node.test))
        if test.answer and facts.leaves(node):
            raise NotProved("an answer decides whether the tests go on")
        before = self.state.copy()
        self.block(node.body)
        after, self.state = self.state, before
        self.block(node.orelse)
        self.state.join(after)

    def _stmt_Raise(self, node: ast.Raise) -> None:
        if node.exc is None or called_name(node.exc) not in facts.EXCEPTIONS:
            raise NotProved("raise of something else than a builtin exception")
        for part in node.exc.args if isinstance(node.exc, ast.Call) else []:
            self.use(self.value(part))

    def _stmt_Try(self, node: ast.Try) -> None:
        """Execute `try: f(0); assert False`, with handlers that only look at the exception."""
        if node.finalbody or facts.leaves(node) or facts.find_bound_names(node) - {h.name for h in node.handlers}:
            raise NotProved("a try that binds names, or goes on elsewhere")
        self.block(node.body)
        for handler in node.handlers:
            kinds: list[Any] = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
            if not all(isinstance(kind, ast.Name) and kind.id in facts.EXCEPTIONS for kind in kinds):
                raise NotProved("a handler of something else than builtin exceptions")
            if handler.name:
                if self.key(handler.name) in self.state.variables:
                    raise NotProved(f"{handler.name} is bound before, and by a handler")
                self._check_exception(handler)
                self.assign(ast.Name(handler.name, ast.Store()), Value(answer=True, text=f"?e{self.state.calls}"))
            self.block(handler.body)
        self.block(node.orelse)

    def _check_exception(self, handler: ast.ExceptHandler) -> None:
        """Refuse a handler that uses its exception otherwise than in `str(e)` and `e.args`."""
        parts = [part for statement in handler.body for part in ast.walk(statement)]
        read = [part for part in parts if isinstance(part, ast.Name) and part.id == handler.name]
        known = [part.value for part in parts if isinstance(part, ast.Attribute) and part.attr == "args"]
        shown = [part for part in parts if isinstance(part, ast.Call) and ast.unparse(part.func) == "str"]
        known += [part.value for part in parts if isinstance(part, ast.FormattedValue)]
        known += [part.args[0] for part in shown if part.args]
        if not all(any(name is part for part in known) for name in read):
            raise NotProved("an exception is used otherwise than by its text and arguments")

    def _stmt_With(self, node: ast.With) -> None:
        """Execute `with pytest.raises(ValueError): f(0)`."""
        call = node.items[0].context_expr
        raises = isinstance(call, ast.Call) and facts.read_dotted_name(call.func, self.modules) == "pytest.raises"
        given = call.args if raises and isinstance(call, ast.Call) else []
        kinds = given and all(isinstance(arg, ast.Name) and arg.id in facts.EXCEPTIONS for arg in given)
        one = len(node.items) == 1 and node.items[0].optional_vars is None and len(node.body) == 1
        if not (kinds and one and isinstance(node.body[0], ast.Expr)):
            raise NotProved("a context other than pytest.raises around one call")
        for keyword in call.keywords if isinstance(call, ast.Call) else []:
            self.use(self.value(keyword.value))
        self.block(node.body)

    # Asserts.

    def _stmt_Assert(self, node: ast.Assert) -> None:
        for part in facts.split_condition(node.test):
            if not self._is_settled(part):
                self.use(self.value(part))

    def _is_settled(self, atom: ast.expr) -> bool:
        """Whether an assert compares an argument after its call with a literal; the call then returns it, too."""
        if not isinstance(atom, ast.Compare) or len(atom.ops) != 1 or not isinstance(atom.ops[0], ast.Eq):
            return False
        side, wanted = atom.left, atom.comparators[0]
        if isinstance(side, ast.Call) and called_name(side) == "len" and len(side.args) == 1:
            side = side.args[0]
        if isinstance(side, ast.Subscript) and isinstance(side.slice, ast.Constant):
            side = side.value
        if not isinstance(side, ast.Name) or self.scope.owner(side.id) is not self.scope:
            return False
        value = self.value(side)
        held = [self.state.containers[place] for place in value.places]
        now = len(held) == 1 and held[0].literal and held[0].passed == self.state.calls
        alone = all(self.state.holders(place) == 1 for place in self.state.reach(value.places))
        nodes = [node for node, passed in self.passed_at.items() if passed & value.places]
        literal = all(isinstance(part, _LITERAL) for part in ast.walk(wanted))
        if not (now and alone and literal and len(nodes) == 1 and nodes[0] in self.named):
            return False
        self.settled.add(nodes[0])
        return True

    # Reading and changing.

    def use(self, value: Value, late: frozenset[int] = frozenset(), *, shallow: bool = False) -> Value:
        """Read a value. Raise NotProved if it may be another one in Python, or is an object.

        late: answers that may be read after other calls. shallow: nothing is read of the items.
        """
        near = set(value.places)
        while more := {read for each in near for read in self.state.containers[each].reads} - near:
            near |= more
        for place in self.state.reach(value.places):
            container = self.state.containers[place]
            if container.kind == "object":
                raise NotProved("an object of the program is compared, or used as a value")
            if container.kind == "answer" and container.made < self.state.calls and place not in late:
                raise NotProved("an answer is read after another call")
            if container.delayed and container.made < self.state.calls:
                raise NotProved("an iterator is read after another call")
            if container.passed and (place in near or not shallow):
                raise NotProved("an argument is read after a call that may change it")
        return value

    def change(self, target: Value, *added: Value, exact: bool = False) -> None:
        """Change a container of the tests, and perhaps add values to it; `exact`: they become its items."""
        if not target.places:
            raise NotProved("what is changed is not known")
        for place in target.places:
            container = self.state.containers[place]
            if container.kind != "own":
                raise NotProved(f"an {container.kind} is changed")
            if container.passed:
                raise NotProved("an argument is changed after it was passed")
            if place in self.state.reach(each for value in added for each in value.places):
                raise NotProved("a container is put into itself")
            parts = container.parts.union(*(value.places for value in added))
            if not (still := exact and container.exact):
                parts = parts.union(*map(self.state.parts, added))
            self.state.containers[place] = replace(container, parts=parts, literal=False, exact=still, items=())

    def make_container(self, parts: Iterable[int] = (), *, answer: bool = False, text: str = "", **more: Any) -> Value:
        """Return a new container of the tests."""
        return Value(self.state.make("own", parts, **more), answer, text or "?")

    def number(self, *parts: Value) -> Value:
        """Return a number or text, computed from others."""
        return Value(answer=any(part.answer for part in parts), text=f"{facts.unknown(*parts)}n")

    # Expressions.

    def value(self, node: ast.expr) -> Value:
        """Execute an expression and return its value."""
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise NotProved("the tests are too long to be proved")
        visit: Callable[[Any], Value] | None = getattr(self, f"_expr_{type(node).__name__}", None)
        if isinstance(node, _DISPLAYS):
            found = self._display(node)
        elif isinstance(node, _COMPREHENSIONS):
            found = self._comprehension(node)
        elif visit is not None:
            found = visit(node)
        elif isinstance(node, facts.EXPRESSIONS):
            parts = [self.use(self.value(part)) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
            if isinstance(node, ast.FormattedValue):
                self._check_text(parts, shows_type=node.conversion == ord("r"))
            found = self._one_of(node, parts)
        else:
            raise NotProved(f"an expression of the kind {type(node).__name__}")
        self.last[id(node)] = found
        return found

    def _one_of(self, node: ast.expr, parts: Sequence[Value]) -> Value:
        """Return the value of `a or b`, `a if b else c` or `-a`."""
        found = self.number(*parts)
        if isinstance(node, ast.UnaryOp) and isinstance(node.operand, ast.Constant):
            return replace(found, text=ast.unparse(node))
        if isinstance(node, (ast.BoolOp, ast.IfExp)):
            text = found.text if all(map(is_scalar, parts)) else facts.unknown(*parts)
            return replace(found, text=text, places=frozenset().union(*(part.places for part in parts)))
        if isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not) and parts[0].places:
            return self.make_container(answer=found.answer)
        return found

    def _expr_Constant(self, node: ast.Constant) -> Value:
        if node.value is not ...:
            return Value(text=repr(node.value))
        raise NotProved("an ellipsis")

    def _expr_Name(self, node: ast.Name) -> Value:
        owner = self.scope.owner(node.id)
        if owner is not None:
            if node.id in owner.functions:
                raise NotProved(f"the function {node.id} is used as a value")
            # A name that is not bound yet is an error in Python.
            found = self.state.variables.get((owner.number, node.id), Value())
            if found.text.startswith("?e"):
                if found.text != f"?e{self.state.calls}":
                    raise NotProved("an exception is read after another call, or twice")
                self.state.calls += 1  # to read it may run the program's own `__str__`
            if node.id in self.shared and owner.above is None and (found.places or "?r" in found.text):
                raise NotProved(f"the program has a {node.id} of its own, which may become another one")
            return found
        if node.id in self.names:
            raise NotProved(f"the program's {node.id} is used, and not called")
        return self._read_constant(self.modules.get(node.id, node.id))

    def _read_constant(self, path: str) -> Value:
        """Return the value of a type, or of a constant in a module."""
        if path.split(".")[-1] not in facts.CONSTANTS or not ("." not in path or facts.is_allowed(path)):
            raise NotProved(f"{path} is not known, or is used as a value")
        return Value(text=path)

    def _display(self, node: Any) -> Value:
        if isinstance(node, ast.List) and all(isinstance(item, ast.Constant) for item in node.elts):
            # A list of constants is read as a whole, since it may be long.
            return self.make_container(text=facts.LITERAL, literal=True, exact=True)
        pairs = zip(node.keys, node.values) if isinstance(node, ast.Dict) else ()
        items: list[Any] = [part for pair in pairs for part in pair] if isinstance(node, ast.Dict) else node.elts
        if any(item is None for item in items):
            raise NotProved("a display with **")
        starred = any(isinstance(item, ast.Starred) for item in items)
        values = [self.value(item) for item in items]
        for value in values if isinstance(node, (ast.Set, ast.Dict)) else ():
            self.use(value)
        places: frozenset[int] = frozenset().union(*(value.places for value in values))
        answer = any(value.answer for value in values)
        text = facts.unknown(*values) if starred or any("?" in value.text for value in values) else facts.LITERAL
        if isinstance(node, ast.Tuple) and not places:
            return Value(answer=answer, text=text)
        literal = not answer and "?" not in text and all(self.state.containers[place].literal for place in places)
        exact = not starred and not isinstance(node, (ast.Set, ast.Dict))
        each = tuple(value.places for value in values) if exact else ()
        return self.make_container(places, answer=answer, text=text, literal=literal, exact=exact, items=each)

    def _expr_Starred(self, node: ast.Starred) -> Value:
        value = self.use(self.value(node.value), shallow=True)
        return Value(self.state.parts(value), value.answer, facts.unknown(value))

    def _expr_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        return self.combine(node.op, self.use(left), self.use(right))

    def combine(self, op: ast.operator, left: Value, right: Value) -> Value:
        """Return what an operator makes of two values. With a number: a new number or array, or items repeated."""
        answer = left.answer or right.answer
        if isinstance(op, ast.Mod) and right.answer and not left.text.lstrip("-")[:1].isdigit():
            raise NotProved("the text of what may be an object")
        scalars = is_scalar(left) + is_scalar(right)
        if scalars == 2:
            return self.number(left, right)
        if not left.places | right.places:
            return Value(answer=answer, text=facts.unknown(left, right))
        if scalars and not isinstance(op, ast.Mult):
            # An array; of an answer that is a number, a number.
            return self.make_container(answer=answer)
        exact = all(self.state.containers[place].exact for place in left.places | right.places)
        return self.make_container(self.state.parts(left) | self.state.parts(right), answer=answer, exact=exact)

    def _expr_Compare(self, node: ast.Compare) -> Value:
        sides = [self.value(part) for part in (node.left, *node.comparators)]
        singletons = all(
            isinstance(part, ast.Constant) and part.value in (None, True, False) for part in node.comparators
        )
        if any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops) and not singletons:
            raise NotProved("identities are compared")
        late: frozenset[int] = frozenset()
        if isinstance(node.ops[0], (ast.Eq, ast.Is)) and len(sides) == 2:
            late = self._equal_to_constant(*sides) | self._equal_to_constant(*reversed(sides))
            stale = {place for place in late if self.state.containers[place].made < self.state.calls}
            parts = zip((node.left, *node.comparators), sides)
            self.late |= {id(part) for part, side in parts if stale & self.state.reach(side.places)}
        found = self.number(*(self.use(side, late) for side in sides))
        tells = all(isinstance(op, (ast.In, ast.NotIn, ast.Is, ast.IsNot)) for op in node.ops)
        arrays = any(side.places and side.answer for side in sides)
        return found if tells or not arrays else self.make_container(answer=True)

    def _equal_to_constant(self, theirs: Value, ours: Value) -> frozenset[int]:
        """Return the answers that are compared with numbers or texts: `a == 1`, `[a, f(2)] == [1, 2]`.

        An array or a bytearray may equal one, and the program may change it later. The judge refuses these (`late`).
        """
        if not ours.places:
            return theirs.places | self.state.parts(theirs)
        exact = all(self.state.containers[place].exact for place in theirs.places | ours.places)
        return self.state.parts(theirs) if exact and not self.state.parts(ours) else frozenset()

    def _expr_Subscript(self, node: ast.Subscript) -> Value:
        base = self.value(node.value)
        index = self.use(self.value(node.slice))
        if "object" in self.state.kinds(base.places):
            if any(isinstance(part, ast.Slice) for part in ast.walk(node.slice)):
                raise NotProved("a slice is passed to the program")
            return self.operation([index])
        self.use(base, shallow=True)
        parts = self.state.parts(base)
        if isinstance(node.slice, ast.Slice):
            view = base.places if base.answer else frozenset()
            return Value(self.state.make("own", parts) | view, base.answer or index.answer, "?")
        if isinstance(node.slice, ast.Constant) and type(node.slice.value) is int:
            parts = self.state.parts_at(base, node.slice.value)
        return Value(parts, base.answer or index.answer, facts.unknown(base))

    def _expr_Attribute(self, node: ast.Attribute) -> Value:
        path = facts.read_dotted_name(node, self.modules)
        if path:
            return self._read_constant(path)
        base = self.value(node.value)
        if "object" in self.state.kinds(base.places) and node.attr[0] != "_":
            return self.operation([])
        if node.attr not in facts.ATTRIBUTES or (node.attr == "args" and base.text[:2] != "?e"):
            raise NotProved(f"the attribute {node.attr}")
        self.use(base)
        if node.attr == "args":
            return Value(self.state.make("answer"), True, "?")
        # Some are views: what changes one changes the other.
        return Value(base.places | self.state.parts(base), base.answer, facts.unknown(base))

    def _comprehension(self, node: Any) -> Value:
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        found: list[Value] = []
        self.inside(node, node.generators, lambda: found.extend(map(self.value, elements)))
        places = frozenset().union(*(value.places for value in found))
        answer = any(value.answer for value in found)
        text = facts.unknown(*found)
        if isinstance(node, ast.GeneratorExp):
            return Value(self.state.make("lazy", places, delayed=True), answer, text)
        return Value(self.state.make("own", places, exact=isinstance(node, ast.ListComp)), answer, text)

    def inside(self, node: ast.AST, generators: Sequence[ast.comprehension], turn: Callable[[], None]) -> None:
        """Execute `turn`, one turn of a comprehension, for the values of its generators."""
        first, *rest = generators
        source = self.value(first.iter)
        self.within += 1
        above, names = self.scope, facts.find_bound_names(first.target)
        self.scope = Scope(next(self.state.numbers), above, names)

        def once() -> None:
            if any(self.use(self.value(test)).answer for test in first.ifs):
                raise NotProved("an answer decides what is looked at")
            if rest:
                self.inside(node, rest, turn)
            else:
                turn()

        self.loop(source, first.target, once, len(self.scope.names))
        self.within -= 1
        self.scope = above

    def loop(self, source: Value, target: ast.expr, turn: Callable[[], None], variables: int) -> None:
        """Execute `turn` for the items of a value, until nothing new can happen.

        With each turn, a value of an earlier turn can move on to one more variable. So there are as many turns as
        variables, and two more.
        """
        self.sources.append(source)
        for _ in range(variables + 2):
            before = self.state.copy()
            objects = "object" in self.state.kinds(source.places)
            item = self.operation([]) if objects else self.use(source, shallow=True)
            self.assign(target, Value(self.state.parts(item), item.answer, facts.unknown(source)))
            calls = self.state.calls
            turn()
            if objects and self.state.calls > calls:
                raise NotProved("a loop over an object calls the program")
            self.state.join(before)
            if not self.within:
                self.state.forget(self.sources)
        self.sources.pop()

    # Calls.

    def _expr_Call(self, node: ast.Call) -> Value:
        if any(keyword.arg is None for keyword in node.keywords):
            raise NotProved("arguments by **")
        func = node.func
        name = func.id if isinstance(func, ast.Name) else ""
        owner = self.scope.owner(name)
        if owner is not None and name in owner.functions:
            return self.run(owner.functions[name], owner, node)
        if owner is None and name in self.names:
            return self._ask(node, "object" if name in self.classes else "answer")
        if isinstance(func, ast.Attribute) and self._is_of_program(func):
            return self._ask(node, "answer")
        path = facts.read_dotted_name(func, self.modules)
        if path:
            if not facts.is_allowed(path):
                raise NotProved(f"{ast.unparse(func)} is not known")
            return self._library(node, [])
        if isinstance(func, ast.Attribute):
            base = self.value(func.value)
            if "object" in self.state.kinds(base.places) and func.attr[0] != "_":
                return self._ask(node, "answer")
            of_array = func.attr in facts.ARRAY_METHODS and not (node.args or node.keywords)
            if not of_array and func.attr not in facts.METHODS | facts.CHANGING:
                raise NotProved(f"the method {func.attr} is not known")
            return self._library(node, [base])
        if owner is not None or name not in facts.FUNCTIONS:
            raise NotProved(f"{ast.unparse(func)} is called, which is not known")
        return self._library(node, [])

    def _is_of_program(self, node: ast.expr) -> bool:
        """Whether an expression such as `C.make` is the dotted name of a function of the program."""
        while isinstance(node, ast.Attribute) and node.attr[0] != "_":
            node = node.value
        return isinstance(node, ast.Name) and self.scope.owner(node.id) is None and node.id in self.names

    def _library(self, node: ast.Call, base: list[Value]) -> Value:
        """Return the value of a call of a builtin function, a function in a module, or a method of a value."""
        name = called_name(node)
        nodes = [*node.args, *(keyword.value for keyword in node.keywords)]
        given = list(map(self.value, nodes))
        path = facts.read_dotted_name(node.func, self.modules)
        objects = [value for value in given if "object" in self.state.kinds(value.places)]
        if objects and name in facts.READING and isinstance(node.func, ast.Name):
            if any(value.places for value in given if value is not objects[0]):
                raise NotProved("an object is read together with other containers")
            return self.operation([])
        if name in ("copy", "deepcopy") and any(value.answer for value in (*base, *given)):
            raise NotProved("a copy of an answer, which a class of the program may make")
        changes = name == "shuffle" or (base and name in facts.CHANGING)
        target, *added = (*base, *given) or (Value(),)
        for value in added if changes and name in facts.ADDING else (target, *added):
            self.use(value, shallow=name in facts.SHALLOW)
        answer = any(value.answer for value in (*base, *given))
        parts: frozenset[int] = frozenset().union(*(self.state.parts(value) for value in (*base, *given)))
        if name not in facts.KEEPS_ITEMS:
            parts = frozenset(self.state.reach(parts))
        arguments: frozenset[int] = frozenset().union(*(value.places for value in (*base, *given)))
        used = {part.id for part in nodes if isinstance(part, ast.Name)} | {name}
        shown = [value for value in (*base, *given) if value.answer]
        if used & facts.SHOWING:
            self._check_text(shown, shows_type=bool(used & {"repr", "ascii"}))
        self._check_known(node, used, shows=any(value.places for value in shown))
        if changes:
            self.change(target, *added, exact=name == "append")
            if name == "popitem":
                parts = self.state.make("own", parts, exact=True, items=(frozenset(), parts))
            # `pop` and `setdefault` may return what they are given.
            return Value(parts.union(*(value.places for value in added)), answer, "?")
        found = Value(answer=answer, text="?r" if path.startswith("random.") else facts.unknown(*base, *given))
        if self._is_scalar_call(node, path, base, given):
            return self.number(*base, found)
        if name in facts.DEEP_COPIES:
            return replace(found, places=self.state.make_unknown())
        if name in facts.ITERATORS or (base and name in facts.VIEWS):
            items = self._items_of(node, [*base, *given], parts, arguments)
            delayed = name in ("map", "filter")
            return replace(found, places=self.state.make("lazy", items, reads=arguments, delayed=delayed))
        if name not in facts.FLAT or (name in ("split", "splitlines") and arguments):
            made = self.state.make_unknown(parts | arguments)
        else:
            exact = name in ("list", "sorted", "range") and all(self.state.containers[each].exact for each in arguments)
            made = self.state.make("own", parts, exact=exact)
        return replace(found, places=made if name in facts.FRESH else made | arguments | parts)

    def _is_scalar_call(self, node: ast.Call, path: str, base: list[Value], given: list[Value]) -> bool:
        """Whether a call of a known function returns a number, a text or a truth value."""
        name = called_name(node)
        if name in facts.SCALAR or path.startswith("math.") or (name in ("all", "any") and not base):
            return True
        return name in facts.SCALAR_OF_SCALARS and not any(value.places for value in base or given)

    def _items_of(
        self, node: ast.Call, given: Sequence[Value], parts: frozenset[int], arguments: frozenset[int]
    ) -> frozenset[int]:
        """Return what an iterator or a view of a known function yields. parts: what is in its arguments."""
        name = called_name(node)
        if name in ("zip", "enumerate"):
            columns = [self.state.parts(value) for value in given[: len(node.args)]]
            columns = [frozenset(), *columns[:1]] if name == "enumerate" else columns
            known = not any(isinstance(part, ast.Starred) for part in node.args)
            return self.state.make("own", parts, exact=known, items=tuple(columns) if known else ())
        if name == "items":
            # A key of the program's may be a text of a class of its own.
            keys = parts if any(value.answer for value in given) else frozenset()
            return self.state.make("own", parts, exact=True, items=(keys, parts))
        if name == "map":
            return (
                frozenset() if called_name(node.args[0]) in facts.SCALAR else self.state.make_unknown(parts | arguments)
            )
        return parts | arguments

    def _check_text(self, values: Sequence[Value], *, shows_type: bool) -> None:
        """Refuse the text of an object, and the one of an exception that shows its type."""
        if any(value.answer and (value.places or (shows_type and not is_scalar(value))) for value in values):
            raise NotProved("the text of what may be an object")

    def _check_known(self, node: ast.Call, used: set[str], *, shows: bool) -> None:
        """Check a call of a known function. used: its name, and the names in functions that it is given."""
        name = called_name(node)
        if "type" in used and shows:
            raise NotProved("the type of an answer")
        if name == "strftime" and "Z" in ast.unparse(node):
            raise NotProved("the name of a time zone")
        if name in ("float", "Decimal") and any("nan" in ast.unparse(part).lower() for part in node.args):
            raise NotProved("a value that does not equal itself")
        if name == "isinstance" and not facts.is_type(node.args[-1]):
            raise NotProved("isinstance of another type than a builtin one")

    def _ask(self, node: ast.Call, kind: str) -> Value:
        """Return the value of a call of a function, class or method of the program."""
        nodes = [*node.args, *(keyword.value for keyword in node.keywords)]
        values: list[Value] = []
        for part in nodes:
            values.append(self.value(part))
            self.passed_at.setdefault(id(part), set()).update(self.state.reach(values[-1].places))
            if isinstance(part, ast.Name):
                self.named.add(id(part))
                if self.scope.owner(part.id) is None and part.id not in facts.TYPES:
                    raise NotProved("a function is passed to the program")
        made = self.operation(values)
        return replace(made, places=self.state.make("object")) if kind == "object" else made

    def operation(self, given: Sequence[Value]) -> Value:
        """Return the program's answer when it is given these values."""
        self.state.calls += 1
        for place in self.state.reach(place for value in given for place in value.places):
            container = self.state.containers[place]
            if container.kind == "lazy":
                raise NotProved("an iterator is passed to the program")
            if container.kind == "own":
                self.state.containers[place] = replace(container, passed=self.state.calls)
        return Value(self.state.make("answer"), True, "?")

    def key(self, name: str) -> Key:
        """Return the variable that a name means here."""
        owner = self.scope.owner(name)
        assert owner is not None
        return owner.number, name
