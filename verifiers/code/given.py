"""Containers of the tests that the program was given: what it may have changed is not read as an expected value.

A container that the program was given may be read

- where it is held against the tests' own values: `assert xs == [1, 2]`. Then it is an answer, and is marked as such;
- where that very call is judged: `r = f(xs)`, `assert r == max(xs)`. Then it counts as it was before the call;
- to be passed on, or bound to another variable;
- where no call can have been executed that had it: after the variable was bound to another container.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection
from functools import cached_property

from rlvr.sandbox.testcode.instrument import called_name

from .answers import Answers, MixedAnswers
from .bindings import COMPREHENSIONS, DISPLAYS, Bindings, arguments_of, find_stored, split_condition

_LOOPS = (ast.For, *COMPREHENSIONS, ast.Lambda)


class Given:
    """The places where the program gets containers of the tests, and where these are read.

    classes: names of the program that the tests use as classes; objects: variables that hold objects of these.
    """

    def __init__(
        self, bindings: Bindings, answers: Answers, classes: Collection[str], objects: Collection[str]
    ) -> None:
        self._bindings, self._answers, self._above = bindings, answers, bindings.above
        self._classes, self._objects = classes, objects
        self._given = [(node, names) for node in bindings.nodes if (names := self._find_given(node))]
        self._sites = defaultdict[str, list[ast.expr]](list)
        for node in bindings.nodes:
            if isinstance(node, ast.expr) and bindings.is_own(node):
                self._sites[called_name(node)].append(node)
        # For each function: the calls in it, also of other functions, by which the program gets containers.
        self._given_in = defaultdict[ast.AST | None, list[tuple[ast.AST, set[str]]]](list)
        for node, names in self._given:
            self._given_in[bindings.function_of(node)].append((node, names))
        for name, names in self._find_in_functions().items():
            for site in self._sites[name]:
                self._given_in[bindings.function_of(site)].append((site, names))

    @cached_property
    def compared(self) -> set[ast.AST]:
        """Variables of containers that the program was given, where an assert holds them against the tests' values."""
        given = set[str]().union(*(names for _, names in self._given)) - {*self._objects}
        found: set[ast.AST] = set()
        for node in self._bindings.nodes:
            for part in split_condition(node.test) if isinstance(node, ast.Assert) else ():
                inside = list(ast.walk(part))
                names = [each for each in inside if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)]
                shared = [name for name in names if self._bindings.group(name.id) & given]
                calls = any(isinstance(each, ast.Lambda) or self._bindings.is_own(each) for each in inside)
                same = self._bindings.group(shared[0].id) if shared else set[str]()
                if not calls and {name.id for name in shared} <= same and self._answers.of(part) <= same:
                    found.update(shared)
        return found

    def check(self) -> None:
        """Raise MixedAnswers if a container is read, or changed, that the program may have changed."""
        fine = self.compared.union(*(ast.walk(part) for node, _ in self._given for part in self._parts_given(node)))
        for node in self._bindings.nodes:
            name = self._find_read(node)
            if isinstance(node, ast.expr) and name and node not in fine and not self._may_be_read(name, node, ()):
                raise MixedAnswers(f"{name} is read or changed after a call that may change it")

    def _find_read(self, node: ast.AST) -> str:
        """Return the variable of which a node reads or changes a container of the tests; or ""."""
        if self._bindings.is_own(node):
            return f"{called_name(node)}()" if self._bindings.depth(node) else ""
        if not isinstance(node, ast.Name) or not self._bindings.depth(node) or node.id in self._objects:
            return ""
        reads = isinstance(node.ctx, ast.Load) and not self._is_bound_anew(node)
        return node.id if (reads or self._changes(node)) and not self._answers.is_answer(node.id) else ""

    # Where the program gets containers.

    def _find_given(self, node: ast.AST) -> set[str]:
        """Return the variables whose containers the program gets, or may change, by this node itself."""
        return set[str]().union(*map(self._bindings.refer, self._parts_given(node)))

    def _parts_given(self, node: ast.AST) -> list[ast.expr]:
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and self._answers.of(node.func.value)
            return arguments_of(node) if self._bindings.asks(node) or method else []
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            stored = set[str]().union(*(find_stored(each) for each in targets if not isinstance(each, ast.Name)))
            theirs = any(self._answers.of(ast.Name(name)) for name in stored)
            return [node.value, *(each.slice for each in targets if isinstance(each, ast.Subscript))] if theirs else []
        if isinstance(node, ast.Subscript):
            return [node.slice] if self._bindings.asks(node) else []
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return [node.left] if self._answers.of(node.comparators[0]) & {*self._objects} else []
        return []

    def _find_in_functions(self) -> dict[str, set[str]]:
        """Return for each function of the tests the variables whose containers the program gets when it is called."""
        found = defaultdict[str, set[str]](set)
        for node, names in self._given:
            if function := self._bindings.function_of(node):
                found[function.name] |= names
        calls = [(self._bindings.function_of(site), name) for name, sites in self._sites.items() for site in sites]
        inner = [(function.name, name) for function, name in calls if function]
        while any(not found[name] <= found[outer] for outer, name in inner):
            for outer, name in inner:
                found[outer] |= found[name]
        return found

    # What may have been executed before.

    def _may_be_read(self, name: str, node: ast.expr, seen: tuple[ast.AST, ...]) -> bool:
        """Whether no call can have changed a container before it is read, or such a call is judged there.

        What a function reads of other variables is read where it is called.
        """
        function, bound = self._bindings.function_of(node), self._find_fresh(name, node)
        before = self._find_before(name, node, bound)
        if before and (self._changes(node) or not self._is_judged(node, before)):
            return False
        returned = isinstance(node, ast.Name) and isinstance(self._above[node], ast.Return)
        if bound is not None or function is None or function in seen or returned:
            return True
        sites = self._sites[function.name]
        group = self._bindings.group(name)
        given = any(names & group for place, names in self._given if self._bindings.function_of(place) is not function)
        return all(self._may_be_read(name, site, (*seen, function)) for site in sites) if sites else not given

    def _find_before(self, name: str, node: ast.expr, bound: ast.AST | None) -> list[ast.AST]:
        """Return the calls in this function that may have had a container since it was bound."""
        group, function = self._bindings.group(name), self._bindings.function_of(node)
        here = self._given_in[function]
        places = [place for place, names in here if names & group and not self._is_apart(name, names, bound)]
        order = self._bindings.order
        outside = {bound, *self._bindings.find_above(bound)} if bound is not None else set()
        first, last = order[bound] if bound is not None else -1, self._last_moment(node)
        loops = self._find_loops(node) - outside
        return [
            place
            for place in places
            if (first < order[place] <= last and place is not node) or not loops.isdisjoint(self._find_loops(place))
        ]

    def _is_apart(self, name: str, names: set[str], bound: ast.AST | None) -> bool:
        """Whether the program gets another item than this one of what a loop takes apart."""
        targets = find_stored(bound.target) if isinstance(bound, ast.For) else set[str]()
        return names <= targets and name not in names

    def _find_fresh(self, name: str, node: ast.expr) -> ast.AST | None:
        """Return the statement that has bound a variable to a container of its own whenever it is read here."""
        below: ast.AST = node
        for above in self._bindings.find_above(node):
            if isinstance(above, ast.For) and below is not above.iter and name in find_stored(above.target):
                return above if self._binds_anew(above, name) or self._is_first_loop(above) else None
            if isinstance(below, ast.stmt):
                block = self._bindings.block_of(below)
                before = reversed(block[: next(place for place, each in enumerate(block) if each is below)])
                for each in before:
                    if isinstance(each, ast.Assign) and self._binds_anew(each, name):
                        return each if self._still_holds(each, name, node) else None
            if isinstance(above, ast.FunctionDef):
                return above if self._is_fresh_parameter(above, name) else None
            below = above
        return None

    def _still_holds(self, bound: ast.Assign, name: str, node: ast.expr) -> bool:
        """Whether a variable is not bound to a container of another one between two places."""
        order, outside = self._bindings.order, {*self._bindings.find_above(bound)}
        loops = self._find_loops(node) - outside
        return not any(
            order[bound] < order[each] < order[node] or not loops.isdisjoint(self._find_loops(each))
            for each in self._bindings.shared.get(name, ())
        )

    def _is_first_loop(self, loop: ast.For) -> bool:
        """Whether a loop is executed once, over a container of the tests' own whose items the program had not before.

        These are different containers: what is written in it has no variable in it, and repeats no item.
        """
        names = self._bindings.refer(loop.iter)
        bound = self._bindings.find_of(min(names)) if len(names) == 1 else []
        function = self._bindings.function_of(loop)
        if len(bound) != 1 or self._find_loops(loop) or (function and len(self._sites[function.name]) > 1):
            return False
        value, group = bound[0].value, self._bindings.group(*names)
        own = not any(isinstance(part, (ast.BinOp, ast.Name)) for part in ast.walk(value))
        places = [(place, given) for place, given in self._given if given & group]
        targets, inside = find_stored(loop.target), {part for each in loop.body for part in ast.walk(each)}
        return own and all(place in inside and given <= targets for place, given in places)

    def _binds_anew(self, node: ast.Assign | ast.For, name: str) -> bool:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        value = node.value if isinstance(node, ast.Assign) else node.iter
        plain = len(targets) == 1 and isinstance(targets[0], (ast.Name, ast.Tuple))
        names = {each.id for each in ast.walk(targets[0]) if isinstance(each, ast.Name)} if plain else ()
        return name in names and not self._bindings.refer(value) and not self._answers.of(value)

    def _is_fresh_parameter(self, function: ast.FunctionDef, name: str) -> bool:
        own = any(each.arg == name for each in ast.walk(function.args) if isinstance(each, ast.arg))
        return own and not any(self._bindings.refer(each.value) for each in self._bindings.find_of(name))

    def _last_moment(self, node: ast.AST) -> int:
        """Return the last node of the part of a statement that is executed at once."""
        statement = self._bindings.statement_of(node)
        order = self._bindings.order
        simple = not isinstance(statement, (ast.For, ast.If, ast.Try, ast.With))
        return max(order.get(part, 0) for part in ast.walk(statement)) if simple else order[node]

    def _find_loops(self, node: ast.AST) -> set[ast.AST]:
        """Return the loops of its function that a node is in."""
        found, below = set[ast.AST](), node
        for above in self._bindings.find_above(node):
            if isinstance(above, ast.FunctionDef):
                return found
            if isinstance(above, _LOOPS) and not (isinstance(above, ast.For) and below is above.iter):
                found.add(above)
            below = above
        return found

    # What is done with a container.

    def _changes(self, name: ast.expr) -> bool:
        node: ast.AST = name
        while isinstance(above := self._above[node], ast.Subscript) and above.value is node:
            node = above
        if isinstance(above, ast.AugAssign) and above.target is node:
            return True
        method = isinstance(above, ast.Attribute) and isinstance(self._above[above], ast.Call)
        stored = isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
        return stored or (method and above.attr in self._bindings.changing)  # type: ignore[attr-defined]

    def _is_bound_anew(self, node: ast.AST) -> bool:
        """Whether a variable is read to be bound to another one, or to be put into a container."""
        while isinstance(above := self._above[node], (*DISPLAYS, ast.Starred, ast.Subscript)):
            node = above
        return isinstance(above, ast.Assign) and bool(self._bindings.refer(node))

    def _is_judged(self, node: ast.expr, before: list[ast.AST]) -> bool:
        """Whether a container counts as it was where it is read: where its only call or the result is judged.

        Not where its items are held against the result: `k = f(xs)`, `assert xs[:k] == [1, 2]`.
        """
        (call, *others) = before
        function = call.func if isinstance(call, ast.Call) else None
        if (
            others
            or not isinstance(function, ast.Name)
            or function.id in self._classes
            or not self._asks_once(function.id)
        ):
            return False
        region = self._find_region(node)
        sources = self._answers.of(region)
        if any(each is call for each in ast.walk(region)):
            return sources == {self._answers.name(call)} and not self._is_in_display(node)
        made = self._bindings.statement_of(call)
        results = set[str]().union(*map(find_stored, made.targets)) if isinstance(made, ast.Assign) else set[str]()
        above = self._above[node]
        whole = isinstance(above, ast.Compare) and all(
            each is node or (isinstance(each, ast.Name) and each.id in results)
            for each in (above.left, *above.comparators)
        )
        apart = whole or isinstance(above, ast.Subscript) or self._is_in_display(node)
        return bool(sources) and sources <= results and not apart and self._follows(node, made, results)

    def _asks_once(self, name: str) -> bool:
        """Whether a call of a function is one call of the program, and makes no object."""
        function = self._bindings.functions.get(name)
        parts = ast.walk(function) if function is not None else ()
        calls = sum(isinstance(part, ast.Call) and self._answers.asks(part) for part in parts)
        return calls == 1 if function is not None else name not in self._classes

    def _find_region(self, node: ast.AST) -> ast.AST:
        """Return the part of a statement that has one value: of an assert, a condition."""
        statement = self._bindings.statement_of(node)
        if isinstance(statement, ast.Assert):
            parts = split_condition(statement.test)
            return next((part for part in parts if any(each is node for each in ast.walk(part))), statement)
        return getattr(statement, "iter", None) or getattr(statement, "test", None) or statement

    def _is_in_display(self, node: ast.AST) -> bool:
        return isinstance(self._above[node], DISPLAYS)

    def _follows(self, node: ast.AST, made: ast.stmt, results: set[str]) -> bool:
        """Whether the program is not asked, and no result bound, between a call and the place where it is judged."""
        block = self._bindings.block_of(made)
        above = [node, *self._bindings.find_above(node)]
        last = next((i for i, each in enumerate(block) if any(each is part for part in above)), None)
        if last is None:
            return False
        between = block[next(i for i, each in enumerate(block) if each is made) + 1 : last + 1]
        parts = [part for each in between for part in ast.walk(each)]
        names = {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
        return not names & results and not any(map(self._answers.asks, parts))
