"""Tests that programs which solve nothing would pass: constants, an echo of the argument, an exception.

Where the asserts are decided by the caller they are tried with such answers (passing.py). Test code that runs whole is
judged by the form of its asserts, each of which either demands a value that depends on the input (FIRM), or one value
that a constant has (its text), or little (LOOSE): that nothing is wrong with the items there are, that a type is not
another one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from rlvr.sandbox.inside import analysis
from rlvr.verifiers.code.classes import PLAIN_METHODS, Uses
from rlvr.verifiers.code.passing import CONSTANTS
from rlvr.verifiers.code.trials import ARGUMENT, Trials, strip

# What an assert demands: one of the texts below, or the names of answers each of which is enough.
Demand = str | frozenset[str]
FIRM, LOOSE, TYPE, VALUE = "firm", "loose", "a ", "="
_TRIVIAL = frozenset(("None", "True", "False", "0", "0.0", "''", "b''", "[]", "()", "{}"))
_TYPES = frozenset("isinstance issubclass type hasattr callable id".split())
_OVER_ITEMS = frozenset("all any next iter map filter zip enumerate".split())
_LOSING = frozenset("max min len bool type set".split())
# Attributes of arrays that tell nothing of what is in them.
_FORM = frozenset("shape ndim size dtype nbytes itemsize".split())
# What puts parts together again: a list of the argument alone passes.
_JOINING = frozenset("join sum chain from_iterable concatenate hstack vstack list tuple".split())
# Predicates that compare their first two arguments; an empty array is not close to anything else (inside/arrays.py).
_COMPARING = frozenset("isclose allclose array_equal array_equiv".split())
# What reads one form of a value out of another: an echo of the argument is not enough for `json.loads(f(x)) == x`.
_READING = frozenset("loads literal_eval eval fromstring parse decompress b64decode".split())


def demands(found: analysis.Analysis, classes: Sequence[str] = ()) -> list[set[Demand]]:
    """Return what the asserts of test code demand: FIRM, LOOSE, types, and answers by name.

    First what all demand of one answer to all calls; then what they demand of each function that they call, if of
    several: a program may return another constant from each.
    `classes` are those of the program's names that the tests use as classes: methods of theirs answer as they like.
    """
    return _Demands(found, classes).all()


def is_weak(demanded: list[set[Demand]]) -> bool:
    """Whether a program that solves nothing satisfies these demands (see `demands`)."""
    together, *each = demanded
    return _is_weak(together) or (bool(each) and all(map(_is_weak, each)))


def _is_weak(demanded: set[Demand]) -> bool:
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
        self.classes = frozenset(classes)
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
            elif isinstance(node, ast.If) and node not in found.sites and found.from_program(node.test):
                # Executed only for some results.
                self.over_results |= {id(part) for part in ast.walk(node) if part is not node}
            elif isinstance(node, (ast.With, ast.AsyncWith)) and any(
                analysis.called_name(item.context_expr) == "suppress" for item in node.items
            ):
                self.over_results |= {id(part) for part in ast.walk(node) if part is not node}
            elif isinstance(node, ast.Try) and node not in found.sites:
                self.over_results |= {id(part) for part in _dropped(node)}
        self.trials = Trials(found, self.returned, lambda node: bool(self.uses.kinds(node)))
        # What functions are called for that change it in place.
        calls = [n.value for n in found.nodes if isinstance(n, ast.Expr) and isinstance(n.value, ast.Call)]
        named = [part.id for c in calls if found.is_program(c.func) for part in c.args if isinstance(part, ast.Name)]
        self.changed = frozenset(named) - found.program
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

    def all(self) -> list[set[Demand]]:
        """Return the demands of all asserts, and, where they call several functions, those on each."""
        sites = {id(site): (self._called(site), list(self._of_site(site))) for site in self.found.sites}
        functions = {called for called, _ in sites.values() if called}
        # What calls nothing may look at anything.
        groups = [[key for key in sites if sites[key][0] in (called, frozenset())] for called in functions]
        return [
            self._together([(demand, key) for key in keys for demand in sites[key][1]])
            for keys in ([*sites], *(groups if len(groups) > 1 else ()))
        ]

    def _called(self, site: ast.AST) -> frozenset[str]:
        """Return the functions of the program whose results an assert looks at, those of classes by both names."""
        found: set[str] = set()
        left, seen = [site], set()
        while left:
            for node in ast.walk(left.pop()):
                func = node.func if isinstance(node, ast.Call) else None
                if isinstance(node, ast.Attribute):
                    found |= {f"{kind}.{node.attr}" for kind in self.uses.kinds(node.value)}
                elif isinstance(func, ast.Name) and self.found.is_program(func):
                    found |= {func.id} - self.classes
                elif isinstance(node, ast.Name) and node.id in self.returned and node.id not in seen:
                    seen.add(node.id)
                    left += self.returned[node.id]
        return frozenset(found)

    def _together(self, demands: list[tuple[Demand, int]]) -> set[Demand]:
        values = [site for demand, site in demands if isinstance(demand, str) and demand.startswith(VALUE)]
        demands = [
            (frozenset(name.removeprefix(VALUE) for name in demand) if isinstance(demand, frozenset) else demand, site)
            for demand, site in demands
        ]
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
        elif len(node.args) == 1 and not node.keywords and name not in self.found.readers:
            # A property of one value. Some constant has it, as far as is known.
            one = self._reads_program(node) or self._reads_changed(node)
            yield frozenset((f"{name} is {wanted}",)) if one else FIRM if wanted else LOOSE
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
            over = any(self._reads_program(part.iter) or self._reads_changed(part.iter) for part in items.generators)
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
                test = ast.Compare(left, [op], [right])
                parts = not self.trials.parts.keys().isdisjoint(analysis.keys(test))
                yield self._tried(test, LOOSE) if parts else LOOSE if far else self._of_distance(small, test)
            else:
                yield LOOSE

    def _of_distance(self, small: ast.expr, test: ast.expr) -> Demand:
        inner = small.args[0] if isinstance(small, ast.Call) and small.args else None
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub):
            return self._tried(test, self._of_equality(inner.left, inner.right))
        # The mean of a result, for example, but not a function of it and of the tests' own values.
        alone = isinstance(inner, ast.Call) and len(inner.args) < 2 and not inner.keywords
        return self._tried(test, "0" if alone else FIRM)

    def _of_equality(self, left: ast.expr, right: ast.expr) -> Demand:
        if self.changed & analysis.keys(left) & analysis.keys(right) and not self._reads_program(
            ast.Tuple([left, right])
        ):
            # `a == sorted(a)`: an empty list.
            return LOOSE
        theirs, ours = (left, right) if self._reads_program(left) else (right, left)
        if analysis.called_name(theirs) in _LOSING | _OVER_ITEMS | _TYPES and not self.found.is_program(theirs):
            return LOOSE
        if self._is_form(theirs) or self._is_joined(theirs, ours):
            return LOOSE
        both = not self.data.isdisjoint(analysis.keys(ours))
        try:
            value = ast.literal_eval(ours)
        except (ValueError, TypeError, RecursionError, MemoryError):
            pass
        else:
            trivial = repr(value) in _TRIVIAL
            if trivial or not self._others(theirs):
                text = repr(value) if trivial else f"{VALUE}{value!r}"
                echoes = self._echoes(ast.Compare(left, [ast.Eq()], [right])) if self._reads_program(theirs) else None
                return echoes | {text} if echoes else text
        tried = self.trials.passing(ast.Compare(left, [ast.Eq()], [right]), CONSTANTS)
        others = self._others(theirs)
        if tried is not None and not both and not others:
            # Of one result by itself: samples of another kind than the test's may fit a constant.
            tried = frozenset(name for name in tried if name == ARGUMENT or name not in CONSTANTS)
        if tried is not None:
            return tried or FIRM
        shared = others & analysis.keys(ours)
        return LOOSE if both or shared or self._is_echo(theirs, ours) else FIRM

    def _echoes(self, test: ast.expr) -> frozenset[str]:
        """Return the answers with arguments in them with which an expression holds."""
        return frozenset(name for name in self.trials.passing(test, {}) or () if "argument" in name)

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

    def _is_form(self, node: ast.expr) -> bool:
        """`f(x).shape`, `f(x).shape[0]`, `np.shape(f(x))`: not of an object of the program's classes."""
        inner = node.value if isinstance(node, ast.Subscript) else node
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
            of_module = isinstance(inner.func.value, ast.Name) and inner.func.value.id in self.found.imported
            return of_module and inner.func.attr in _FORM
        return isinstance(inner, ast.Attribute) and inner.attr in _FORM and not self.uses.kinds(inner.value)

    def _is_joined(self, theirs: ast.expr, ours: ast.expr) -> bool:
        """`sum(f(xs, 2), []) == xs`, `[x for part in f(xs, 2) for x in part] == xs`."""
        parts = isinstance(theirs, ast.ListComp) and isinstance(theirs.elt, ast.Name) and len(theirs.generators) > 1
        if not parts and analysis.called_name(theirs) not in _JOINING:
            return False
        calls = [node for name in analysis.keys(theirs) for node in self.returned.get(name, ())]
        calls += [node for node in ast.walk(theirs) if isinstance(node, ast.Call)]
        given = [a for c in calls if isinstance(c, ast.Call) and self.found.is_program(c.func) for a in c.args]
        return ast.dump(ours) in map(ast.dump, given)

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

    def _reads_changed(self, node: ast.AST) -> bool:
        """Whether an expression reads arguments that functions are called for to change them."""
        return not self.changed.isdisjoint(analysis.keys(node))

    def _reads_program(self, node: ast.AST) -> bool:
        return self.found.from_program(node)
