"""Trials of an assert's expression with the answers of programs that solve nothing.

Calls of the program are replaced by a constant or by their first argument, variables of the tests by samples of one
kind. An expression that then holds for all samples of a kind demands nothing that such a program lacks.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rlvr.sandbox.inside import analysis
from rlvr.verifiers.code import eval as code_eval

ARGUMENT = "the argument"
# In each row values of one type, neither sorted nor all different in themselves.
_SAMPLES: dict[str, list[Any]] = {
    "size": [7, 4, 3, 10, 5],
    "int": [7, 4, -3, 10, 5],
    "float": [2.5, -1.25, 8.5, 3.75, 0.5],
    "str": ["bAcba", "dxY", "Zo1 p", "mn", "hkkg"],
    "list": [[3, 1, 3, -2], [5, 2], [9, 4, 8], [6, 0, 7], [2, 1]],
    "texts": [["b", "Ca", "b"], ["y", "x"], ["q", "p", "rs"], ["d", "c"], ["v", "u"]],
    "set": [{3, 8}, {5, 2, 6}, {9, 4}, {1, 7}, {0, 2}],
    "dict": [{"b": 2, "a": 5}, {"y": 7}, {"q": 1, "p": 4}, {"d": 9}, {"v": 6}],
}
_TURNS = 3
_MOST_CALLS, _MOST_ARGUMENTS, _MOST_PARTS = 8, 3, 3
ANSWER = "_answer"
_NO_PARAMETERS = ast.arguments([], [], None, [], [], None, [])


class Trials:
    """Tries expressions of one test code. `returned`: what each variable that holds a result was assigned."""

    def __init__(
        self,
        found: analysis.Analysis,
        returned: Mapping[str, list[ast.expr]],
        is_instance: Callable[[ast.expr], bool] = lambda node: False,
    ) -> None:
        self.found = found
        self.returned = returned
        self.is_instance = is_instance
        # Variables that get one of several values which the program returns together: the calls, and which value.
        self.parts: dict[str, list[tuple[ast.expr, int, int]]] = {}
        for node in found.nodes:
            for target in node.targets if isinstance(node, ast.Assign) and found.calls_program(node.value) else ():
                if isinstance(node, ast.Assign) and isinstance(target, (ast.Tuple, ast.List)):
                    for number, part in enumerate(target.elts):
                        self.parts.setdefault(ast.unparse(part), []).append((node.value, number, len(target.elts)))
        self.fixed = _literals(found)
        self.modules = _imports(found)

    def passing(self, test: ast.expr, constants: Mapping[str, Any]) -> frozenset[str] | None:
        """Return the names of the answers with which the expression holds; None where it cannot be tried."""
        tried = {name: self._holds(test, (value,)) for name, value in constants.items()}
        arguments = [self._holds(test, (), number) for number in range(_MOST_ARGUMENTS)]
        tried[ARGUMENT] = True if True in arguments else arguments[0]
        combined = {name: self._holds(test, parts) for name, parts in self._combinations(test)}
        if all(held is None for held in (*tried.values(), *combined.values())):
            return None
        return frozenset(name for name, held in (*tried.items(), *combined.items()) if held)

    def _combinations(self, test: ast.expr) -> Iterator[tuple[str, ast.expr]]:
        """Yield tuples of constants and arguments, by name, where the test looks at values that are returned together.

        `q * n + r == 5` holds for (0, 5).
        """
        sizes = {count for name in analysis.keys(test) for _, _, count in self.parts.get(name, ())}
        for node in ast.walk(test):
            index = (
                node.slice.value if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) else None
            )
            if isinstance(index, int) and isinstance(node, ast.Subscript) and self.found.from_program(node.value):
                sizes.add(max(index + 1, 2))
        if not sizes or max(sizes) > _MOST_PARTS:
            return
        numbers = {n.value for n in ast.walk(test) if isinstance(n, ast.Constant) and isinstance(n.value, (int, float))}
        parts = {repr(value): ast.Constant(value) for value in [0, 1, *sorted(numbers - {0, 1})[:3]]}
        arguments = {f"argument {n}": ast.Name(f"{ANSWER} {n}", ast.Load()) for n in range(2)}
        for chosen in itertools.product({**parts, **arguments}.items(), repeat=max(sizes)):
            yield f"({', '.join(name for name, _ in chosen)})", ast.Tuple([part for _, part in chosen], ast.Load())

    def argument(self, node: ast.expr) -> ast.expr | None:
        """Return an expression in which the first argument stands for each result; None where that is not known."""
        answered = _Answered(self, (), 0)
        changed: ast.expr = answered.visit(copy.deepcopy(node))
        return None if answered.failed else changed

    def _holds(self, test: ast.expr, answer: tuple[Any, ...] | ast.expr, number: int = 0) -> bool | None:
        """Return whether the expression holds with an answer, or the arguments; None where it cannot be tried."""
        held: bool | None = True
        for choice in self._choices(test):
            answered = _Answered(self, answer, choice, number)
            changed = answered.visit(copy.deepcopy(test))
            names = {node.id for node in ast.walk(changed) if isinstance(node, ast.Name)}
            free = sorted(names - set(code_eval.FUNCTIONS) - self.found.imported - self.fixed.keys() - {ANSWER})
            known = frozenset((*free, *self.fixed, ANSWER))
            if answered.failed or not code_eval.supported(changed, known, self.modules):
                return None
            given = answer if isinstance(answer, tuple) else ()
            kinds = [kind for kind in _SAMPLES if answer or kind != "size"]
            tried = [self._always(changed, free, given, kind) for kind in kinds]
            held = held and (True if True in tried else None if None in tried else False)
        return held

    def _choices(self, test: ast.expr) -> list[int]:
        """Return which of the values that variables are assigned count: the last before the test, or each."""
        found: list[int] = [0]
        line = min((node.lineno for node in ast.walk(test) if hasattr(node, "lineno")), default=0)
        for name in analysis.keys(test):
            values = [*self.returned.get(name, ()), *(call for call, _, _ in self.parts.get(name, ()))]
            before = [number for number, value in enumerate(values) if value.lineno < line]
            found = found if len(values) < 2 else before[-1:] or list(range(min(len(values), _MOST_CALLS)))
        return found

    def _always(self, test: ast.expr, free: list[str], answer: tuple[Any, ...], kind: str) -> bool | None:
        for turn in range(_TURNS if free else 1):
            samples = _SAMPLES[kind]
            given = {name: samples[(number + turn * 2) % len(samples)] for number, name in enumerate(free)}
            values = copy.deepcopy({**self.fixed, **given, ANSWER: answer[0] if answer else None})
            try:
                if not code_eval.evaluate(test, values, self.modules):
                    return False
            except code_eval.ResultTooLarge:
                return None
            except code_eval.VALUE_ERRORS:
                return False
        return True


class _Answered(ast.NodeTransformer):
    """Put an answer, or an argument, in the place of each call of the program and variable that holds one."""

    def __init__(self, trials: Trials, answer: tuple[Any, ...] | ast.expr, choice: int, number: int = 0) -> None:
        self.found = trials.found
        self.trials = trials
        self.returned = trials.returned
        self.constant = bool(answer)
        self.parts = answer if isinstance(answer, ast.expr) else None
        self.choice = choice
        self.number = number
        self.failed = False
        self.inside: list[str] = []

    def visit_Call(self, node: ast.Call) -> ast.AST:
        func = node.func
        method = isinstance(func, ast.Attribute) and self.trials.is_instance(func.value)
        if method or (isinstance(func, ast.Name) and func.id in self.found.program):
            if self.parts is not None:
                return self._combined(node)
            if self.constant:
                return ast.Name(ANSWER, ast.Load())
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            self.failed = self.failed or len(given) <= self.number or isinstance(given[self.number], ast.Starred)
            return node if self.failed else self.visit(given[self.number])
        # A helper of the tests that calls the program is not followed.
        self.failed = self.failed or (isinstance(func, ast.Name) and func.id in self.found.results)
        return self.generic_visit(node)

    def _combined(self, call: ast.Call) -> ast.AST:
        """Return the tuple with the call's arguments in it."""
        given = {f"{ANSWER} {number}": argument for number, argument in enumerate(call.args)}
        found: list[ast.expr] = []
        for part in getattr(self.parts, "elts", ()):
            known = given.get(part.id) if isinstance(part, ast.Name) else part
            self.failed = self.failed or known is None
            found.append(self.visit(copy.deepcopy(known)) if known is not None else part)
        return ast.Tuple(found, ast.Load())

    def visit_Dict(self, node: ast.Dict) -> ast.AST:
        # `{**found}` is none of the expressions that are evaluated.
        return ast.Lambda(_NO_PARAMETERS, node) if None in node.keys else self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        parts = self.trials.parts.get(node.id)
        if parts and self.parts is not None and node.id not in self.inside:
            call, index, _ = parts[self.choice % len(parts)]
            return ast.Subscript(self.visit(copy.deepcopy(call)), ast.Constant(index), ast.Load())
        calls = self.returned.get(node.id)
        if calls is None or node.id in self.inside:
            self.failed = self.failed or node.id in self.found.results - self.found.imported
            return node
        self.inside.append(node.id)
        found: ast.AST = self.visit(copy.deepcopy(calls[self.choice % len(calls)]))
        self.inside.pop()
        return found


def strip(node: ast.expr) -> ast.expr:
    """Return what an expression takes a value out of: the innermost object of methods, items and calls of one."""
    while True:
        func = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(func, ast.Attribute) and not node.args:
            inner = func.value
        elif isinstance(node, ast.Call) and len(node.args) == 1:
            inner = node.args[0]
        elif isinstance(node, ast.Subscript):
            inner = node.value
        else:
            return node
        node = inner


def _literals(found: analysis.Analysis) -> dict[str, Any]:
    """Return the values of variables that are assigned once, and a literal."""
    assigned: dict[str, list[ast.expr | None]] = {}
    for node in found.nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            assigned.setdefault(node.targets[0].id, []).append(node.value)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.For, ast.comprehension, ast.NamedExpr)):
            for name in analysis.stored(node):
                assigned.setdefault(name, []).append(None)
    return {name: value for name, values in assigned.items() for value in _literal(values)}


def _literal(values: list[ast.expr | None]) -> Iterator[Any]:
    if len(values) == 1 and values[0] is not None:
        try:
            yield ast.literal_eval(values[0])
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return


def _imports(found: analysis.Analysis) -> dict[str, str]:
    modules: dict[str, str] = {}
    for node in found.nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return modules
