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

FIRM, LOOSE, TYPE = "firm", "loose", "a "
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


def passing_constant(split: Split) -> str:
    """Return the name of a constant that passes all checks, "the argument" where an echo does, "" for none."""
    for name, value in CONSTANTS.items():
        if _passes(split, [copy.deepcopy(value) if name != "an object" else value for _ in split.calls]):
            return name
    echoes = [_first_argument(call) for call in split.calls]
    if echoes and all(found for found, _ in echoes) and _passes(split, [value for _, value in echoes]):
        return "the argument"
    return ""


def _passes(split: Split, answers: list[Any]) -> bool:
    return bool(split.checks) and all(split.passes(check, answers) for check in split.checks)


def _first_argument(call: str) -> tuple[bool, Any]:
    tree = ast.parse(call, mode="eval").body
    try:
        return True, ast.literal_eval(tree.args[0]) if isinstance(tree, ast.Call) and tree.args else None
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False, None


def passing_value(cases: Sequence[tuple[Sequence[Any], Any]]) -> str:
    """Return the name of a constant that is right for all (arguments, expected value), "the argument", or ""."""
    for name, value in CONSTANTS.items():
        if all(equality.same_value(value, expected) for _, expected in cases):
            return name
    if all(args and equality.same_value(args[0], expected) for args, expected in cases):
        return "the argument"
    return ""


def passing_output(cases: Sequence[tuple[str, str]]) -> str:
    """Return the text that is right for all (input, output), "the input", or ""."""
    for text in PRINTED:
        if all(equality.same_output(text, output) for _, output in cases):
            return repr(text)
    return "the input" if all(equality.same_output(given, output) for given, output in cases) else ""


def demands(found: analysis.Analysis, classes: Sequence[str] = ()) -> set[str]:
    """Return what the asserts of test code demand: FIRM, LOOSE, and the texts of constants.

    `classes` are those of the program's names that the tests use as classes: methods of theirs answer as they like.
    """
    return _Demands(found, classes).all()


def is_weak(demanded: set[str]) -> bool:
    """Whether one program that solves nothing satisfies these demands."""
    types = {demand for demand in demanded if demand.startswith(TYPE)}
    constants = demanded - types - {LOOSE}
    if FIRM in demanded or len(constants) > 1:
        return False
    # A constant of another type than the one that is demanded.
    return not types or not constants or bool(types & {TYPE + _type_of(text) for text in constants})


def _type_of(text: str) -> str:
    try:
        return type(ast.literal_eval(text)).__name__
    except (ValueError, SyntaxError):
        return ""


class _Demands:
    def __init__(self, found: analysis.Analysis, classes: Sequence[str]) -> None:
        self.found = found
        self.uses = Uses(found.tree, set(classes))
        self.over_results: set[int] = set()
        self.returned: dict[str, list[ast.expr]] = {}
        for node in found.nodes:
            if isinstance(node, ast.Assign) and found.calls_program(node.value):
                for name in node.targets:
                    self.returned.setdefault(ast.unparse(name), []).append(node.value)
        for node in ast.walk(found.tree):
            if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
                source = node.test if isinstance(node, ast.While) else node.iter
                if found.from_program(source):
                    self.over_results |= {id(part) for part in ast.walk(node) if part is not node}

    def all(self) -> set[str]:
        return {demand for site in self.found.sites for demand in self._of_site(site)}

    def _of_site(self, site: ast.stmt) -> Iterator[str]:
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

    def _of_call(self, node: ast.expr) -> Iterator[str]:
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
        elif "Equal" in name and not name.startswith("assertNot") and len(args) > 1:
            yield from self._of_compare(ast.Compare(args[0], [ast.Eq()], [args[1]]), True)
        else:
            yield (
                LOOSE if name.startswith(("assertNot", "assertIs", "assertIn", "assertGreater", "assertLess")) else FIRM
            )

    def _of_test(self, node: ast.expr, wanted: bool) -> Iterator[str]:
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

    def _of_predicate(self, node: ast.Call, wanted: bool) -> Iterator[str]:
        name = analysis.called_name(node)
        if name in _TYPES:
            kind = node.args[1] if name == "isinstance" and wanted and len(node.args) == 2 else None
            yield TYPE + kind.id if isinstance(kind, ast.Name) else LOOSE
        elif name in ("all", "any") and node.args:
            yield from self._of_items(node.args[0], wanted and name == "all")
        elif name in _OVER_ITEMS:
            yield LOOSE
        elif isinstance(node.func, ast.Attribute) and name in PLAIN_METHODS and self.found.from_program(node.func):
            echo = any(self._is_echo(node.func.value, part) for part in node.args)
            if self.uses.kinds(node.func.value):
                yield str(wanted)
            else:
                yield LOOSE if not wanted or name == "issubset" or echo else FIRM
        elif self.found.is_program(node.func) or self.found.from_program(node.func):
            yield str(wanted)
        else:
            # A function of the tests or of a module, such as math.isclose: what it demands is not known.
            yield FIRM if wanted else LOOSE

    def _of_items(self, items: ast.expr, wanted: bool) -> Iterator[str]:
        if isinstance(items, (ast.List, ast.Tuple)) and wanted:
            for item in items.elts:
                yield from self._of_test(item, True)
        elif isinstance(items, (ast.GeneratorExp, ast.ListComp)) and wanted:
            over = any(self.found.from_program(part.iter) for part in items.generators)
            yield from [LOOSE] if over else self._of_test(items.elt, True)
        else:
            yield LOOSE

    def _of_compare(self, node: ast.Compare, wanted: bool) -> Iterator[str]:
        sides = [node.left, *node.comparators]
        for op, left, right in zip(node.ops, sides, sides[1:]):
            if isinstance(op, (ast.Eq, ast.Is)) and wanted:
                yield self._of_equality(left, right)
            elif isinstance(op, ast.In) and wanted and not self._reads_program(right):
                yield FIRM
            elif isinstance(op, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) and wanted:
                small, large = (left, right) if isinstance(op, (ast.Lt, ast.LtE)) else (right, left)
                yield FIRM if self._is_distance(small) and not self._reads_program(large) else LOOSE
            else:
                yield LOOSE

    def _of_equality(self, left: ast.expr, right: ast.expr) -> str:
        theirs, ours = (left, right) if self._reads_program(left) else (right, left)
        if self._reads_program(ours) and (self.found.calls_program(ours) or ast.dump(ours) == ast.dump(theirs)):
            return LOOSE
        if analysis.called_name(theirs) in _LOSING | _OVER_ITEMS | _TYPES and not self.found.is_program(theirs):
            return LOOSE
        try:
            value = ast.literal_eval(ours)
        except (ValueError, TypeError, RecursionError, MemoryError):
            return LOOSE if self._is_echo(theirs, ours) else FIRM
        return repr(value) if repr(value) in _TRIVIAL else FIRM

    def _is_echo(self, theirs: ast.expr, ours: ast.expr) -> bool:
        """`f(x) == x`, also where the result has a name."""
        calls = self.returned.get(theirs.id, []) if isinstance(theirs, ast.Name) else [theirs]
        given = {ast.dump(part) for call in calls if isinstance(call, ast.Call) for part in call.args}
        return ast.dump(ours) in given

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
        return analysis.called_name(node) in ("abs", "fabs", "norm", "dist") and not self._takes_items(node)

    def _takes_items(self, node: ast.AST) -> bool:
        return any(analysis.called_name(part) in ("max", "min", "zip", "map") for part in ast.walk(node))

    def _reads_program(self, node: ast.AST) -> bool:
        return self.found.from_program(node)
