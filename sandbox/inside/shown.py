"""Which names of test code show what the program did to its arguments: an assert looks at them by themselves.

Found from the code alone. Any other argument stays with the tests as it was, with all that was made of it before the
call: iterators, views of arrays, functions that read it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from rlvr.sandbox.inside.analysis import FILLING, FUNCTIONS, Analysis, called_name, is_test_name, keys, stored

_LOOPS = (ast.For, ast.AsyncFor, ast.comprehension)
_ASSIGNED = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)


class _Flow(NamedTuple):
    """Names that get their values from others, or are decided by them; `part`: they may be or hold the same object."""

    targets: frozenset[str]
    sources: frozenset[str]
    part: bool = True


class Roles:
    """What asserts do with names of test code: `subjects` are looked at by themselves, `wanted` gives expected values.

    `shown` are those to which a program's changes are written back.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.subjects, self.wanted = _uses(analysis)
        self.shown = shown(analysis)


def _uses(analysis: Analysis) -> tuple[set[str], set[str]]:
    subjects: set[str] = set()
    wanted: set[str] = set()
    for atom in analysis.atoms():
        (wanted if analysis.is_comparison(atom) else subjects).update(keys(atom))
    flows = [flow for node in analysis.nodes for flow in _flows(analysis, node)]
    for found in (subjects, wanted):
        _follow(found, flows, frozenset(), back=True)
    return subjects, wanted


def _flows(analysis: Analysis, node: ast.AST) -> Iterator[_Flow]:
    """Yield names that get their values, or decide about them, in a node, and the names that these come from."""
    if isinstance(node, (ast.For, ast.comprehension)):
        yield _Flow(stored(node.target), keys(node.iter))
    elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) and node.value is not None:
        if not (isinstance(node.value, ast.Call) and analysis.calls_program(node.value)):
            yield _Flow(stored(node), keys(node.value))
    elif isinstance(node, ast.Call) and called_name(node) in FILLING and isinstance(node.func, ast.Attribute):
        yield _Flow(keys(node.func.value), _joined(node.args))
    elif isinstance(node, FUNCTIONS) and not is_test_name(node.name) and node.name not in analysis.results:
        yield _Flow(frozenset((node.name, f".{node.name}")), _joined(node.body))
    if isinstance(node, (ast.For, ast.While)):
        inside = [part for statement in node.body for part in ast.walk(statement)]
        changed = (stored(part) for part in inside if isinstance(part, ast.AugAssign))
        yield _Flow(frozenset().union(*changed), keys(node.iter if isinstance(node, ast.For) else node.test))


def shown(analysis: Analysis) -> frozenset[str]:
    """Return the names, and ".attr" for attributes, of arguments to which a program's changes are written back."""
    called = {id(node.func) for node in analysis.nodes if isinstance(node, ast.Call)}
    attributes = [node for node in analysis.nodes if isinstance(node, ast.Attribute)]
    # Methods are not what an object holds.
    others = analysis.ours | {f".{n.attr}" for n in attributes} - {
        f".{n.attr}" for n in attributes if id(n) not in called
    }
    data = [flow for node in analysis.nodes for flow in _data(analysis, node)]
    found = {key for atom in _looked_at(analysis) if not analysis.is_comparison(atom) for key in keys(atom)} - others
    _follow(found, data, others)
    _follow(found, data + [flow for node in analysis.nodes for flow in _control(node)], others, back=True)
    return frozenset(found)


def _follow(found: set[str], flows: list[_Flow], others: frozenset[str] | set[str], *, back: bool = False) -> None:
    """Add to `found` what it comes from, and unless `back`, what is taken out of it and what it is put into."""
    size = -1
    while len(found) > size:
        size = len(found)
        for targets, sources, part in flows:
            if not found.isdisjoint(targets):
                found |= sources - others
            elif part and not back and not found.isdisjoint(sources):
                found |= targets - others


def _looked_at(analysis: Analysis) -> Iterator[ast.expr]:
    yield from analysis.atoms()
    yield from (site.test for site in analysis.sites if isinstance(site, ast.If))
    for node in analysis.nodes:
        # A helper that calls the program and returns what that did to its arguments.
        if isinstance(node, FUNCTIONS) and node.name in analysis.results:
            yield from (part.value for part in ast.walk(node) if isinstance(part, ast.Return) and part.value)


def _data(analysis: Analysis, node: ast.AST) -> Iterator[_Flow]:
    """Yield names that get their values in a node, and the names that these come from."""
    if isinstance(node, _LOOPS):
        yield _Flow(stored(node.target), keys(node.iter))
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield _Flow(stored(node.optional_vars), keys(node.context_expr))
    elif isinstance(node, ast.Match):
        yield _Flow(frozenset().union(*(stored(case.pattern) for case in node.cases)), keys(node.subject))
    elif isinstance(node, _ASSIGNED) and node.value is not None:
        if not analysis.calls_program(node.value):
            yield _Flow(stored(node), keys(node.value))
    elif isinstance(node, FUNCTIONS) and node.name not in analysis.results:
        yield _Flow(frozenset((node.name, f".{node.name}")), _joined(node.body), False)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and not analysis.from_program(node.func):
            yield _Flow(keys(node.func.value), _joined(node.args))
        for function in analysis.functions.get(called_name(node), []):
            for parameter, given in zip(_parameters(node, function), node.args):
                yield _Flow(frozenset((parameter,)), keys(given))
            yield from (_Flow(frozenset((k.arg,)), keys(k.value)) for k in node.keywords if k.arg is not None)


def _control(node: ast.AST) -> Iterator[_Flow]:
    """Yield names that are bound in a block, and the names that decide whether it is executed."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.If, ast.While)):
        decides = node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else node.test
        inside = [part for statement in node.body for part in ast.walk(statement)]
        bound = (stored(part) for part in inside if isinstance(part, _ASSIGNED))
        yield _Flow(frozenset().union(*bound), keys(decides), False)


def _joined(nodes: Iterable[ast.AST]) -> frozenset[str]:
    return frozenset().union(*map(keys, nodes))


def _parameters(call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    return names[1:] if isinstance(call.func, ast.Attribute) and names[:1] in (["self"], ["cls"]) else names
