"""Containers of the tests that the program was given: what it may have changed is not read as an expected value.

Such a container may be

- held against the tests' own values: `assert xs == [1, 2]`. Then it is an answer, and is marked as such;
- read where that very call is judged: `r = f(xs)`, `assert r == max(xs)`. Then it counts as it was before the call;
- passed on, or bound to another variable;
- read where no call that had it can have been executed since its variable was bound.
"""

from __future__ import annotations

import ast
from collections.abc import Collection
from functools import cached_property

from rlvr.sandbox.testcode.instrument import find_names

from .answers import Answers, MixedAnswers
from .bindings import DISPLAYS, Bindings, arguments_of, find_stored, split_condition


class Given:
    """The places where the program gets containers of the tests, and where these are read.

    classes: names of the program that the tests use as classes; objects: variables that hold objects of these.
    """

    def __init__(
        self, bindings: Bindings, answers: Answers, classes: Collection[str], objects: Collection[str]
    ) -> None:
        self._bindings, self._answers, self._above = bindings, answers, bindings.above
        self._classes, self._objects = classes, objects
        parts = [(node, parts) for node in bindings.nodes if (parts := self._parts_given(node))]
        self._passed = {each for _, given in parts for part in given for each in ast.walk(part)}
        self._given = [(node, set[str]().union(*map(bindings.refer, given))) for node, given in parts]

    @cached_property
    def checked_variables(self) -> set[ast.AST]:
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
        for node in self._bindings.nodes:
            if isinstance(node, ast.expr) and node not in self._passed and node not in self.checked_variables:
                changes = self._bindings.changes(node)
                name = self._bindings.name_of(node) if changes or not self._is_bound_anew(node) else ""
                before = self._find_before(name, node) if name and not self._answers.is_answer(name) else []
                if before and (changes or not self._is_judged(node, before)):
                    raise MixedAnswers(f"{name} is read or changed after a call that may change it")

    def _parts_given(self, node: ast.AST) -> list[ast.expr]:
        """Return the expressions of a node whose values the program gets."""
        if isinstance(node, ast.Call):
            method = isinstance(node.func, ast.Attribute) and self._answers.of(node.func.value)
            return arguments_of(node) if self._answers.asks(node) or method else []
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

    # What may have been executed before.

    def _find_before(self, name: str, node: ast.expr) -> list[ast.AST]:
        """Return the places where the program may have got a container before it is read."""
        group, function = self._bindings.group(name), self._bindings.function_of(node)
        given = [(place, names) for place, names in self._given if names & group]
        if function and function.name not in self._answers.asking and name in find_names(function)[1]:
            return []  # read where the function is called
        bound = self._find_fresh(name, node)
        others = [place for place, _ in given if self._bindings.function_of(place) is not function]
        if function is not None and bound is not None:  # what a function binds itself is its own
            others = [place for place in others if function in self._bindings.find_above(place)]
        if others or (given and bound is None and function and self._bindings.is_repeated(function.body[0])):
            return [place for place, _ in given] * 2
        given = [each for each in given if self._bindings.function_of(each[0]) is function]
        order, loops = self._bindings.order, self._bindings.find_loops(node)
        first, last, outside = -1, self._bindings.last_of(node), set[ast.AST]()
        if bound is not None:
            first, outside = order[bound], {bound, *self._bindings.find_above(bound)}
        return [
            place
            for place, _ in given
            if first < order[place] <= last or not (loops - outside).isdisjoint(self._bindings.find_loops(place))
        ]

    def _find_fresh(self, name: str, node: ast.expr) -> ast.AST | None:
        """Return the statement that has bound a variable to a container of its own whenever it is read here."""
        below: ast.AST = node
        for above in self._bindings.find_above(node) if not self._bindings.shared.get(name) else ():
            if isinstance(above, ast.For) and below is not above.iter and name in find_stored(above.target):
                return above
            if isinstance(below, ast.stmt):
                block = self._bindings.block_of(below)
                before = reversed(block[: next(place for place, each in enumerate(block) if each is below)])
                bound = (each for each in before if isinstance(each, ast.Assign))
                found = next((each for each in bound if any(name in find_stored(t) for t in each.targets)), None)
                if found is not None:
                    return found
            if isinstance(above, ast.FunctionDef):
                return above if name in {each.arg for each in above.args.args} else None
            below = above
        return None

    # What is done with a container.

    def _is_bound_anew(self, node: ast.AST) -> bool:
        """Whether a variable is read to be bound to another one, or to be put into a container."""
        while isinstance(above := self._above.get(node), (*DISPLAYS, ast.Starred, ast.Subscript)):
            if isinstance(above, ast.Subscript) and above.value is not node:
                return False
            node = above
        if not isinstance(above, (ast.Assign, ast.Return)) or not self._bindings.refer(node):
            return False
        targets = above.targets if isinstance(above, ast.Assign) else []
        return isinstance(node, DISPLAYS) or not any(isinstance(each, (ast.Tuple, ast.List)) for each in targets)

    def _is_judged(self, node: ast.expr, before: list[ast.AST]) -> bool:
        """Whether a container counts as it was where it is read: where its only call or the result is judged.

        Not where its items are held against the result: `k = f(xs)`, `assert xs[:k] == [1, 2]`.
        """
        (call, *others) = before
        function = call.func if isinstance(call, ast.Call) else None
        if others or not isinstance(function, ast.Name) or function.id in {*self._classes, *self._bindings.functions}:
            return False
        region, above = self._find_region(node), self._above[node]
        sources = self._answers.of(region)
        if any(each is call for each in ast.walk(region)):
            return sources == {self._answers.name(call)} and not isinstance(above, DISPLAYS)
        made = self._bindings.statement_of(call)
        results = set[str]().union(*map(find_stored, made.targets)) if isinstance(made, ast.Assign) else set[str]()
        whole = isinstance(above, ast.Compare) and all(
            each is node or (isinstance(each, ast.Name) and each.id in results)
            for each in (above.left, *above.comparators)
        )
        apart = whole or isinstance(above, (ast.Subscript, *DISPLAYS))
        return bool(sources) and sources <= results and not apart and self._follows(node, made, results)

    def _find_region(self, node: ast.AST) -> ast.AST:
        """Return the part of a statement that has one value: of an assert, a condition."""
        statement = self._bindings.statement_of(node)
        if isinstance(statement, ast.Assert):
            parts = split_condition(statement.test)
            return next((part for part in parts if any(each is node for each in ast.walk(part))), statement)
        return getattr(statement, "iter", None) or getattr(statement, "test", None) or statement

    def _follows(self, node: ast.AST, made: ast.stmt, results: set[str]) -> bool:
        """Whether the program is not asked, and no result bound, between a call and the place where it is judged."""
        block = self._bindings.block_of(made)
        above = {node, *self._bindings.find_above(node)}
        last = next((place for place, each in enumerate(block) if each in above), 0)
        between = block[next(place for place, each in enumerate(block) if each is made) + 1 : last + 1]
        parts = [part for each in between for part in ast.walk(each)]
        names = {part.id for part in parts if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
        return bool(between) and not names & results and not any(map(self._answers.asks, parts))
