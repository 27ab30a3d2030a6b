"""What the proof of strength demands of containers that both sides hold: copies must behave as in Python."""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING

from rlvr.sandbox.inside.live import called_name
from rlvr.verifiers.code import known
from rlvr.verifiers.code.known import NotProved
from rlvr.verifiers.code.scopes import Key, Loops, Variable

if TYPE_CHECKING:
    from rlvr.verifiers.code.strength import Proof

_FRESH_CALLS = frozenset(
    "list dict set sorted bytearray deque Counter defaultdict OrderedDict sample choices deepcopy split splitlines "
    "copy tolist most_common array zeros ones arange full".split()
)


def check(proof: Proof) -> None:
    """Raise NotProved where a container may be changed by one side while the other one still reads it."""
    settled = {key for key, _, _ in proof.subjects if _is_settled(proof, key)}
    groups = _groups(proof)
    for key, atom, place in proof.subjects:
        passes = [passed[0] for member in groups[key] for passed in proof.variables[member].passes]
        if key not in settled and any(passed < place for passed in passes) and not _fixed(proof, key):
            raise NotProved(f"{ast.unparse(atom)} looks at an argument")
    for key, variable in proof.variables.items():
        if _fixed(proof, key):
            continue
        _check_changes(proof, key, variable)
        _check_passes(proof, key, groups[key], key in settled)
        if key[1] in proof.answers:
            _check_answers(proof, key, variable)
    proof.settled = {id(node) for key in settled for node in proof.arguments.get(key, ())}


def _fixed(proof: Proof, key: Key) -> bool:
    return key[1] in proof.immutable


def _again(loops: Loops, others: Loops) -> Loops:
    """Return the loops that two places have in common."""
    return tuple(loop for loop in loops if any(loop is other for other in others))


def _bound_between(variable: Variable, first: int, last: int) -> bool:
    return any(first < place < last for place, *_ in variable.binds)


def _bound_in(variable: Variable, loop: ast.AST, before: int) -> bool:
    return any(place < before and any(inner is loop for inner in loops) for place, loops, _, _ in variable.binds)


def _check_changes(proof: Proof, key: Key, variable: Variable) -> None:
    """What tests change is theirs alone, and nothing else has been told of it before."""
    if not variable.changes:
        return
    for _, _, value, node in variable.binds:
        whole = isinstance(node, ast.Assign) and all(isinstance(target, ast.Name) for target in node.targets)
        if value is None or not whole or not _is_fresh(value, "numpy" in proof.modules.values()):
            raise NotProved(f"{key[1]} is changed, and may be known elsewhere")
    deep = all(value is not None and _is_deep(value) for _, _, value, _ in variable.binds)
    stored = [value for _, _, depth, value in variable.changes if depth == 1 and value is not None]
    if any(depth > 1 for _, _, depth, _ in variable.changes) and not (deep and all(map(_is_deep, stored))):
        raise NotProved(f"a part of {key[1]} is changed, and may be known elsewhere")
    for place, loops, _, _ in variable.changes:
        for escape, around in variable.escapes:
            if escape < place and not _bound_between(variable, escape, place):
                raise NotProved(f"{key[1]} is changed after it has been handed on")
            if any(not _bound_in(variable, loop, place) for loop in _again(loops, around)):
                raise NotProved(f"{key[1]} is changed in a loop that hands it on")


