"""Whether a pass of tests shows that a program solves the problem, told from the tests alone."""

from __future__ import annotations

import ast
from typing import Any

from rlvr.sandbox.inside import analysis, lent, shown, world
from rlvr.verifiers.code import passing
from rlvr.verifiers.code import split as code_split
from rlvr.verifiers.code import weak as code_weak
from rlvr.verifiers.code.classes import PLAIN_METHODS
from rlvr.verifiers.code.plans import CallsPlan, MixedPlan, OutputPlan, SplitPlan, WholePlan, make_plan

# Calls by which test code reads identities or types, or changes the program: stand-ins cannot support them.
_UNSAFE_CALLS = frozenset(
    ("setattr", "delattr", "id", "issubclass", "vars", "globals", "locals", "patch", "monkeypatch")
)
_CONSTANT = (ast.Constant,)
# Tests that read files, which the program may have written in the place of theirs.
_READS = frozenset("read readline readlines read_text read_bytes load reader DictReader".split())


# What refers to an object and copies nothing of it.
_VIEWS = frozenset(
    "iter zip map filter enumerate reversed memoryview chain islice cycle partial ChainMap "
    "items keys values reshape view ravel transpose".split()
)


def integrity(reference: Any) -> str:
    """Return "strong", or "weak" where a pass does not show that a program solves the problem.

    The tests may be secured against the program only in part: they run whole and compare the program's objects with
    each other, their identities or types, change them, subclass its classes, enter its contexts, hand it functions, or
    call a method that no built-in type has on a returned object. Or they demand so little that a program which returns
    a constant or its argument, or raises an exception, passes (see weak.py).
    """
    plan = make_plan(reference)
    if isinstance(plan, OutputPlan):
        return _strength(passing.passing_output(plan.cases, plan.rule))
    if isinstance(plan, CallsPlan):
        return _strength(passing.passing_value([(c.args, e) for c, e in zip(plan.calls, plan.expected)]))
    split = plan.split if isinstance(plan, MixedPlan) else plan if isinstance(plan, SplitPlan) else None
    whole = plan.whole if isinstance(plan, MixedPlan) else plan if isinstance(plan, WholePlan) else None
    if whole is not None and _can_be_fooled(whole):
        return "weak"
    demanded: list[set[code_weak.Demand]] = [{code_weak.LOOSE}]
    if whole is not None:
        demanded = code_weak.demands(_analysis(whole), whole.classes)
    constant = passing.passing_constants(split.split) if split is not None else ""
    return _strength((split is None or constant) and code_weak.is_weak(demanded))


def _strength(weak: Any) -> str:
    return "weak" if weak else "strong"


def _analysis(whole: WholePlan) -> analysis.Analysis:
    return analysis.Analysis(code_split.parse(whole.test), whole.names)


