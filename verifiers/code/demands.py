"""Whether strong test code demands anything of a program: a value that depends on the input, or different values.

Told from the asserts that are executed in any case. A constant, an echo of an argument, an exception, and an answer of
which only the size or the type is looked at, demand nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from rlvr.sandbox.inside.live import called_name, truth
from rlvr.verifiers.code import known
from rlvr.verifiers.code.scopes import Scope
from rlvr.verifiers.code.strength import Proof

_TRIVIAL = frozenset(("None", "True", "False", "0", "0.0", "''", "b''", "[]", "()", "{}", "set()"))
_KEEPING = frozenset("sorted list tuple round str repr int float copy deepcopy array".split())
_CLOSE = frozenset("isclose allclose array_equal".split())


def demands(proof: Proof) -> bool:
    """Whether some assert cannot be passed by a program that solves nothing."""
    return _Demands(proof).any()


class _Demands:
    def __init__(self, proof: Proof) -> None:
        self.proof = proof
        self.values: dict[str, ast.expr] = {}
        self.varying: set[str] = set()
        counts: dict[str, int] = {}
        for names, value in known.assigned(proof.tree):
            for name in names:
                counts[name] = counts.get(name, 0) + 1
                self.values[name] = value
        loops = [node for node in ast.walk(proof.tree) if isinstance(node, (ast.For, ast.comprehension))]
        targets = set().union(*(known.bound(node.target) for node in loops))
        inside = set().union(*(known.bound(part) for node in loops if isinstance(node, ast.For) for part in node.body))
        self.varying = targets | inside | {name for name, count in counts.items() if count > 1}
        self.values = {name: value for name, value in self.values.items() if counts[name] == 1 and name not in targets}
        self.tables = dict(self._columns(loops))

    def _columns(self, loops: list[ast.For | ast.comprehension]) -> Iterator[tuple[str, list[str]]]:
        """Yield the values that a variable takes in a loop over literals, as text."""
        for node in loops:
            rows = self._literal(node.iter)
            targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
            if not isinstance(rows, (list, tuple)):
                continue
            for number, target in enumerate(targets):
                whole = not isinstance(node.target, ast.Tuple)
                try:
                    found = [repr(row if whole else row[number]) for row in rows]
                except (TypeError, LookupError):
                    continue
                if isinstance(target, ast.Name):
                    yield target.id, found

    def _literal(self, node: ast.expr | None) -> object:
        if isinstance(node, ast.Name):
            node = self.values.get(node.id)
        try:
            return ast.literal_eval(node) if node is not None else None
        except (ValueError, TypeError, RecursionError, MemoryError):
            return None

    def any(self) -> bool:
        """Whether an assert is firm: by its own value, or because one answer cannot fit all of them."""
        found: dict[str, list[str]] = {}
        for scope, atom, looped in self._executed():
            for key, texts in self._of(scope, atom, True):
                # One value in a loop is demanded more than once.
                found.setdefault(key, []).extend(texts * 2 if looped else texts)
        for texts in found.values():
            single = len(texts) == 1 and texts[0] not in _TRIVIAL
            if len(set(texts)) > 1 or "*" in texts or single:
                return True
        return False

    def _executed(self) -> Iterator[tuple[Scope, ast.expr, bool]]:
        yield from ((self.proof.module, *found) for found in self._atoms(self.proof.tree.body, False))
        for name, scope in self.proof.scopes.items():
            by_runner = name.startswith("test") and not scope.parameters and scope.above is self.proof.module
            if scope.called or by_runner:
                yield from ((scope, *found) for found in self._atoms(scope.node.body, len(scope.called) > 1))

    def _atoms(self, body: list[ast.stmt], looped: bool) -> Iterator[tuple[ast.expr, bool]]:
        for node in body:
            if isinstance(node, ast.Assert):
                yield from ((atom, looped) for atom in known.atoms(node.test))
            elif isinstance(node, ast.For) and not self.proof.has_answer(node.iter):
                yield from self._atoms(node.body, True)
            ends = isinstance(node, (ast.Return, ast.Raise, ast.Break, ast.Continue)) or known.leaves(node)
            if ends and not isinstance(node, ast.FunctionDef):
                return

    def _of(self, scope: Scope, atom: ast.expr, wanted: bool) -> Iterator[tuple[str, list[str]]]:
        """Yield what an assert demands: of which function or method, and which values ("*": one that varies)."""
        if isinstance(atom, ast.UnaryOp) and isinstance(atom.op, ast.Not):
            yield from self._of(scope, atom.operand, not wanted)
        elif not self.proof.has_answer(atom):
            yield from self._of_argument(atom)
        elif isinstance(atom, ast.Call) and isinstance(atom.func, ast.Name) and atom.func.id == "all":
            inner = atom.args[0]
            if not isinstance(inner, (ast.GeneratorExp, ast.ListComp)):
                return
            if not any(self.proof.has_answer(part.iter) or part.ifs for part in inner.generators) and wanted:
                yield from self._of(scope, inner.elt, True)
        elif isinstance(atom, ast.Call) and called_name(atom) in _CLOSE and len(atom.args) > 1 and wanted:
            yield from self._equal(scope, atom.args[0], atom.args[1])
        elif isinstance(atom, ast.Compare) and len(atom.ops) == 1 and wanted:
            left, right, op = atom.left, atom.comparators[0], atom.ops[0]
            if isinstance(op, (ast.Eq, ast.Is)):
                yield from self._equal(scope, left, right)
            elif isinstance(op, (ast.Lt, ast.LtE)) and called_name(left) in ("abs", "fabs"):
                inner = left.args[0]  # type: ignore[attr-defined]
                if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Sub) and not self.proof.has_answer(right):
                    yield from self._equal(scope, inner.left, inner.right)
                elif self._applies(inner):
                    yield "", ["*"]
        else:
            key = self._key(atom)
            if key and truth(atom) is None:
                yield key, [str(wanted)]

    def _applies(self, node: ast.expr) -> bool:
        """`poly(coefficients, f(coefficients))`: a function of the tests computes with the answer, as a number."""
        if not isinstance(node, ast.Call) or called_name(node) not in self.proof.scopes.keys() - self.proof.impure:
            return False
        scope = self.proof.scopes[called_name(node)]
        theirs = {name for name, part in zip(scope.parameters, node.args) if self.proof.has_answer(part)}
        for part in ast.walk(scope.node):
            computes = (
                isinstance(part, ast.BinOp)
                or known.path(getattr(part, "func", part), self.proof.modules)[:5] == "math."
            )
            for inner in ast.iter_child_nodes(part):
                if isinstance(inner, ast.Name) and inner.id in theirs and not computes:
                    return False
        return len(theirs) == 1 < len(node.args)

    def _equal(self, scope: Scope, left: ast.expr, right: ast.expr) -> Iterator[tuple[str, list[str]]]:
        theirs, ours = (left, right) if self.proof.has_answer(left) else (right, left)
        while called_name(ours) == "approx" and isinstance(ours, ast.Call) and ours.args:
            ours = ours.args[0]
        key = self._key(theirs)
        if not key or self.proof.has_answer(ours) or self._is_echo(theirs, ours):
            return
        yield key, self._texts(scope, ours)

    def _key(self, node: ast.expr) -> str:
        """Return which function or method an answer is of; "" where it is looked at through something else."""
        if isinstance(node, ast.Name):
            return self._key(self.values[node.id]) if node.id in self.values else ""
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            inner = self._key(node.value)
            return inner and f"{inner}[{ast.unparse(node.slice)}]"
        if isinstance(node, ast.Call):
            if called_name(node) in _KEEPING and len(node.args) == 1 and not isinstance(node.func, ast.Attribute):
                inner = self._key(node.args[0])
                return inner and f"{called_name(node)} of {inner}"
            if called_name(node) in ("len", "bool", "set", "type") or known.root(node.func) in self.proof.scopes:
                return ""
            direct = known.root(node.func) in self.proof.names
            objects = isinstance(node.func, ast.Attribute) and self._is_object(node.func.value)
            return ast.unparse(node.func) if direct or objects else ""
        if isinstance(node, ast.Attribute) and self._is_object(node.value):
            return ast.unparse(node)
        return ""

    def _is_object(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Name):
            return node.id in self.proof.classes.bound
        return isinstance(node, ast.Call) and known.root(node) in self.proof.classes.names

    def _texts(self, scope: Scope, ours: ast.expr) -> list[str]:
        """Return the values that an expression has in turn, as text; "*" where it depends on what varies."""
        if isinstance(ours, ast.Name) and ours.id in scope.parameters:
            place = scope.parameters.index(ours.id)
            given = [call.args[place] for call in scope.called if len(call.args) > place]
            return [text for part in given for text in self._texts(self.proof.module, part)]
        if isinstance(ours, ast.Name) and ours.id in self.tables:
            return self.tables[ours.id]
        if isinstance(ours, ast.Name) and ours.id in self.values and ours.id not in self.varying:
            return self._texts(scope, self.values[ours.id])
        names = {part.id for part in ast.walk(ours) if isinstance(part, ast.Name)}
        varies = names & (self.varying | set(scope.parameters))
        return ["*"] if varies else [ast.unparse(ours)]

    def _is_echo(self, theirs: ast.expr, ours: ast.expr) -> bool:
        """Whether the expected value is an argument, or the same function of one."""
        given = [self._stripped(part) for part in self._arguments(theirs)]
        return self._stripped(ours) in given

    def _arguments(self, node: ast.expr) -> Iterator[ast.expr]:
        if isinstance(node, ast.Name) and node.id in self.values:
            yield from self._arguments(self.values[node.id])
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                yield from part.args
                yield from (keyword.value for keyword in part.keywords)

    def _stripped(self, node: ast.expr) -> str:
        """Return an expression, without copies and orders around it, as text."""
        while True:
            if (
                isinstance(node, ast.Name)
                and node.id in self.values
                and isinstance(self.values[node.id], (ast.Name, ast.Call))
            ):
                copied = self.values[node.id]
                if not isinstance(copied, ast.Name) and called_name(copied) not in _KEEPING:
                    return node.id
                node = copied
            elif isinstance(node, ast.Call) and called_name(node) in _KEEPING and len(node.args) == 1:
                node = node.args[0]
            elif isinstance(node, ast.Call) and called_name(node) == "copy" and isinstance(node.func, ast.Attribute):
                node = node.func.value
            elif isinstance(node, ast.Subscript) and ast.unparse(node.slice) == ":":
                node = node.value
            else:
                return ast.unparse(node)

    def _of_argument(self, atom: ast.expr) -> Iterator[tuple[str, list[str]]]:
        """`sort(xs)`, then `assert xs == [1, 2, 3]`."""
        if not (isinstance(atom, ast.Compare) and isinstance(atom.left, ast.Name)):
            return
        settled = {
            node.id for nodes in self.proof.arguments.values() for node in nodes if id(node) in self.proof.settled
        }
        name, wanted = atom.left.id, ast.unparse(atom.comparators[0])
        if name in settled and name in self.values and ast.unparse(self.values[name]) != wanted:
            yield f"{name} after the call", [wanted]
