"""Where the answers of a program go in test code: no assert may hold one answer against another.

An expected value must be the tests' own. `assert total() == sum(load())` shows only that two answers agree, and a
program can see to that: `total` empties what `load` has returned. A *source* is an expression whose value the program
decides: a call of it, a read of one of its objects, a variable bound to either. Tests are weak if

- two sources meet, in a comparison, an operation or a call of a builtin function. A variable may meet itself: `assert
  r == sorted(r)` is about one answer;
- a source decides which calls or checks are executed: `for x in load(): assert double(x) == 2 * x`;
- a container that the program was given is read after that, since the program may have changed it. It may be read where
  that very call is judged (`r = f(xs)`, `assert r == max(xs)`): then it counts as it was. And it may be held against
  the tests' own values (`assert xs == [1, 2]`): then it is an answer.

Variables are told apart by their names alone, wherever they are bound.
"""

from __future__ import annotations

import ast
from bisect import bisect, bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from rlvr.sandbox.testcode.instrument import always_fails, called_name, find_names, is_check

Sources = frozenset[str]
_NONE: Sources = frozenset()
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict)
# Functions and methods that give the items of what they are called with, not copies.
_GIVING = frozenset("enumerate zip reversed iter next min max get setdefault pop popitem popleft values items".split())
# Functions that hold the items of what they are called with against each other.
_COMPARING = frozenset("set frozenset Counter min max zip".split())
_CATCHING = frozenset(("Exception", "BaseException", "AssertionError"))


class MixedAnswers(Exception):
    """Two answers meet, or an answer decides what is executed; the reason in words."""


