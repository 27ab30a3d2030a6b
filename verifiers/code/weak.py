"""Tests that programs which solve nothing would pass: constants, an echo of the argument, an exception.

Where the asserts are decided by the caller they are tried with such answers. Test code that runs whole is judged by the
form of its asserts, each of which either demands a value that depends on the input (FIRM), or one value that a constant
has (its text), or little (LOOSE): that nothing is wrong with the items there are, that a type is not another one.
"""

from __future__ import annotations

import ast
import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

from rlvr.sandbox.inside import analysis, plain
from rlvr.verifiers.code import equality
from rlvr.verifiers.code.classes import PLAIN_METHODS, Uses
from rlvr.verifiers.code.split import Split
from rlvr.verifiers.code.trials import ARGUMENT, Trials, strip

# What an assert demands: one of the texts below, or the names of answers each of which is enough.
Demand = str | frozenset[str]
FIRM, LOOSE, TYPE, VALUE = "firm", "loose", "a ", "="
# What programs return that do nothing, by name.
CONSTANTS: dict[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "0": 0,
    "1": 1,
    "-1": -1,
    "0.0": 0.0,
    "nan": math.nan,
    "inf": math.inf,
    "''": "",
    "[]": [],
    "[0]": [0],
    "[nan]": [math.nan],
    "()": (),
    "{}": {},
    "set()": set(),
    "an object": plain.Opaque("object", None, True),
}
PRINTED = ("", "0", "1", "-1", "YES", "NO", "Yes", "No", "True", "False", "None")
_TRIVIAL = frozenset(("None", "True", "False", "0", "0.0", "''", "b''", "[]", "()", "{}"))
_TYPES = frozenset("isinstance issubclass type hasattr callable id".split())
_OVER_ITEMS = frozenset("all any next iter map filter zip enumerate".split())
_LOSING = frozenset("max min len bool type set".split())
# Predicates that compare their first two arguments; an empty array is not close to anything else (inside/arrays.py).
_COMPARING = frozenset("isclose allclose array_equal array_equiv".split())
# What reads one form of a value out of another: an echo of the argument is not enough for `json.loads(f(x)) == x`.
_READING = frozenset("loads literal_eval eval fromstring parse decompress b64decode".split())


def passing_constant(split: Split) -> str:
    """Return the name of a constant that passes all checks, "the argument" where an echo does, "" for none."""
    for name, value in CONSTANTS.items():
        if _passes(split, [copy.deepcopy(value) if name != "an object" else value for _ in split.calls]):
            return name
    for value in _expected(split):
        if _passes(split, [copy.deepcopy(value) for _ in split.calls]):
            return repr(value)
    given = [_arguments(call) for call in split.calls]
    for number in range(min(map(len, given), default=0)):
        if all(found[number][0] for found in given) and _passes(split, [found[number][1] for found in given]):
            return ARGUMENT
    return ""


def _passes(split: Split, answers: list[Any]) -> bool:
    return bool(split.checks) and all(split.passes(check, answers) for check in split.checks)


def _expected(split: Split) -> list[Any]:
    """Return the first value that several checks compare with; one check alone is met by one value in any case."""
    if len(split.checks) < 2:
        return []
    compared = [node for node in ast.walk(split.checks[0].test) if isinstance(node, ast.Compare)]
    sides = [side for node in compared for side in (node.left, *node.comparators)]
    return [value for known, value in map(_literal, sides) if known]


def _literal(node: ast.expr) -> tuple[bool, Any]:
    try:
        return True, ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False, None


def _arguments(call: str) -> list[tuple[bool, Any]]:
    tree = ast.parse(call, mode="eval").body
    if not isinstance(tree, ast.Call):
        return []
    return [_literal(node) for node in (*tree.args, *(keyword.value for keyword in tree.keywords))]


def passing_value(cases: Sequence[tuple[Sequence[Any], Any]]) -> str:
    """Return the name of a constant that is right for all (arguments, expected value), "the argument", or ""."""
    for name, value in CONSTANTS.items():
        if all(equality.same_value(value, expected) for _, expected in cases):
            return name
    if len(cases) > 1 and all(equality.same_value(cases[0][1], expected) for _, expected in cases):
        return repr(cases[0][1])
    for number in range(min(len(args) for args, _ in cases)):
        if all(equality.same_value(args[number], expected) for args, expected in cases):
            return ARGUMENT
    return ""


