"""Where the answers of a program go in test code: no assert may hold one answer against another.

An expected value must be the tests' own. `assert total() == sum(load())` shows only that two answers agree, and a
program can see to that. A *source* is an expression whose value the program decides: a call of it, a read of one of its
objects, a variable bound to either. Tests are weak if

- two sources meet, in a comparison, an operation or a call of a builtin function. A variable may meet itself: `assert
  r == sorted(r)` is about one answer;
- several answers of one call in a loop are combined: `sum(f(x) for x in xs)`;
- a source decides which calls or checks are executed: `for x in load(): assert double(x) == 2 * x`.
"""

from __future__ import annotations

import ast
import builtins
from collections import defaultdict
from collections.abc import Collection

from rlvr.sandbox.testcode.instrument import always_fails, called_name, find_names, is_check

from .bindings import COMPREHENSIONS, DISPLAYS, Bindings, find_stored, split_condition

Sources = frozenset[str]
_NONE: Sources = frozenset()
# Functions that hold the items of what they are called with against each other, or make one value of them.
_COMBINING = frozenset("set frozenset Counter min max zip sorted sum join".split())
_HOLDING = frozenset("append appendleft insert".split())
_ENDS = (ast.Return, ast.Break, ast.Continue)


class MixedAnswers(Exception):
    """Two answers meet, or an answer decides what is executed; the reason in words."""