def _is_fresh(node: ast.expr, arrays: bool) -> bool:
    """Whether an expression makes a container of its own."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Slice) and not arrays
    if isinstance(node, (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp, ast.BinOp)):
        return True
    return known.is_scalar(node) or called_name(node) in _FRESH_CALLS


def _is_deep(node: ast.expr) -> bool:
    """Whether all that an expression holds is its own, too."""
    if isinstance(node, (ast.List, ast.Set, ast.Tuple)):
        return all(map(_is_deep, node.elts))
    if isinstance(node, (ast.ListComp, ast.SetComp)):
        return _is_deep(node.elt)
    if isinstance(node, ast.BinOp):
        return known.is_scalar(node) or (isinstance(node.op, ast.Mult) and _is_deep(node.left))
    if isinstance(node, ast.Call) and called_name(node) in _FRESH_CALLS:
        factory = called_name(node) == "defaultdict" and all(isinstance(part, ast.Name) for part in node.args)
        return factory or known.is_deep_copy(node) or not node.args
    return known.is_scalar(node) or (isinstance(node, ast.Dict) and all(map(_is_deep, node.values)))


def _groups(proof: Proof) -> dict[Key, set[Key]]:
    """Return, for each variable, those that may hold parts of the same containers, itself among them."""
    groups = {key: {key} for key in proof.variables}
    for key, variable in proof.variables.items():
        for other in variable.others & groups.keys():
            if not _fixed(proof, key) and not _fixed(proof, other) and groups[key] is not groups[other]:
                groups[key] |= groups[other]
                for member in groups[other]:
                    groups[member] = groups[key]
    return groups


def _check_passes(proof: Proof, key: Key, group: set[Key], settled: bool) -> None:
    """An argument is handed to one call; what it is afterwards is not looked at but as an answer (`settled`)."""
    variable = proof.variables[key]
    if not variable.passes:
        return
    passes = sorted(passed[0] for member in group for passed in proof.variables[member].passes)
    for first, last in itertools.pairwise(passes):
        if len(group) > 1 or not _bound_between(variable, first, last):
            raise NotProved(f"{key[1]} is handed to several calls")
    for place, loops, in_place, _ in variable.passes:
        if not all(any(_bound_in(proof.variables[member], loop, place) for member in group) for loop in loops):
            raise NotProved(f"{key[1]} is handed to a call again and again")
        if in_place and not settled and any(read[0] > place for read in variable.reads):
            raise NotProved(f"{key[1]} is read after a call that may be made to change it")


def _check_answers(proof: Proof, key: Key, variable: Variable) -> None:
    """An answer is read before the next call, which could change it in Python, or is equal to a constant."""
    calls = [call for scope in (proof.module, *proof.scopes.values()) for call in scope.calls]
    for place, loops, value, node in variable.binds:
        if value is None or known.is_scalar(value) or not proof.has_answer(value):
            continue
        if key[1] in proof.classes.bound:
            continue
        over = isinstance(node, (ast.For, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp))
        for read, around, reader in variable.reads:
            if reader is not None:
                continue
            between = [call for call, _ in calls if place < call < read]
            if between and not _bound_between(variable, max(between), read):
                raise NotProved(f"{key[1]} is read after another call")
            again = [loop for loop in around if not any(loop is outer for outer in loops)]
            if any(any(inner is loop for inner in where) for loop in again for _, where in calls):
                raise NotProved(f"{key[1]} is read in a loop with other calls")
            if read < place and _again(loops, around):
                raise NotProved(f"{key[1]} is read after the calls of a turn")
        if over and any(any(inner is node for inner in where) for call, where in calls if call > place):
            raise NotProved("answers are taken out of another one between calls")


def _is_settled(proof: Proof, key: Key) -> bool:
    """Whether a variable is a literal, handed to one call, and then only compared with literals."""
    variable = proof.variables[key]
    binds = variable.binds
    if len(binds) != 1 or len(variable.passes) != 1 or variable.changes or binds[0][2] is None:
        return False
    (place, loops, _, direct), (_, around, value, node) = variable.passes[0], binds[0]
    if not direct or len(loops) != len(around) or not isinstance(node, ast.Assign) or not _is_literal(value):
        return False
    looked = [atom for other, atom, _ in proof.subjects if other == key and _compares_with_literal(atom, key[1])]
    counted = sum(isinstance(part, ast.Name) and part.id == key[1] for atom in looked for part in ast.walk(atom))
    after = [read for read, *_ in variable.reads if read > place]
    once = isinstance(value, (ast.List, ast.Dict, ast.Set))
    return once and len(after) == counted and not any(key in other.others for other in proof.variables.values())


def _is_literal(node: ast.AST | None) -> bool:
    try:
        ast.literal_eval(node)  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError, MemoryError):
        return False
    return True


def _compares_with_literal(atom: ast.expr, name: str) -> bool:
    if not isinstance(atom, ast.Compare) or len(atom.ops) != 1 or not isinstance(atom.ops[0], ast.Eq):
        return False
    side = atom.left
    if isinstance(side, ast.Call) and called_name(side) == "len" and len(side.args) == 1:
        side = side.args[0]
    if isinstance(side, ast.Subscript) and _is_literal(side.slice):
        side = side.value
    return isinstance(side, ast.Name) and side.id == name and _is_literal(atom.comparators[0])