def passing_output(cases: Sequence[tuple[str, str]]) -> str:
    """Return the text that is right for all (input, output), "the input", or ""."""
    for text in PRINTED:
        if all(equality.same_output(text, output) for _, output in cases):
            return repr(text)
    if len(cases) > 1 and all(equality.same_output(cases[0][1], output) for _, output in cases):
        return repr(cases[0][1])
    return "the input" if all(equality.same_output(given, output) for given, output in cases) else ""


def demands(found: analysis.Analysis, classes: Sequence[str] = ()) -> set[Demand]:
    """Return what the asserts of test code demand: FIRM, LOOSE, types, and answers by name.

    `classes` are those of the program's names that the tests use as classes: methods of theirs answer as they like.
    """
    return _Demands(found, classes).all()


def is_weak(demanded: set[Demand]) -> bool:
    """Whether one program that solves nothing satisfies these demands."""
    types = {demand for demand in demanded if isinstance(demand, str) and demand.startswith(TYPE)}
    answers = [{demand} if isinstance(demand, str) else demand for demand in demanded - types - {LOOSE}]
    if FIRM in demanded:
        return False
    common = frozenset.intersection(*map(frozenset, answers)) if answers else frozenset()
    if not types or not answers or ARGUMENT in common:
        return bool(common) or not answers
    # A constant of another type than the one that is demanded.
    return bool(types & {TYPE + _type_of(text) for text in common})


def _type_of(text: str) -> str:
    try:
        return type(ast.literal_eval(text)).__name__
    except (ValueError, SyntaxError):
        return ""


def _dropped(node: ast.Try) -> list[ast.AST]:
    """Return what is in a `try` whose failures, or exceptions of the program, end nowhere."""
    end = [part for statement in node.finalbody for part in ast.walk(statement)]
    dropped = any(isinstance(part, (ast.Return, ast.Break, ast.Continue)) for part in end)
    for handler in node.handlers:
        inside = [part for statement in handler.body for part in ast.walk(statement)]
        fails = any(isinstance(part, (ast.Raise, ast.Assert)) for part in inside)
        called = {analysis.called_name(part) for part in inside if isinstance(part, ast.Call)}
        dropped = dropped or not (fails or any(name == "fail" or name.startswith("assert") for name in called))
    return [part for statement in (*node.body, *node.orelse) for part in ast.walk(statement)] if dropped else []


