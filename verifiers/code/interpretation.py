"""Where the answers of a program go in test code: no expected value may come from the program.

Test code is executed without the program, with a `Value` in place of each real one: is it the tests' own, and if not,
which answer is it? An answer is what a call of the program returns, or what is read from one of its objects. Whatever
has no method here is not understood, and makes the tests weak. What is understood must keep these rules:

- No expression has two answers in it. Only `[f(1), f(2)] == [1, 4]` may have several on one side.
- No answer decides what is executed: no `if`, no loop. Where an exception is expected, there is one call.
- The tests change only containers of their own, and put nothing into them but their own values.
- What the program was given, and may have changed, is read again only as an answer (`assert xs == [1, 3]`), or to judge
  the answer of that very call (`r = f(xs)`, `assert r == max(xs)`), where it counts as it was before the call.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from rlvr.core.files.tables import read_words
from rlvr.sandbox.testcode.instrument import always_fails, called_name, find_names

from .containers import Container, Value, join, mark_repeated


class WeakTests(Exception):
    """The reason why test code is weak."""


_WORDS = read_words(Path(__file__).with_name("words.txt"))
CHANGING = _WORDS["changing"]
EXCEPTIONS = frozenset(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
) - {"StopIteration", "StopAsyncIteration"}
_MAX_STEPS = 50_000
_OWN = Value()


def split_condition(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that `and` joins."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from split_condition(value)
    else:
        yield node


class Interpretation:
    """An execution of test code with values that are not known. Raises WeakTests.

    names: the names of the program; classes: those that are used as classes. marked: the variables whose contents are
    the program's answers.
    """

    def __init__(self, tree: ast.Module, names: Collection[str], classes: Collection[str]) -> None:
        self._names, self._classes = names, classes
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._module: dict[str, Value] = {}
        self._scope = self._module
        self._returned: list[Value] = []
        # What the variables are where a round of a loop ends.
        self._left: list[dict[str, Value]] = []
        # The calls that gave the answers, by the answers' numbers.
        self._calls: list[ast.AST] = []
        # What is read in a statement, with the calls by which the program got it.
        self._read: dict[ast.Name, set[ast.AST]] = {}
        self.marked = set[ast.Name]()
        self._expected = set[ast.Name]()  # variables that what is expected is computed from
        self._changing = set[ast.AST]()  # calls that are there to change what the program gets
        self._steps = 0
        # Whether a part of an expression is executed that may be left out, or in which an exception is expected.
        self._optional = self._expecting = False
        # Whether a function is executed as a part of a statement.
        self._nested = False
        self._execute(tree.body)
        for name in self._functions:
            if name.startswith("test"):
                self._run(name, {})
        if both := self.marked & self._expected:
            raise WeakTests(f"{_show(both.pop())} is an answer, and what one is held against")

    # Statements.

    def _execute(self, body: list[ast.stmt]) -> None:
        for node in body:
            execute = getattr(self, f"_execute_{type(node).__name__.lower()}", None)
            if execute is None:
                raise WeakTests(f"{type(node).__name__} in the tests")
            execute(node)

    def _count_steps(self, number: int = 1) -> None:
        self._steps += number
        if self._steps > _MAX_STEPS:
            raise WeakTests("the tests are too long")

    def _execute_pass(self, node: ast.AST) -> None:
        pass

    _execute_import = _execute_importfrom = _execute_pass

    def _execute_break(self, node: ast.AST) -> None:
        self._left.append(dict(self._scope))  # what follows is not executed; it is looked at all the same

    _execute_continue = _execute_break

    def _execute_functiondef(self, node: ast.FunctionDef) -> None:
        if self._functions.get(node.name) is not node:
            raise WeakTests("a function in a function or in a block")

    def _execute_expr(self, node: ast.Expr) -> None:
        self._changing |= {node.value} if called_name(node.value) in self._names else set()
        self._end_statement(self._evaluate(node.value))

    def _execute_assign(self, node: ast.Assign) -> None:
        value = self._evaluate(node.value)
        for target in node.targets:
            self._assign(target, value)
        self._end_statement(value)

    def _execute_augassign(self, node: ast.AugAssign) -> None:
        self._put(self._evaluate(node.target), self._evaluate(node.value))
        self._end_statement(_OWN)

    def _execute_return(self, node: ast.Return) -> None:
        self._returned.append(self._evaluate(node.value) if node.value is not None else _OWN)

    def _execute_if(self, node: ast.If) -> None:
        self._refuse_answers(self._evaluate(node.test))
        self._end_statement(_OWN)
        before = dict(self._scope)
        self._execute(node.body)
        after = dict(self._scope)
        self._scope.update(before)
        self._execute(node.orelse)
        self._scope.update(_join_scopes(self._scope, after))

    def _execute_for(self, node: ast.For) -> None:
        if node.orelse:
            raise WeakTests("a loop with an else")
        whole = self._iterate(node.iter)
        self._refuse_answers(whole)
        self._end_statement(_OWN)
        outer, binding = self._left, object()
        # What one round has bound or given away, the next one may read, and bind to another variable.
        for _ in range(2 + len(find_names(node)[1])):
            self._left = [dict(self._scope)]
            self._assign(node.target, whole.take_item(binding))
            self._execute(node.body)
            self._scope.update(_join_scopes(self._scope, *self._left))
        self._left = outer

    def _execute_assert(self, node: ast.Assert) -> None:
        self._refuse_optional()
        self._check_condition(node.test, {})

    def _execute_try(self, node: ast.Try) -> None:
        """Only `try: f(0)`, followed by a statement that fails, there or in `else`; and one handler that checks."""
        first, *others = node.body
        fails = [*others, *node.orelse, ast.Pass()][0]
        if node.finalbody or len(node.handlers) != 1 or not _fails_as_assert(fails):
            raise WeakTests("a try in which no exception is expected")
        (handler,) = node.handlers
        _check_expected([handler.type])
        if not all(isinstance(part, (ast.Pass, ast.Assert)) for part in handler.body):
            raise WeakTests("a handler that does more than check its exception")
        self._expect(first)
        if handler.name:
            self._scope[handler.name] = self._ask(first)
        self._execute(handler.body)

    def _execute_with(self, node: ast.With) -> None:
        call = node.items[0].context_expr
        plain = len(node.items) == len(node.body) == 1 and node.items[0].optional_vars is None
        ours = not find_names(call)[0] & {*self._names}
        if not (plain and ours and isinstance(call, ast.Call) and called_name(call) == "raises"):
            raise WeakTests("a with other than pytest.raises around one call")
        _check_expected(call.args)
        self._refuse_answers(*(self._evaluate(keyword.value) for keyword in call.keywords))
        self._expect(node.body[0])

    def _expect(self, node: ast.stmt) -> None:
        """Execute a statement that should raise: one call of the program, which nothing but the program may fail."""
        self._refuse_optional()
        before = len(self._calls)
        self._expecting = True
        self._execute([node])
        self._expecting = False
        plain = all(isinstance(target, ast.Name) for target in getattr(node, "targets", ()))
        if not plain or self._calls[before:] != [getattr(node, "value", None)]:
            raise WeakTests("an exception is expected of something else than one call of the program")

    def _refuse_optional(self) -> None:
        if self._optional:
            raise WeakTests("an answer decides what is executed")

    def _end_statement(self, value: Value) -> None:
        if not self._nested:
            self._check_read(value, asked_before=len(self._calls), is_condition=False)
            self._read = {}

    # Conditions.

    def _check_condition(self, node: ast.expr, read: dict[ast.Name, set[ast.AST]]) -> None:
        """Check what an assert holds against what. read: what has been read to get there."""
        for part in split_condition(node):
            before, outer, self._read = len(self._calls), self._read, dict(read)
            all_of = isinstance(part, ast.Call) and self._is_builtin(part.func) and called_name(part) == "all"
            items = part.args[0] if all_of and part.args else None  # type: ignore[attr-defined]
            if isinstance(items, ast.GeneratorExp):
                scope = self._scope
                self._scope = dict(scope)
                self._refuse_answers(self._bind_generators(items))
                for _ in range(2):  # what one round has given away, another one may read
                    self._check_condition(items.elt, self._read)
                self._scope = scope
            else:
                value = self._evaluate(part)
                if len(value.answers) > 1 and not isinstance(part, ast.Compare):
                    raise WeakTests(f"answers of the program are compared with each other, or combined: {_show(part)}")
                self._check_read(value, asked_before=before, is_condition=True)
            self._read = outer

    def _check_read(self, value: Value, *, asked_before: int, is_condition: bool) -> None:
        """Refuse what the program may have changed, unless it is the answer or is read to judge the answer."""
        if value.answers or not is_condition:
            self._expected.update(self._read)
        changed = [node for node, calls in self._read.items() if calls]
        if not changed:
            return
        if not value.answers and len(changed) == 1:
            self.marked.update(changed)
            self._changing |= self._read[changed[0]]
            return
        calls = {self._calls[answer] for answer in value.answers}
        asked_here = all(answer >= asked_before for answer in value.answers)
        judged = all(self._read[node] == calls for node in changed)
        if not (judged and (asked_here or not any(map(self._is_apart, changed)))):
            raise WeakTests(f"{_show(changed[0])} is read or changed after a call that may change it")

    def _is_apart(self, node: ast.Name) -> bool:
        """Whether the container is compared, or a part of it is read: `k = f(xs)`, `assert xs[:k] == [1, 2]`."""
        return isinstance(self._above[node], (ast.Compare, ast.Subscript, ast.Tuple, ast.List))

    def _refuse_answers(self, *values: Value) -> None:
        if any(value.answers for value in values):
            raise WeakTests("an answer decides what is executed")

    # Variables.

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self._scope[target.id] = value
        elif isinstance(target, ast.Tuple):
            binding = object()
            for each in target.elts:
                self._assign(each, value.take_item(binding))
        elif isinstance(target, ast.Subscript):
            self._assign_item(target, value)
        elif isinstance(target, ast.Attribute) and self._evaluate(target.value).kind:
            self._ask(target, value)
        else:
            raise WeakTests(f"{_show(target)} is set")

    def _assign_item(self, target: ast.Subscript, value: Value) -> None:
        whole, index = self._evaluate(target.value), self._evaluate(target.slice)
        if whole.kind:
            self._ask(target, index, value)
        else:
            self._put(whole, index, value)

    def _put(self, whole: Value, *values: Value) -> None:
        """Put values into a container."""
        if whole.answers:
            raise WeakTests("the tests change an answer")
        if any(value.answers for value in values):
            raise WeakTests("an answer is put into a container of the tests")
        inside = [value.find_inside() for value in values]
        apart = not whole.containers or any(container.origins or container.copies for container in whole.containers)
        if apart and any(inside):
            raise WeakTests("a container is put into one that has several names, or none")
        for container in whole.containers:
            mark_repeated([Value(containers=frozenset(container.holds)).find_inside(), *inside])
            container.holds.update(*inside)

    # Expressions.

    def _evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression whose contents are read."""
        self._count_steps()
        evaluate = getattr(self, f"_evaluate_{type(node).__name__.lower()}", None)
        if evaluate is None:
            raise WeakTests(f"{type(node).__name__} in the tests")
        found: Value = evaluate(node)
        return found

    def _combine(self, node: ast.AST, *values: Value) -> Value:
        """Return a value that is computed from others: all that they may be."""
        found = join(values)
        if any(value.kind == "object" for value in values):
            raise WeakTests("an object of the program is compared, or used as a value")
        if len(found.answers) > 1:
            raise WeakTests(f"answers of the program are compared with each other, or combined: {_show(node)}")
        if self._expecting and found.answers:
            raise WeakTests("an answer is used where an exception is expected")
        return Value(found.answers, found.containers)

    def _compute(self, node: ast.AST, *values: Value) -> Value:
        """Return a number or a text, computed from values."""
        return Value(self._combine(node, *values).answers)

    def _ask(self, node: ast.AST, *given: Value, kind: str = "") -> Value:
        """Return an answer of the program, which gets the values that are given."""
        for value in given:
            self._count_steps(value.give(node))
        self._calls.append(node)
        return Value(frozenset([len(self._calls) - 1]), kind=kind)  # type: ignore[arg-type]

    def _find(self, node: ast.Name) -> Value:
        if node.id in self._names:
            return Value(kind="object")
        value = self._scope.get(node.id) or self._module.get(node.id, _OWN)
        self._count_steps(len(value.find_inside()) ** 2)
        return value

    def _evaluate_name(self, node: ast.Name) -> Value:
        value = self._find(node)
        self._read.setdefault(node, set()).update(value.find_given())
        return value

    def _evaluate_constant(self, node: ast.Constant) -> Value:
        return _OWN

    def _evaluate_unaryop(self, node: ast.UnaryOp) -> Value:
        value = self._evaluate(node.operand)
        return Value(value.answers) if isinstance(node.op, ast.Not) else self._combine(node, value)

    def _evaluate_binop(self, node: ast.BinOp) -> Value:
        values = self._evaluate(node.left), self._evaluate(node.right)
        found = self._combine(node, *values)
        held = [value.find_held() for value in values]
        mark_repeated([*held, *held] if isinstance(node.op, ast.Mult) else held)
        return Value(found.answers, _make(found.find_held()) if found.containers else frozenset())

    def _evaluate_boolop(self, node: ast.BoolOp) -> Value:
        return self._combine(node, *self._evaluate_optional(*node.values))

    def _evaluate_ifexp(self, node: ast.IfExp) -> Value:
        return self._combine(node, *self._evaluate_optional(node.test, node.body, node.orelse))

    def _evaluate_optional(self, *nodes: ast.expr) -> list[Value]:
        """Return the values of expressions of which some may be left out."""
        before, self._optional = self._optional, True
        found = list(map(self._evaluate, nodes))
        self._optional = before
        return found

    def _evaluate_compare(self, node: ast.Compare) -> Value:
        nodes = [node.left, *node.comparators]
        values = self._evaluate_optional(*nodes) if nodes[2:] else list(map(self._evaluate, nodes))
        left, right = values[0], values[-1]
        if isinstance(node.ops[-1], (ast.In, ast.NotIn)) and right.kind and not nodes[2:]:
            return self._ask(node, left)
        if isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return Value(join(values).answers)
        if [type(op) for op in node.ops] == [ast.Eq] and not (left.answers and right.answers):
            several = left if left.answers else right
            return Value(several.answers) if several.kind != "object" else self._compute(node, several)
        return self._compute(node, *values)

    def _evaluate_subscript(self, node: ast.Subscript) -> Value:
        return self._take_item(node, self._evaluate(node.value))

    def _take_item(self, node: ast.Subscript, whole: Value) -> Value:
        index = self._evaluate(node.slice)
        if whole.kind:
            return self._ask(node, index, kind="part")
        found = self._combine(node, whole, index)
        if isinstance(node.slice, ast.Slice):
            return Value(found.answers, _make(found.find_held()) if whole.containers else frozenset())
        return Value(found.answers, whole.find_held())

    def _evaluate_slice(self, node: ast.Slice) -> Value:
        bounds = [each for each in (node.lower, node.upper, node.step) if each is not None]
        return self._compute(node, *map(self._evaluate, bounds))

    def _evaluate_joinedstr(self, node: ast.JoinedStr) -> Value:
        return self._compute(node, *map(self._evaluate, node.values))

    def _evaluate_formattedvalue(self, node: ast.FormattedValue) -> Value:
        parts = [node.value, *([node.format_spec] if node.format_spec is not None else [])]
        return self._compute(node, *map(self._evaluate, parts))

    def _evaluate_attribute(self, node: ast.Attribute) -> Value:
        whole = self._evaluate(node.value)
        return self._ask(node, kind="part") if whole.kind else self._compute(node, whole)

    # Displays and comprehensions.

    def _evaluate_list(self, node: ast.List | ast.Tuple) -> Value:
        items = list(map(self._evaluate, node.elts))
        spread = any(isinstance(each, ast.Starred) for each in node.elts)
        if spread or any(value.kind == "object" for value in items):
            self._combine(node, *items)
        mark_repeated(value.find_inside() for value in items)
        found = join(items)
        return Value(found.answers, _make(found.containers))

    _evaluate_tuple = _evaluate_list

    def _evaluate_starred(self, node: ast.Starred) -> Value:
        value = self._evaluate(node.value)
        return Value(value.answers, value.find_held(), value.kind)

    def _evaluate_set(self, node: ast.Set) -> Value:
        found = self._combine(node, *map(self._evaluate, node.elts))
        return Value(found.answers, _make(found.containers))

    def _evaluate_dict(self, node: ast.Dict) -> Value:
        keys = [self._evaluate(key) for key in node.keys if key is not None]
        values = list(map(self._evaluate, node.values))
        mark_repeated(value.find_inside() for value in values)
        found = self._combine(node, *keys, *values)
        if None in node.keys:
            raise WeakTests("a dict with the items of another one")
        return Value(found.answers, _make(found.containers))

    def _evaluate_listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        scope, optional = self._scope, self._optional
        self._scope = dict(scope)
        deciding = self._bind_generators(node)
        self._optional = optional or bool(deciding.answers) or isinstance(node, ast.GeneratorExp)
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        found = list(map(self._evaluate, parts * 2))  # twice, since two items are two answers
        mark_repeated(value.find_inside() for value in found)
        items = join(found)
        self._scope, self._optional = scope, optional
        if isinstance(node, (ast.SetComp, ast.DictComp)) or items.kind:
            self._combine(node, deciding, items)
        return Value(deciding.answers | items.answers, _make(items.containers))

    _evaluate_setcomp = _evaluate_dictcomp = _evaluate_generatorexp = _evaluate_listcomp

    def _bind_generators(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        """Bind the variables of a comprehension; return what decides how often its items are computed."""
        found = [_OWN]
        for each in node.generators:
            found.append(self._iterate(each.iter))
            self._assign(each.target, found[-1].take_item(object()))
            found += map(self._evaluate, each.ifs)
        return self._compute(node, *found)

    def _iterate(self, node: ast.expr) -> Value:
        """Return the value of what a loop goes through."""
        value = self._evaluate(node)
        return self._ask(node) if value.kind else value

    # Calls.

    def _evaluate_call(self, node: ast.Call) -> Value:
        name = called_name(node)
        given = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Name) and name in self._names:
            return self._ask(node, *self._pass(given), kind="object" if name in self._classes else "")
        if isinstance(node.func, ast.Name) and name in self._functions:
            return self._call_own(node)
        whole = None
        if isinstance(node.func, ast.Attribute):
            whole = self._evaluate(node.func.value)
            if whole.kind:
                return self._ask(node, *self._pass(given))
            if name in CHANGING:
                self._put(whole, *map(self._evaluate, given))
                return Value(frozenset(), whole.find_held() | _make(whole.find_held()))  # or a pair, from a dict
        values = list(map(self._evaluate, given))
        if len(values) == 1 and values[0].kind == "object" and name in _WORDS["reading"] and whole is None:
            return self._ask(node)
        if whole is not None:
            values.append(whole)
        mark_repeated(value.find_inside() for value in values)
        found = self._combine(node, *values)
        if name in ("all", "any", "zip") and found.answers:
            raise WeakTests(f"{name}() of an answer, which may have too few items")
        return Value(found.answers, self._find_result(node, found))

    def _is_builtin(self, func: ast.expr) -> bool:
        return isinstance(func, ast.Name) and func.id not in self._names and func.id not in self._functions

    def _pass(self, nodes: list[ast.expr]) -> list[Value]:
        """Return the values of arguments of the program. What is read for them was not changed on purpose."""
        read, self._read = self._read, {}
        values = list(map(self._evaluate, nodes))
        for node in [node for node, calls in self._read.items() if calls & self._changing]:
            above = self._above[node]
            own = isinstance(above, ast.Call) and called_name(above) in self._functions
            if not (own or node in nodes or isinstance(above, (ast.List, ast.Tuple, ast.Dict, ast.keyword, ast.IfExp))):
                raise WeakTests(f"{_show(node)} is read for an argument after a call that is there to change it")
        self._read = read
        return values

    def _find_result(self, node: ast.Call, given: Value) -> frozenset[Container]:
        """Return the containers that a builtin function or method may return."""
        name, held = called_name(node), given.find_held()
        if name in _WORDS["numbers"] and not (name == "sum" and len(node.args) + len(node.keywords) > 1):
            return frozenset()
        if name in _WORDS["flat"]:
            return _make()
        if name in _WORDS["copying"]:
            return _make(held)
        if name in _WORDS["pairing"]:
            return _make(_make(held))
        inside = given.find_inside() if name != "deepcopy" else set()
        mark_repeated([inside] * 2)
        made = Container(inside)
        made.holds.add(made)
        return frozenset([made, *inside])

    def _call_own(self, node: ast.Call) -> Value:
        """Return what a function of the tests returns: it is executed anew for each call."""
        name = called_name(node)
        own = self._functions[name].args
        if own.vararg or own.kwarg or own.kwonlyargs or own.posonlyargs:
            raise WeakTests(f"the parameters of {name}")
        if any(isinstance(each, ast.Starred) for each in node.args) or any(k.arg is None for k in node.keywords):
            raise WeakTests(f"a call of {name} with an argument that has several values")
        given = {each.arg: self._evaluate(value) for each, value in zip(own.args, node.args)}
        given |= {keyword.arg or "": self._evaluate(keyword.value) for keyword in node.keywords}
        before, self._nested = self._nested, True
        found = self._run(name, {each.arg: given.get(each.arg, _OWN) for each in own.args})
        self._nested = before
        return found

    def _run(self, name: str, scope: dict[str, Value]) -> Value:
        outer, returned = self._scope, self._returned
        self._scope, self._returned = scope, []
        self._execute(self._functions[name].body)
        found = join(self._returned)
        self._scope, self._returned = outer, returned
        return found


def _make(holds: Collection[Container] = ()) -> frozenset[Container]:
    return frozenset([Container(holds)])


def _join_scopes(*scopes: dict[str, Value]) -> dict[str, Value]:
    names = {name for scope in scopes for name in scope}
    return {name: join(scope[name] for scope in scopes if name in scope) for name in names}


def _check_expected(nodes: Sequence[ast.expr | None]) -> None:
    """Refuse to expect any exception, since a mistake raises, too; or a failed assert."""
    kinds = [part for node in nodes for part in (node.elts if isinstance(node, ast.Tuple) else [node])]
    names = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
    if len(names) < len(kinds) or not names <= EXCEPTIONS - {"Exception", "AssertionError"}:
        raise WeakTests("an exception is expected that is none of the builtin ones, or any")


def _fails_as_assert(node: ast.stmt) -> bool:
    """Whether a statement always fails, as a failed assert does."""
    name = called_name(node.exc) if isinstance(node, ast.Raise) and node.exc is not None else "AssertionError"
    return always_fails(node) and name == "AssertionError"


def _show(node: ast.AST) -> str:
    return f"{ast.unparse(node):.80}"
