r"""Products whose order counts: A^{-1}B is not BA^{-1}, \mathbf{AB} is not \mathbf{BA}.

The letters of a gold are matrices where it has an inverse or a transpose of capital letters, a determinant or a trace
of them, a product of bold capitals (head `matmul`), the same two capitals in both orders, or letters A to D as in A^2B
and AB = C. A small letter that ends a product after a matrix is a vector there. Two such expressions are equal where
they are for random matrices of three rows modulo a prime near 2**127 (Schwartz 1980); matrices of that size satisfy no
polynomial identity of a degree below 6 (Amitsur and Levitzki 1950). A/B is A B^{-1}, the letter I the unit matrix.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from typing import Any

from rlvr.verifiers.math.exact import PRIMES, Inexact, Undefined, rational
from rlvr.verifiers.math.tree import CONSTANTS, Node, Op, Rel, Sym, children, number, symbols, walk, with_children

SIZE = 3
MAX_NODES = 400
MAX_POWER = 64
_TRANSPOSE = Sym("T")
_MINUS_ONE = Op("neg", (number(1),))
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm|pmb)\s*(?:\{\s*([A-Za-z ]+)\}|([A-Za-z]))")
_ORDERED = frozenset(("matmul", "det", "trace", "pow", "mul"))
_MATRIX_NAMES = frozenset("ABCD")
_OF_MATRICES = frozenset(("add", "mul", "matmul", "neg", "pow", "div"))

_Matrix = list[list[int]]


def with_bold_products(text: str, tree: Node) -> Node:
    """Return the tree with `matmul` for products of bold capitals, but for the label of an equation."""
    bold = {letter for match in _BOLD.finditer(text) for letter in match[1] or match[2] if letter.isupper()}
    if not bold:
        return tree
    if isinstance(tree, Rel):
        return Rel(tree.ops, (tree.sides[0], *(_with_bold(side, bold) for side in tree.sides[1:])))
    return _with_bold(tree, bold)


def _with_bold(node: Node, bold: set[str]) -> Node:
    below = tuple(_with_bold(child, bold) for child in children(node))
    if isinstance(node, Op) and node.head == "mul":
        found = {part.name for part in below if isinstance(part, Sym)} & bold
        return Op("matmul" if len(found) > 1 else "mul", below)
    return with_children(node, below) if below else node


def is_bold_product(text: str) -> bool:
    r"""Whether a text is bold letters without anything between them, \mathbf{AB}: a product, not two choices."""
    return "\\" in text and any(len(match[1] or "") > 1 and match[1].isalpha() for match in _BOLD.finditer(text))


def has_order(gold: Node) -> bool:
    """Whether the order of factors counts in a gold."""
    seen: set[tuple[Node, Node]] = set()
    for part in walk(gold):
        if type(part) is not Op or part.head not in _ORDERED:
            continue
        if part.head in ("matmul", "det", "trace"):
            return not any(isinstance(inner, Op) and inner.head == "matrix" for inner in walk(part))
        if part.head == "pow" and (part.args[1] in (_TRANSPOSE, _MINUS_ONE)) and _is_matrix(part.args[0]):
            return True
        if part.head == "mul":
            capitals = [base for arg in part.args if _is_capital(base := _base(arg))]
            hats = {arg.name for arg in part.args if isinstance(arg, Sym) and arg.name.startswith("hat ")}
            if len(hats) > 1:
                return True  # operators
            seen.update(pair for pair in itertools.pairwise(capitals) if pair[0] != pair[1])
    return any((right, left) in seen for left, right in seen) or (bool(seen) and _is_of_matrices(gold))


def _is_of_matrices(node: Node) -> bool:
    """Whether letters A to D are rather matrices: A^2B, where AB^2 is a length, and AB = C as a difference."""
    if not symbols(node) <= _MATRIX_NAMES:
        return False
    terms = [inner for part in children(node) for inner in (children(part) if _is_negative(part) else (part,))]
    if not isinstance(node, Op):
        return False
    if node.head == "add" and len(terms) == 2 and len(set(map(type, terms))) == 2:
        return all(isinstance(term, Sym) or (isinstance(term, Op) and term.head == "mul") for term in terms)
    return node.head == "mul" and any(isinstance(factor, Op) and factor.head == "pow" for factor in node.args[:-1])


def _is_negative(node: Node) -> bool:
    return isinstance(node, Op) and node.head == "neg"


def _base(node: Node) -> Node:
    return node.args[0] if isinstance(node, Op) and node.head == "pow" else node


def _is_capital(node: Node) -> bool:
    return isinstance(node, Sym) and node not in CONSTANTS and node.name[0].isupper() and node.name[1:2] in ("", "_")


def _is_matrix(node: Node) -> bool:
    """Whether a node is made of capital letters: A, AB, A + B, X^T X."""
    if isinstance(node, Op) and node.head == "pow" and node.args[1] in (_TRANSPOSE, _MINUS_ONE):
        return _is_matrix(node.args[0])
    if isinstance(node, Op) and node.head in _OF_MATRICES:
        return all(map(_is_matrix, node.args))
    return _is_capital(node)


def is_transposed_letter(node: Op) -> bool:
    """Whether a power is A^T or (AB)^T."""
    return node.args[1] == _TRANSPOSE and _is_matrix(node.args[0])


def commuting(node: Node) -> Node:
    """Return the tree with products whose order does not count."""
    below = tuple(map(commuting, children(node)))
    if isinstance(node, Op):
        return Op("mul" if node.head == "matmul" else node.head, below)
    return with_children(node, below) if below else node


def same_ordered(gold: Node, answer: Node) -> bool:
    """Whether two expressions of matrices are equal. Raise Inexact where one of them is no such expression."""
    if sum(1 for tree in (gold, answer) for _ in itertools.islice(walk(tree), MAX_NODES)) >= MAX_NODES:
        raise Inexact
    rng = random.Random(f"{gold}*{answer}")
    algebra = _Algebra(gold, answer, rng)
    for _ in range(2):
        algebra.draw()
        left, right = algebra.value(gold), algebra.value(answer)
        if algebra.matrix(left) != algebra.matrix(right):
            return False
    return True


class _Algebra:
    """Values of trees in matrices and scalars modulo a prime."""

    def __init__(self, gold: Node, answer: Node, rng: random.Random) -> None:
        self._rng = rng
        self._names = sorted(symbols(gold) | symbols(answer))
        parts = [part for tree in (gold, answer) for part in walk(tree) if isinstance(part, Op)]
        turned = {part.args[0] for part in parts if part.head == "pow"}
        self._matrices = {name for name in self._names if name[0].isupper() or name.startswith("hat ")} | _vectors(gold)
        self._unit = {name for name in ("I", "I_n") if Sym(name) not in turned}
        self._prime = 2
        self._at: dict[str, Any] = {}

    def draw(self) -> None:
        """Choose a prime, and a value for each name."""
        self._prime = PRIMES[self._rng.randrange(len(PRIMES))][0]
        self._at = {name: self._drawn(name) for name in self._names}

    def _drawn(self, name: str) -> Any:
        if name in self._unit:
            return self.matrix(1)
        if name not in self._matrices:
            return self._rng.randrange(1, self._prime)
        return [[self._rng.randrange(1, self._prime) for _ in range(SIZE)] for _ in range(SIZE)]

    def matrix(self, value: Any) -> _Matrix:
        """Return a scalar as a multiple of the unit matrix."""
        if isinstance(value, int):
            return [[value % self._prime if i == j else 0 for j in range(SIZE)] for i in range(SIZE)]
        result: _Matrix = value
        return result

    def value(self, node: Node) -> Any:
        """Return the value of a tree: an integer or a matrix. Raise Inexact or Undefined."""
        exact = rational(node)
        if exact is not None:
            return exact.numerator * pow(exact.denominator, -1, self._prime) % self._prime
        if isinstance(node, Sym) and node.name in self._at:
            return self._at[node.name]
        if not isinstance(node, Op):
            raise Inexact
        if node.head == "pow":
            return self._power(node.args[0], node.args[1])
        values = [self.value(arg) for arg in node.args]
        if node.head in ("mul", "matmul"):
            return functools.reduce(self._product, values)
        if node.head == "add":
            return functools.reduce(self._sum, values)
        if node.head == "neg":
            return self._product(self._prime - 1, values[0])
        if node.head == "div":
            return self._product(values[0], self._inverse(values[1]))
        if node.head == "det":
            return _determinant(self.matrix(values[0])) % self._prime
        if node.head == "trace":
            return sum(self.matrix(values[0])[k][k] for k in range(SIZE)) % self._prime
        raise Inexact

    def _power(self, base: Node, exponent: Node) -> Any:
        value = self.value(base)
        if exponent == _TRANSPOSE:
            return value if isinstance(value, int) else [list(column) for column in zip(*value, strict=True)]
        power = rational(exponent)
        if power is None or power.denominator != 1 or abs(power) > MAX_POWER:
            raise Inexact
        if power < 0:
            value = self._inverse(value)
        return functools.reduce(self._product, [value] * abs(int(power)), 1)

    def _sum(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return (left + right) % self._prime
        rows = zip(self.matrix(left), self.matrix(right), strict=True)
        return [[(a + b) % self._prime for a, b in zip(*pair, strict=True)] for pair in rows]

    def _product(self, left: Any, right: Any) -> Any:
        if isinstance(left, int) and isinstance(right, int):
            return left * right % self._prime
        if isinstance(left, int) or isinstance(right, int):
            scalar, rows = (left, right) if isinstance(left, int) else (right, left)
            return [[scalar * entry % self._prime for entry in row] for row in rows]
        columns = list(zip(*right, strict=True))
        return [
            [sum(a * b for a, b in zip(row, column, strict=True)) % self._prime for column in columns] for row in left
        ]

    def _inverse(self, value: Any) -> Any:
        determinant = (value if isinstance(value, int) else _determinant(value)) % self._prime
        if not determinant:
            raise Undefined("the inverse of a singular matrix")
        inverse = pow(determinant, -1, self._prime)
        return inverse if isinstance(value, int) else self._product(inverse, _adjugate(value))


def _determinant(rows: _Matrix) -> int:
    (a, b, c), (d, e, f), (g, h, i) = rows
    return a * (e * i - f * h) - b * (d * i - f * g) + c * (d * h - e * g)


def _adjugate(rows: _Matrix) -> _Matrix:
    (a, b, c), (d, e, f), (g, h, i) = rows
    return [
        [e * i - f * h, c * h - b * i, b * f - c * e],
        [f * g - d * i, a * i - c * g, c * d - a * f],
        [d * h - e * g, b * g - a * h, a * e - b * d],
    ]


def _vectors(gold: Node) -> set[str]:
    """The small letters that end a product after a matrix, or are transposed."""
    found: set[str] = set()
    for part in walk(gold):
        if not isinstance(part, Op):
            continue
        if part.head in ("mul", "matmul"):
            last, before = part.args[-1], part.args[-2]
            if isinstance(last, Sym) and _is_matrix(before):
                found.add(last.name)
        elif part.head == "pow" and part.args[1] == _TRANSPOSE and isinstance(part.args[0], Sym):
            found.add(part.args[0].name)
    return found