class Flow:
    """The sources of each expression of test code.

    names: of the program; classes: those that the tests use as classes. objects: variables that hold objects of these.
    changing: methods that change a container. `compared`, as nodes: variables of containers that the program was given,
    where an assert holds what is in them against the tests' own values.
    """

    def __init__(
        self,
        tree: ast.Module,
        names: Collection[str],
        classes: Collection[str],
        objects: Collection[str],
        changing: Collection[str],
    ) -> None:
        self._asked, self._classes, self._objects, self._changing = {*names, *objects}, classes, objects, changing
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._nodes = [tree, *self._above]
        self._functions = {node.name: node for node in self._nodes if isinstance(node, ast.FunctionDef)}
        # The sources of each binding of a variable. Mixed: those that hold several answers.
        self._bindings: dict[str, list[Sources]] = {}
        self._mixed = set[str]()
        # The tests' own functions that ask the program, or read what it has answered.
        self._asking = set[str]()
        self._above_of, self._below_of = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
        self._same: dict[str, frozenset[str]] = {}
        self._find_holders()
        while self._bind():
            pass
        calls = [node for node in self._nodes if isinstance(node, ast.Call)]
        requests = [call for call in calls if self._asks(call) and called_name(call) not in self._functions]
        self._given = [(call, _NONE.union(*map(_refer, _arguments(call)))) for call in requests]
        self._given_by: dict[Sources, dict[ast.FunctionDef | None, list[ast.Call]]] = {}
        self._sites: dict[str, list[ast.Call]] = {
            name: sorted((call for call in calls if called_name(call) == name), key=_position)
            for name in self._functions
        }
        self._fresh = self._find_fresh()
        self.compared = self._find_compared()
        self._measured = self._find_measured()

    def check(self) -> None:
        """Raise MixedAnswers if two sources meet, one decides what is executed, or a given container is read."""
        for node in self._nodes:
            if isinstance(node, (ast.For, ast.comprehension)):
                self._check_loop(node)
            elif isinstance(node, ast.If) and self._of(node.test):
                inside = {part for each in (*node.body, *node.orelse) for part in ast.walk(each)}
                if any(self._asks(part) or _decides(part) for part in inside):
                    raise MixedAnswers("an answer decides what is executed")
            elif isinstance(node, ast.Try):
                self._check_try(node)
            elif isinstance(node, ast.AugAssign):
                held = [sources for name in _find_stored(node.target) for sources in self._bindings.get(name, ())]
                if len(_NONE.union(*held)) > 1:
                    raise MixedAnswers(f"answers of the program are combined: {ast.unparse(node):.80}")
            elif isinstance(node, ast.expr):
                self._check_meeting(node)
        self._check_reads()

    def _find_measured(self) -> set[str]:
        """Return the variables of which an assert looks at the length or at the whole: `len(r) == 2`, `r == [1]`."""
        parts = {part for node in self._nodes if isinstance(node, ast.Assert) for part in ast.walk(node.test)}
        compared = [side for part in parts if isinstance(part, ast.Compare) for side in (part.left, *part.comparators)]
        measured = [
            part.args[0] for part in parts if isinstance(part, ast.Call) and called_name(part) == "len" and part.args
        ]
        return {each.id for each in (*compared, *measured) if isinstance(each, ast.Name)}

    def _check_loop(self, node: ast.For | ast.comprehension) -> None:
        """Refuse calls that are made for each item of an answer, or where an answer says so."""
        whole = self._above[node]
        if isinstance(node, ast.comprehension) and isinstance(whole, _COMPREHENSIONS):
            before = whole.generators[: whole.generators.index(node) + 1]
            conditions = {part for each in node.ifs for part in ast.walk(each)}
            inside = {*ast.walk(whole)}.difference(*(ast.walk(each.iter) for each in before))
            chosen = bool(_NONE.union(*map(self._of, node.ifs))) and any(map(self._asks, inside - conditions))
        else:
            inside = {*ast.walk(node)}.difference(ast.walk(node.iter))
            chosen = False
        if chosen or (self._of(node.iter) and any(map(self._asks, inside))):
            raise MixedAnswers("an answer decides how often the program is called")
        checks = isinstance(node, ast.For) and any(map(_decides, inside))
        if (checks or called_name(node.iter) == "zip") and not self._of(node.iter) <= self._measured:
            raise MixedAnswers("a loop ends with an answer whose length no assert looks at")

    def _check_try(self, node: ast.Try) -> None:
        """Refuse checks that are left out where the program raises, or where it does not."""
        if not any(map(self._asks, ast.walk(node))):
            return
        handlers = [part for handler in node.handlers for each in handler.body for part in ast.walk(each)]
        kinds = {part.id for h in node.handlers if h.type for part in ast.walk(h.type) if isinstance(part, ast.Name)}
        catches = bool(kinds & _CATCHING) and not node.orelse
        checks = [part for each in node.body for part in ast.walk(each) if _decides(part)]
        fails = [part for each in node.body for part in ast.walk(each) if always_fails(part)]
        checks = checks + fails if catches else [part for part in checks if part not in fails]
        goes_on = not all(always_fails(handler.body[-1]) for handler in node.handlers)
        ends = always_fails((node.orelse or node.body)[-1])
        handled = any((_decides(part) and not always_fails(part)) or self._asks(part) for part in handlers)
        both = find_names(ast.Module(node.body, []))[1] & set[str]().union(*(find_names(each)[1] for each in handlers))
        if (checks and goes_on) or (handled and not ends) or both:
            raise MixedAnswers("an exception of the program decides what is executed")

    def _check_meeting(self, node: ast.expr) -> None:
        above = self._above[node]
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.BoolOp):
            operands = [] if self._holds_where_all_hold(node) else node.values
        elif isinstance(node, (ast.BinOp, ast.IfExp, ast.Subscript, ast.JoinedStr)):
            operands = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        elif isinstance(node, ast.Call) and not self._has_parameters(node):
            own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            operands = [*own, *node.args, *(keyword.value for keyword in node.keywords)]
        elif isinstance(node, _DISPLAYS) and isinstance(above, ast.Call) and not self._has_parameters(above):
            operands = [] if self._asks(above) else [p for p in ast.iter_child_nodes(node) if isinstance(p, ast.expr)]
        if isinstance(above, ast.Expr) or self._asks(node):  # the value is not used; arguments
            return
        sides = [sources for operand in operands if (sources := self._of(operand))]
        several = called_name(node) in _COMPARING and any(sources & self._mixed for sources in sides)
        if several or (len(sides) > 1 and not self._are_one(_NONE.union(*sides))):
            text = ast.unparse(node)
            raise MixedAnswers(f"answers of the program are compared with each other, or combined: {text:.80}")

    def _has_parameters(self, call: ast.Call) -> bool:
        """Whether a function of the tests is called in which each argument has a name of its own."""
        function = self._functions.get(called_name(call))
        return function is not None and not (function.args.vararg or function.args.kwarg)

    def _holds_where_all_hold(self, node: ast.BoolOp) -> bool:
        """Whether an `and` joins conditions of an assert, or of `all(...)` in one."""
        part: ast.AST = node
        while isinstance(part, _COMPREHENSIONS) or (isinstance(part, ast.BoolOp) and isinstance(part.op, ast.And)):
            part = self._above[part]
            if isinstance(part, ast.Call) and called_name(part) == "all":
                part = self._above[part]
            if isinstance(part, ast.Assert):
                return True
        return False

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
            return frozenset({node.id}) if node.id in self._bindings or node.id in self._objects else _NONE
        if isinstance(node, ast.expr) and self._asks(node):
            return frozenset({f"{ast.unparse(node)} at line {node.lineno}"})
        return _NONE.union(*map(self._of, ast.iter_child_nodes(node)))

    def _asks(self, node: ast.AST) -> bool:
        """Whether a node is a call of the program, or a read of one of its objects, or calls a function that asks."""
        if not isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._asking:
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
                names = _find_stored(target) if sources else set()
                # What is added to a container is in all that hold it.
                for name in names.union(*map(self._find_same, names)) if adds else names:
                    found[name].append(sources)
                    # `last = r` in a loop: the answer of the round before.
                    if adds or len(sources) > 1 or (isinstance(node, ast.Assign) and isinstance(value, ast.Name)):
                        self._mixed.add(name)
        before = len(self._bindings), len(self._asking)
        self._bindings = dict(found)
        for name, function in self._functions.items():
            own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            read = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)} - own
            if any(map(self._asks, ast.walk(function))) or read & self._bindings.keys():
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
            if self._asks(node):
                return
            yield node.func.value, ast.Tuple([*node.args, *(keyword.value for keyword in node.keywords)]), True
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self._functions:
            arguments = self._functions[node.func.id].args
            parameters = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
            pairs = [*zip(parameters, node.args), *((k.arg or "", k.value) for k in node.keywords)]
            starred = arguments.vararg or arguments.kwarg or any(isinstance(each, ast.Starred) for each in node.args)
            if starred or any(name == "" for name, _ in pairs):
                given = ast.Tuple([*node.args, *(k.value for k in node.keywords)])
                pairs = [(each.arg, given) for each in ast.walk(arguments) if isinstance(each, ast.arg)]
            yield from ((ast.Name(name, ast.Store()), value, False) for name, value in pairs)

    def _find_deciding(self, node: ast.AST) -> Sources:
        """Return the sources that decide whether a node is executed."""
        found = _NONE
        while (below := node) in self._above and not isinstance(node, ast.FunctionDef):
            node = self._above[below]
            if isinstance(node, ast.For) and below is not node.iter:
                found |= self._of(node.iter)
            elif isinstance(node, ast.If) and below is not node.test:
                found |= self._of(node.test)
            elif isinstance(node, ast.Try) and isinstance(below, ast.ExceptHandler):
                found |= _NONE.union(*map(self._of, node.body))
        return found

    # Containers that the program was given.

    def _find_holders(self) -> None:
        """Find for each variable those whose containers may hold its own, and those that it may hold."""
        for node in self._nodes:
            for target, value, _ in self._find_bindings(node):
                for one in _find_stored(target):
                    inside = set[str]().union(
                        *(_refer(part) for part in ast.walk(value) if isinstance(part, _DISPLAYS))
                    )
                    for other in _refer(value):
                        if other not in inside:
                            self._above_of[one].add(other)
                            self._below_of[other].add(one)
                        same = isinstance(value, ast.Name) and not isinstance(node, (ast.For, ast.comprehension))
                        if other in inside or same:
                            self._below_of[one].add(other)
                            self._above_of[other].add(one)

    def _find_same(self, name: str) -> frozenset[str]:
        """Return the variables that may hold the same container, one that holds it, or one that it holds."""
        if name not in self._same:
            self._same[name] = _reach(name, self._above_of) | _reach(name, self._below_of)
        return self._same[name]

    def _find_compared(self) -> set[ast.AST]:
        given = _NONE.union(*(names for _, names in self._given)) - {*self._objects}
        found: set[ast.AST] = set()
        for node in self._nodes:
            for part in split_condition(node.test) if isinstance(node, ast.Assert) else ():
                inside = list(ast.walk(part))
                names = [each for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
                shared = [name for name in names if self._find_same(name.id) & given]
                calls = [
                    each for each in inside if isinstance(each, ast.Lambda) or called_name(each) in self._functions
                ]
                same = self._find_same(shared[0].id) if shared else _NONE
                if not calls and {name.id for name in shared} <= same and self._of(part) <= same:
                    found.update(shared)
        return found

    def _check_reads(self) -> None:
        """Refuse what reads or changes a container that the program was given before."""
        constant = self._find_constant()
        passed = {part for call, _ in self._given for each in _arguments(call) for part in ast.walk(each)}
        for name, place in self._find_reads():
            if not (place in self.compared or place in passed or name in self._objects or name in constant):
                changes = isinstance(place, ast.Name) and self._changes(place)
                before = self._find_before(name, place)
                if before and (changes or not self._may_read(place, before)):
                    raise MixedAnswers(f"{name} is read or changed after a call that may change it")

    def _find_reads(self) -> Iterator[tuple[str, ast.expr]]:
        """Yield each variable that is read or changed, and where; those that a function reads at its calls, too."""
        for node in self._nodes:
            if isinstance(node, ast.Name) and (isinstance(node.ctx, ast.Load) or self._changes(node)):
                yield node.id, node
            elif isinstance(node, ast.Call) and called_name(node) in self._functions:
                function = self._functions[called_name(node)]
                read, bound, _ = find_names(function)
                yield from ((name, node) for name in read - bound)

    def _changes(self, name: ast.Name) -> bool:
        node: ast.AST = name
        while isinstance(self._above[node], ast.Subscript) and self._above[node].value is node:  # type: ignore[attr-defined]
            node = self._above[node]
        above = self._above[node]
        if isinstance(above, ast.AugAssign) and above.target is node:
            return True
        method = isinstance(above, ast.Attribute) and isinstance(self._above[above], ast.Call)
        stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        return stored or (method and above.attr in self._changing)  # type: ignore[attr-defined]

    def _find_before(self, name: str, place: ast.expr) -> list[ast.Call]:
        """Return the calls that a container may have been given to before it is read, since it was bound."""
        above = list(self._find_all_above(place))
        reader = next((node for node in above if isinstance(node, ast.FunctionDef)), None)
        here = place.lineno, place.col_offset
        lines = self._fresh[name]
        bound = lines[bisect(lines, place.lineno) - 1] if lines and lines[0] <= place.lineno else 0
        loops = [node for node in above if isinstance(node, ast.For) and not _is_in(place, node.iter)]
        loops = [loop for loop in loops if name not in find_names(loop)[1]]
        found: list[ast.Call] = []
        for function, calls in self._find_given(name).items():
            # Calls in a function are made where that is called.
            made = calls if function in (None, reader) else self._sites[function.name]
            if function is not None and function is not reader and not made:  # a test
                before = reader is None or name not in find_names(reader)[1]
                found += calls if before else []
                continue
            first = bisect_left(made, (bound, 0), key=_position)
            earlier = made[first : bisect_left(made, here, key=_position)]
            earlier = [call for call in earlier if call not in above]
            earlier += [
                call for call in made[first:] if any(_is_in(call, loop) for loop in loops) and call not in earlier
            ]
            found += earlier if made is calls else calls if earlier else []
        return found

    def _find_given(self, name: str) -> dict[ast.FunctionDef | None, list[ast.Call]]:
        """Return the calls that are given what a variable may hold, in order, by the function that they are in."""
        same = self._find_same(name)
        if same not in self._given_by:
            found = defaultdict[Any, list[ast.Call]](list)
            for call, names in self._given:
                if names & same:
                    above = self._find_all_above(call)
                    found[next((node for node in above if isinstance(node, ast.FunctionDef)), None)].append(call)
            self._given_by[same] = {function: sorted(calls, key=_position) for function, calls in found.items()}
        return self._given_by[same]

    def _find_fresh(self) -> dict[str, list[int]]:
        """Return the lines on which a variable is bound to a container that no other one holds."""
        found = defaultdict[str, list[int]](list)
        for node in self._nodes:
            if isinstance(node, (ast.Assign, ast.For)):
                for target, value, adds in self._find_bindings(node):
                    if isinstance(target, (ast.Name, ast.Tuple)) and not adds and not _refer(value):
                        for name in _find_stored(target):
                            found[name].append(node.lineno)
            elif isinstance(node, ast.arg) and self._find_same(node.arg) == {node.arg}:
                found[node.arg].append(node.lineno)
        for lines in found.values():
            lines.sort()
        return found

    def _find_constant(self) -> set[str]:
        """Return the variables that hold nothing but numbers and texts: `for k in range(3)`, `n = 4`."""
        found: set[str] = set()
        others: set[str] = {node.arg for node in self._nodes if isinstance(node, ast.arg)}
        for node in self._nodes:
            for target, value, _ in self._find_bindings(node):
                loops = isinstance(node, (ast.For, ast.comprehension))
                items = value.elts if loops and isinstance(value, (ast.List, ast.Tuple)) else [value]
                constant = all(isinstance(item, ast.Constant) for item in items) or (
                    loops and called_name(value) == "range"
                )
                (found if constant and isinstance(target, ast.Name) else others).update(_find_stored(target))
        return found - others

    def _may_read(self, place: ast.expr, before: list[ast.Call]) -> bool:
        """Whether a container counts as it was where it is read: where its only call or the result is judged.

        Not where its items are held against the result: `k = f(xs)`, `assert xs[:k] == [1, 2]`. To bind another
        variable to a container does not read it.
        """
        statement = next(node for node in self._find_all_above(place) if isinstance(node, ast.stmt))
        alias = (
            isinstance(statement, ast.Assign) and isinstance(place, ast.Name) and place.id in _refer(statement.value)
        )
        if alias and all(call.lineno > place.lineno for call in before):
            return True
        (call, *others) = before
        if others or not isinstance(call.func, ast.Name) or call.func.id in self._classes:
            return False
        whole = getattr(statement, "test", None) or getattr(statement, "iter", None) or statement
        if _is_in(call, whole):
            return True
        makes = next(node for node in self._find_all_above(call) if isinstance(node, ast.stmt))
        results = set().union(*map(_find_stored, makes.targets)) if isinstance(makes, ast.Assign) else set()
        above = self._above[place]
        whole_result = isinstance(above, ast.Compare) and all(
            each is place or (isinstance(each, ast.Name) and each.id in results)
            for each in (above.left, *above.comparators)
        )
        judged = any(isinstance(part, ast.Name) and part.id in results for part in ast.walk(whole))
        return judged and not whole_result and not isinstance(above, ast.Subscript)

    def _find_all_above(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self._above:
            node = self._above[node]
            yield node


def _reach(name: str, near: dict[str, set[str]]) -> frozenset[str]:
    names = {name}
    while not names >= (more := names.union(*(near.get(each, ()) for each in names))):
        names = more
    return frozenset(names)


def _position(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def split_condition(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the parts of a condition that `and` joins."""
    if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.And):
        for value in node.values:
            yield from split_condition(value)
    else:
        yield node


def _is_in(node: ast.AST, whole: ast.AST) -> bool:
    return any(node is part for part in ast.walk(whole))


def _decides(node: ast.AST) -> bool:
    """Whether a statement is a check, or ends a block but by an exception."""
    return isinstance(node, ast.stmt) and (is_check(node) or isinstance(node, (ast.Return, ast.Break, ast.Continue)))


def _find_stored(target: ast.AST) -> set[str]:
    """Return the variables that an assignment binds, or whose container it changes."""
    if isinstance(target, (ast.Attribute, ast.Subscript)):
        return _find_stored(target.value)
    if isinstance(target, ast.Name):
        return {target.id}
    return set().union(*map(_find_stored, ast.iter_child_nodes(target)))


def _refer(value: ast.AST) -> set[str]:
    """Return the variables whose containers a value may be, or have in it. Most calls return another one."""
    if isinstance(value, ast.Call) and called_name(value) not in _GIVING:
        return set()
    if isinstance(value, ast.Name):
        return {value.id} if isinstance(value.ctx, ast.Load) else set()
    return set[str]().union(*map(_refer, ast.iter_child_nodes(value)))