class Answers:
    """The sources of each expression of test code."""

    def __init__(self, bindings: Bindings, objects: Collection[str]) -> None:
        self._bindings, self._above, self._objects = bindings, bindings.above, objects
        # The sources of each binding of a variable. Mixed: those that hold several answers.
        self._bound: dict[str, list[Sources]] = {}
        self._mixed = set[str]()
        # The tests' own functions that ask the program, or read what it has answered; those that check something.
        self.asking = set[str]()
        self._checking = set[str]()
        while self._bind():
            pass
        self._measured = self._find_measured()

    def check(self) -> None:
        """Raise MixedAnswers if two sources meet, or one decides what is executed."""
        for node in self._bindings.nodes:
            if isinstance(node, (ast.For, ast.comprehension)):
                self._check_loop(node)
            elif isinstance(node, ast.If) and self.of(node.test):
                self._refuse_decided(*node.body, *node.orelse)
            elif isinstance(node, ast.IfExp) and self.of(node.test):
                self._refuse_decided(node.body, node.orelse, calls=False)
            elif isinstance(node, ast.BoolOp) and self.of(node):
                self._refuse_decided(*node.values[1:], calls=False)
            elif isinstance(node, ast.Try):
                self._check_try(node)
            elif isinstance(node, ast.With):
                self._check_expected(node.body)
            elif isinstance(node, ast.AugAssign):
                self._check_adding(node)
            if isinstance(node, ast.expr):
                self._check_meeting(node)

    def of(self, node: ast.AST) -> Sources:
        """Return the sources of an expression."""
        if isinstance(node, ast.Name):
            return frozenset({node.id}) if node.id in self._bound or node.id in self._objects else _NONE
        if isinstance(node, ast.expr) and self.asks(node):
            return frozenset({self.name(node)})
        if isinstance(node, ast.Lambda):
            return self.of(node.body) - {each.arg for each in node.args.args}
        return _NONE.union(*map(self.of, ast.iter_child_nodes(node)))

    def name(self, node: ast.AST) -> str:
        """Return the name of a source that is no variable."""
        return f"answer {self._bindings.order.get(node, -1)}"

    def asks(self, node: ast.AST) -> bool:
        """Whether a node is a call of the program, or a read of one of its objects, or calls a function that asks."""
        own = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in self.asking
        return own or self._bindings.asks(node)

    def asks_once(self, function: ast.FunctionDef) -> bool:
        """Whether a function of the tests asks the program for one answer."""
        calls = [part for part in ast.walk(function) if self.asks(part) and not self.asks(self._above[part])]
        return len(calls) == 1 and not self._bindings.find_loops(calls[0])

    def are_one(self, met: Sources) -> bool:
        """Whether sources are a single answer: a variable, or several that are bound at once."""
        return len(set(map(self._resolve, met))) == 1 and not met & self._mixed

    def is_answer(self, name: str) -> bool:
        """Whether a variable holds nothing but what the program has answered."""
        found = self._bindings.find_of(name)
        return bool(found) and all(self._bindings.asks(each.value) and not each.adds for each in found)

    # Decisions.

    def _refuse_decided(self, *parts: ast.AST, calls: bool = True) -> None:
        inside = [each for part in parts for each in ast.walk(part)]
        if any((calls and self.asks(each)) or self._decides(each) for each in inside):
            raise MixedAnswers("an answer decides what is executed")

    def _decides(self, node: ast.AST) -> bool:
        """Whether a node is a check, or ends a block but by an exception, or calls a function that checks."""
        if isinstance(node, ast.stmt):
            return is_check(node) or isinstance(node, _ENDS)
        return self._bindings.is_own(node) and called_name(node) in self._checking

    def _find_measured(self) -> set[str]:
        """Return the variables whose length an assert pins in the block that binds them: `len(r) == 2`, `r == [1]`."""
        found = set[str]()
        for node in [each for each in self._bindings.nodes if isinstance(each, ast.Assert)]:
            for part in split_condition(node.test):
                if isinstance(part, ast.Compare) and len(part.ops) == 1 and isinstance(part.ops[0], ast.Eq):
                    sides = (part.left, *part.comparators)
                    wholes = [s.args[0] if called_name(s) == "len" and isinstance(s, ast.Call) else s for s in sides]
                    pinned = sum(bool(self.of(side)) for side in sides) == 1
                    names = {each.id for each in wholes if pinned and isinstance(each, ast.Name)}
                    found |= {name for name in names if self._is_bound_beside(name, node)}
        return found

    def _is_bound_beside(self, name: str, node: ast.Assert) -> bool:
        """Whether a variable is bound in the block of a statement, and nowhere else."""
        block = self._bindings.block_of(node)
        places = [each.node for each in self._bindings.find_of(name)]
        function = self._bindings.function_of(node)
        if function is not None and block is function.body and all(map(self._bindings.is_own, places)):
            return True
        return len(places) == 1 and any(each is places[0] for each in block)

    def _check_loop(self, node: ast.For | ast.comprehension) -> None:
        """Refuse calls that are made for each item of an answer, or where an answer says so."""
        whole = self._above[node]
        every = isinstance(node, ast.For)
        if isinstance(node, ast.comprehension) and isinstance(whole, COMPREHENSIONS):
            before = whole.generators[: whole.generators.index(node) + 1]
            conditions = {part for each in node.ifs for part in ast.walk(each)}
            inside = {*ast.walk(whole)}.difference(*(ast.walk(each.iter) for each in before))
            if _NONE.union(*map(self.of, node.ifs)):
                self._refuse_decided(*(part for part in inside - conditions if isinstance(part, ast.Call)))
            every = called_name(self._above[whole]) == "all"
        else:
            inside = {*ast.walk(node)}.difference(ast.walk(node.iter))
        if not self.of(node.iter):
            return
        checks = any(map(self._decides, inside))
        if any(map(self.asks, inside)) or (checks and not every):
            raise MixedAnswers("an answer decides how often the program is called")
        checks = checks or (every and not isinstance(node, ast.For)) or called_name(node.iter) == "zip"
        if checks and not self.of(node.iter) <= self._measured:
            raise MixedAnswers("a loop ends with an answer whose length no assert looks at")

    def _check_try(self, node: ast.Try) -> None:
        """Refuse checks that are left out where the program raises, or where it does not."""
        body, others = ast.Module(node.body, []), [*node.handlers]
        if not (self.of(body) or any(map(self.asks, ast.walk(body)))):
            return
        handlers = [part for handler in others for each in handler.body for part in ast.walk(each)]
        kinds = {part.id for h in others if h.type for part in ast.walk(h.type) if isinstance(part, ast.Name)}
        parts = [*ast.walk(body)]
        fails = [part for part in parts if always_fails(part)]
        caught = [part for part in fails if _is_caught(part, kinds)]
        checks = [part for part in parts if self._decides(part) and part not in fails] + caught
        goes_on = not all(always_fails(handler.body[-1]) for handler in others)
        ends = always_fails((node.orelse or node.body)[-1])
        handled = any((self._decides(part) and not always_fails(part)) or self.asks(part) for part in handlers)
        both = find_names(body)[1] & set[str]().union(*(find_names(each)[1] for each in others))
        if (checks and goes_on) or (handled and not ends) or both:
            raise MixedAnswers("an exception of the program decides what is executed")
        self._check_expected(node.body, one=ends or bool(fails))

    def _check_expected(self, body: list[ast.stmt], *, one: bool = True) -> None:
        """Refuse what may raise in place of a call that should. one: there is one such call."""
        parts = [part for each in body for part in ast.walk(each)]
        calls = [part for part in parts if isinstance(part, ast.Call) and self.asks(part)]
        loops = any(isinstance(part, (ast.For, *COMPREHENSIONS)) for part in parts)
        if one and calls and (loops or len(calls) > 1 or self._bindings.is_own(calls[0])):
            raise MixedAnswers("several calls where one is expected to raise")
        plain = all(isinstance(self._above[call], (ast.Expr, ast.Assign, ast.Assert)) for call in calls)
        given = {part for call in calls for part in ast.walk(call)}
        read = [part for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)]
        if not plain or any(part.id in self._bound and part not in given for part in read):
            raise MixedAnswers("an answer is used where an exception is expected")

    # Where sources meet.

    def _check_adding(self, node: ast.AugAssign) -> None:
        held = [sources for name in find_stored(node.target) for sources in self._bound.get(name, ())]
        counts = isinstance(node.value, (ast.Compare, ast.Constant))
        if len(_NONE.union(*held)) > 1 or (self.of(node.value) and self._is_looped(node) and not counts):
            raise MixedAnswers(f"answers of the program are combined: {ast.unparse(node):.80}")

    def _is_looped(self, node: ast.AST) -> bool:
        return any(isinstance(each, ast.For) for each in self._bindings.find_above(node))

    def _check_meeting(self, node: ast.expr) -> None:
        above = self._above[node]
        operands: list[ast.expr] = []
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
        elif isinstance(node, ast.BoolOp):
            operands = [] if self._holds_where_all_hold(node) else node.values
        elif isinstance(node, (ast.BinOp, ast.IfExp, ast.Subscript, ast.JoinedStr, ast.Set)) or _is_spread(node):
            operands = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
        elif isinstance(node, ast.SetComp):
            operands = [node]
        elif isinstance(node, ast.Call) and not self._has_parameters(node):
            own = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            operands = [*own, *node.args, *(keyword.value for keyword in node.keywords)]
        once = called_name(node) in ("extend", "extendleft") and not self._is_looped(node)
        holds = isinstance(above, ast.Expr) and (once or called_name(node) in _HOLDING)
        given = isinstance(node, DISPLAYS) and isinstance(above, ast.Call) and self.asks(above)
        if holds or given or self.asks(node):
            return
        sides = [sources for operand in operands if (sources := self.of(operand))]
        equal = isinstance(node, ast.Compare) and all(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops)
        meet = len(sides) > 1 and not (self.are_one(_NONE.union(*sides)) or _is_idle(node))
        inside = any(len(set(map(self._resolve, sources))) > 1 for sources in sides)
        inside = inside and not (equal or isinstance(node, (ast.Subscript, ast.IfExp, ast.BoolOp)))
        several = called_name(node) in _COMBINING or isinstance(node, ast.SetComp)
        several = several or (isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)))
        several = several and not self._is_bound_of(node) and any(map(self._has_several, operands))
        if meet or inside or several:
            text = ast.unparse(node)
            raise MixedAnswers(f"answers of the program are compared with each other, or combined: {text:.80}")

    def _is_bound_of(self, node: ast.expr) -> bool:
        """Whether a node is the largest of several numbers, as in `max(...) < 1e-6`."""
        above = self._above[node]
        below = isinstance(above, ast.Compare) and all(isinstance(op, (ast.Lt, ast.LtE)) for op in above.ops)
        return below and called_name(node) == "max" and above.left is node  # type: ignore[attr-defined]

    def _has_several(self, node: ast.AST) -> bool:
        """Whether an expression holds several answers of one call."""
        if isinstance(node, ast.Name):
            return node.id in self._mixed
        if self.asks(node):
            return self._bindings.is_own(node) and not self.asks_once(self._bindings.functions[called_name(node)])
        if isinstance(node, COMPREHENSIONS):
            items = [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.comprehension)]
            counts = all(isinstance(item, ast.Compare) for item in items)
            return not counts and any(self.asks(part) for item in items for part in ast.walk(item))
        return any(map(self._has_several, ast.iter_child_nodes(node)))

    def _has_parameters(self, call: ast.Call) -> bool:
        """Whether a function of the tests is called in which each argument has a name of its own."""
        function = self._bindings.functions.get(called_name(call))
        return function is not None and not (function.args.vararg or function.args.kwarg)

    def _holds_where_all_hold(self, node: ast.BoolOp) -> bool:
        """Whether an `and` joins conditions of an assert, or of `all(...)` in one."""
        part: ast.AST = node
        while isinstance(part, COMPREHENSIONS) or (isinstance(part, ast.BoolOp) and isinstance(part.op, ast.And)):
            part = self._above[part]
            if isinstance(part, ast.Call) and called_name(part) == "all":
                part = self._above[part]
            if isinstance(part, ast.Assert):
                return True
        return False

    # What a variable holds.

    def _resolve(self, source: str) -> str:
        """Return what variables have in common: an answer, or that they are bound at once, as in `a, b = f(1)`."""
        found = self._bindings.find_of(source)
        bound = self._bound.get(source, [])
        if len(found) != 1 or len(bound) > 1 or found[0].adds or self._bindings.is_own(found[0].node):
            return source
        (origin,) = bound[0] if bound and len(bound[0]) == 1 else [source]
        items = isinstance(found[0].node, ast.comprehension) and origin != source
        if items or not (isinstance(found[0].node, ast.Assign) or self._bindings.find_of(origin)):
            return self._resolve(origin)
        return f"bound {self._bindings.order[found[0].node]}"

    def _bind(self) -> bool:
        """Find the sources of all bindings; return whether there are more than before."""
        found = defaultdict[str, list[Sources]](list)
        for node, target, value, adds in self._bindings.all:
            keys = self.of(target.slice) if isinstance(target, ast.Subscript) else _NONE
            sources = self.of(value) | keys | self._find_deciding(node)
            names = self._bindings.stored_in(target) if sources else set()
            # What is added to a container is in all that hold it.
            for name in names.union(*map(self._bindings.group, names)) if adds else names:
                found[name].append(sources)
                if adds or len(sources) > 1 or self._has_several(value):
                    self._mixed.add(name)
        before = len(self._bound), len(self.asking), len(self._checking)
        self._bound = dict(found)
        for name, function in self._bindings.functions.items():
            own = {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}
            read = {each.id for each in ast.walk(function) if isinstance(each, ast.Name)} - own
            if any(map(self.asks, ast.walk(function))) or read & self._bound.keys():
                self.asking.add(name)
            parts = [part for each in function.body for part in ast.walk(each)]
            if any(always_fails(part) or (self._decides(part) and not isinstance(part, _ENDS)) for part in parts):
                self._checking.add(name)
        return before != (len(self._bound), len(self.asking), len(self._checking))

    def _find_deciding(self, node: ast.AST) -> Sources:
        """Return the sources that decide whether a node is executed."""
        found = _NONE
        while (below := node) in self._above and not isinstance(node, ast.FunctionDef):
            node = self._above[below]
            if isinstance(node, ast.For) and below is not node.iter:
                found |= self.of(node.iter)
            elif isinstance(node, ast.If) and below is not node.test:
                found |= self.of(node.test)
            elif isinstance(node, ast.Try) and isinstance(below, ast.ExceptHandler):
                found |= _NONE.union(*map(self.of, node.body))
        return found


def _is_spread(node: ast.expr) -> bool:
    """Whether a display has the items of other containers in it."""
    if isinstance(node, ast.Dict):
        return None in node.keys
    return isinstance(node, (ast.List, ast.Tuple)) and any(isinstance(each, ast.Starred) for each in node.elts)


def _is_idle(node: ast.expr) -> bool:
    """Whether an expression is held against itself: `f(1) == f(1)` shows nothing."""
    equal = isinstance(node, ast.Compare) and all(isinstance(op, ast.Eq) for op in node.ops)
    return equal and all(ast.dump(each) == ast.dump(node.left) for each in node.comparators)  # type: ignore[attr-defined]


def _is_caught(node: ast.AST, kinds: set[str]) -> bool:
    """Whether handlers of these exceptions catch what a statement raises that always fails."""
    name = called_name(node.exc) if isinstance(node, ast.Raise) and node.exc is not None else "AssertionError"
    raised = getattr(builtins, name)
    return any(issubclass(raised, getattr(builtins, kind)) for kind in kinds)