def _can_be_fooled(whole: WholePlan) -> bool:
    if whole.objects:
        return True
    tree, theirs = code_split.parse(whole.test), set(whole.names)
    called = {analysis.called_name(node) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    if "files" in world.mentioned(whole.test) and called & _READS:
        return True
    values = theirs - set(whole.classes)
    weak = any(_is_weak(node, theirs) or _asks_an_object(node, values) for node in ast.walk(tree))
    found = _analysis(whole)
    return weak or _shows_functions(whole, tree) or _hands_functions(found) or _looks_through(found)


def _shows_functions(whole: WholePlan, tree: ast.Module) -> bool:
    """Whether the program finds functions of the tests as its globals; those of prelude and setup it has anyway."""
    given = code_split.defined_in(code_split.parse(f"{whole.prelude}\n{whole.setup}"))
    return not given.issuperset(lent.unused_functions(tree))


def _looks_through(found: analysis.Analysis) -> bool:
    """Whether an expected value comes from an iterator or a view of an argument that the program is to change."""
    used = shown.Roles(found)
    for node in found.nodes:
        if isinstance(node, ast.Assign) and not found.calls_program(node.value):
            # A slice of an array is a view of it, and one of a list a copy.
            arrays = bool({"np", "numpy"} & found.imported)
            slices = arrays and isinstance(node.value, ast.Subscript) and isinstance(node.value.slice, ast.Slice)
            views = analysis.called_name(node.value) in _VIEWS or isinstance(node.value, ast.GeneratorExp) or slices
            given = analysis.keys(node.value) & used.shown & found.given
            if views and given and analysis.stored(node) & used.wanted:
                return True
    return False


def _hands_functions(found: analysis.Analysis) -> bool:
    """Whether the program is handed functions of the tests, through which it sees how they work and acts on them."""
    functions = _functions_of_tests(found)
    return any(_is_call_of(found, node) and _holds(node, functions) for node in found.nodes)


def _is_call_of(found: analysis.Analysis, node: ast.AST) -> bool:
    """Whether a node calls the program, directly, through a helper or on an object; or hands its function to another.

    Methods of plain values, such as `f(2).sort(key=g)`, are not the program's.
    """
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and not found.is_program(node.func):
        called = node.func.attr not in PLAIN_METHODS and found.from_program(node.func)
    else:
        called = found.is_program(node.func)
    return called or any(isinstance(part, ast.Name) and part.id in found.program for part in node.args)


def _functions_of_tests(found: analysis.Analysis) -> set[str]:
    """Return the names of functions of the tests, and of what holds them, as analysis.keys has them."""
    functions = {key for name in found.functions for key in (name, f".{name}")} - found.program
    size = -1
    while len(functions) > size:
        size = len(functions)
        for node in found.nodes:
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and _holds(node.value, functions):
                functions |= analysis.stored(node)
            elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)) and _holds(node.iter, functions):
                functions |= analysis.stored(node.target)
            elif isinstance(node, analysis.FUNCTIONS) and any(
                _holds(part, functions) for call in node.decorator_list for part in ast.iter_child_nodes(call)
            ):
                # A test with parameters from `pytest.mark.parametrize`.
                functions |= {argument.arg for argument in node.args.args}
    return functions - found.program


def _holds(node: ast.AST | None, functions: set[str]) -> bool:
    """Whether the value of an expression may be or hold one of these functions, or a lambda: not what they return."""
    if isinstance(node, ast.Lambda):
        return True
    if isinstance(node, ast.Name):
        return node.id in functions
    if isinstance(node, ast.Attribute):
        return f".{node.attr}" in functions
    if isinstance(node, ast.Call):
        return any(_holds(part, functions) for part in (*node.args, *(keyword.value for keyword in node.keywords)))
    if node is None or isinstance(node, ast.Compare):
        return False
    parts = (part for part in ast.iter_child_nodes(node) if isinstance(part, (ast.expr, ast.comprehension)))
    return any(_holds(part, functions) for part in parts)


def _asks_an_object(node: ast.AST, values: set[str]) -> bool:
    """Whether a method that no built-in type has is called on what a function returned."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr in PLAIN_METHODS:
        return False
    inner = node.func.value
    return isinstance(inner, ast.Call) and _reads(inner.func, values)


def _is_weak(node: ast.AST, theirs: set[str]) -> bool:
    if isinstance(node, ast.Call):
        return _is_weak_call(node, theirs)
    if isinstance(node, ast.Compare):
        identity = any(isinstance(kind, (ast.Is, ast.IsNot)) for kind in node.ops)
        return identity and not any(isinstance(part, _CONSTANT) for part in (node.left, *node.comparators))
    if isinstance(node, ast.ClassDef):
        return any(_reads(base, theirs) for base in node.bases)
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(isinstance(target, ast.Attribute) and _reads(target, theirs) for target in targets)


def _is_weak_call(node: ast.Call, theirs: set[str]) -> bool:
    called = node.func
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    if name in _UNSAFE_CALLS or any(keyword.arg == "return_exceptions" for keyword in node.keywords):
        return True
    if name == "isinstance" and len(node.args) == 2:
        return _reads(node.args[1], theirs)
    return False


def _reads(node: ast.AST, names: set[str]) -> bool:
    return any(isinstance(part, ast.Name) and part.id in names for part in ast.walk(node))