class _Demands:
    def __init__(self, found: analysis.Analysis, classes: Sequence[str]) -> None:
        self.found = found
        self.uses = Uses(found.tree, set(classes))
        self.over_results: set[int] = set()
        self.in_loops: set[int] = set()
        self.returned: dict[str, list[ast.expr]] = {}
        for node in found.nodes:
            if isinstance(node, ast.Assign) and found.calls_program(node.value):
                for name in node.targets:
                    self.returned.setdefault(ast.unparse(name), []).append(node.value)
        for node in ast.walk(found.tree):
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
                source = node.test if isinstance(node, ast.While) else node.iter
                self.in_loops |= {id(part) for part in ast.walk(node)}
                if found.from_program(source):
                    self.over_results |= {id(part) for part in ast.walk(node) if part is not node}
            elif isinstance(node, ast.Try) and node not in found.sites:
                self.over_results |= {id(part) for part in _dropped(node)}
        self.trials = Trials(found, self.returned)
        self.data = self._data()

    def _data(self) -> set[str]:
        """Return the program's names and the variables that get values from it, but not all that is set beside it."""
        data = set(self.found.program) | {name for name in self.found.functions if name in self.found.results}
        size = -1
        while len(data) > size:
            size = len(data)
            for node in self.found.nodes:
                if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
                    value: ast.AST | None = node.value
                elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                    value = node.iter
                else:
                    continue
                target = node.target if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) else node
                if value is not None and not data.isdisjoint(analysis.keys(value)):
                    data |= analysis.stored(target)
        return data

    def all(self) -> set[Demand]:
        demands = [(demand, id(site)) for site in self.found.sites for demand in self._of_site(site)]
        values = [site for demand, site in demands if isinstance(demand, str) and demand.startswith(VALUE)]
        if len(values) == 1 and values[0] not in self.in_loops:
            # One value is met by a constant in any case.
            return {FIRM if site in values and str(demand).startswith(VALUE) else demand for demand, site in demands}
        return {demand.removeprefix(VALUE) if isinstance(demand, str) else demand for demand, _ in demands}

    def _of_site(self, site: ast.stmt) -> Iterator[Demand]:
        if id(site) in self.over_results:
            yield LOOSE
        elif isinstance(site, ast.Assert):
            yield from self._of_test(site.test, True)
        elif isinstance(site, ast.If):
            yield from self._of_test(site.test, False)
        elif isinstance(site, ast.Expr):
            yield from self._of_call(site.value)
        else:
            yield "exception"

    def _of_call(self, node: ast.expr) -> Iterator[Demand]:
        """`self.assertEqual(a, b)` and the like."""
        call = node.value if isinstance(node, ast.Await) else node
        assert isinstance(call, ast.Call)
        name, args = analysis.called_name(call), call.args
        if "Raises" in name:
            yield "exception"
        elif name in ("assertTrue", "assert_", "assertFalse") and args:
            yield from self._of_test(args[0], name != "assertFalse")
        elif name == "assertIsNone":
            yield "None"
        elif ("equal" in name.lower() or name == "assert_allclose") and "not" not in name.lower() and len(args) > 1:
            yield from self._of_compare(ast.Compare(args[0], [ast.Eq()], [args[1]]), True)
        else:
            yield (
                LOOSE
                if name.startswith(("assertNot", "assertIs", "assertIn", "assertGreater", "assertLess", "assert_array"))
                else FIRM
            )

    def _of_test(self, node: ast.expr, wanted: bool) -> Iterator[Demand]:
        """Demands of an expression that has to be true, or false."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield from self._of_test(node.operand, not wanted)
        elif isinstance(node, ast.BoolOp):
            each = [set(self._of_test(value, wanted)) for value in node.values]
            if isinstance(node.op, ast.And) is wanted:
                yield from set().union(*each)
            else:
                yield FIRM if all(FIRM in demands for demands in each) else LOOSE
        elif isinstance(node, ast.Compare):
            yield from self._of_compare(node, wanted)
        elif isinstance(node, ast.Call):
            yield from self._of_predicate(node, wanted)
        else:
            yield str(wanted) if self.found.from_program(node) else LOOSE

    def _of_predicate(self, node: ast.Call, wanted: bool) -> Iterator[Demand]:
        name = analysis.called_name(node)
        if name in _TYPES:
            kind = node.args[1] if name == "isinstance" and wanted and len(node.args) == 2 else None
            yield TYPE + kind.id if isinstance(kind, ast.Name) else LOOSE
        elif name in ("all", "any") and node.args:
            yield from self._of_items(node.args[0], wanted and name == "all")
        elif name in _OVER_ITEMS:
            yield LOOSE
        elif isinstance(node.func, ast.Attribute) and name in PLAIN_METHODS and self.found.from_program(node):
            yield self._of_method(node, node.func.value, wanted)
        elif name in _COMPARING and len(node.args) > 1:
            yield self._of_equality(node.args[0], node.args[1]) if wanted else LOOSE
        elif self.found.is_program(node.func) or self.found.from_program(node.func):
            yield str(wanted)
        else:
            # A function of the tests or of a module, such as math.isclose: what it demands is not known.
            yield FIRM if wanted else LOOSE

    def _of_method(self, node: ast.Call, value: ast.expr, wanted: bool) -> Demand:
        """`f(x).startswith(y)` and the like."""
        if self.uses.kinds(value):
            return str(wanted)
        if not wanted or analysis.called_name(node) == "issubset" or not node.args:
            return LOOSE
        return self._tried(node, FIRM if self.found.from_program(value) else LOOSE)

    def _tried(self, test: ast.expr, unknown: Demand) -> Demand:
        """Return the answers with which an expression holds, FIRM for none, `unknown` where it cannot be tried."""
        passing = self.trials.passing(test, CONSTANTS)
        return unknown if passing is None else passing or FIRM

    def _of_items(self, items: ast.expr, wanted: bool) -> Iterator[Demand]:
        if isinstance(items, (ast.List, ast.Tuple)) and wanted:
            for item in items.elts:
                yield from self._of_test(item, True)
        elif isinstance(items, (ast.GeneratorExp, ast.ListComp)) and wanted:
            over = any(self.found.from_program(part.iter) for part in items.generators)
            yield from [LOOSE] if over else self._of_test(items.elt, True)
        else:
            yield LOOSE

    def _of_compare(self, node: ast.Compare, wanted: bool) -> Iterator[Demand]:
        sides = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, sides, sides[1:]):
            if isinstance(op, (ast.Eq, ast.Is)) and wanted:
                yield self._of_equality(left, right)
            elif isinstance(op, ast.In) and wanted and not self._reads_program(right):
                display = isinstance(right, (ast.List, ast.Tuple, ast.Set, ast.Dict))
                yield self._tried(ast.Compare(left, [op], [right]), FIRM if display else LOOSE)
            elif isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and wanted:
                small, large = (left, right) if isinstance(op, (ast.Lt, ast.LtE)) else (right, left)
                far = not self._is_distance(small) or self._reads_program(large)
                yield LOOSE if far else self._of_distance(small, ast.Compare(left, [op], [right]))
            else:
                yield LOOSE

    def _of_distance(self, small: ast.expr, test: ast.expr) -> Demand:
        inner = small.args[0] if isinstance(small, ast.Call) and small.args else None
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
            return self._tried(test, self._of_equality(inner.left, inner.right))
        return self._tried(test, FIRM)

    def _of_equality(self, left: ast.expr, right: ast.expr) -> Demand:
        theirs, ours = (left, right) if self._reads_program(left) else (right, left)
        if analysis.called_name(theirs) in _LOSING | _OVER_ITEMS | _TYPES and not self.found.is_program(theirs):
            return LOOSE
        both = not self.data.isdisjoint(analysis.keys(ours))
        try:
            value = ast.literal_eval(ours)
        except (ValueError, TypeError, RecursionError, MemoryError):
            pass
        else:
            if repr(value) in _TRIVIAL:
                return repr(value)
            if not self._others(theirs):
                return f"{VALUE}{value!r}"
        tried = self.trials.passing(ast.Compare(left, [ast.Eq()], [right]), CONSTANTS)
        others = self._others(theirs)
        if tried is not None and not both and not others:
            # Of one result by itself: samples of another kind than the test's may fit a constant.
            tried &= {ARGUMENT}
        if tried is not None:
            return tried or FIRM
        shared = others & analysis.keys(ours)
        return LOOSE if both or shared or self._is_echo(theirs, ours) else FIRM

    def _others(self, node: ast.AST) -> frozenset[str]:
        """Return the names of the tests that an expression reads beside results, not in arguments of the program."""
        of_value = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        of_value = of_value and analysis.called_name(node) in PLAIN_METHODS
        if isinstance(node, ast.Call) and self.found.is_program(node.func) and not of_value:
            return frozenset()
        if isinstance(node, ast.Name):
            return frozenset((node.id,)) - self.found.results - self.found.ours
        return frozenset().union(*map(self._others, ast.iter_child_nodes(node)))

    def _is_echo(self, theirs: ast.expr, ours: ast.expr) -> bool:
        """`g(f(x)) == g(x)`, also where the result has a name, and `g(f(x)) == x`."""
        echo = self.trials.argument(theirs)
        if echo is None or analysis.called_name(theirs) in _READING:
            return False
        return ast.dump(ours) in (ast.dump(echo), ast.dump(strip(echo)))

    def _is_distance(self, node: ast.expr) -> bool:
        """`abs(f(2) - 4)`, or the sum of such: not the largest of them, which leaves NaN out."""
        if not isinstance(node, ast.Call):
            return False
        if (
            analysis.called_name(node) == "sum"
            and node.args
            and isinstance(node.args[0], (ast.GeneratorExp, ast.ListComp))
        ):
            over = any(self.found.from_program(part.iter) for part in node.args[0].generators)
            return not over and self._is_distance(node.args[0].elt)
        return analysis.called_name(node) in ("abs", "fabs", "dist") and not self._takes_items(node)

    def _takes_items(self, node: ast.AST) -> bool:
        return any(analysis.called_name(part) in ("max", "min", "zip", "map") for part in ast.walk(node))

    def _reads_program(self, node: ast.AST) -> bool:
        return self.found.from_program(node)
